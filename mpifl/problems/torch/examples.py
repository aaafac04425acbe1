"""Rows of a torch problem: batches of inputs and targets, from the rows' numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

EVALUATION_ROWS = 256  # rows evaluated at once
CPU = torch.device("cpu")


def tensors(value: Any) -> Iterator[Tensor]:
    """The dense tensors in a batch's inputs or targets: one, or a dict, tuple or list that has them; indices and values
    of sparse ones."""
    if isinstance(value, Tensor) and value.layout == torch.strided:
        yield value
    elif isinstance(value, Tensor):
        sparse = value.to_sparse_coo().coalesce()
        yield from (sparse.indices(), sparse.values())
    elif isinstance(value, Mapping | tuple | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from tensors(each)


def to_device(value: Any, device: torch.device) -> Any:
    """A batch's inputs or targets with their tensors on that device; where they are there already, the same memory."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: to_device(each, device) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [to_device(each, device) for each in value]
    return value


class Windows:
    """Rows of text, by where in the tokens each begins; `tokens` may be a file mapped into memory."""

    def __init__(self, tokens: np.ndarray, begins: np.ndarray, window: int, device: torch.device) -> None:
        self._tokens, self._begins, self._device = tokens, begins.reshape(-1, 1), device
        self._window = np.arange(window)
        self.window, self.dtype = window, torch.int64

    def __len__(self) -> int:
        return len(self._begins)

    def __getitem__(self, rows: Any) -> Tensor:
        """(rows, window) int64"""
        return torch.from_numpy(self._tokens[self._begins[rows] + self._window].astype(np.int64)).to(self._device)


Drawn = Callable[[np.ndarray, np.ndarray], tuple[Any, Any]]  # numbers and seeds of rows -> inputs and targets


class Examples:
    """Inputs and targets of some rows."""

    drawn: Drawn | None = None
    """makes rows anew, where their data set draws random numbers; what `take` returns is one draw then"""

    def __init__(self, x: Tensor | Windows, y: Tensor) -> None:
        self.x, self.y = x, y
        window = (x.window,) if isinstance(x, Windows) else x.shape[1:]
        self.signature: Any = window, x.dtype, y.shape[1:], y.dtype  # rows of one signature make one tensor

    def __len__(self) -> int:
        return len(self.y)

    def on(self, device: torch.device) -> Examples:
        """These rows in that device's memory; where they are there already, the same memory."""
        return self._like(Examples(to_device(self.x, device), self.y.to(device)))

    def _like(self, rows: Examples, numbers: np.ndarray | None = None) -> Examples:
        """These rows, or those of these numbers, with their draws."""
        if drawn := self.drawn:
            rows.drawn = drawn if numbers is None else lambda some, seeds: drawn(numbers[some], seeds)
        return rows

    def take(self, rows: Any) -> tuple[Any, Any]:
        """Copies of a batch's inputs and targets, as modules may change them; rows: numbers (int64), or a slice."""
        if not isinstance(rows, np.ndarray):
            x = self.x[rows].clone() if isinstance(self.x, Tensor) else self.x[rows]
            return x, self.y[rows].clone()
        at = torch.from_numpy(rows).to(self.y.device)
        x = self.x.index_select(0, at) if isinstance(self.x, Tensor) else self.x[rows]
        return x, self.y.index_select(0, at)

    def subset(self, rows: np.ndarray) -> Examples:
        """Some of these rows, as a copy; rows: numbers (int64)."""
        return self._like(Examples(*self.take(rows)), rows)

    def pieces(self) -> Iterator[slice]:
        """All rows, some at a time."""
        for k in range(0, len(self), EVALUATION_ROWS):
            yield slice(k, min(k + EVALUATION_ROWS, len(self)))

    def labels(self) -> Tensor | None:
        """All targets, flat; None where they are not one tensor a batch."""
        return self.y.reshape(-1)


class CollatedExamples(Examples):
    """Rows as a data set gives them, of which a function makes batches: dicts, or rows of unlike lengths."""

    def __init__(
        self, rows: Sequence[Any], batch: Callable[[list[Any]], tuple[Any, Any]], device: torch.device = CPU
    ) -> None:
        """batch: from rows to inputs and targets."""
        self._rows, self._batch, self._device = rows, batch, device
        self.signature = (id(self),)  # a batch may have any shape

    def __len__(self) -> int:
        return len(self._rows)

    def on(self, device: torch.device) -> Examples:
        return self._like(CollatedExamples(self._rows, self._batch, device))

    def take(self, rows: Any) -> tuple[Any, Any]:
        numbers = np.arange(len(self))[rows].tolist()
        x, y = self._batch([self._rows[k] for k in numbers])
        return to_device(x, self._device), to_device(y, self._device)

    def subset(self, rows: np.ndarray) -> Examples:
        some = [self._rows[k] for k in rows.tolist()]
        return self._like(CollatedExamples(some, self._batch, self._device), rows)

    def labels(self) -> Tensor | None:
        found = [self.take(piece)[1] for piece in self.pieces()]
        return torch.cat([y.reshape(-1) for y in found]) if all(isinstance(y, Tensor) for y in found) else None


def merged(parts: Sequence[Examples]) -> list[Examples]:
    """Rows of one signature in one piece."""
    alike: dict[Any, list[Examples]] = {}
    for rows in parts:
        alike.setdefault(rows.signature, []).append(rows)
    return [
        some[0] if len(some) == 1 else Examples(*map(torch.cat, zip(*(rows.take(slice(None)) for rows in some))))
        for some in alike.values()
    ]
