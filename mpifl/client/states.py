"""The states of a rank's clients, by client. A client gets its state at its first contact.

With `memory.client_states` the vectors of states that do not fit into so many bytes are in a file.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from mpifl.algorithms.base import State
from mpifl.errors import ConfigError, RunFailed
from mpifl.objective import Vector, from_numpy, to_numpy

BLOCK_BYTES = 1 << 26  # bytes of a file that are reserved at once


class ClientStates:
    """The state of each client of a rank; it is changed by storing another one."""

    def __init__(
        self, clients: Collection[int], initial: Callable[[int], State], x0: Vector, limit: float | None = None,
        folder: str = ".",
    ) -> None:  # fmt: skip
        """clients: their numbers. initial: returns a client's state before its first contact. x0: (d,) initial model.

        limit: bytes of vectors in memory; the others are in a file in `folder`. None: all vectors are in memory.
        Raises ConfigError where no file can be made in the folder.
        """
        self._clients, self._initial = clients, initial
        self._states: dict[int, State] = {}  # states that were stored
        self._removed: set[int] = set()
        self._file = None if limit is None else StateFile(x0, limit, folder)

    def __getitem__(self, i: int) -> State:
        """Client i's state, the initial one where none was stored. Raises KeyError where it is not hosted here."""
        if (state := self._states.get(i)) is not None:
            return state
        if i not in self:
            raise KeyError(i)
        return self._initial(i)

    def copy_of(self, i: int) -> State:
        """A copy of client i's state, for a rule to change; rules never change a vector in place."""
        if (state := self._states.get(i)) is None:
            state = self[i]
        return self._file.read(state) if self._file else State(**vars(state))

    def __setitem__(self, i: int, state: State) -> None:
        self._removed.discard(i)
        self._states[i] = self._file.write(self._states.get(i), state) if self._file else state

    def remove(self, i: int) -> None:
        """Removes client i if it is there; storing a state of it adds it again."""
        self._states.pop(i, None)
        self._removed.add(i)

    def __contains__(self, i: int) -> bool:
        return i in self._states or (i in self._clients and i not in self._removed)

    def changed(self) -> Iterator[int]:
        """The clients whose states were stored: the others have their initial states."""
        return iter(self._states)


class StateFile:
    """Keeps the vectors of states: in memory while they fit into `limit` bytes, then in a file mapped into memory.

    The file has no name: nothing is left of it, however a run ends.
    """

    def __init__(self, x0: Vector, limit: float, folder: str) -> None:
        """Raises ConfigError where no file can be made in the folder."""
        import tempfile

        self._like, self._folder = x0, folder
        self._bytes_left = limit  # of memory, for further vectors
        model = to_numpy(x0)
        self._shape, self._dtype = model.shape, model.dtype
        self._bytes = max(1, model.nbytes)  # bytes of a vector
        try:
            self._file = tempfile.TemporaryFile(dir=folder, prefix=".client-states-")  # noqa: SIM115 - until the run ends
        except OSError as error:
            wrong = f"no file for the clients' states can be made there: {error.strerror}"
            raise ConfigError("memory.folder", folder, wrong, "a folder that can be written") from error
        self._end = 0  # bytes of the file
        self._free: list[np.ndarray] = []  # rows of the file that no state uses

    def write(self, old: State | None, new: State) -> State:
        """The new state with its vectors, those of x_0's shape and dtype, in rows of their own.

        Rows of the old state of this client are used again. Raises RunFailed where the disk has no room.
        """
        rows = {name: value for name, value in vars(old).items() if self._is_row(value)} if old else {}
        kept = State()
        for name, value in vars(new).items():
            if self._is_vector(value):
                row = rows.pop(name, None)
                if row is None:
                    row = self._new_row()
                row[...] = to_numpy(value)
                value = row
            setattr(kept, name, value)
        self._free += rows.values()
        return kept

    def read(self, state: State) -> State:
        """A copy of a state, in the memory that clients compute with."""
        values = {k: from_numpy(v.copy(), self._like) if self._is_row(v) else v for k, v in vars(state).items()}
        return State(**values)

    def _is_vector(self, value: Any) -> bool:
        return tuple(getattr(value, "shape", ())) == self._shape and value.dtype == self._like.dtype

    def _is_row(self, value: Any) -> bool:
        return isinstance(value, np.ndarray) and value.shape == self._shape and value.dtype == self._dtype

    def _new_row(self) -> np.ndarray:
        if self._free:
            return self._free.pop()
        if self._bytes_left >= self._bytes:
            self._bytes_left -= self._bytes
            return np.empty(self._shape, self._dtype)
        self._free = list(self._new_block())
        return self._free.pop()

    def _new_block(self) -> np.ndarray:
        """(count, d) room for vectors, reserved on the disk."""
        count = max(1, BLOCK_BYTES // self._bytes)
        size = count * self._bytes
        try:
            os.posix_fallocate(self._file.fileno(), self._end, size)
            memory = mmap.mmap(self._file.fileno(), size, offset=self._end)
        except OSError as error:
            text = f"no room for the states of clients in {self._folder}: {error.strerror}"
            raise RunFailed(f"memory.client_states: {text}") from error
        self._end += -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        return np.frombuffer(memory, self._dtype).reshape(count, *self._shape)
