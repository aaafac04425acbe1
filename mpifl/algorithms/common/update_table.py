"""A table of every client's last update, on the server: n vectors, and their sum. Of MIFA, ACE and CA2FL.

The sum changes with each update; after n updates it is computed anew, so that rounding errors do not accumulate.
"""

from __future__ import annotations

from typing import Literal

from mpifl.algorithms.base import State
from mpifl.objective import Vector

Lost = Literal["keep", "drop"]  # what becomes of the last update of a client that is lost


def init(server: State, n: int) -> None:
    """Adds an empty table of n clients to the server's state: `table`, {i: (d,)}, and its sum `total`."""
    server.table, server.total, server.replaced, server.n = {}, 0 * server.x, 0, n


def replace(server: State, i: int, update: Vector) -> Vector:
    """Enters client i's update, a copy; returns the difference from its last one, or from 0."""
    old = server.table.get(i)
    change = update.copy() if old is None else update - old
    server.table[i] = update.copy()
    server.total += change
    server.replaced += 1
    if server.replaced >= server.n:
        server.total, server.replaced = sum(server.table.values()), 0
    return change


def drop(server: State, i: int) -> None:
    """Removes client i: its update from the table and the sum, and itself from n."""
    server.n -= 1
    if server.table.pop(i, None) is not None:
        server.total, server.replaced = sum(server.table.values(), 0 * server.total), 0
