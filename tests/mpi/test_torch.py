"""Torch models under MPI: the same bits on any number of ranks, and replays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifl import open_run
from tests.mpi.cases import DIGITS, job
from tests.mpi.conftest import run_all, succeed
from tests.mpi.files import all_differences, attribute, differing
from tests.tiers import parameters
from tests.verified import verify_files

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(280)]
DEADLINE = 130.0

MLP = {**DIGITS, "model": {"name": "torch-mlp", "hidden": [12]}, "test_split": 0.2}
CNN = {**DIGITS, "model": {"name": "cnn", "channels": [4], "hidden": 100}}  # large enough for a message of its own
NORM = {**DIGITS, "model": {"name": "resnet", "norm": "batch"}, "clients": 3}
ADAM = {"name": "torch", "optimizer": "Adam", "state": "kept", "schedule": {"name": "StepLR", "step_size": 5}}
FEW: dict[str, Any] = {"stop": {"updates": 12}, "evaluate": {"updates": 6}}
CASES = {
    "area": job({"name": "area", "step_size": 1, "trigger": {"every": 3}}, MLP),
    "fedprox": job({"name": "fedprox", "mu": 0.1, "local_epochs": 1}, {**MLP, "torch": {"autocast": "bfloat16"}}),
    "personal": job({"name": "apfl", "local_steps": 2}, {**MLP, "dtype": "float64"}),
    "optimizer": job({"name": "fedbuff", "step_size": 0.01, "local_steps": 2, "solver": ADAM}, MLP),
    "large": job({"name": "scaffold", "cohort": 4, "local_steps": 2}, CNN, **FEW),
    "averaged": job({"name": "fedavg", "local_steps": 2}, NORM, **FEW),
    "local": job({"name": "fedavg"}, {**NORM, "torch": {"buffers": "local"}}, **FEW),
    "augmented": job(
        {"name": "fedavg", "local_steps": 2}, {"entry": "tests.problems.test_row_draws:problem", "batch_size": 2}, **FEW
    ),
}
CLOCK = {"clock": {"mode": "real", "delay": {"name": "exponential", "rate": 50}}}
REAL = {
    "area": {**CASES["area"], **CLOCK, "problem": {**MLP, "torch": {"batched": False}}},
    "averaged": {**CASES["averaged"], **CLOCK},  # batch norm goes one by one
}
TOGETHER = {**CASES["area"], **CLOCK, "problem": {**MLP, "clients": 24, "batch_size": 8}}


def text_case(folder: Path) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    lines = [
        json.dumps({"play": "p", "role": str(k), "text": "".join(generator.choice(list("abc de\n"), 90 + 30 * k))})
        for k in range(5)
    ]
    (folder / "roles.jsonl").write_text("\n".join(lines))
    data = {"name": "shakespeare", "path": str(folder / "roles.jsonl"), "window": 9, "min_characters": 1}
    model = {"name": "char-lstm", "hidden": 8}
    return job({"name": "fedavg", "local_steps": 2}, {"data": data, "model": model, "batch_size": 4}, **FEW)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield (folder := tmp_path_factory.mktemp("torch"))
    verify_files(folder)


@pytest.fixture(scope="module")
def alone(folder: Path) -> Path:
    """The folder with every case, run in one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPIFL_CACHE", str(folder / "cache"))
        return run_all(folder / "alone", 0, {**CASES, "text": text_case(folder)}, DEADLINE)


@pytest.mark.parametrize("ranks", parameters([2, 3, 5], []))
def test_every_rank_count_gives_the_same_bits(
    alone: Path, folder: Path, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models, autocast, personal models, large vectors, statistics of both policies, text mapped into memory."""
    monkeypatch.setenv("MPIFL_CACHE", str(folder / "cache"))
    again = run_all(folder / f"on-{ranks}", ranks, {**CASES, "text": text_case(folder)}, DEADLINE)
    assert not all_differences(alone, again, [*CASES, "text"])
    facts = json.loads(attribute(again / "area.h5", "compute"))
    assert [(fact["threads"], fact["device"]) for fact in facts] == [(1, "cpu")] * ranks
    for name in ("averaged", "local"):
        with open_run(again / f"{name}.h5") as run:
            assert any("running_mean" in part for part, _ in run.layout) == (name == "averaged")
    assert len(list((folder / "cache" / "tokens").iterdir())) == 1  # made once, whoever ran


@pytest.mark.long
def test_a_replay_has_the_same_bits(folder: Path) -> None:
    """Of real time on 4 ranks with clients computed one by one, in one process."""
    here = run_all(folder / "real", 4, REAL, DEADLINE)
    succeed(here, 0, [["replay", f"{name}.h5", f"output={name}-again.h5"] for name in REAL], DEADLINE)
    run_all(here, 2, {"together": TOGETHER}, DEADLINE)
    for name in REAL:
        assert not differing(here / f"{name}.h5", here / f"{name}-again.h5", but=("events",))
    with open_run(here / "together.h5") as run:  # an update of every client is under way at the end, and answered
        assert json.loads(run.attrs["compute"])[1]["batched"] is True
        assert run.events.text.tolist() == ["24 updates were under way at the end and not applied"]
        assert run.updates.compute.sum() < run.attrs["wall_seconds"]


@pytest.mark.long
def test_a_run_resumes_on_other_ranks(alone: Path, folder: Path) -> None:
    """With clients' own statistics of batch norm, and personal models in float64: saved on 3 ranks, resumed on 2."""
    names = ("local", "personal")
    parts = {name: {**CASES[name], "stop": {"updates": 6}, "checkpoint": {"end": True}} for name in names}
    here = run_all(folder / "part", 3, parts, DEADLINE)
    stops = {name: CASES[name]["stop"]["updates"] for name in names}
    succeed(here, 2, [["resume", f"{name}.h5", f"stop.updates={stops[name]}"] for name in names], DEADLINE)
    assert not all_differences(alone, here, names, but=("events",))
