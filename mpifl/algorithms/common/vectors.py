"""Sums and steps of the server's vectors, in one pass over memory.

Vectors are (d,) arrays of one floating-point dtype. Each function has the plain NumPy meaning that its first line
states, and gives the same bits; it changes no argument unless it says so. In plain form NumPy makes a temporary of
each operation, which for a vector beyond the cache is a pass of its own over memory. Here a vector is processed in
blocks that stay in the cache: elements are computed independently of each other, so the bits do not depend on blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

BLOCK = 1 << 17  # entries: 512 KiB of an operand in float32, so that a block stays in the L2 or L3 cache


def zeros(x: np.ndarray) -> np.ndarray:
    """0 * x, an empty sum: a vector that takes no memory and cannot be written to."""
    return _zeros(x.shape, x.dtype)


@lru_cache(maxsize=8)
def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return np.broadcast_to(np.zeros((), dtype), shape)


def add(total: np.ndarray, v: np.ndarray) -> np.ndarray:
    """total + v, in place unless the sum is empty (`zeros`)."""
    out = total if total.flags.writeable else np.empty_like(v)
    return np.add(total, v, out)


def axpy(total: np.ndarray, a: float, v: np.ndarray) -> np.ndarray:
    """total + a * v, in place unless the sum is empty (`zeros`)."""
    out = total if total.flags.writeable else np.empty_like(v)
    _in_blocks(lambda s: np.add(total[s], a * v[s], out[s]), v.size)
    return out


def step(x: np.ndarray, a: float, v: np.ndarray) -> np.ndarray:
    """x + a * v, a new vector."""
    a = float(a)  # a number of NumPy would decide the dtype
    new = np.empty_like(x)
    _in_blocks(lambda s: np.add(x[s], np.multiply(v[s], a, new[s]), new[s]), x.size)
    return new


def mix(x: np.ndarray, a: float, v: np.ndarray) -> np.ndarray:
    """(1 - a) * x + a * v, a new vector."""
    a = float(a)
    new = np.empty_like(x)
    _in_blocks(lambda s: np.add(np.multiply(x[s], 1 - a, new[s]), a * v[s], new[s]), x.size)
    return new


def mean_step(x: np.ndarray, total: np.ndarray, n: int) -> np.ndarray:
    """x + total / n, a new vector."""
    new = np.empty_like(x)
    _in_blocks(lambda s: np.add(x[s], np.divide(total[s], n, new[s]), new[s]), x.size)
    return new


def _in_blocks(block: Callable[[slice], object], size: int) -> None:
    """Calls `block` with slices of at most BLOCK entries."""
    for k in range(0, size, BLOCK):
        block(slice(k, min(k + BLOCK, size)))
