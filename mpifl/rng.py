"""Counter-based random streams: every random number belongs to (seed, purpose, client, round).

Two streams never overlap, none depends on which rank draws from it or in which order (Philox 4x64, Salmon et al.,
SC 2011): so a client's batch in its 17th job is the same on any rank, clock or link, and after a resume.
"""

from __future__ import annotations

import functools
import sys
import threading
import zlib
from typing import Any

import numpy as np

# Batches of up to so many rows are drawn together; with 32 rows that takes as long as one by one. The halves of a word
# are read in the order that they have in memory.
SMALL_BATCH = 16 if sys.byteorder == "little" else 0
DRAWN_TOGETHER = 1024  # numbers at most, of all steps


@functools.cache
def _key_type() -> Any:
    """The class of a Philox key as it is. Philox(key=...) is the same, and asks the system for entropy.

    Defined on first use: NumPy's generators are a fifth of the file calls of importing NumPy, and clients that use all
    their rows draw nothing.
    """
    from numpy.random.bit_generator import ISeedSequence

    class Key(ISeedSequence):
        def __init__(self, key: np.ndarray) -> None:
            self._key = key

        def generate_state(self, n_words: int, dtype: object = np.uint64) -> np.ndarray:
            return self._key

    return Key


def stream(seed: int, purpose: str, client: int = 0, round: int = 0) -> np.random.Generator:
    """The generator of one purpose ("batch", "delay", "partition", ...) of one client in one local round."""
    key = np.array([seed, _purpose_bits(purpose) | client], np.uint64)
    counter = np.array([0, 0, 0, round], np.uint64)  # the low words count the draws: 2**192 of them a round
    return np.random.Generator(np.random.Philox(_key_type()(key), counter=counter))


def reused_stream(seed: int, purpose: str, client: int = 0, round: int = 0) -> np.random.Generator:
    """As `stream`, in a fifth of the time: one generator, which the next call in this thread restarts."""
    if (reused := getattr(_local, "reused", None)) is None:
        generator = stream(0, "")
        state: dict[str, Any] = dict(generator.bit_generator.state)
        words = {name: values.tolist() for name, values in state["state"].items()}  # lists are read faster than arrays
        state |= {"state": words, "buffer": state["buffer"].tolist()}
        _local.reused = reused = generator, generator.bit_generator, state, words["key"], words["counter"]
    generator, bits, state, key, counter = reused
    key[0], key[1], counter[3] = seed, _purpose_bits(purpose) | client, round
    bits.state = state
    return generator


def draw_batches(
    samples: int, size: int, steps: int, seed: int, purpose: str, client: int = 0, round: int = 0
) -> list[np.ndarray]:
    """`steps` arrays (size,) int64 of numbers below `samples`, each drawn without replacement; all from one stream.

    They are those that `Generator.choice(samples, size, replace=False, shuffle=False)` draws: Floyd's algorithm
    (Bentley and Floyd, CACM 30(9), 1987) with Lemire's bounded integers (ACM TOMACS 29(1), 2019). Small arrays are
    drawn together, in up to a third of the time. size < samples.
    """
    generator = reused_stream(seed, purpose, client, round)
    count = size * steps
    if size <= SMALL_BATCH and 0 < count <= DRAWN_TOGETHER and samples < 1 << 32:
        words = generator.bit_generator.random_raw((count + 1) // 2).view(np.uint32)[:count]
        products = (words * _bounds(samples, size, steps)).view(np.uint32)
        halves = products.tolist()
        if min(halves[::2]) >= samples:  # otherwise a low half may be one that Lemire's method rejects
            rows = list(products[1::2].astype(np.int64).reshape(steps, size))
            for k, row in enumerate(rows):
                if len({*halves[2 * size * k + 1 : 2 * size * (k + 1) : 2]}) < size:
                    _replace_repeated(row, samples - size)
            return rows
        generator = reused_stream(seed, purpose, client, round)
    return [generator.choice(samples, size, replace=False, shuffle=False) for _ in range(steps)]


@functools.lru_cache(maxsize=256)
def _bounds(samples: int, size: int, steps: int) -> np.ndarray:
    """(size * steps,) uint64: each number is drawn below its bound."""
    return np.tile(np.arange(samples - size + 1, samples + 1, dtype=np.uint64), steps)


def _replace_repeated(numbers: np.ndarray, last: int) -> None:
    """Floyd's algorithm: replaces each number that occurred before by the largest that it could have been."""
    seen = set()
    for k, number in enumerate(numbers.tolist()):
        if number in seen:
            numbers[k] = number = last + k
        seen.add(number)


@functools.cache
def _purpose_bits(purpose: str) -> int:
    """The upper half of a word of the key; the lower one is the client."""
    return zlib.crc32(purpose.encode()) << 32


_local = threading.local()
