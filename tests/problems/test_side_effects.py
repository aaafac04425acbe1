"""A user's module or loss that keeps something from one pass to the next is refused by name; a cache is not."""

from __future__ import annotations

import random
import re
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

HERE = __name__


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


def add_one(m: Any, x: Any) -> None:
    m.steps += 1


def count_in_the_class(m: Any, x: Any) -> None:
    OfClass.steps += 1


class OfClass(Keeps):
    steps = 0


def first_mean_as_bias(m: Any, x: Any) -> None:
    """Initialises itself from the first rows that it sees, as ActNorm."""
    if not m.ready:
        m.ready = True
        m.linear.bias.data = x.mean() * torch.ones(2)


class Memory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log = {"norms": [0.0]}

    def forward(self, x: Any) -> Any:
        self.log["norms"].append(float(x.detach().norm()))
        return x


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


class Annealed:
    """A loss with a counter."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, outputs: Any, y: Any) -> Any:
        self.calls += 1
        return F.cross_entropy(outputs, y) / self.calls


def counted(outputs: Any, y: Any) -> Any:
    """A loss that is a function with a counter."""
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


class WithLoss(Keeps):
    """Its loss is a method of its own, and its norm has running statistics."""

    def __init__(self) -> None:
        super().__init__(buffers={"edges": torch.eye(3).to_sparse()})
        self.linear = nn.Sequential(self.linear, nn.BatchNorm1d(2))

    def loss(self, outputs: Any, y: Any) -> Any:
        return F.cross_entropy(outputs, y)


BUFFERS = "; expected buffers that stay as they are, running statistics apart"
VALUES = "; expected values that stay as they are, as clients share module and loss"
DRAWS = "; expected draws only from torch's generator"
MODULES: dict[str, tuple[Any, str]] = {  # modules that are refused, and why
    "integer buffer": (lambda: Keeps(add_one, {"steps": torch.tensor(0)}), f"a forward pass changes steps{BUFFERS}"),
    "boolean buffer, in evaluation alone": (
        lambda: Keeps(sets(seen=lambda m, x: m.seen | (not m.training)), {"seen": torch.tensor(False)}),
        f"a forward pass changes seen{BUFFERS}",
    ),
    "complex buffer": (
        lambda: Keeps(sets(phase=lambda m, x: m.phase * 1j), {"phase": torch.tensor(1j)}),
        f"a forward pass changes phase{BUFFERS}",
    ),
    "weights": (lambda: Keeps(first_mean_as_bias, ready=False), "a forward pass changes linear.bias"),
    "number": (lambda: Keeps(add_one, steps=0), f"a forward pass changes steps{VALUES}"),
    "number of the class": (lambda: OfClass(count_in_the_class), f"a forward pass changes steps{VALUES}"),
    "in a part of a part": (
        lambda: nn.Sequential(nn.Sequential(nn.Linear(3, 2), Memory())),
        "a forward pass changes 0.1.log",
    ),
    "recurrent state": (
        lambda: Keeps(sets(hidden=lambda m, x: 0.5 * m.hidden + x.detach().mean()), hidden=torch.zeros(1)),
        "a forward pass changes hidden",
    ),
    "constant from the first rows": (
        lambda: Keeps(sets(centre=lambda m, x: x.mean(0) if m.centre is None else m.centre), centre=None),
        "a forward pass changes centre",
    ),
    "generator of NumPy's": (
        lambda: Keeps(lambda m, x: m.draw.random(), draw=np.random.default_rng(0)),
        f"a forward pass changes draw{VALUES}",
    ),
    "generator of torch's": (
        lambda: Keeps(lambda m, x: torch.rand(1, generator=m.draw), draw=torch.Generator()),
        f"a forward pass changes draw{VALUES}",
    ),
    "draws of NumPy": (
        lambda: Keeps(lambda m, x: np.random.random()),
        f"the module or the loss draws from NumPy's generator{DRAWS}",
    ),
    "draws of Python": (
        lambda: Keeps(lambda m, x: random.random()),
        f"the module or the loss draws from Python's generator{DRAWS}",
    ),
}
LOSSES: dict[str, tuple[Any, str]] = {  # losses that are refused, and why
    "object": (Annealed, "a forward pass changes loss.calls"),
    "module": (Centres, "a forward pass changes loss.centre"),
    "method": (lambda: Annealed().__call__, "a forward pass changes loss.calls"),
    "function": (lambda: counted, "a forward pass changes loss.calls"),
}
ACCEPTED = {"plain": Keeps, "cache": Cache, "loss of its own": WithLoss}


def entry(module: str = "plain", loss: str = "") -> Any:
    draw = torch.Generator().manual_seed(0)
    sets = [TensorDataset(torch.randn(5, 3, generator=draw), torch.arange(5) % 2) for _ in range(3)]
    made = MODULES[module][0]() if module in MODULES else ACCEPTED[module]()
    own = LOSSES[loss][0]() if loss else getattr(made, "loss", F.cross_entropy)
    return made, own, sets[:2], sets[2]


@pytest.mark.parametrize(
    ("options", "says"),
    [({"module": name}, says) for name, (_, says) in MODULES.items()]
    + [({"loss": name}, says) for name, (_, says) in LOSSES.items()],
    ids=[*MODULES, *LOSSES],
)
def test_what_changes_in_a_pass_is_refused_by_name(options: dict[str, str], says: str) -> None:
    with refusal(re.escape(says)) as raised:
        problems.load(ProblemConfig(entry=f"{HERE}:entry", options=options))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("buffers", ["averaged", "local"])
@pytest.mark.parametrize("module", ACCEPTED)
def test_caches_and_running_statistics_are_accepted(module: str, buffers: Any) -> None:
    """Only one of them draws, and what it draws is put back."""
    before = torch.random.get_rng_state()
    problem = problems.load(
        ProblemConfig(entry=f"{HERE}:entry", options={"module": module}, torch=Torch(buffers=buffers))
    )
    assert problem.draws == (module == "cache")
    assert torch.equal(torch.random.get_rng_state(), before)
