"""A client's objective, and the flat vectors that it is a function of.

A vector is flat, (d,): a NumPy array on the server; on a client what its rank computes with, a NumPy array or a torch
tensor, on a GPU perhaps. Code for both keeps to `+ - * / @`, in-place forms, `abs`, `.clip`, and the functions below.
Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import hypot, isfinite, sqrt
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

Vector = Any  # np.ndarray | torch.Tensor, (d,)


class StateEntry(NamedTuple):
    """An entry of a module's `state_dict`."""

    key: str
    dtype: str  # torch's name of its type
    shape: list[int]
    part: str | None  # the part of the flat vector that it is; None: a constant
    bytes: int  # size of a constant, among those of the others


class ModuleState(NamedTuple):
    """What a module's `state_dict` is made of; no entries: it is not known."""

    entries: list[StateEntry]
    constants: np.ndarray  # uint8, the bytes of the constants in the order of their entries


NO_STATE = ModuleState([], np.empty(0, np.uint8))


def clone(v: Vector) -> Vector:
    """A copy in the same kind of memory."""
    return v.clone() if hasattr(v, "clone") else v.copy()


def to_numpy(v: Vector) -> np.ndarray:
    """The vector as a NumPy array; an array, or a tensor in the CPU's memory, is not copied."""
    return v if isinstance(v, np.ndarray) else v.cpu().numpy()


def from_numpy(values: np.ndarray, like: Vector) -> Vector:
    """The values as a vector of `like`'s kind and dtype: themselves, or copied into a tensor on its device."""
    return values if isinstance(like, np.ndarray) else like.new_tensor(values)


def make_read_only(vectors: Iterable[Vector]) -> None:
    """Makes NumPy arrays read-only, so that code that changes a shared vector in place gets a ValueError there."""
    for v in vectors:
        if isinstance(v, np.ndarray):
            v.flags.writeable = False


def check_vectors(who: str, vectors: Sequence[Vector], x: Vector) -> None:
    """Raises ValueError unless all vectors have the shape, dtype and device of the model x: nothing else can be sent.

    Args:
        who: The beginning of the error's sentence.
        vectors: The vectors to check.
        x: (d,) the model.
    """
    shape, dtype = x.shape, x.dtype
    for v in vectors:
        if type(v) is not np.ndarray and not hasattr(v, "device") and not isinstance(v, np.ndarray | np.generic):
            found = type(v).__name__
            raise ValueError(f"{who} a {found} in place of a vector, not {x.dtype} of shape {tuple(x.shape)}")
        if v.shape != shape or v.dtype != dtype or (type(v) is not np.ndarray and _device(v) != _device(x)):
            raise ValueError(f"{who} {v.dtype} of shape {tuple(v.shape)}, not {x.dtype} of shape {tuple(x.shape)}")


def parts_of(d: int, count: int) -> list[slice]:
    """The parts of a vector (d,) that `count` ranks share: ceil(d/count) numbers each, the last ones fewer.

    `torch.chunk` cuts like that, but leaves out parts of no numbers.
    """
    size = -(-d // count)
    return [slice(min(d, k * size), min(d, (k + 1) * size)) for k in range(count)]


def norm_of(vectors: Sequence[Vector]) -> float:
    """The Euclidean norm of all vectors together; infinite or NaN if an entry is, or if it overflows float64."""
    square = 0.0
    for v in vectors:
        square += float(v @ v)
    if isfinite(square):
        return sqrt(square)
    norms = []  # a square may be too large for the vectors' own type
    for v in vectors:
        values = to_numpy(v).astype(np.float64)
        largest = float(np.abs(values).max(initial=0.0))
        if not isfinite(largest):
            return largest
        values /= largest or 1.0
        norms.append(largest * sqrt(float(values @ values)))
    return hypot(*norms)


def _device(v: Vector) -> str:
    return "" if isinstance(v, np.ndarray) else str(v.device)


class QuadraticTerm(NamedTuple):
    """The term added to f_i: <shift, y> + weight/2 ||y - centre||^2."""

    shift: Vector | None
    weight: float
    centre: Vector | None

    def add_gradient(self, y: Vector, gradient: Vector) -> None:
        """Adds shift + weight (y - centre) to `gradient`, in place."""
        if self.weight:
            gradient += self.weight * (y - self.centre)
        if self.shift is not None:
            gradient += self.shift


NO_TERM = QuadraticTerm(None, 0.0, None)


class OptimizerSettings(NamedTuple):
    """A torch optimiser as local solver: a job's `solver` of that kind.

    Attributes:
        name: A class of torch.optim.
        options: Its keyword arguments, without `lr`.
        state: fresh, it starts anew at each contact; or kept, the client keeps it from one contact to the next.
        schedule: A class of torch.optim.lr_scheduler; empty: the learning rate is constant.
        schedule_options: Its keyword arguments.
        per: The schedule's unit: a local step, or a contact of the client.
    """

    name: str
    options: Mapping[str, Any]
    state: Literal["fresh", "kept"]
    schedule: str
    schedule_options: Mapping[str, Any]
    per: Literal["step", "contact"]


class LocalOptimizer(Protocol):
    """An optimiser on one client's vector y, for one run of the local solver."""

    def step(self, gradient: Vector) -> None:
        """Takes a step along the gradient (d,), which changes y in place."""

    def close(self) -> None:
        """Called after the last step: the client keeps the state, if it is one that is kept."""


class Objective(Protocol):
    """One client's f_i, as `mpifl.problems` builds it.

    Further methods are optional:

    - `begin_round(round)` is called before a client trains; `round` is the key of the objective's random draws, as for
      dropout.
    - `descend(y, batches, step)` takes the steps y <- y - step * gradient(y, rows) of all batches in place, faster
      than single gradients.
    - `update_buffers(y)` is called after each step; it updates, in place, the entries of y that have no gradient, such
      as the running statistics of batch norm.
    - `optimizer(settings, y, step)` returns a `LocalOptimizer` for the vector y (d,), with the learning rate `step`;
      `check_optimizer(settings)` raises ConfigError where there is no such optimiser on this rank.
    - `fit(x, round, steps, epochs, step, term)` takes the local steps from x itself, in place of a local solver, and
      returns (y, the number of steps): the client has a training loop of its own. `adds_term` says whether it adds the
      term to the loss.
    - `save()` returns what the objective keeps from one contact to the next, as a dict of vectors by name that are not
      changed later; `load` restores it.

    Attributes:
        samples: s_i, the client's number of rows.
        share: s_i / S.
        clients: The number of clients n.
    """

    samples: int
    share: float
    clients: int

    def batches(self, round: int, steps: int, epochs: int | None = None) -> Sequence[Any]:
        """The rows of each local step of this client's round: `steps` fresh batches, or `epochs` passes."""

    def gradient(self, x: Vector, rows: Any = None) -> Vector:
        """The gradient at x, (d,), of the mean loss over `rows` (None: all), regulariser included; a new array."""

    def loss(self, x: Vector, rows: Any = None) -> float:
        """The mean loss over `rows` (None: all), regulariser included."""

    def fisher(self, x: Vector) -> Vector:
        """(d,) the mean over all rows of the squared gradient at x of one row's log-likelihood; a new array."""

    def accuracy(self, x: Vector) -> float:
        """The accuracy at x on the client's own test rows, 0 to 1; nan where it has none."""
