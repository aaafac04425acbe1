"""Recorded gradients have the bits of the function; what may keep a state is not recorded."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from mpifl.problems.torch import recorded
from mpifl.problems.torch.modules import Logistic, cnn, mlp
from mpifl.problems.torch.recorded import Recorded, keeps_no_state
from tests.tiers import long

CLASSES = 4
MODULES = {
    "logistic": (lambda: Logistic(6, CLASSES, True), (6,)),
    "mlp": (lambda: mlp((6,), [5], CLASSES), (6,)),
    "cnn": (lambda: cnn((1, 8, 8), [2, 3], 5, CLASSES), (1, 8, 8)),
}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "AFTER", 2)


class Counted:
    """A function that counts its calls."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self.function(*arguments)


def gradients_of(module: nn.Module, autocast: bool = False) -> Any:
    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
            return cross_entropy(functional_call(module, weights, (x,)), y)

    return vmap(grad(loss))


def draw(module: nn.Module, clients: int, rows: int, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    weights = {name: torch.randn(clients, *p.shape, dtype=dtype) for name, p in module.named_parameters()}
    return weights, torch.randn(clients, rows, *shape, dtype=dtype), torch.randint(0, CLASSES, (clients, rows))


@pytest.mark.parametrize("autocast", [False, long(True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MODULES)
def test_same_bits(name: str, dtype: torch.dtype, autocast: bool) -> None:
    make, shape = MODULES[name]
    torch.manual_seed(0)
    module = make().to(dtype)
    assert keeps_no_state(module, cross_entropy)
    plain = gradients_of(module, autocast)
    counted = Counted(plain)
    function = Recorded(counted)
    for _ in range(2):
        for clients, rows in ((5, 3), (7, 2)):
            for _ in range(3):
                arguments = draw(module, clients, rows, shape, dtype)
                found, expected = function(*arguments), plain(*arguments)
                assert list(found) == list(expected)
                for key, value in found.items():
                    assert torch.equal(value, expected[key]) and value.abs().max() > 0
                    assert not value.requires_grad
    assert counted.calls == 2 * (2 + 1)  # for each shape twice, and once to be recorded


def test_a_recording_with_other_results_is_not_used() -> None:
    state = [0]

    def function(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
        state[0] += 1
        return {"w": weights["w"] * state[0]}

    found = Recorded(function)
    ones = {"w": torch.ones(3)}
    values = [found(ones, torch.zeros(1), torch.zeros(1))["w"][0].item() for _ in range(5)]
    assert values == [1, 2, 4, 5, 6]  # the third call is the one that records


def test_what_torch_cannot_record_is_called() -> None:
    def function(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"w": weights["w"] * x.sum().item()}

    found = Recorded(function)
    for k in range(5):
        assert found({"w": torch.ones(1)}, torch.full((2,), float(k)), torch.zeros(1))["w"].item() == 2 * k


class Own(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


def own_loss(scores: Tensor, y: Tensor) -> Tensor:
    return scores.sum()


def hooked() -> nn.Module:
    module = nn.Linear(2, 2)
    module.register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize(
    ("module", "loss"),
    [
        (Own(), cross_entropy),
        (nn.Sequential(nn.Linear(2, 2), Own()), cross_entropy),
        (hooked(), cross_entropy),
        (nn.Linear(2, 2), own_loss),
        (nn.Linear(2, 2), partial(own_loss)),
        (nn.Linear(2, 2), lambda scores, y: cross_entropy(scores, y)),
        (nn.Linear(2, 2), Own()),
    ],
)
def test_code_of_others_is_not_recorded(module: nn.Module, loss: Any) -> None:
    assert not keeps_no_state(module, loss)
    assert keeps_no_state(nn.Linear(2, 2), nn.CrossEntropyLoss(label_smoothing=0.1))
