"""Which models' clients are computed together, and why others are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mpifl.problems.settings import Torch
from mpifl.problems.torch import batched
from mpifl.problems.torch.objective import Windows
from tests.problems.test_batched import CASES, CPU, agree, answers, host, mlp, spied, trainer


class Bag(nn.Module):
    """The mean of the tokens' vectors, times a number that is a parameter; in training doubled."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 3, padding_idx=0), nn.Linear(3, 4)
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.head(self.embedding(x).mean(1)) * (2 if self.training else 1)


def test_text() -> None:
    tokens = np.random.default_rng(0).integers(0, 9, 200).astype(np.uint8)

    def windows(i: int, s: int) -> Windows:
        return Windows(tokens, np.arange(i, i + s).reshape(-1, 1), 5, CPU)

    hosted, x = host(Bag().double(), rows=windows)
    assert hosted.facts["batched"] is True
    agree(*CASES["fedavg, epochs"], hosted, x, 1e-12)


def test_rows_that_do_not_look_alike_are_not_mixed() -> None:
    """A module that takes rows of any length."""
    module = nn.Sequential(nn.Unflatten(1, (1, -1)), nn.AdaptiveAvgPool1d(6), nn.Flatten(), mlp()).double()
    hosted, x = host(module, (20,) * 11, rows=lambda i, s: torch.randn(s, 8 + i % 2, dtype=torch.float64))
    calls = spied(hosted)
    agree(*CASES["fedprox"], hosted, x, 1e-12)
    assert {clients for clients, _ in calls} <= {5, 6}


def test_convolutions_and_bfloat16() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.GroupNorm(3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4)
    )  # fmt: skip
    hosted, x = host(module.double(), shape=(1, 4, 4))
    agree(*CASES["fedavg, epochs"], hosted, x, 1e-12)
    hosted, x = host(mlp(torch.float32), dtype=torch.float32, autocast="bfloat16")
    full, _ = host(mlp(torch.float32), dtype=torch.float32)
    agree(*CASES["fedavg, epochs"], hosted, x, 2e-2)
    half, single = (answers(*CASES["fedavg"], h, x, True)[0].vectors[0] for h in (hosted, full))
    assert 1e-5 < abs(half - single).max() < 1e-2  # it was done in bfloat16, both ways


class Branch(nn.Module):
    """What it computes depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.inner(x)
        return scores if x.sum() > 0 else -scores


class Counting(Branch):
    """What it computes depends on how often it was called."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        scores: Tensor = self.inner(x)
        return self.calls * scores


def recurrent() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (6, 1)), nn.LSTM(1, 4, batch_first=True), Last())


class Last(nn.Module):
    """An LSTM's last output."""

    def forward(self, x: tuple[Tensor, Any]) -> Tensor:
        return x[0][:, -1]


@pytest.mark.parametrize(
    "module, reason",
    [
        (lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), "the module has buffers"),
        (lambda: nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5)), "vmap: called random operation"),
        (recurrent, "not yet implemented the batching rule"),
        (Branch, "data-dependent control flow"),
        (Counting, "gradients under vmap are others"),
        (lambda: nn.Sequential(nn.Linear(6, 60_000), nn.Linear(60_000, 4)), "one client's batch is enough work"),
    ],
)
def test_models_that_are_computed_one_by_one(module: Callable[[], nn.Module], reason: str) -> None:
    hosted, x = host(module(), (20,) * 6, torch.float32)
    assert hosted.train_batch is None
    assert hosted.facts["batched"].startswith("no: ") and reason in hosted.facts["batched"]
    assert len(hosted.facts["batched"]) < 210 and "\n" not in hosted.facts["batched"]
    answers(*CASES["fedavg"], hosted, x, True)


def test_clients_of_a_rank_must_be_several() -> None:
    few = "no: fewer than 5 clients on this rank, or with rows of one shape"
    assert host(mlp(), (20,) * 4)[0].facts["batched"] == few
    hosted, _ = host(mlp(), (20,) * 5)
    assert hosted.facts["batched"] is True
    shared, settings = hosted.objectives[0].shared, Torch(batched=True)  # type: ignore[attr-defined]
    assert (
        batched.host_clients(shared, {}, settings, {"transfers": "host"}).facts["batched"] == few
    )  # more ranks than clients
    assert host(mlp(), (20,) * 5, rows=lambda i, s: torch.randn(s, 6 + i % 2))[0].facts["batched"] == few


def test_the_work_of_a_batch() -> None:
    """A row passes the first layer twice, since nobody needs its gradient, and the second three times."""
    operations = 2 * (2 * 6 * 5000 + 3 * 5000 * 4)
    hosted, _ = host(mlp(hidden=5000), (200,) * 6, batch=50)
    assert trainer(hosted).rows == 15 * 10**6 // operations == 62
    hosted, _ = host(mlp(hidden=5000), (200,) * 6, batch=63)
    assert hosted.facts["batched"] == "no: one client's batch is enough work for a CPU: it has more than 62 rows"
