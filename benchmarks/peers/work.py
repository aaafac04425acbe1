"""The clients' work, the same for every framework: multinomial logistic regression or a quadratic, in torch.

Imported by the drivers in the peers' environments: torch and NumPy alone.
"""

from __future__ import annotations

import numpy as np
import torch
from data import CLASSES, FEATURES, ROWS, STEP, rows
from torch import nn


class Linear(nn.Module):
    """d = 7,850 for 784 features and 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Flat(nn.Module):
    """One vector of d entries, for the quadratic."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(d))


class Client:
    """A client's local step: of logistic regression on a batch, or of 1/2 a |w - c|^2 where d is given."""

    def __init__(self, client: int, batch: int, d: int = 0) -> None:
        self.module = Flat(d) if d else Linear()
        self._draw = np.random.default_rng(1000 + client)
        self._batch, self._optimum = batch, None
        if d:
            self._optimum = torch.from_numpy(self._draw.standard_normal(d, np.float32))
        else:
            self._x, self._y = map(torch.from_numpy, rows(client))

    def step(self) -> None:
        """One step on the present parameters, in place."""
        with torch.no_grad():
            if self._optimum is not None:
                (w,) = self.module.parameters()
                w.sub_(w - self._optimum, alpha=STEP)
                return
        at = torch.from_numpy(self._draw.choice(ROWS, self._batch, replace=False))
        nn.functional.cross_entropy(self.module(self._x[at]), self._y[at]).backward()
        with torch.no_grad():
            for p in self.module.parameters():
                p.sub_(p.grad, alpha=STEP)
                p.grad = None
