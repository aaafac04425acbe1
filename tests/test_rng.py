"""Random streams by (seed, purpose, client, round)."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from mpifl.rng import stream

KEYS = [(0, "batch", 0, 0), (2**63 - 1, "batch", 2**31, 2**40), (5, "delay", 1_000_000, 3)]


def drawn(generator: np.random.Generator) -> list[float]:
    """Numbers of every kind of draw: whole blocks, parts of one, and halves of a word."""
    return [
        *generator.random(7).tolist(), float(generator.integers(0, 100, dtype=np.int32)), generator.normal(),
        *generator.choice(50, 5, replace=False, shuffle=False).tolist(), *generator.permutation(9).tolist(),
    ]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_a_stream_is_the_philox_generator_of_its_key_and_counter(key: tuple[int, str, int, int]) -> None:
    seed, purpose, client, round = key
    words = np.array([seed, zlib.crc32(purpose.encode()) * 2**32 + client], np.uint64)
    philox = np.random.Philox(key=words, counter=np.array([0, 0, 0, round], np.uint64))
    assert drawn(stream(*key)) == drawn(np.random.Generator(philox))
