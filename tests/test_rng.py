"""Random streams by (seed, purpose, client, round)."""

from __future__ import annotations

import threading
import zlib

import numpy as np
import pytest

from mpifl.rng import reused_stream, stream

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


@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_reused_stream_draws_what_a_new_one_does(before: int) -> None:
    """Wherever the draws before it have ended, also in the middle of a word."""
    for key in KEYS:
        reused_stream(1, "other").integers(0, 100, before, dtype=np.int32)
        assert drawn(reused_stream(*key)) == drawn(stream(*key))


def test_each_thread_has_its_own_reused_stream() -> None:
    mine, others = reused_stream(*KEYS[0]), []
    thread = threading.Thread(target=lambda: others.append(drawn(reused_stream(*KEYS[1]))))
    thread.start()
    thread.join()
    assert drawn(mine) == drawn(stream(*KEYS[0])) and others == [drawn(stream(*KEYS[1]))]
