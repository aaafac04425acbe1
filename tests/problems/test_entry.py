"""A user's own module, loss and data: numbers by formulas; rows that are dicts, and test rows for each client."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpifl
from mpifl import problems
from mpifl.problems import ComputeResources, ProblemConfig
from mpifl.problems.settings import Torch
from mpifl.problems.torch import ENVIRONMENT
from mpifl.rng import stream
from tests.mpi import cases
from tests.problems.conftest import refusal

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy, mse_loss  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

SIZES = (4, 1, 7)
DRAW = np.random.default_rng(3)
ROWS = [(DRAW.standard_normal((s, 3)), DRAW.standard_normal((s, 1))) for s in (*SIZES, 5)]  # the last: test rows
LABELS = [np.arange(s) * (k + 1) % 4 for k, s in enumerate((*SIZES, 5))]


def configured(function: str, *, dtype: str = "float64", **more: Any) -> ProblemConfig:
    return ProblemConfig(entry=f"{__name__}:{function}", dtype=dtype, **more)


def hosted(config: ProblemConfig, problem: problems.Problem, *clients: int, seed: int = 0) -> Any:
    """As on another rank, which knows only what was sent."""
    meta = json.loads(json.dumps(problem.meta))
    shards = {i: problem.shard(i) for i in clients or range(problem.clients)}
    return problems.host(config.model, config.settings, meta, shards, seed, ComputeResources())


def tensors(rows: tuple[Any, ...]) -> TensorDataset:
    return TensorDataset(*map(torch.from_numpy, rows))


# -- the functions -----------------------------------------------------------------------------------------------------
def regression() -> tuple[Any, ...]:
    *clients, test = map(tensors, ROWS)
    return nn.Linear(3, 1).double(), mse_loss, clients, test


def classes() -> tuple[Any, ...]:
    *clients, test = (tensors((x, y)) for (x, _), y in zip(ROWS, LABELS, strict=True))
    return nn.Linear(3, 4).double(), cross_entropy, clients, test


def drawn() -> tuple[Any, ...]:
    """Data from torch's generator, without a seed, and a part of the module that is not trained."""
    rows = [TensorDataset(torch.randn(s, 3), torch.randn(s, 1)) for s in SIZES]
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    module[0].requires_grad_(False)
    return module, mse_loss, rows


def batch_norm(test: int = 3) -> tuple[Any, ...]:
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    return module, mse_loss, [tensors(ROWS[0]), tensors(ROWS[2])], tensors(ROWS[test])


class Twice(TensorDataset):  # type: ignore[misc]
    """Rows that are changed as they are read."""

    def __getitem__(self, k: int) -> Any:
        x, y = super().__getitem__(k)
        return 2 * x, y


def twice() -> tuple[Any, ...]:
    return nn.Linear(3, 1).double(), mse_loss, [Twice(*tensors(rows).tensors) for rows in ROWS[:3]]


class Plain:
    """Rows as a user may have them, lists of Python numbers; counts the rows that are read."""

    read: Counter[int] = Counter()  # noqa: RUF012

    def __init__(self, i: int) -> None:
        self.i = i

    def __len__(self) -> int:
        return SIZES[self.i]

    def __getitem__(self, k: int) -> tuple[list[float], Any]:
        Plain.read[self.i] += 1
        return ROWS[self.i][0][k].tolist(), [int(LABELS[0][k % 4]), k % 2 == 0, np.uint8(k % 4)][self.i]


def plain() -> tuple[Any, ...]:
    return nn.Linear(3, 4).double(), cross_entropy, [Plain(i) for i in range(3)]


CALLS = iter(range(100))


def other_rows() -> tuple[Any, ...]:
    """Client 1 has other rows each time, as from a generator without a seed."""
    x, y = ROWS[0]
    return nn.Linear(3, 1).double(), mse_loss, [tensors((x, y)), tensors((x + next(CALLS), y))]


# -- numbers -----------------------------------------------------------------------------------------------------------
def many_threads() -> tuple[Any, ...]:
    torch.set_num_threads(3)
    return regression()


def squares(x: np.ndarray, rows: tuple[np.ndarray, np.ndarray]) -> tuple[float, np.ndarray]:
    """Mean squared error of x = (w, b), and its gradient."""
    error = rows[0] @ x[:3] + x[3] - rows[1][:, 0]
    return float(np.mean(error**2)), 2 * np.append(rows[0].T @ error, error.sum()) / len(error)


def test_losses_and_gradients_are_those_of_the_formula() -> None:
    config = configured("regression", l2=0.3)
    problem = problems.load(config)
    assert (problem.clients, problem.d, problem.samples.tolist()) == (3, 4, [*SIZES])
    assert problem.layout == [("weight", (1, 3)), ("bias", (1,))] and problem.shard(1) == []
    x = np.array([0.5, -1, 2, 0.25])
    shrink = 0.3 * np.array([0.5, -1, 2, 0])
    objectives = hosted(config, problem).objectives
    for i in range(3):
        loss, gradient = squares(x, ROWS[i])
        np.testing.assert_allclose(objectives[i].gradient(x), gradient + shrink, rtol=1e-12)
        assert objectives[i].loss(x) == pytest.approx(loss + 0.15 * 5.25, rel=1e-12)
        assert (objectives[i].samples, objectives[i].share) == (SIZES[i], SIZES[i] / 12)
    some = np.array([3, 0])
    expected = squares(x, (ROWS[2][0][some], ROWS[2][1][some]))[1] + shrink
    np.testing.assert_allclose(objectives[2].gradient(x, some), expected, rtol=1e-12)
    everyone = np.concatenate([r[0] for r in ROWS[:3]]), np.concatenate([r[1] for r in ROWS[:3]])
    loss, gradient = squares(x, everyone)
    metrics = problem.evaluate(x)
    assert metrics["train_loss"] == pytest.approx(loss + 0.15 * 5.25, rel=1e-12)
    assert metrics["test_loss"] == pytest.approx(squares(x, ROWS[3])[0], rel=1e-12)
    assert np.isnan(metrics["test_accuracy"])
    np.testing.assert_allclose(problem.gradient(x), gradient + shrink, rtol=1e-12)
    config = configured("twice")
    x = np.array([0.5, -1, 2, 0.25])
    loss = hosted(config, problems.load(config)).objectives[2].loss(x)
    assert loss == pytest.approx(squares(x, (2 * ROWS[2][0], ROWS[2][1]))[0], rel=1e-12)


def test_clients_compute_with_the_threads_of_the_job() -> None:
    """Not with those that the function has set: in one process, and on a rank that calls it for its rows."""
    before = torch.get_num_threads()
    try:
        config = configured("many_threads", torch=Torch(threads=2))
        problem = problems.load(config)
        problem.prepare(ComputeResources())
        problem.initial(0)
        assert torch.get_num_threads() == 2
        hosted(config, problem)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def entropy(x: np.ndarray, rows: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    scores = rows @ x[:12].reshape(4, 3).T + x[12:]
    losses = np.log(np.exp(scores).sum(1)) - scores[np.arange(len(y)), y]
    return float(np.mean(losses)), float(np.mean(scores.argmax(1) == y))


def test_a_job_with_torch_sets_what_its_libraries_read_and_an_import_sets_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the rank that loads the data, and on one that hosts clients; both set it before the user's code computes."""
    names = ", ".join(map(repr, ENVIRONMENT))
    code = f"import os, mpifl.problems.torch.modules; assert not {{{names}}} & os.environ.keys()"
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    assert subprocess.run([sys.executable, "-c", code], timeout=100).returncode == 0
    problem = problems.load(configured("regression"))
    assert ENVIRONMENT.items() <= os.environ.items()
    for name in ENVIRONMENT:
        monkeypatch.delenv(name)
    hosted(configured("regression"), problem)
    assert ENVIRONMENT.items() <= os.environ.items()


@pytest.mark.parametrize("before", ["import torch", "import torch; torch.ones(9, 9) @ torch.ones(9, 9)"])
def test_a_run_says_that_torch_has_computed_before_it(before: str) -> None:
    """MKL has then read its variable, and rounds otherwise than in a process whose first product is the run's."""
    code = f"import logging; logging.basicConfig(); {before}; from mpifl.problems.torch import set_environment; "
    environment = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
    done = subprocess.run([sys.executable, "-c", code + "set_environment(); set_environment()"], env=environment,
                          capture_output=True, text=True, timeout=100)  # fmt: skip
    assert done.returncode == 0, done.stderr
    has_mkl = torch.backends.mkl.is_available()
    assert done.stderr.count("start Python with the environment variable MKL_CBWR=AUTO,STRICT") == (
        has_mkl and "@" in before
    )


def test_accuracy_and_the_rows_that_are_drawn_for_evaluation() -> None:
    x = np.random.default_rng(1).standard_normal(16)
    rows, y = np.concatenate([r for r, _ in ROWS[:3]]), np.concatenate(LABELS[:3])
    metrics = problems.load(configured("classes")).evaluate(x)
    assert metrics["train_loss"] == pytest.approx(entropy(x, rows, y)[0], rel=1e-12)
    assert metrics["test_accuracy"] == entropy(x, ROWS[3][0], LABELS[3])[1]
    for most in (4, 1, 11):
        few = problems.load(configured("classes", evaluation_rows=most)).evaluate(x)
        seen = np.sort(stream(0, "evaluation").choice(12, most, replace=False, shuffle=False))
        assert few["train_loss"] == pytest.approx(entropy(x, rows[seen], y[seen])[0], rel=1e-12)
        own = np.sort(stream(0, "evaluation").choice(5, min(most, 5), replace=False, shuffle=False))
        assert few["test_accuracy"] == entropy(x, ROWS[3][0][own], LABELS[3][own])[1]


def test_the_initial_model_is_the_seeds_and_the_data_are_the_same_for_all() -> None:
    config = configured("drawn", dtype="float32")
    problem = problems.load(config)
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    first = problem.initial(1)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(8)
    assert (problem.initial(1) == first).all() and (problem.initial(2) != first).any()
    assert first.shape == (6,) and first.dtype == np.float32  # what needs no gradient is not in the vector
    for seed in (1, 2):
        x = problem.initial(seed)
        clients = hosted(config, problem, seed=seed).objectives
        losses = np.array([clients[i].loss(x) for i in range(3)])  # with the untrained part of this seed's module
        assert problem.evaluate(x)["train_loss"] == pytest.approx(losses @ np.array(SIZES) / 12, rel=1e-6)


TOP_AND_FACTORY = """
import random
import numpy as np, torch
from torch import nn
from torch.utils.data import TensorDataset

def drawn():
    return [float(torch.randn(())), np.random.normal(), random.random()]

TOP = drawn()

def entry():
    x = torch.tensor([TOP, drawn()])
    return nn.Linear(3, 1), nn.functional.mse_loss, [TensorDataset(x, torch.zeros(2, 1))]
"""


def test_data_from_generators_without_a_seed_are_the_same_in_each_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn at the top level of the file and in the function, whatever state the process has; which it keeps."""
    monkeypatch.chdir(tmp_path)
    rows = []
    for name in ("one", "two"):  # a file that is imported first, as in another process
        (tmp_path / f"{name}.py").write_text(TOP_AND_FACTORY)
        before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
        problem = problems.load(ProblemConfig(entry=f"{name}:entry"))
        assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
        rows.append(problem.rows[0].take(slice(None))[0])
        torch.manual_seed(9), np.random.seed(9), random.seed(9)
    assert torch.equal(*rows)
    random.seed(0)
    assert rows[0][0, 2] == pytest.approx(random.random())


def test_a_rank_reads_the_rows_of_its_own_clients_alone_and_refuses_others() -> None:
    config = configured("plain")
    problem = problems.load(config)
    problem.initial(4)
    assert Plain.read == {0: 5, 1: 2, 2: 8}  # the first row twice
    Plain.read.clear()
    objectives = hosted(config, problem, 0, 2).objectives
    assert Plain.read == {0: 5, 2: 8} and [*objectives] == [0, 2]
    x, y = objectives[2].rows.take(slice(None))
    assert x.dtype == torch.float64 and y.dtype == torch.int64
    np.testing.assert_array_equal(x, ROWS[2][0])
    assert y.tolist() == [0, 1, 2, 3, 0, 1, 2]
    here = problems.host(config.model, config.settings, problem.meta, {1: []}, 0, ComputeResources()).objectives[1]
    assert Plain.read == {0: 5, 2: 8}  # one process holds the rows once
    assert here.rows.take(slice(None))[1].tolist() == [1]  # True
    config = configured("other_rows")
    problem = problems.load(config)
    assert [*hosted(config, problem, 0).objectives] == [0]
    says = "client 1 has other rows on rank 0; expected the same data on every rank; seed what is drawn"
    with refusal(says):
        hosted(config, problem, 0, 1)


@pytest.mark.parametrize(("buffers", "d"), [("averaged", 10 + 6), ("local", 10)])
def test_batch_norm_evaluates_with_running_or_each_clients_own_statistics(buffers: str, d: int) -> None:
    config = configured("batch_norm", torch=Torch(buffers=buffers))
    problem = problems.load(config)
    x = problem.initial(0)
    assert x.shape == (d,) and problem.d == d

    def loss(i: int, own: bool) -> tuple[float, np.ndarray]:
        """The loss of client i, its rows normalised by their own statistics, or by running ones, which are 0 and 1 at
        first."""
        rows, y = ROWS[i]
        centre, variance = (rows.mean(0), rows.var(0)) if own else (0, 1)
        return squares(x[6:10], ((rows - centre) / np.sqrt(variance + 1e-5), y))

    gradient = hosted(config, problem).objectives[0].gradient(x)
    np.testing.assert_allclose(gradient[6:10], loss(0, own=True)[1], rtol=1e-9)
    local = buffers == "local"
    expected = (4 * loss(0, local)[0] + 7 * loss(2, local)[0]) / 11
    assert problem.evaluate(x)["train_loss"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("how", "refused"),
    [
        ({"batch_size": 1}, "client 0"),
        ({"batch_size": 2}, ""),
        ({"options": {"test": 1}}, ""),
        ({"options": {"test": 1}, "torch": Torch(buffers="local")}, "the test set"),
        ({"evaluation_rows": 3, "torch": Torch(buffers="local")}, ""),
    ],
)
def test_batch_norm_of_one_row(how: dict[str, Any], refused: str) -> None:
    """One row has no variance. What is not refused is evaluated: one of the three rows drawn is client 1's."""
    config = configured("batch_norm", **how)
    if refused:
        with refusal(rf": {refused}: Expected more than 1 value per channel when training"):
            problems.load(config)
    else:
        problem = problems.load(config)
        assert np.isfinite(problem.evaluate(problem.initial(0))["test_loss"])


# -- what is refused ---------------------------------------------------------------------------------------------------
def test_a_mistake_in_the_function_itself_is_not_dressed_up() -> None:
    with pytest.raises(ZeroDivisionError):
        problems.load(configured("broken"))


def broken() -> Any:
    return 1 / 0


def normed(sizes: tuple[int, ...] = (8, 9)) -> tuple[Any, ...]:
    """Batch norm after a dense layer, which takes no batch of one row."""
    draw = np.random.default_rng(0)
    rows = [tensors((draw.standard_normal((s, 3)).astype(np.float32), np.arange(s) % 2)) for s in sizes]
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), cross_entropy, rows


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ([], "batch_size=4: client 1 has 9 rows, and its last batch of each pass one row, for which the module fails"),
        (["problem.drop_last=true"], ""),
        (["problem.batch_size=5"], ""),
        (["algorithm.solver=gd"], ""),  # its only batch is all rows
        (["algorithm.local_epochs=null", "algorithm.local_steps=3"], ""),
    ],
)
def test_a_last_batch_of_one_row_is_refused_before_the_run_or_left_out(
    tmp_path: Any, overrides: list[str], says: str
) -> None:
    problem = {"entry": f"{__name__}:normed", "batch_size": 4}
    job = cases.job({"name": "fedavg", "local_epochs": 1}, problem, stop={"updates": 4})
    job |= {"name": "normed", "output": str(tmp_path / "normed.h5")}
    if says:
        with refusal(says) as caught:
            mpifl.run(job, *overrides)
        assert "problem.drop_last=true" in str(caught.value) and not (tmp_path / "normed.h5").exists()
    else:
        run = mpifl.run(job, *overrides)
        assert run.status == "completed" and (run.clients.state == "live").all() and len(run.updates) == 4


def test_a_gradient_of_more_rows_than_one_piece_has_no_piece_of_one_row() -> None:
    config = ProblemConfig(entry=f"{__name__}:normed", options={"sizes": [4097]})
    problem = problems.load(config)
    one = problems.objective(config, problem.meta, problem.shard(0), 0, 0)
    assert np.isfinite(one.gradient(problem.initial(0))).all()


CLIENTS, COUNTS = 3, (7, 4, 9)
TORCH_DRAW = torch.Generator().manual_seed(5)
FEATURES = [torch.randn(s, 4, generator=TORCH_DRAW) for s in (*COUNTS, 6)]
CLASSES = [(x.sum(1) > 0).long() for x in FEATURES]


class Linear(nn.Linear):  # type: ignore[misc]
    """Takes the features in one tensor, or in the parts a and b of a dict."""

    def forward(self, x: Any) -> Any:
        return super().forward(x if isinstance(x, torch.Tensor) else torch.cat([x["a"], x["b"]], 1))


def entry(kind: str, tests: str = "one") -> Any:
    sets: list[Any] = [*map(TensorDataset, FEATURES, CLASSES)]
    if kind == "dict":
        sets = [[({"a": x[:1], "b": x[1:]}, y) for x, y in rows] for rows in sets]
    *clients, test = sets
    found = {"one": test, "own": clients, "some": [clients[0], None, clients[2]], "none": None}
    return {"module": Linear(4, 2), "loss": cross_entropy, "datasets": clients, "test": found[tests]}


def rowwise(kind: str, tests: str = "one", **more: Any) -> ProblemConfig:
    return ProblemConfig(entry=f"{__name__}:entry", options={"kind": kind, "tests": tests}, batch_size=3, **more)


def recorded(folder: Path, kind: str, tests: str = "one", **more: Any) -> mpifl.Run:
    problem = {"entry": f"{__name__}:entry", "options": {"kind": kind, "tests": tests}, "batch_size": 3}
    job = cases.job({"name": "fedavg", "step_size": 0.5, "local_epochs": 1}, problem, stop={"updates": 12})
    return mpifl.run({"name": kind + tests, "output": str(folder / f"{kind}{tests}.h5"), **job, **more})


@pytest.mark.parametrize("split", [None, 0.25])
def test_rows_that_are_collated_are_held_out_and_drawn_as_tensors_are(split: float | None) -> None:
    one, other = (
        problems.load(rowwise(k, validation_split=0.25, evaluation_rows=9, test_split=split))
        for k in ("dict", "tensors")
    )
    x = one.initial(0)
    assert one.samples.tolist() == other.samples.tolist() and one.validation_rows == other.validation_rows > 0
    found, expected = one.evaluate(x), other.evaluate(other.initial(0))
    assert found == pytest.approx(expected, rel=1e-6, nan_ok=True)
    np.testing.assert_allclose(one.gradient(x), other.gradient(x), rtol=1e-5, atol=1e-7)


def right(weight: Any, x: Any, y: Any) -> float:
    """The fraction of rows whose highest score is that of their class."""
    scores = x @ weight[:8].reshape(2, 4).T + weight[8:]
    return float(np.mean(scores.argmax(1) == y))


@pytest.mark.parametrize("kind", ["tensors", "dict"])
def test_each_client_has_test_rows_of_its_own(kind: str) -> None:
    """Accuracies by hand; the rows of all clients together are the test rows."""
    problem = problems.load(rowwise(kind, "some"))
    x = problem.initial(1)
    rows = [(FEATURES[i].numpy(), CLASSES[i].numpy()) for i in (0, 2)]
    metrics, own = problem.evaluate_with_clients(x)
    expected = [right(x, *each) for each in rows]
    assert own.tolist() == pytest.approx([expected[0], np.nan, expected[1]], nan_ok=True)
    assert metrics["client_accuracy_mean"] == pytest.approx(np.mean(expected))
    together = [np.concatenate(part) for part in zip(*rows, strict=True)]
    assert metrics["test_accuracy"] == pytest.approx(right(x, *together))


def test_test_split_holds_out_rows_of_each_client() -> None:
    """int(0.3 s_i) of the rows of client i, which do not train; all of them together are the test rows."""
    problem = problems.load(rowwise("tensors", "none", test_split=0.3))
    held = [int(0.3 * s) for s in COUNTS]
    assert problem.samples.tolist() == [s - h for s, h in zip(COUNTS, held, strict=True)]
    x = problem.initial(1)
    metrics, own = problem.evaluate_with_clients(x)
    assert [round(h * a, 6) % 1 for h, a in zip(held, own, strict=True)] == [0, 0, 0]
    assert metrics["test_accuracy"] == pytest.approx(np.dot(held, own) / sum(held))


def test_accuracies_of_clients_are_recorded(tmp_path: Path) -> None:
    with recorded(tmp_path, "tensors", "own", evaluate={"updates": 6, "clients": True}) as made:
        rows = made.client_evaluations
        last = rows[rows.evaluation == rows.evaluation.max()]
        assert last.client.tolist() == [0, 1, 2]
        expected = [right(made.model, FEATURES[i].numpy(), CLASSES[i].numpy()) for i in range(CLIENTS)]
        assert last.accuracy.tolist() == pytest.approx(expected)
    algorithm = {"name": "apfl", "step_size": 0.1, "local_epochs": 1}
    with recorded(tmp_path, "dict", "own", algorithm=algorithm) as made:
        assert made.evaluations.personal_accuracy_mean.notna().all()
