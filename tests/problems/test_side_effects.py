"""A user's module or loss that keeps something from one pass to the next is refused by name; a cache is not."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest

from mpifl import problems
from mpifl.errors import ConfigError
from mpifl.problems import ProblemConfig
from mpifl.problems.settings import Torch

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

HERE = __name__


class Base(nn.Module):
    """A linear layer; `keep` is what a subclass does in each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def keep(self, x: Any) -> None: ...

    def forward(self, x: Any) -> Any:
        self.keep(x)
        return self.linear(x)


class IntegerBuffer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.tensor(0))

    def keep(self, x: Any) -> None:
        self.steps += 1


class BoolBuffer(Base):
    """Changes in evaluation alone."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.tensor(False))

    def keep(self, x: Any) -> None:
        if not self.training:
            self.seen = torch.tensor(True)


class ComplexBuffer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("phase", torch.tensor(1j))

    def keep(self, x: Any) -> None:
        self.phase = self.phase * 1j


class Weights(Base):
    """Initialises itself from the first rows that it sees, as ActNorm."""

    ready = False

    def keep(self, x: Any) -> None:
        if not self.ready:
            self.ready = True
            self.linear.bias.data = x.mean() * torch.ones(2)


class Number(Base):
    steps = 0

    def keep(self, x: Any) -> None:
        self.steps += 1


class ClassNumber(Base):
    steps = 0

    def keep(self, x: Any) -> None:
        ClassNumber.steps += 1


class Nested(Base):
    """In a part of a part, in an object of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Sequential(self.linear, Memory())


class Memory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log = {"norms": [0.0]}

    def forward(self, x: Any) -> Any:
        self.log["norms"].append(float(x.detach().norm()))
        return x


class Hidden(Base):
    """A recurrent state that is carried on."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.zeros(1)

    def keep(self, x: Any) -> None:
        self.hidden = 0.5 * self.hidden + x.detach().mean()


class FirstRows(Base):
    """A constant from the first rows that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.centre = None

    def keep(self, x: Any) -> None:
        if self.centre is None:
            self.centre = x.mean(0)


class OwnGenerator(Base):
    def __init__(self) -> None:
        super().__init__()
        self.draw = np.random.default_rng(0)

    def keep(self, x: Any) -> None:
        self.draw.random()


class TorchGenerator(Base):
    def __init__(self) -> None:
        super().__init__()
        self.draw = torch.Generator()

    def keep(self, x: Any) -> None:
        torch.rand(1, generator=self.draw)


class NumPy(Base):
    def keep(self, x: Any) -> None:
        np.random.random()


class Python(Base):
    def keep(self, x: Any) -> None:
        random.random()


class Cache(Base):
    """What depends on the rows' shape alone, and the last outputs, which the next pass replaces. Always draws."""

    def __init__(self) -> None:
        super().__init__()
        self.mask, self.last = None, None
        self.norm = nn.BatchNorm1d(2)

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


class WithLoss(Base):
    """Its loss is a method of its own, and its norm has running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Sequential(self.linear, nn.BatchNorm1d(2))
        self.register_buffer("edges", torch.eye(3).to_sparse())

    def loss(self, outputs: Any, y: Any) -> Any:
        return F.cross_entropy(outputs, y)


LOSSES: dict[str, Any] = {
    "object": Annealed,
    "module": Centres,
    "method": lambda: Annealed().__call__,
    "function": lambda: counted,
}


def entry(module: str = "Base", loss: str = "") -> Any:
    draw = torch.Generator().manual_seed(0)
    sets = [TensorDataset(torch.randn(5, 3, generator=draw), torch.arange(5) % 2) for _ in range(3)]
    made = globals()[module]()
    return made, getattr(made, "loss", LOSSES.get(loss, lambda: F.cross_entropy)()), sets[:2], sets[2]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"module": "IntegerBuffer"},
            "a forward pass changes steps; expected buffers that stay as they are, running statistics apart",
        ),
        (
            {"module": "BoolBuffer"},
            "a forward pass changes seen; expected buffers that stay as they are, running statistics apart",
        ),
        (
            {"module": "ComplexBuffer"},
            "a forward pass changes phase; expected buffers that stay as they are, running statistics apart",
        ),
        (
            {"module": "Weights"},
            "a forward pass changes linear.bias",
        ),
        (
            {"module": "Number"},
            "a forward pass changes steps; expected values that stay as they are, as clients share module and loss",
        ),
        (
            {"module": "ClassNumber"},
            "a forward pass changes steps; expected values that stay as they are, as clients share module and loss",
        ),
        ({"module": "Nested"}, "a forward pass changes linear.1.log"),
        ({"module": "Hidden"}, "a forward pass changes hidden"),
        ({"module": "FirstRows"}, "a forward pass changes centre"),
        (
            {"module": "OwnGenerator"},
            "a forward pass changes draw; expected values that stay as they are, as clients share module and loss",
        ),
        (
            {"module": "TorchGenerator"},
            "a forward pass changes draw; expected values that stay as they are, as clients share module and loss",
        ),
        (
            {"module": "NumPy"},
            "the module or the loss draws from NumPy's generator; expected draws from torch's generator alone",
        ),
        (
            {"module": "Python"},
            "the module or the loss draws from Python's generator; expected draws from torch's generator alone",
        ),
        ({"loss": "object"}, "a forward pass changes loss.calls"),
        ({"loss": "method"}, "a forward pass changes loss.calls"),
        ({"loss": "function"}, "a forward pass changes loss.calls"),
        ({"loss": "module"}, "a forward pass changes loss.centre"),
    ],
)
def test_what_changes_in_a_pass_is_refused_by_name(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)) as raised:
        problems.load(ProblemConfig(entry=f"{HERE}:entry", options=options))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("buffers", ["averaged", "local"])
@pytest.mark.parametrize(("module", "draws"), [("Base", False), ("Cache", True), ("WithLoss", False)])
def test_caches_and_running_statistics_are_accepted(module: str, draws: bool, buffers: Any) -> None:
    before = torch.random.get_rng_state()
    problem = problems.load(
        ProblemConfig(entry=f"{HERE}:entry", options={"module": module}, torch=Torch(buffers=buffers))
    )
    assert problem.draws is draws
    assert torch.equal(torch.random.get_rng_state(), before)
