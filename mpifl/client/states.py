"""Stores the states of a rank's clients: as objects or, of many clients, as rows of arrays, in memory or in a file.

A client gets a row when its state is stored for the first time: one that has not computed has no vector of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from mpifl.algorithms.base import State
from mpifl.objective import Vector, from_numpy, to_numpy

if TYPE_CHECKING:
    from mpifl.client.vector_file import VectorFile

FIRST, ABSENT = 0, -1  # instead of a row's number, which counts from 1: the client has its initial state, or none
BLOCK_BYTES = 1 << 26  # of a table's vectors that are allocated at once
Layout = tuple[tuple[str, ...], tuple[str, ...]]  # of a state: names of vectors, and of other values


class ClientStates(dict[int, State]):
    """The state of each client, by client number: an object that is changed in place."""

    def copy_of(self, i: int) -> State | None:
        """A copy of client i's state, to be changed and stored; None: it has none."""
        return None if (state := self.get(i)) is None else State(**vars(state))

    def changed(self) -> Iterator[int]:
        """The clients whose states a checkpoint needs: the others have their initial states."""
        return iter(self)

    def prefetch(self, clients: Sequence[int]) -> None:
        """Does nothing: separate objects cannot be read in one operation."""


class StateTable(MutableMapping[int, State]):
    """The states of many clients as rows of tables, one for each name. A state is changed by storing it again.

    A table holds the vectors of x_0's shape and dtype; the other values of a state, numbers mostly, are kept as they
    are. Vectors that `__getitem__` returns are views of the tables: they change when the client is stored again.
    """

    def __init__(
        self, clients: Collection[int], initial: Callable[[int], State], x0: Vector, limit: float | None = None,
        folder: str | None = None,
    ) -> None:  # fmt: skip
        """clients: their numbers. initial: the state of a client that has stored none. x0: (d,) the initial model.
        limit: bytes of vectors kept in memory; those beyond are in a file in `folder`. None: all in memory.
        """
        self._initial, self._like = initial, x0
        self._on_host = isinstance(x0, np.ndarray)
        self._index = _index(clients)  # by client: the number of its row, FIRST or ABSENT
        self._used = 0  # rows
        self._layout: Layout = (), ()  # of the first state that was stored, and of most others
        self._layouts: dict[int, Layout] = {}  # of the states in other rows
        self._equal: dict[Layout, Layout] = {}  # of these; equal ones are one object
        self._others: dict[int, tuple[Any, ...]] = {}
        model, self._shape = to_numpy(x0), x0.shape
        self._d, self._dtype = model.size, model.dtype
        self._rows = min(max(1, len(clients)), max(1, BLOCK_BYTES // max(1, model.nbytes)))  # of a block
        self._blocks: list[dict[str, np.ndarray]] = []  # of each the tables (rows, d), by name
        self._memory: list[dict[str, memoryview]] = []  # the same, (rows * d,) each: one row is written faster
        self._copies: dict[int, State] = {}  # by client: what `copy_of` returns next, made by `prefetch`
        self._left = np.inf if limit is None else limit
        self._file: VectorFile | None = None
        if folder:
            from mpifl.client.vector_file import VectorFile

            self._file = VectorFile(folder)

    def __getitem__(self, i: int) -> State:
        if (state := self.get(i)) is None:
            raise KeyError(i)
        return cast(State, state)

    def get(self, i: int, default: Any = None) -> Any:
        state = self._find(i)
        return default if state is None else state

    def copy_of(self, i: int) -> State | None:
        """A copy of client i's state; None: it has none. Vectors are copied, for a rule may rename or send them."""
        return self._copies.pop(i, None) or self._find(i, copied=True)

    def _find(self, i: int, copied: bool = False) -> State | None:
        """The state of client i, its initial one where none is stored; None: it has none."""
        try:
            row = self._index[i]
        except IndexError:
            row = ABSENT
        if row <= 0:
            return None if row == ABSENT else self._initial(i)
        vectors, others = self._layouts.get(row, self._layout) if self._layouts else self._layout
        block, k = divmod(row - 1, self._rows)
        tables = self._blocks[block]
        state = State()
        values = vars(state)
        for name in vectors:
            vector = tables[name][k]
            if not self._on_host:
                values[name] = from_numpy(vector, self._like)
            else:
                values[name] = vector.copy() if copied else vector
        if others:
            values.update(zip(others, self._others[i], strict=True))
        return state

    def __setitem__(self, i: int, state: State) -> None:
        try:
            row = self._index[i]
        except IndexError:
            self._index, row = _Sparse(enumerate(self._index)), ABSENT
        self._copies.pop(i, None)
        if new := row <= 0:
            row = self._used + 1
        values = vars(state)
        if not self._write_usual(row, values):
            self._write(i, row, values)
        if new:  # once the vectors are stored, for which the disk may have no room
            self._index[i] = self._used = row

    def _write_usual(self, row: int, values: dict[str, Any]) -> bool:
        """Writes a state that has the same vectors as all others, and nothing else; returns whether it did."""
        names, others = self._layout
        block, k = divmod(row - 1, self._rows)
        if others or self._layouts or len(values) != len(names) or block == len(self._memory):
            return False
        memory, begin = self._memory[block], k * self._d
        try:
            for name in names:
                if type(value := values[name]) is not np.ndarray:
                    return False
                memory[name][begin : begin + self._d] = value  # type: ignore[call-overload]
        except (KeyError, ValueError):  # another name, dtype or shape, or there is no table yet
            return False
        return True

    def _write(self, i: int, row: int, values: dict[str, Any]) -> None:
        """Writes any state, and allocates the tables that it needs."""
        block, k = divmod(row - 1, self._rows)
        try:
            tables = self._blocks[block]
        except IndexError:
            tables = self._new_block()
        shape, dtype = self._shape, self._like.dtype
        vectors: tuple[str, ...] = ()
        others: tuple[str, ...] = ()
        for name, value in values.items():
            if getattr(value, "shape", None) == shape and value.dtype == dtype:
                vectors += (name,)
                try:
                    table = tables[name]
                except KeyError:
                    table = self._new_table(block, name)
                table[k] = value if self._on_host else to_numpy(value)
            else:
                others += (name,)
        layout = vectors, others
        if layout == self._layout:
            if self._layouts:
                self._layouts.pop(row, None)
        elif row == 1 and self._used <= 1:
            self._layout = layout
        else:
            self._layouts[row] = self._equal.setdefault(layout, layout)
        if others:
            self._others[i] = tuple([values[name] for name in others])

    def _new_block(self) -> dict[str, np.ndarray]:
        self._blocks.append({})
        self._memory.append({})
        return self._blocks[-1]

    def _new_table(self, block: int, name: str) -> np.ndarray:
        """Allocates the table of the vectors of this name in a block."""
        size = self._rows * self._d * self._dtype.itemsize
        if self._file and size > self._left:
            table = self._file.block((self._rows, self._d), self._dtype)
        else:
            self._left -= size
            table = np.empty((self._rows, self._d), self._dtype)  # pages that are not written to take no memory
        self._blocks[block][name] = table
        self._memory[block][name] = table.reshape(-1).data
        return table

    def prefetch(self, clients: Sequence[int]) -> None:
        """Copies these clients' vectors, for the next calls of `copy_of`: at once, so that cache misses overlap."""
        self._copies = {}
        if self._layouts or not self._on_host or isinstance(self._index, dict):
            return
        numbers = np.array(clients, int)
        blocks, rows = np.divmod(np.asarray(self._index)[numbers] - 1, self._rows)  # block -1: there is no row
        names, others = self._layout
        for block, tables in enumerate(self._blocks):
            here = np.flatnonzero(blocks == block)
            found, k = numbers[here].tolist(), rows[here]
            states = [State() for _ in found]
            for name in names:
                for state, vector in zip(states, tables[name][k]):
                    vars(state)[name] = vector
            if others:
                for i, state in zip(found, states):
                    vars(state).update(zip(others, self._others[i], strict=True))
            self._copies.update(zip(found, states))

    def __delitem__(self, i: int) -> None:
        if i not in self:
            raise KeyError(i)
        self._copies.pop(i, None)
        self._index[i] = ABSENT  # the row remains unused: clients are removed where they fail

    def __iter__(self) -> Iterator[int]:
        return (i for i, row in self._items() if row != ABSENT)

    def __len__(self) -> int:
        return sum(row != ABSENT for _, row in self._items())

    def __contains__(self, i: object) -> bool:
        try:
            return isinstance(i, int) and i >= 0 and bool(self._index[i] != ABSENT)
        except IndexError:
            return False

    def _items(self) -> Iterable[tuple[int, int]]:
        return self._index.items() if isinstance(self._index, dict) else enumerate(self._index)

    def changed(self) -> Iterator[int]:
        """The clients whose states a checkpoint needs: the others have their initial states."""
        return (i for i, row in self._items() if row > 0)


class _Sparse(dict[int, int]):
    def __missing__(self, i: int) -> int:
        return ABSENT


def _index(clients: Collection[int]) -> Any:
    """FIRST for each of these clients: an array if they are all clients from 0 on, which takes 4 bytes of each."""
    if len(clients) == max(clients, default=-1) + 1:
        return np.zeros(len(clients), np.int32).data
    return _Sparse.fromkeys(clients, FIRST)
