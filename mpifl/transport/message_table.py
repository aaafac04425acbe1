"""The messages that wait for clients: objects, or of many clients rows of one array.

As an object a message takes several hundred bytes, and of a million none is in the processor's caches when its client
computes: reading it, and giving its memory back, would cost more than a small update's arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from struct import Struct
from typing import Any, cast

import numpy as np

from mpifl.algorithms.base import Message, new_tuple
from mpifl.objective import MAX_CLIENTS_AS_OBJECTS
from mpifl.transport.frames import MAX_NUMBERS

# Count of vectors plus 1 (0: no message), count of numbers; round, work, version; the numbers
_FIELDS = [Struct(f"=BBxxIqq{count}d") for count in range(MAX_NUMBERS + 1)]
HEADER_BYTES = _FIELDS[-1].size
_to_bytes = np.ndarray.tobytes
MAX_BYTES = 512  # of the vectors of a message: with larger ones it may take more in a row than as an object


def row_bytes(vectors: int) -> int:
    """Bytes of a row with at most so many bytes of vectors."""
    return HEADER_BYTES + -(-vectors // 8) * 8


def uses_table(virtual: bool, n: int, vectors: int) -> bool:
    """Whether messages to n clients in the server's process, with at most so many bytes of vectors, wait in a table.

    Only under the virtual clock: it asks for updates by client, and needs no order of the messages.
    """
    return virtual and n > MAX_CLIENTS_AS_OBJECTS and vectors <= MAX_BYTES


class Messages(dict[int, Message]):
    """At most one message to each client, as objects; the oldest is first."""

    def read(self, clients: Sequence[int]) -> Iterable[tuple[int, Message]]:
        """These clients and their messages, without those that have none; the messages remain."""
        return [(i, self[i]) for i in clients if i in self]

    def remove(self, clients: Sequence[int]) -> None:
        """Removes the messages to these clients, of those that have one."""
        for i in clients:
            self.pop(i, None)


class MessageTable(MutableMapping[int, Message]):
    """At most one message to each of n clients, with at most `vectors` vectors (d,). Iterates by client.

    Vectors are copied, as on the wire; they are (d,) of the table's dtype, as the server loop has checked.
    """

    def __init__(self, n: int, d: int, dtype: np.dtype, vectors: int) -> None:
        each = d * dtype.itemsize
        self._size = row_bytes(vectors * each)
        self._rows = rows = np.zeros((n, self._size), np.uint8)
        self._row = Struct(f"{_FIELDS[-1].format}{self._size - HEADER_BYTES}x")
        self._bytes = rows.reshape(-1).data
        self._dtype = dtype
        self._places = [slice(k, k + each) for k in range(HEADER_BYTES, HEADER_BYTES + vectors * each, each)]
        self._vectors = self._vectors_of(rows)
        self._given = rows[:, 0]
        # _packs[v][k] writes the row of a message with v vectors and k numbers
        self._packs = [
            [
                Struct(f"{fields.format}{HEADER_BYTES - fields.size}x{f'{each}s' * count}").pack_into
                for fields in _FIELDS
            ]
            for count in range(vectors + 1)
        ]

    def _vectors_of(self, rows: np.ndarray) -> list[np.ndarray]:
        """(k, d) each: the first, second, ... vectors of these rows."""
        return [rows[:, place].view(self._dtype) for place in self._places]

    def __setitem__(self, i: int, message: Message) -> None:
        vectors, numbers, work, version, round = message
        length, count = len(vectors), len(numbers)
        pack = self._packs[length][count]
        rows, begin = self._bytes, i * self._size
        if length == 1:  # the usual case
            pack(rows, begin, 2, count, round, work, version, *numbers, vectors[0].tobytes())
        else:
            pack(rows, begin, length + 1, count, round, work, version, *numbers, *map(_to_bytes, vectors))

    def pop(self, i: int, default: Any = None) -> Any:
        """Removes the message to client i and returns it; `default` if there is none."""
        rows, begin = self._bytes, i * self._size
        if not (length := rows[begin]):
            return default
        rows[begin] = 0
        fields = _FIELDS[rows[begin + 1]].unpack_from(rows, begin)
        if length == 2:  # the usual case
            vectors: tuple[np.ndarray, ...] = (self._vectors[0][i].copy(),)
        else:
            vectors = tuple([table[i].copy() for table in self._vectors[: length - 1]])
        return new_tuple(Message, (vectors, fields[5:], fields[3], fields[4], fields[2]))

    def read(self, clients: Sequence[int]) -> Iterator[tuple[int, Message]]:
        """These clients and their messages, without those that have none; the messages remain in the table.

        When the iteration begins, one operation copies all rows, so that cache misses overlap. The vectors of the
        messages are views of that copy.
        """
        rows = self._rows[np.array(clients, int)]
        vectors = self._vectors_of(rows)
        first = vectors[0] if vectors else rows  # in the latter case no message has a vector
        for k, (i, fields, v) in enumerate(zip(clients, self._row.iter_unpack(rows.data), first)):
            if length := fields[0]:
                own = (v,) if length == 2 else tuple([u[k] for u in vectors[: length - 1]])
                yield i, new_tuple(Message, (own, fields[5 : 5 + fields[1]], fields[3], fields[4], fields[2]))

    def get(self, i: int, default: Any = None) -> Any:
        begin = i * self._size
        first = self._bytes[begin]  # which `pop` sets to 0
        message = self.pop(i, default)
        self._bytes[begin] = first
        return message

    def __getitem__(self, i: int) -> Message:
        if (message := self.get(i)) is None:
            raise KeyError(i)
        return cast(Message, message)

    def __delitem__(self, i: int) -> None:
        rows, begin = self._bytes, i * self._size
        if not rows[begin]:
            raise KeyError(i)
        rows[begin] = 0

    def remove(self, clients: Sequence[int]) -> None:
        """Removes the messages to these clients, of those that have one."""
        self._given[np.array(clients, int)] = 0

    def __contains__(self, i: object) -> bool:
        return bool(self._bytes[i * self._size])  # type: ignore[operator]

    def __iter__(self) -> Iterator[int]:
        return iter(np.flatnonzero(self._given).tolist())

    def __len__(self) -> int:
        return int(np.count_nonzero(self._given))

    def clear(self) -> None:
        self._given[:] = 0
