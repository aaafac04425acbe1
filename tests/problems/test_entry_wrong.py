"""Wrong results of a user's own function: one line each, which names the client if there is one.

A module or loss that keeps something from one pass to the next is refused by name; a cache is not.
"""

from __future__ import annotations

import random
import re
import sys
from typing import Any

import numpy as np
import pytest

from mpifl import problems
from mpifl.problems import ProblemConfig
from mpifl.problems.settings import Torch
from tests.problems.conftest import refusal

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

ENTRY = f"{__name__}:make_problem"
DRAW = torch.Generator().manual_seed(0)
ROWS = [TensorDataset(torch.randn(s, 3, generator=DRAW), torch.arange(s) % 2) for s in (4, 1, 7)]
X, Y = ROWS[0].tensors
NO_FUNCTION, CALLS = 5, [0]


Norm = nn.BatchNorm1d


@torch.compile
def compiled(x: Any) -> Any:
    return x + 1


class Broken(nn.Linear):
    """An exception of the forward pass of a user's module."""

    def forward(self, x: Any) -> Any:
        return self.nowhere(x)


class Lies:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, k: int) -> Any:
        return [(torch.ones(3), 0), (torch.ones(3), 1)][k]


# -- what is kept from one pass to the next ----------------------------------------------------------------------------
class Keeps(nn.Module):
    """A linear layer with attributes and buffers; `each_pass` is what it does with itself and the rows in each pass."""

    def __init__(self, each_pass: Any = lambda m, x: None, buffers: Any = (), **attributes: Any) -> None:
        super().__init__()
        self.linear, self.each_pass = nn.Linear(3, 2), each_pass
        for name, value in dict(buffers).items():
            self.register_buffer(name, value)
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: Any) -> Any:
        self.each_pass(self, x)
        return self.linear(x)


def sets(**attributes: Any) -> Any:
    """A pass that sets attributes of the module to functions of the module and the rows."""

    def each_pass(m: Any, x: Any) -> None:
        for name, function in attributes.items():
            setattr(m, name, function(m, x))

    return each_pass


def keeps(*arguments: Any, **attributes: Any) -> dict[str, Any]:
    return {"module": Keeps(*arguments, **attributes)}


def plus_one(m: Any, x: Any) -> Any:
    return m.steps + 1


def in_evaluation(m: Any, x: Any) -> Any:
    return m.seen | (not m.training)


class OfClass(Keeps):
    steps = 0


def count_in_class(m: Any, x: Any) -> None:
    OfClass.steps += 1


class Memory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log = {"norms": [0.0]}

    def forward(self, x: Any) -> Any:
        self.log["norms"].append(float(x.detach().norm()))
        return x


class Annealed:
    calls = 0

    def __call__(self, outputs: Any, y: Any) -> Any:
        self.calls += 1
        return F.cross_entropy(outputs, y) / self.calls


def counted(outputs: Any, y: Any) -> Any:
    counted.calls = getattr(counted, "calls", 0) + 1  # type: ignore[attr-defined]
    return F.cross_entropy(outputs, y)


class Centres(nn.Module):
    """A loss with a running mean in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(2))

    def forward(self, outputs: Any, y: Any) -> Any:
        self.centre = 0.9 * self.centre + 0.1 * outputs.detach().mean(0)
        return F.cross_entropy(outputs - self.centre, y)


# -- what is wrong -----------------------------------------------------------------------------------------------------
BUFFERS = "; expected buffers that stay as they are, running statistics apart"
VALUES = "; expected values that stay as they are, as clients share module and loss"
DRAWS = "; expected draws only from torch's generator"
SAME = nn.Linear(3, 2)
WRONG: dict[str, tuple[Any, str]] = {  # what is returned, or is other than in a good problem, and what the line says
    "no data": ((nn.Linear(3, 2), F.cross_entropy), "it returns tuple of 2; expected (module, loss, datasets[, test[,"),
    "class": (nn.Linear, "it returns type"),
    "unknown": ({"tests": 3}, "it returns dict of module, loss, datasets, tests; expected"),
    "no module": ({"module": torch.zeros}, "the module that it returns is builtin_function_or_method; expected a"),
    "frozen": ({"module": nn.Linear(3, 2).requires_grad_(False)}, "no parameter of the module needs a gradient"),
    "double": (
        {"module": nn.Linear(3, 2).double()},
        "the module's parameter weight is float64; set problem.dtype=float64, or call module.to(",
    ),
    "half": ({"module": nn.Linear(3, 2).half()}, "problem.dtype=float32: the module's parameter weight is float16"),
    "meta": ({"module": nn.Linear(3, 2, device="meta")}, "shape and values of weight are not known yet; expected"),
    "lazy": ({"module": nn.LazyLinear(2)}, "shape and values of weight are not known yet; expected a module whose are"),
    "broken": ({"module": Broken(3, 2)}, "client 0: AttributeError: 'Broken' object has no attribute 'nowhere'"),
    "momentum": ({"module": Norm(3, momentum=None)}, "batch norm has no momentum, so it counts the batches"),
    "norm double": (
        {"module": Norm(3, affine=False).double()},
        "the module's buffer running_mean is float64; set",
    ),
    "one row": ({"module": Norm(3)}, "client 1: Expected more than 1 value per channel when training, got"),
    "shape": ({"module": nn.Linear(4, 2)}, "client 0: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x2)"),
    "outputs": ({"module": nn.GRU(3, 2)}, "the module returns tuple of 2; expected a tensor"),
    "no loss": ({"loss": "cross_entropy"}, "the loss that it returns is str; expected a function of outputs and"),
    "loss asserts": ({"loss": lambda o, y: {}["here"]}, "client 0: KeyError: 'here'; expected a loss that takes outp"),
    "loss arguments": ({"loss": lambda outputs: outputs.mean()}, "takes 1 positional argument but 2 were given"),
    "loss shape": ({"loss": nn.CrossEntropyLoss(reduction="none")}, "the shape of the loss is [2]; expected one numb"),
    "loss exits": ({"loss": lambda o, y: sys.exit(4)}, "client 0: SystemExit: 4; expected a loss that takes outputs"),
    "loss sum": ({"loss": nn.CrossEntropyLoss(reduction="sum")}, "the loss is the sum over the rows; expected their"),
    "loss number": ({"loss": lambda outputs, targets: 1.0}, "the loss is float; expected a tensor"),
    "loss constant": ({"loss": lambda o, y: torch.zeros(())}, "the loss does not depend on the module's parameters"),
    "loss nan": ({"loss": lambda o, y: o.mean() * torch.nan}, "the loss of the first rows of client 0 is nan; expec"),
    "mapping": ({"datasets": dict(enumerate(ROWS))}, "datasets, the third, is dict of 0, 1, 2; expected a list of"),
    "generator": ({"datasets": (r for r in ROWS)}, "datasets, the third, is generator; expected a list of the"),
    "no clients": ({"datasets": []}, "at least one client's data set"),
    "no rows": ({"datasets": [*ROWS, TensorDataset(X[:0], Y[:0])]}, "client 3 has no rows; expected at least one"),
    "no length": ({"datasets": [ROWS[0], iter(ROWS[1])]}, "the data set of client 1 is iterator; expected one with"),
    "no pair": ({"datasets": [ROWS[0], X]}, "row 0 of client 1 is Tensor; expected rows (x, y), as TensorDataset"),
    "three parts": ({"datasets": [TensorDataset(X, Y, Y)]}, "the rows of client 0 have 3 parts; expected (x, y)"),
    "lies": ({"datasets": [Lies()]}, "client 0: list index out of range; expected a data set with a row [k] for each"),
    "ragged": ({"datasets": [[([1.0, 2.0], 0), ([1.0], 1)]]}, "the inputs of client 0 make no tensor: stack exp"),
    "text": ({"datasets": [[("abc", 0)]]}, "the inputs of client 0 make no tensor: new(): invalid data type 'str'"),
    "sparse": ({"datasets": [TensorDataset(X.to_sparse(), Y)]}, "the inputs of client 0 are a sparse tensor; expected"),
    "rows double": ({"datasets": [ROWS[0], TensorDataset(X.double(), Y)]}, "the inputs of client 1 are float64; set p"),
    "bytes": (
        {"datasets": [TensorDataset(X.byte(), Y)]},
        "dtype, but got Byte and Float; expected a module that takes rows of shape [2, 3] and dtype uint8",
    ),
    "targets double": (
        {"datasets": [TensorDataset(X, X[:, :1].double())]},
        "the targets of client 0 are float64; set problem",
    ),
    "targets flat": (
        {"module": nn.Linear(3, 1), "loss": F.mse_loss, "datasets": [TensorDataset(X, X[:, 0])]},
        "client 0: Using a target size (torch.Size([2])) that is different",
    ),
    "nan": (
        {"datasets": [ROWS[0], TensorDataset(X.index_fill(0, Y, torch.nan), Y)]},
        "among the inputs of client 1 is",
    ),
    "label": (
        {"datasets": [ROWS[0], TensorDataset(X, Y + Y)]},
        "client 1: Target 2 is out of bounds; expected a loss that takes outputs [2, 2] and targets from 0 to 2",
    ),
    "test label": (
        {"test": TensorDataset(X, Y + 1)},
        "the test set: Target 2 is out of bounds; expected a loss that takes outputs [2, 2] and",
    ),
    "test empty": ({"test": []}, "the test set has no rows; expected at least one"),
    "tests of two": ({"test": ROWS[:2]}, "is list of 2; expected None, or test rows for each of the 3 clients"),
    "a number": (
        {"test": [*ROWS[:2], 3]},
        "the data set of the test rows of client 2 is int; expected one with",
    ),
    "dicts of double": ({"datasets": [[({"a": X.double()}, 0)]]}, "the inputs of client 0 are float64; set"),
    "dicts of infinity": ({"datasets": [[({"a": X[0] / 0}, 0)]]}, "among the inputs of client 0 is nan or infinity"),
    "collate fails": ({"collate": lambda rows: torch.stack([torch.ones(len(rows)), X[0]])}, "client 0: stack expects"),
    "collate": ({"collate": 3}, "collate, the sixth, is int; expected None or a function from rows to a batch"),
    "predict": ({"predict": 7}, "predict, the fifth, is int; expected None or a function from outputs to labels"),
    "predict shape": ({"predict": lambda outputs: outputs > 0}, "predict returns Tensor of shape [2, 2]"),
    "buffer": (keeps(sets(mean=lambda m, x: m.mean + x.mean()), {"mean": torch.tensor(0.0)}), f"changes mean{BUFFERS}"),
    "integer buffer": (keeps(sets(steps=plus_one), {"steps": torch.tensor(0)}), f"changes steps{BUFFERS}"),
    "boolean buffer": (keeps(sets(seen=in_evaluation), {"seen": torch.tensor(False)}), f"changes seen{BUFFERS}"),
    "complex": (keeps(sets(phase=lambda m, x: m.phase * 2j), {"phase": torch.tensor(1j)}), f"changes phase{BUFFERS}"),
    "number": (keeps(sets(steps=plus_one), steps=0), f"changes steps{VALUES}"),
    "of the class": ({"module": OfClass(count_in_class)}, f"changes steps{VALUES}"),
    "in a part of a part": ({"module": nn.Sequential(nn.Sequential(nn.Linear(3, 2), Memory()))}, "changes 0.1.log"),
    "recurrent state": (keeps(sets(hidden=lambda m, x: m.hidden + x.mean()), hidden=torch.zeros(1)), "changes hidden"),
    "constant from the first rows": (
        keeps(sets(centre=lambda m, x: x.mean(0) if m.centre is None else m.centre), centre=None),
        "changes centre",
    ),
    "NumPy's": (keeps(lambda m, x: m.draw.random(), draw=np.random.default_rng(0)), f"changes draw{VALUES}"),
    "torch's": (keeps(lambda m, x: torch.rand(1, generator=m.draw), draw=torch.Generator()), f"changes draw{VALUES}"),
    "draws of NumPy": (keeps(lambda m, x: np.random.random()), f"draws from NumPy's generator{DRAWS}"),
    "draws of Python": (keeps(lambda m, x: random.random()), f"draws from Python's generator{DRAWS}"),
    "of a file": (keeps(lambda m, x: CALLS.append(1)), "changes CALLS"),
    "TorchScript": ({"module": torch.jit.script(Norm(3)), "datasets": ROWS[::2]}, "changes running_mean"),
    "compiled": ({"module": torch.compile(nn.Linear(3, 2), backend="eager")}, "the module is one of torch.compile"),
    "compiled function": (keeps(lambda m, x: compiled(x)), "compiled is a function of torch.compile"),
    "no labels": ({"datasets": [*ROWS[:2], TensorDataset(X, 0 * Y - 100)]}, "of client 2 is nan"),
    "loss that is an object": ({"loss": Annealed()}, "changes loss.calls"),
    "loss that is a module": ({"loss": Centres()}, "changes loss.centre"),
    "loss that is a method": ({"loss": Annealed().__call__}, "changes loss.calls"),
    "loss that is a function": ({"loss": counted}, "changes loss.calls"),
}


# -- what is right -----------------------------------------------------------------------------------------------------
class Cache(nn.Module):
    """What depends on the rows' shape alone, and the last outputs, which the next pass replaces. Always draws."""

    def __init__(self) -> None:
        super().__init__()
        self.mask, self.last = None, None
        self.linear, self.norm = nn.Linear(3, 2), nn.BatchNorm1d(2)

    def forward(self, x: Any) -> Any:
        if self.mask is None or len(self.mask) != len(x):
            self.mask = torch.ones(len(x), 1)
        self.last = self.norm(F.dropout(self.linear(x * self.mask), 0.5))
        return self.last


class WithLoss(Keeps):
    """Its loss is a method of its own, and its norm has running statistics."""

    def __init__(self) -> None:
        super().__init__(buffers={"edges": torch.eye(3).to_sparse()})
        self.linear = nn.Sequential(self.linear, nn.BatchNorm1d(2))

    def own_loss(self, outputs: Any, y: Any) -> Any:
        return F.cross_entropy(outputs, y)


def inplace(outputs: Any, targets: Any) -> Any:
    return ((outputs[:, 0] - targets.sub_(0.5)) ** 2).mean()


def make_problem(case: str) -> Any:
    """A good problem, but for what the case changes."""
    good = {"module": nn.Linear(3, 2), "loss": F.cross_entropy, "datasets": ROWS}
    norms = {"datasets": ROWS[::2], "test": ROWS[2]}
    made: Any = WRONG[case][0] if case in WRONG else {}
    if case == "cache":
        made = {"module": Cache(), **norms}
    elif case == "loss of its own":
        made = {"module": (module := WithLoss()), "loss": module.own_loss, **norms}
    elif case == "same":
        made = {"module": SAME}
    elif case == "tests of each":
        made = {"test": ROWS}
    elif case == "in place":
        module = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 1))
        made = {"module": module, "loss": inplace, "datasets": [TensorDataset(X, torch.ones(4))]}
    return {**good, **made} if isinstance(made, dict) else made


def configured(case: str, **more: Any) -> ProblemConfig:
    return ProblemConfig(entry=ENTRY, options={"case": case}, **more)


@pytest.mark.parametrize("case", WRONG)
def test_what_is_returned(case: str) -> None:
    with refusal(re.escape(WRONG[case][1])) as caught:
        problems.load(configured(case))
    assert str(caught.value).startswith((f"problem.entry={ENTRY}: ", "problem.dtype=float32: "))


@pytest.mark.parametrize("buffers", ["averaged", "local"])
@pytest.mark.parametrize("case", ["plain", "cache", "loss of its own"])
def test_caches_and_running_statistics_are_accepted(case: str, buffers: Any) -> None:
    """Only one of them draws, and what it draws is put back."""
    before = torch.random.get_rng_state()
    problem = problems.load(configured(case, torch=Torch(buffers=buffers)))
    assert problem.draws == (case == "cache")
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"entry": "nowhere.at_all:make"}, "cannot be imported: No module named 'nowhere'; expected package.module:"),
        ({"entry": f"{__name__}:make_problm"}, "did you mean make_problem?"),
        ({"entry": f"{__name__}:zzz"}, "has no attribute 'zzz'"),
        ({"entry": f"{__name__}:NO_FUNCTION"}, "it is int; expected a function"),
        ({"entry": "typing_error:make_problem"}, "invalid syntax"),
        ({"entry": "builtins:dict"}, "written in Python"),
        ({"options": {"cases": 1}}, f"; expected what {ENTRY}(case) takes"),
        ({"options": {"case": "", "rows": 1}}, "'', 'rows': 1}: got an unexpected keyword argument 'rows'"),
        ({"options": None}, "missing a required argument: 'case'"),
        ({"clients": 4}, f"problem.clients=4: {ENTRY} returns 3 data sets"),
        ({"test_split": 0.2, "options": {"case": "tests of each"}}, f"problem.test_split=0.2: {ENTRY} returns test ro"),
    ],
)  # fmt: skip
def test_what_is_asked_for(given: dict[str, Any], says: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "typing_error.py").write_text("def make_problem(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with refusal(re.escape(says)) as caught:
        problems.load(ProblemConfig(**{"entry": ENTRY, "options": {"case": ""}, **given}))
    assert caught.value.key.startswith("problem.")


def test_a_module_that_was_returned_before() -> None:
    """Clients and the evaluation would bind it to two vectors at once."""
    with refusal(r"the module was returned before; expected a new module at each call"):
        problems.load(configured("same")).initial(0)


def test_rows_are_nobodys_to_change() -> None:
    """A module changes its input in place, a loss its targets: each pass sees the same rows."""
    kept, config = X.clone(), configured("in place")
    problem = problems.load(config)
    one = problems.objective(config, problem.meta, problem.shard(0), 0, 0)
    start = problem.initial(0)
    assert (one.gradient(start) == one.gradient(start)).all()
    assert problem.evaluate(start) == problem.evaluate(start)
    assert torch.equal(X, kept)
