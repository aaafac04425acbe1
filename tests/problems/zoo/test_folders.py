"""The zoo of data folders: each is read as it is meant, on 1, 3 and 5 ranks, and replayed; or it is refused with one
line that names the file."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import mpifl
from mpifl.cli import main
from tests.mpi.conftest import in_one_job, one_line, write
from tests.mpi.files import differing
from tests.problems.zoo.folders import CASES, GOOD, WRONG, Client
from tests.tiers import parameters

STEP, NU, ROUNDS = 0.5, 0.01, 4
JOB = {
    "seed": 0,
    "problem": {
        "data": {"name": "folder", "path": ""}, "l2": NU,
        "model": {"name": "logistic", "bias": True, "init": {"name": "zero"}},
    },
    "algorithm": {"name": "fedavg", "step_size": STEP, "local_steps": 1},
    "clock": {"mode": "virtual", "delay": {"name": "exponential", "rate": 10}},
    "stop": {"updates": 0}, "evaluate": {"updates": 0},
}  # fmt: skip


def run_words(job: Path, name: str, output: str | Path, clients: int = 1, rounds: int = ROUNDS) -> list[str]:
    data = {"name": "folder", "path": str(job.with_name(name)), **CASES[name].data}
    numbers = [f"stop.updates={rounds * clients}", f"evaluate.updates={ROUNDS // 2 * clients}"]
    return ["run", str(job), f"problem.data={data}", f"output={output}", *numbers, "checkpoint.end=true"]


def called(*words: str) -> tuple[int, str]:
    """The exit code of a command in this process, and its errors and warnings."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        return main([*words]), err.getvalue()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("zoo"), "job", JOB)


@pytest.fixture(scope="module")
def written(job: Path) -> Callable[[str], list[Client]]:
    """Writes a folder once; returns the rows of its clients."""
    known: dict[str, list[Client]] = {}

    def write_folder(name: str) -> list[Client]:
        if name not in known:
            path = job.with_name(name)
            path.mkdir()
            known[name] = CASES[name].write(path)
        return known[name]

    return write_folder


def by_hand(clients: Sequence[Client], labels: Any = None) -> tuple[np.ndarray, dict[str, float]]:
    """The model after ROUNDS rounds of FedAvg with one step of all clients of equal weight, and its numbers."""
    tests = [part[2:] for part in clients if len(part) > 2]
    given = max(labels.values()) if isinstance(labels, dict) else 1
    classes = int(max(y.max(initial=given) for _, y in [part[:2] for part in clients] + tests)) + 1
    w, b = np.zeros((clients[0][0].shape[1], classes)), np.zeros(classes)

    def log_softmax(x: np.ndarray) -> np.ndarray:
        scores = x @ w + b
        return scores - np.log(np.exp(scores).sum(1, keepdims=True))

    def losses(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return -log_softmax(x)[np.arange(len(y)), y]

    def right(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return log_softmax(x).argmax(1) == y

    for _ in range(ROUNDS):
        slopes = [(np.exp(log_softmax(x)) - np.eye(classes)[y]) / len(y) for x, y, *_ in clients]
        w, b = (
            w - STEP * (np.mean([x.T @ s for (x, *_), s in zip(clients, slopes)], 0) + NU * w),
            b - STEP * np.mean([s.sum(0) for s in slopes], 0),
        )
    train = np.concatenate([losses(*part[:2]) for part in clients])
    return np.r_[w.ravel(), b], {
        "train_loss": train.mean() + NU / 2 * (w**2).sum(),
        "test_loss": np.concatenate([losses(*part) for part in tests]).mean() if tests else nan,
        "test_accuracy": np.concatenate([right(*part) for part in tests]).mean() if tests else nan,
        "client_accuracy_mean": np.mean([right(*part).mean() for part in tests]) if tests else nan,
    }


@pytest.mark.parametrize("name", parameters(GOOD, ["archives", "labels_with_decimals", "labels_with_leading_zeros"]))
def test_a_folder_is_read_as_it_is_meant(written: Callable[[str], list[Client]], job: Path, name: str) -> None:
    """A run of it has the model and the numbers of plain gradient descent, is replayed and resumed with the same bits,
    and exported."""
    clients = written(name)
    x, numbers = by_hand(clients, CASES[name].data.get("labels"))
    output = job.with_name(f"{name}.h5")
    code, err = called(*run_words(job, name, output, len(clients)))
    assert code == 0 and err.count("\n") == bool(CASES[name].line) and CASES[name].line in err, err
    with mpifl.open_run(output) as run:
        assert run.clients.samples.tolist() == [len(y) for _, y, *_ in clients]
        assert run.model == pytest.approx(x, rel=1e-4, abs=1e-6)
        assert dict(run.evaluations.iloc[-1][[*numbers]]) == pytest.approx(numbers, rel=1e-5, nan_ok=True)
    assert called("verify", str(output), "--replay")[0] == 0
    half = job.with_name(f"{name}-half.h5")
    assert called(*run_words(job, name, half, len(clients), ROUNDS // 2))[0] == 0
    assert called("resume", str(half), f"stop.updates={ROUNDS * len(clients)}")[0] == 0
    assert not differing(output, half, but=("events",))
    (file,) = mpifl.export_run(output, "safetensors")
    parts = load_file(file)
    assert np.r_[parts["W"].ravel(), parts["b"]] == pytest.approx(x, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_folder_is_refused_in_one_line(
    written: Callable[[str], list[Client]], refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, job: Path,
    name: str,
) -> None:  # fmt: skip
    written(name)
    monkeypatch.chdir(job.parent)
    assert CASES[name].refused in refused(*run_words(job, name, f"{name}.h5"))
    assert not job.with_name(f"{name}.h5").exists() and not job.with_name("unpickled").exists()


@pytest.mark.long
@pytest.mark.mpi
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ranks", [3, 5])
def test_ranks_give_the_same_bits_and_refuse_the_same(
    written: Callable[[str], list[Client]], job: Path, ranks: int
) -> None:
    folder = job.parent / f"{ranks}"
    (folder / "empty").mkdir(parents=True)  # where the commands are given: its files are compared after each of them
    counts = {name: len(written(name) or [0]) for name in CASES}
    names = [*WRONG, *GOOD]
    commands = [run_words(job, name, folder / f"{name}.h5", counts[name]) for name in names]
    failed = []
    for name, reply in zip(names, in_one_job(folder / "empty", ranks, commands, deadline=800), strict=True):
        one, here = job.with_name(f"{name}.h5"), folder / f"{name}.h5"
        if name in WRONG:
            fine = one_line(reply, CASES[name].refused) and not here.exists()
        else:
            if not one.exists():
                called(*run_words(job, name, one, counts[name]))
            fine = {*reply.codes} == {0} and not differing(one, here, but=("events",))
        if not fine:
            failed.append((name, reply))
    assert not failed, "\n".join(map(str, failed))
