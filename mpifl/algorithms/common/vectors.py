"""Sums and steps of the server's vectors, in one pass over memory.

Vectors are (d,) arrays of one floating-point dtype. Each function has the plain NumPy meaning that its first line
states, and gives the same bits; it changes no argument unless it says so. In plain form NumPy makes a temporary of
each operation, which for a vector beyond the cache is a pass of its own over memory. Here a vector is processed in
blocks that stay in the cache, and a large one by several threads (`use_threads`): elements are computed independently
of each other, so the bits do not depend on blocks or threads.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

BLOCK = 1 << 17  # entries: 512 KiB of an operand in float32, so that a block stays in the L2 or L3 cache
SMALL = 1 << 14  # entries up to which memory is not kept for the next vector
LARGE = 1 << 18  # entries from which threads pay
MAX_THREADS = 8  # fewer saturate the memory of most machines
REUSED_AFTER = 8 << 20  # bytes of models that are made before the memory of a model is used again

_threads: ThreadPoolExecutor | None = None
_count = 1
_spare: np.ndarray | None = None  # the last sum that was cleared
_made: deque[np.ndarray] = deque()  # the last new models of more than SMALL entries, oldest first


def _references_to_local() -> int:
    """What `getrefcount` returns for an array that one local variable refers to: 2, or 1 from Python 3.14 on."""
    arrays = deque([np.empty(0)])
    only = arrays.popleft()
    return sys.getrefcount(only)


_ALONE = _references_to_local()


def use_threads(count: int) -> None:
    """Has vectors of at least `LARGE` entries processed by so many threads, at most `MAX_THREADS`."""
    global _threads, _count
    if (count := max(1, min(count, MAX_THREADS))) != _count:
        if _threads:
            _threads.shutdown()
        _threads, _count = None, count
        if count > 1:
            from concurrent.futures import ThreadPoolExecutor

            _threads = ThreadPoolExecutor(count, "vectors")


def zeros(x: np.ndarray) -> np.ndarray:
    """0 * x, an empty sum: a vector that takes no memory and cannot be written to."""
    return _zeros(x.shape, x.dtype)


@lru_cache(maxsize=8)
def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return np.broadcast_to(np.zeros((), dtype), shape)


def cleared(total: np.ndarray) -> np.ndarray:
    """0 * total, an empty sum; the next large sum takes the memory of `total`, if nothing else refers to it."""
    global _spare
    if total.flags.writeable:
        _spare = total if total.size > SMALL else None
    return zeros(total)


def _memory_like(v: np.ndarray) -> np.ndarray:
    """An uninitialised vector: that of the last sum that was cleared, whose pages are mapped, or a new one."""
    global _spare
    spare, _spare = _spare, None
    if spare is not None and sys.getrefcount(spare) == _ALONE and _is_like(spare, v):
        return spare
    return np.empty_like(v)


def _new_like(x: np.ndarray) -> np.ndarray:
    """An uninitialised vector for a new model of more than SMALL entries.

    It takes the memory of an earlier model, once REUSED_AFTER bytes of models have been made since, unless something
    still refers to that model. On one host the clients read a model from the server's memory, and writing to what is in
    the caches of their cores is several times slower, because each line has to be invalidated there.
    """
    if x.nbytes >= REUSED_AFTER:
        return np.empty_like(x)
    new = None
    with suppress(IndexError):  # another thread may have taken the last one
        while len(_made) * x.nbytes >= REUSED_AFTER:
            new = _made.popleft()
    if new is None or sys.getrefcount(new) != _ALONE or not _is_like(new, x):
        new = np.empty_like(x)
    _made.append(new)
    return new


def _is_like(memory: np.ndarray, x: np.ndarray) -> bool:
    """Whether a vector like x can be written to this memory."""
    return (memory.shape, memory.dtype) == (x.shape, x.dtype) and memory.flags.writeable


def add(total: np.ndarray, v: np.ndarray) -> np.ndarray:
    """total + v, in place unless the sum is empty (`zeros`, `cleared`)."""
    if total.flags.writeable:
        out = total
    elif v.size <= SMALL:
        return total + v
    else:
        out = _memory_like(v)
    if _threads is None or v.size < LARGE:  # one operation needs no blocks
        return np.add(total, v, out)
    _in_blocks(lambda s: np.add(total[s], v[s], out[s]), v.size)
    return out


def axpy(total: np.ndarray, a: float, v: np.ndarray) -> np.ndarray:
    """total + a * v, in place unless the sum is empty (`zeros`, `cleared`)."""
    out = total if total.flags.writeable else _memory_like(v)
    if v.size <= BLOCK:
        return np.add(total, a * v, out)
    _in_blocks(lambda s: np.add(total[s], a * v[s], out[s]), v.size)
    return out


def step(x: np.ndarray, a: float, v: np.ndarray) -> np.ndarray:
    """x + a * v, a new vector."""
    a = float(a)  # a number of NumPy would decide the dtype
    if x.size <= SMALL:
        new = a * v
        return np.add(x, new, new)
    new = _new_like(x)
    _in_blocks(lambda s: np.add(x[s], np.multiply(v[s], a, new[s]), new[s]), x.size)
    return new


def mix(x: np.ndarray, a: float, v: np.ndarray) -> np.ndarray:
    """(1 - a) * x + a * v, a new vector."""
    a = float(a)
    if x.size <= SMALL:
        new = (1 - a) * x
        return np.add(new, a * v, new)
    new = _new_like(x)
    _in_blocks(lambda s: np.add(np.multiply(x[s], 1 - a, new[s]), a * v[s], new[s]), x.size)
    return new


def mean_step(x: np.ndarray, total: np.ndarray, n: int) -> np.ndarray:
    """x + total / n, a new vector."""
    if x.size <= SMALL:
        new = total / n
        return np.add(x, new, new)
    new = _new_like(x)
    _in_blocks(lambda s: np.add(x[s], np.divide(total[s], n, new[s]), new[s]), x.size)
    return new


def _in_blocks(block: Callable[[slice], object], size: int) -> None:
    """Calls `block` with slices of at most BLOCK entries; those of a large vector are shared among the threads."""
    if _threads is None or size < LARGE:
        _run(block, 0, size)
        return
    share = -(-size // (_count * BLOCK)) * BLOCK  # entries of a thread
    for done in [_threads.submit(_run, block, first, min(first + share, size)) for first in range(0, size, share)]:
        done.result()


def _run(block: Callable[[slice], object], first: int, stop: int) -> None:
    for k in range(first, stop, BLOCK):
        block(slice(k, min(k + BLOCK, stop)))
