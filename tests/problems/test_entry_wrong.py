"""Wrong results of a user's own function: one line each, which names the client if there is one."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from mpifl import problems
from mpifl.problems import ProblemConfig
from tests.problems.conftest import refusal

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy, mse_loss  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

ENTRY = f"{__name__}:make_problem"


class Broken(nn.Linear):
    """An exception of the forward pass of a user's module."""

    def forward(self, x: Any) -> Any:
        return self.nowhere(x)


SAME = nn.Linear(3, 2)


class Lies:
    """A data set that has fewer rows than it says."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, k: int) -> Any:
        return [(torch.ones(3), 0), (torch.ones(3), 1)][k]


def make_problem(case: str) -> Any:
    """A good problem with one thing wrong."""
    module: Any = nn.Linear(3, 2)
    rows: Any = [TensorDataset(torch.ones(s, 3), torch.arange(s) % 2) for s in (4, 1, 7)]
    x, y = torch.ones(4, 3), torch.arange(4) % 2
    short = [*rows[:2], [([1.0, 2.0, 3.0], 0), ([1.0, 2.0], 1)]]
    return {
        "module": (module, cross_entropy),
        "list": nn.Linear,
        "no module": (torch.zeros, cross_entropy, rows),
        "frozen": (copy.deepcopy(module).requires_grad_(False), cross_entropy, rows),
        "double": (module.double() if case == "double" else module, cross_entropy, rows),
        "half": (nn.Linear(3, 2).half(), cross_entropy, rows),
        "complex": (nn.Linear(3, 2, dtype=torch.complex64), cross_entropy, rows),
        "meta": (nn.Linear(3, 2, device="meta"), cross_entropy, rows),
        "broken": (Broken(3, 2), cross_entropy, rows),
        "loss asserts": (module, lambda outputs, targets: {}["here"], rows),
        "buffers": (nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)), cross_entropy, rows),
        "same": (SAME, cross_entropy, rows),
        "lies": (module, cross_entropy, [Lies()]),
        "lazy": (nn.LazyLinear(2), cross_entropy, rows),
        "momentum": (nn.Sequential(nn.BatchNorm1d(3, momentum=None), module), cross_entropy, rows),
        "norm double": (nn.Sequential(nn.BatchNorm1d(3, affine=False).double(), module), cross_entropy, rows),
        "one row": (nn.Sequential(nn.BatchNorm1d(3), module), cross_entropy, rows),
        "shape": (nn.Linear(4, 2), cross_entropy, rows),
        "outputs": (nn.GRU(3, 2), cross_entropy, rows),
        "no loss": (module, "cross_entropy", rows),
        "loss arguments": (module, lambda outputs: outputs.mean(), rows),
        "loss shape": (module, nn.CrossEntropyLoss(reduction="none"), rows),
        "loss sum": (module, nn.CrossEntropyLoss(reduction="sum"), rows),
        "loss number": (module, lambda outputs, targets: 1.0, rows),
        "loss constant": (module, lambda outputs, targets: torch.zeros(()), rows),
        "loss nan": (module, lambda outputs, targets: outputs.mean() * torch.nan, rows),
        "mapping": (module, cross_entropy, dict(enumerate(rows))),
        "generator": (module, cross_entropy, (r for r in rows)),
        "no clients": (module, cross_entropy, []),
        "no rows": (module, cross_entropy, [*rows, TensorDataset(x[:0], y[:0])]),
        "no length": (module, cross_entropy, [rows[0], iter(rows[1])]),
        "no pair": (module, cross_entropy, [rows[0], x]),
        "three parts": (module, cross_entropy, [TensorDataset(x, y, y)]),
        "ragged": (module, cross_entropy, short),
        "text": (module, cross_entropy, [[("abc", 0)]]),
        "rows double": (module, cross_entropy, [rows[0], TensorDataset(x.double(), y)]),
        "rows half": (module, cross_entropy, [rows[0], TensorDataset(x.half(), y)]),
        "targets double": (nn.Linear(3, 1), mse_loss, [TensorDataset(x, y[:, None].double())]),
        "targets flat": (nn.Linear(3, 1), mse_loss, [TensorDataset(x, y.float())]),
        "nan": (module, cross_entropy, [rows[0], TensorDataset(x / 0, y)]),
        "label": (module, cross_entropy, [rows[0], TensorDataset(x, y + torch.tensor([0, 0, 0, 1]))]),
        "test label": (module, cross_entropy, rows, TensorDataset(x, y + 1)),
        "test empty": (module, cross_entropy, rows, []),
    }.get(case, (module, cross_entropy, rows))


NO_FUNCTION = 5


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("module", "it returns tuple of 2; expected (module, loss, datasets[, test[, predict[, collate]]]), or a dict"),
        ("list", "it returns type"),
        ("no module", "the module that it returns is builtin_function_or_method; expected a torch.nn.Module"),
        ("frozen", "no parameter of the module needs a gradient; expected one that does"),
        ("double", "problem.dtype=float32: the module's parameter weight is float64; expected float64"),
        ("half", "problem.dtype=float32: the module's parameter weight is float16"),
        ("complex", "problem.dtype=float32: the module's parameter weight is complex64"),
        ("meta", "shape and values of weight are not known yet; expected a module whose are"),
        ("broken", "client 0: AttributeError: 'Broken' object has no attribute 'nowhere'"),
        ("loss asserts", "client 0: KeyError: 'here'; expected a loss that takes outputs [2, 2] and targets [2]"),
        ("buffers", "a forward pass changes parametrizations.weight.0._u"),
        ("lies", ("client 0: list index out of range; expected a data set with a row [k] for each k below len()")),
        ("lazy", "shape and values of weight are not known yet; expected a module whose are"),
        ("momentum", "0 has no momentum, so it counts the batches of all clients of a rank; expected a momentum"),
        ("norm double", "problem.dtype=float32: the module's buffer 0.running_mean is float64; expected float64"),
        (
            "one row",
            "client 1: Expected more than 1 value per channel when training, got input size torch.Size([1, 3])",
        ),
        ("shape", "client 0: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x2)"),
        ("outputs", "the module returns tuple of 2; expected a tensor"),
        ("no loss", "the loss that it returns is str; expected a function of outputs and targets"),
        ("loss arguments", "takes 1 positional argument but 2 were given"),
        ("loss shape", "the shape of the loss is [2]; expected one number, the mean over the rows"),
        ("loss sum", "the loss is the sum over the rows; expected their mean"),
        ("loss number", "the loss is float; expected a tensor"),
        (
            "loss constant",
            "the loss does not depend on the module's parameters; expected one that can be differentiated",
        ),
        ("loss nan", ("the loss of the first rows of client 0 is nan; expected a finite loss at the initial model")),
        ("mapping", "datasets, the third, is dict of 0, 1, 2; expected a list of the clients' data sets"),
        ("generator", "datasets, the third, is generator; expected a list of the clients' data sets"),
        ("no clients", "at least one client's data set"),
        ("no rows", "client 3 has no rows; expected at least one"),
        ("no length", "the data set of client 1 is iterator; expected one with len() and [k]"),
        ("no pair", "row 0 of client 1 is Tensor; expected rows (x, y), as TensorDataset(x, y) has"),
        ("three parts", "the rows of client 0 have 3 parts; expected (x, y)"),
        ("ragged", "the inputs of client 2 make no tensor: stack expects each tensor to be equal size, but got [3] at"),
        (
            "text",
            (
                "the inputs of client 0 make no tensor: new(): invalid data type 'str'; expected rows of one shape, "
                "or a collate function"
            ),
        ),
        ("rows double", "problem.dtype=float32: the inputs of client 1 are float64; expected float64"),
        ("rows half", "problem.dtype=float32: the inputs of client 1 are float16"),
        ("targets double", "the targets of client 0 are float64; expected float64"),
        (
            "targets flat",
            "client 0: Using a target size (torch.Size([2])) that is different to the input size (torch.Size([2,",
        ),
        ("nan", "among the inputs of client 1 is nan or infinity"),
        ("label", "client 1: Target 2 is out of bounds."),
        ("test label", "the test set: Target 2 is out of bounds."),
        ("test empty", "the test set has no rows; expected at least one"),
    ],
)
def test_what_is_returned(case: str, says: str) -> None:
    config = ProblemConfig(entry=ENTRY, options={"case": case})
    with refusal(re.escape(says)) as caught:
        problems.load(config)
    line = str(caught.value)
    assert line.startswith((f"problem.entry={ENTRY}: ", "problem.dtype=float32: ")) and "\n" not in line


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"entry": "nowhere.at_all:make"}, (
            "cannot be imported: No module named 'nowhere'; expected package.module:function"
        )),
        ({"entry": f"{__name__}:make_problm"}, "did you mean make_problem?"),
        ({"entry": f"{__name__}:zzz"}, "has no attribute 'zzz'"),
        ({"entry": f"{__name__}:NO_FUNCTION"}, "it is int; expected a function"),
        ({"options": {"cases": 1}}, f"; expected what {ENTRY}(case) takes"),
        ({"options": {"case": "", "rows": 1}}, "'', 'rows': 1}: got an unexpected keyword argument 'rows'"),
        ({"options": None}, "missing a required argument: 'case'"),
        ({"clients": 4}, "problem.clients=4: tests.problems.test_entry_wrong:make_problem returns 3 data sets"),
    ],
)  # fmt: skip
def test_what_is_asked_for(given: dict[str, Any], says: str) -> None:
    with refusal(re.escape(says)):
        problems.load(ProblemConfig(**{"entry": ENTRY, "options": {"case": ""}, **given}))


def test_nothing_wrong() -> None:
    assert problems.load(ProblemConfig(entry=ENTRY, options={"case": ""})).samples.tolist() == [4, 1, 7]


def test_a_module_that_was_returned_before() -> None:
    """Clients and the evaluation would bind it to two vectors at once."""
    problem = problems.load(ProblemConfig(entry=ENTRY, options={"case": "same"}))
    with refusal(r"the module was returned before; expected a new module at each call"):
        problem.initial(0)


def test_a_function_that_cannot_be_imported_or_looked_at(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "typing_error.py").write_text("def make_problem(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    for entry, says in (("typing_error:make_problem", "invalid syntax"), ("builtins:dict", "written in Python")):
        with refusal(says) as caught:
            problems.load(ProblemConfig(entry=entry))
        assert caught.value.key == "problem.entry"


def test_rows_are_nobodys_to_change() -> None:
    """A module changes its input in place, a loss its targets: each pass sees the same rows."""

    def inplace(outputs: Any, targets: Any) -> Any:
        return ((outputs[:, 0] - targets.sub_(0.5)) ** 2).mean()

    x = torch.linspace(-1, 1, 12).reshape(4, 3)

    def made() -> Any:
        return nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 1)), inplace, [TensorDataset(x, torch.ones(4))]

    kept = x.clone()
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setitem(globals(), "make_inplace", made)
        config = ProblemConfig(entry=f"{__name__}:make_inplace")
        problem = problems.load(config)
        one = problems.objective(config, problem.meta, problem.shard(0), 0, 0)
        start = problem.initial(0)
        first = one.gradient(start)
        assert (one.gradient(start) == first).all()
        assert problem.evaluate(start) == problem.evaluate(start)
    assert (x == kept).all()
