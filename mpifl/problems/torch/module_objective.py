"""A client's f_i of a torch module: the loss of its rows, and the steps and gradients that rules ask for."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from itertools import pairwise
from math import nan
from operator import add
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mpifl.objective import OptimizerSettings, Vector
from mpifl.problems.rows import Batches
from mpifl.problems.settings import ProblemSettings
from mpifl.problems.torch.examples import EVALUATION_ROWS, Examples, to_device
from mpifl.problems.torch.flat import Flat, check_writable, tensor, vector_like
from mpifl.problems.torch.optimizers import ClientOptimizer, TorchOptimizer, check
from mpifl.problems.torch.predictions import Prediction
from mpifl.rng import stream

MAX_ROWS = 4096  # rows in one pass: a gradient over more is the mean of pieces


class Shared:
    """What the clients of one rank share: one module, one loss, one device."""

    def __init__(
        self,
        flat: Flat,
        loss: Callable[[Tensor, Tensor], Tensor],
        device: torch.device,
        settings: ProblemSettings,
        prediction: Prediction | None = None,
    ) -> None:
        """prediction: how outputs predict labels; None: accuracies are nan."""
        assert settings.torch is not None
        self.flat, self.loss, self.device, self.l2 = flat, loss, device, settings.l2
        self.prediction = prediction
        self.regularised = self._regularised_parameters()
        self._bfloat16 = settings.torch.autocast == "bfloat16"
        self.executor: Any = None  # the `BatchTrainer`, while several clients are trained in one batch
        self._on_device: tuple[np.ndarray | None, Vector] = None, None

    def _regularised_parameters(self) -> list[nn.Parameter]:
        """The parameters that l2 shrinks: biases and those of norms are left out."""
        return [p for p in self.flat.weights if p.ndim > 1] if self.l2 else []

    def move(self, device: torch.device) -> None:
        """Takes the module and the loss to another device."""
        if device == self.device:
            return
        self.flat, self.device = Flat(self.flat.module, device, self.flat.dtype, self.flat.averaged), device
        self.regularised = self._regularised_parameters()
        if isinstance(self.loss, nn.Module):
            self.loss.to(device)

    def to_device(self, x: np.ndarray) -> Vector:
        """A model (d,) where the module is; copied there once and cached."""
        if self.device.type == "cpu":
            return x
        if x is not self._on_device[0]:
            self._on_device = x, tensor(x).to(self.device)
        return self._on_device[1]

    def load_for_evaluation(self, x: np.ndarray) -> None:
        """Binds the module to the model x (d,) for an evaluation: nothing is changed. Where clients keep
        statistics of their own the shared model has none: norms then take those of the rows at hand."""
        flat = self.flat
        flat.bind(self.to_device(x), flat.own_statistics())
        set_evaluation_mode(flat.module, not flat.averaged)

    def precision(self) -> AbstractContextManager[Any]:
        """Around a forward pass."""
        return torch.autocast(self.device.type, torch.bfloat16) if self._bfloat16 else nullcontext()

    def value(self, x: Any, y: Any, exact: bool = False) -> Tensor:
        """The mean loss of some rows, without the regulariser; exact: in the model's dtype throughout."""
        with nullcontext() if exact else self.precision():
            return self.loss(self.flat.module(x), y)

    def regulariser(self) -> float:
        """nu/2 ||w||^2 of the bound model."""
        return self.l2 / 2 * sum(float((p.detach().double() ** 2).sum()) for p in self.regularised)

    def add_regulariser(self) -> None:
        """Adds nu w to the gradients."""
        for p in self.regularised:
            if p.grad is None:  # the parameter has no part in the loss
                p.grad = torch.zeros_like(p)
            if p.grad.is_sparse:
                p.grad = p.grad.to_dense()
            p.grad.add_(p.detach(), alpha=self.l2)


def set_evaluation_mode(module: nn.Module, local: bool) -> None:
    """Puts a module into the mode in which models are evaluated; local: batch norms take the statistics of the rows."""
    module.eval()
    for part in module.modules() if local else ():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.train()


def seed_draws(key: str, device: torch.device) -> None:
    """Sets torch's generators, of which a process has one for each device, to a state that belongs to the key."""
    seed = zlib.crc32(key.encode())
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a hundred times as long
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


class TorchObjective(Batches):
    """One client's f_i. NumPy vectors give NumPy gradients in the same memory as torch's; tensors give tensors."""

    def __init__(
        self, shared: Shared, settings: ProblemSettings, meta: dict[str, Any], i: int, seed: int, rows: Examples,
        own: Examples | None,
    ) -> None:  # fmt: skip
        super().__init__(settings, meta, i, seed)
        self.shared, self.rows, self.own = shared, rows, own
        self.stats = shared.flat.own_statistics()
        self._optimizer = ClientOptimizer()
        self._row_seeds: np.ndarray | None = None  # (rows,) of what rows draw in this contact

    def begin_round(self, round: int) -> None:
        """What the module draws in this contact, for dropout say, belongs to (seed, client, round); what a row draws,
        to these and the row: it is the same each time that the row is visited in this contact."""
        self._optimizer.contact = round
        if self.rows.drawn:
            self._row_seeds = stream(self.seed, "row", self.i, round).integers(2**63, size=len(self.rows))
        seed_draws(f"{self.seed} {self.i} {round}", self.shared.device)

    def begin_pass(self, round: int, key: tuple[int, int]) -> None:
        """What the module draws for the next gradient belongs to the key, not to the passes before."""
        seed_draws(f"{self.seed} {self.i} {round} {key}", self.shared.device)

    def descend(self, y: Vector, batches: Sequence[Any], step: float) -> None:
        """y <- y - step * gradient(y, rows) for each batch, in place; the arithmetic is that of torch.optim.SGD."""
        check_writable(y)
        if self.shared.executor:
            self.shared.executor.submit(self, y, batches, step)
            return
        flat = self.shared.flat
        flat.bind(y, self.stats) if self.stats is not None else flat.bind_in_place(y)
        flat.train()
        for p in flat.weights:
            p.grad = None
        for rows in batches:
            self._backward(rows)
            with torch.no_grad():
                for p in flat.weights:
                    if p.grad is not None:
                        p.add_(p.grad, alpha=-step)
                        p.grad = None

    def optimizer(self, settings: OptimizerSettings, y: Vector, step: float) -> TorchOptimizer:
        """An optimiser of torch.optim on y, with the learning rate `step`."""
        check_writable(y)
        return TorchOptimizer(self._optimizer, settings, y, [p.shape for p in self.shared.flat.weights], step)

    def check_optimizer(self, settings: OptimizerSettings) -> None:
        """Raises ConfigError where torch has no such optimiser, or it does not work on this module and device."""
        check(settings, self.shared.flat.weights)

    def gradient(self, x: Vector, rows: Any = None) -> Vector:
        if self.shared.executor:
            return self.shared.executor.submit(self, x, [rows])
        self.shared.flat.bind(x, self.stats)
        self.shared.flat.train()
        return vector_like(x, self._gradient(rows))

    def measured_gradient(self, x: np.ndarray) -> Tensor:
        """(d,) of all rows, with the module as it is when models are measured."""
        self.shared.load_for_evaluation(x)
        with torch.backends.cudnn.flags(enabled=False):  # `fisher` says why
            return self._gradient(None, exact=True)

    def _gradient(self, rows: Any, exact: bool = False) -> Tensor:
        result = self.shared.flat.new_gradient()
        self._backward(rows, exact)
        return result

    def _backward(self, rows: Any, exact: bool = False) -> None:
        """Adds the gradient of a batch, regulariser included, to those of the parameters."""
        for value, share in self._values(rows, exact):
            (value if share == 1 else value * share).backward()
        self.shared.add_regulariser()

    def save(self) -> dict[str, Vector]:
        """A copy of its state from one contact to the next: running statistics, and an optimiser's state."""
        return {**({} if self.stats is None else {"stats": self.stats.clone()}), **self._optimizer.save()}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restores what `save` returned, as tensors or arrays."""
        if self.stats is not None:
            self.stats.copy_(torch.as_tensor(saved["stats"]))
        self._optimizer.load(saved)

    def update_buffers(self, y: Vector) -> None:
        """Writes the running statistics that the last gradient's pass left into y."""
        self.shared.flat.update_buffers(y)

    def take_buffers(self, gradient: Vector) -> None:
        """Takes the running statistics that `update_buffers` is to write next out of a gradient that has them."""
        self.shared.flat.take_buffers(gradient)

    def _values(self, rows: Any, exact: bool = False) -> Iterator[tuple[Tensor, float]]:
        """Mean losses of a batch (null: all rows), in pieces of some MAX_ROWS rows, and each piece's share of it."""
        rows = rows if isinstance(rows, np.ndarray) else range(self.samples)[rows or slice(None)]
        total = len(rows)
        for begin, end in pieces(total, MAX_ROWS):
            piece = rows[begin:end] if isinstance(rows, np.ndarray) else slice(rows[begin], rows[end - 1] + 1)
            x, y = (to_device(part, self.shared.device) for part in self._take(piece))
            yield self.shared.value(x, y, exact), (end - begin) / total

    def _take(self, rows: Any) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a batch, in a contact with its draws."""
        if self.rows.drawn is None or self._row_seeds is None:
            return self.rows.take(rows)
        return self.rows.drawn(np.arange(len(self.rows))[rows], self._row_seeds[rows])

    @torch.no_grad()
    def loss(self, x: Vector, rows: Any = None) -> float:
        self._load(x)
        mean = sum(float(value) * share for value, share in self._values(rows))
        return mean + self.shared.regulariser()

    def fisher(self, x: Vector) -> Vector:
        self._load(x)
        flat = self.shared.flat
        total = torch.zeros_like(flat.new_gradient())
        with torch.backends.cudnn.flags(enabled=False):  # cuDNN's LSTMs give no gradients in evaluation mode
            for k in range(self.samples):
                row = flat.new_gradient()
                self.shared.value(*self._take(slice(k, k + 1))).backward()
                total += row**2
        return vector_like(x, total / self.samples)

    def accuracy(self, x: Vector) -> float:
        if not self.own:
            return nan
        self._load(x)
        return measure(self.shared, self.own).accuracy

    def _load(self, x: Vector) -> None:
        """Binds the module to x, for passes that change nothing."""
        self.shared.flat.bind(x, self.stats)
        self.shared.flat.module.eval()


class Measured(NamedTuple):
    """Sums over some rows."""

    rows: int
    loss: float
    right: int  # labels that are predicted rightly
    counted: int  # labels that count; 0 where outputs predict none

    @classmethod
    def sum(cls, parts: Iterable[Measured]) -> Measured:
        """The sums over several parts of the rows."""
        return cls(
            *(reduce(add, column) for column in zip((0, 0.0, 0, 0), *parts, strict=True))
        )  # sum() rounds otherwise

    @property
    def mean_loss(self) -> float:
        """The mean loss of the rows; nan where there are none."""
        return self.loss / self.rows if self.rows else nan

    @property
    def accuracy(self) -> float:
        """The fraction of labels that is predicted rightly; nan where there are none."""
        return self.right / self.counted if self.counted else nan


@torch.no_grad()
def measure(shared: Shared, rows: Examples) -> Measured:
    """Losses and predictions of the rows."""
    parts = []
    for found, y, count in outputs(shared, rows):
        right, counted = shared.prediction.count(found.clone(), y) if shared.prediction else (0, 0)
        parts.append(Measured(count, float(shared.loss(found, y)) * count, right, counted))
    return Measured.sum(parts)


@torch.no_grad()
def class_scores(shared: Shared, rows: Examples) -> tuple[np.ndarray, np.ndarray] | None:
    """Classes (labels,) int64 and scores (labels, classes) of the rows that count; None where outputs are no scores."""
    prediction, pieces = shared.prediction, []
    if prediction is None or prediction.scores is None:
        return None
    for found, y, _ in outputs(shared, rows):
        at = prediction.counted(y).reshape(-1)
        pieces.append((prediction.classes(y)[at].cpu(), prediction.scores(found)[at].cpu()))
    classes, scores = map(torch.cat, zip(*pieces, strict=True))
    return classes.numpy(), scores.numpy()


def outputs(shared: Shared, rows: Examples) -> Iterator[tuple[Tensor, Any, int]]:
    """The module's outputs, the targets and the number of rows, of some rows at a time."""
    for begin, end in pieces(len(rows), EVALUATION_ROWS):
        x, y = (to_device(part, shared.device) for part in rows.take(slice(begin, end)))
        yield shared.flat.module(x), y, end - begin


def pieces(rows: int, most: int) -> Iterator[tuple[int, int]]:
    """Begin and end of pieces of `most` rows; a last one of one row, which batch norm cannot take, joins the others."""
    yield from pairwise([0, *range(most, rows - 1, most), rows])
