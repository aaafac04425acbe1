"""The zoo of torch modules: each has the numbers that plain torch gives, the same bits on 1, 3 and 5 ranks, replayed
and resumed; or it is refused with one line."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Callable
from math import isnan
from pathlib import Path
from typing import Any

import pytest

import mpifl
from mpifl.cli import main
from mpifl.runfile.checkpoint_folder import folder_of
from tests.mpi.conftest import in_one_job, one_line, write
from tests.mpi.files import differing
from tests.tiers import parameters

torch = pytest.importorskip("torch")
from torch.utils.data import default_collate  # noqa: E402

from mpifl.problems.torch.module_problem import seeded  # noqa: E402
from tests.problems.zoo import modules  # noqa: E402
from tests.problems.zoo.modules import CASES, GOOD, WRONG, Case  # noqa: E402

UPDATES = 24
JOB = {
    "seed": 5, "problem": {"entry": "", "batch_size": 16},
    "algorithm": {"name": "fedavg", "step_size": 0.1, "local_epochs": 1, "cohort": 3},
    "clock": {"mode": "virtual", "delay": {"name": "exponential", "rate": 10}},
    "stop": {"updates": UPDATES}, "evaluate": {"updates": UPDATES // 2},
}  # fmt: skip
HALF = (f"stop.updates={UPDATES // 2}", "checkpoint.end=true")
# in the short tier
SHORT = ["tied", "sparse_gradients", "part_in_evaluation"]
each = pytest.mark.parametrize("name", parameters(GOOD, SHORT))


def errors_of(*words: str) -> str:
    """The errors and warnings of a command that ends well in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*words])
    assert code == 0, err.getvalue()
    return err.getvalue()


def run_words(job: Path, name: str, output: str | Path, *more: str) -> list[str]:
    case = CASES[name]
    return ["run", str(job), f"problem.entry={modules.__name__}:{name}", f"output={output}", *case.job, *more]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("zoo"), "job", JOB)


@pytest.fixture(scope="module")
def ran(job: Path) -> Callable[[str], Path]:
    """The run file of an entry, from one process. It says what the case says, in one line, and nothing else."""

    def run(name: str) -> Path:
        path = job.with_name(f"{name}.h5")
        if not path.exists():
            err = errors_of(*run_words(job, name, path))
            assert err.count("\n") == bool(CASES[name].line) and CASES[name].line in err, err
        return path

    return run


@pytest.fixture(scope="module")
def half(job: Path) -> Callable[[str, Path], None]:
    """Writes the first half of a run, in one process, to a path."""

    def write_half(name: str, path: Path) -> None:
        first = job.with_name(f"{name}-first.h5")
        if not first.exists():
            errors_of(*run_words(job, name, first, *HALF))
        shutil.copy(first, path)
        shutil.copytree(folder_of(first), folder_of(path))

    return write_half


def batch(dataset: Any, collate: Callable[[Any], Any] | None) -> tuple[Any, Any]:
    """All rows of a data set, inputs and targets."""
    found = (collate or default_collate)([dataset[k] for k in range(len(dataset))])
    x, y = (found, found) if isinstance(found, dict) else found
    return x, y if isinstance(y, dict) or y.is_floating_point() else y.long()


def exported(case: Case, path: Path) -> tuple[Any, ...]:
    """What the entry returns, with the exported model, which loads strictly; but for statistics that clients keep."""
    module, *rest = case.entry()
    (file,) = mpifl.export_run(path, "torch", path.with_suffix(".pt"), overwrite=True)
    local = "problem.torch.buffers=local" in case.job  # then norms take the statistics of the rows
    module.load_state_dict(torch.load(file, weights_only=True), strict=not local)
    module.eval()
    for part in module.modules() if local else ():
        part.train(isinstance(part, torch.nn.BatchNorm1d))
    return module, *rest


@each
def test_the_exported_model_has_the_numbers_of_the_run_file(ran: Callable[[str], Path], name: str) -> None:
    case = CASES[name]
    module, loss, sets, test, _, collate, *_ = (*exported(case, ran(name)), None, None)
    error = {"rel": 0.3} if case.draws else {"rel": 2e-6, "abs": 1e-7}
    with mpifl.open_run(ran(name)) as run, torch.no_grad():
        last, nu = run.evaluations.iloc[-1], run.config["problem"]["l2"]
        x, y = batch(test, collate)
        outputs = module(x)
        assert last.test_loss == pytest.approx(float(loss(outputs, y)), **error)
        if case.accuracy is None:
            assert isnan(last.test_accuracy)
        elif not case.draws:
            assert last.test_accuracy == pytest.approx(case.accuracy(outputs, y), abs=1e-12)
        losses = [len(part) * float(loss(module(x), y)) for part in sets for x, y in [batch(part, collate)]]
        weights = sum(float(p.square().sum()) for p in module.parameters() if p.requires_grad and p.ndim > 1)
        train = sum(losses) / sum(map(len, sets)) + nu / 2 * weights
        assert last.train_loss == pytest.approx(train, **error)


@pytest.mark.parametrize("name", parameters([n for n in GOOD if not (CASES[n].draws or CASES[n].job)], SHORT))
def test_training_is_that_of_a_plain_loop(job: Path, name: str) -> None:
    """Two rounds with one step of all clients on all of their rows; the mean of their models, statistics included."""
    case, path = CASES[name], job.with_name(f"{name}-plain.h5")
    more = ("algorithm={name: fedavg, step_size: 0.1, local_steps: 1}", "problem.batch_size=null", "stop.updates=8")
    errors_of(*run_words(job, name, path, *more))
    ours = exported(case, path)[0].state_dict()
    module, loss, sets, _, _, collate, *_ = (*seeded(5, case.entry), None, None)
    model = {key: part.clone() for key, part in module.state_dict().items()}
    module.train()
    for _ in range(2):
        trained = []
        for part in sets:
            module.load_state_dict(model)
            optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], 0.1)
            optimizer.zero_grad()
            x, y = batch(part, collate)
            loss(module(x), y).backward()
            optimizer.step()
            trained.append({key: value.clone() for key, value in module.state_dict().items()})
        for key, value in model.items():
            if value.dtype in (torch.float32, torch.float64):
                model[key] = torch.stack([client[key] for client in trained]).mean(0)
    for key, value in model.items():
        if not key.endswith("num_batches_tracked"):
            torch.testing.assert_close(ours[key], value, rtol=1e-4, atol=1e-6)


@each
def test_a_replay_and_a_resumed_run_have_the_same_bits(
    ran: Callable[[str], Path], half: Callable[[str, Path], None], tmp_path: Path, name: str
) -> None:
    path, resumed = ran(name), tmp_path / "resumed.h5"
    errors_of("verify", str(path), "--replay", "--trust")
    half(name, resumed)
    errors_of("resume", str(resumed), f"stop.updates={UPDATES}", "--trust")
    assert not differing(path, resumed, but=("events",))


@pytest.mark.long
@pytest.mark.mpi
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ranks", [3, 5])
def test_ranks_give_the_same_bits_replay_resume_and_refuse(
    ran: Callable[[str], Path], half: Callable[[str, Path], None], job: Path, ranks: int
) -> None:
    """All in one MPI job; each resumed run has had its first half in one process."""
    folder, commands, made = job.parent / f"{ranks}", [], []
    (folder / "empty").mkdir(parents=True)  # where the commands are given: its files are compared after each of them
    for name in GOOD:
        whole, resumed, again = (folder / f"{name}-{kind}.h5" for kind in ("whole", "resumed", "again"))
        half(name, resumed)
        commands.append(run_words(job, name, whole))
        commands.append(["resume", str(resumed), f"stop.updates={UPDATES}", "--trust"])
        made += [(name, whole), (name, resumed)]
        if ranks == 3:
            commands.append(["replay", str(ran(name)), f"output={again}", "--trust"])
            made.append((name, again))
    wrong = [run_words(job, name, folder / f"{name}.h5") for name in WRONG]
    replies = in_one_job(folder / "empty", ranks, [*wrong, *commands], deadline=800)
    failed = [(name, reply) for name, reply in zip(WRONG, replies) if not one_line(reply, CASES[name].refused)]
    failed += [(words, reply) for words, reply in zip(commands, replies[len(wrong) :]) if {*reply.codes} != {0}]
    failed += [(path, found) for name, path in made if (found := differing(ran(name), path, but=("events",)))]
    assert not failed, "\n".join(map(str, failed))
    assert not any((folder / f"{name}.h5").exists() for name in WRONG)


@pytest.mark.parametrize("name", WRONG)
def test_a_job_is_refused_in_one_line(refused: Callable[..., str], job: Path, name: str) -> None:
    line = refused(*run_words(job, name, f"{name}.h5"))
    assert CASES[name].refused in line
    assert not Path(f"{name}.h5").exists()
