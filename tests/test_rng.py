"""Random streams by (seed, purpose, client, round)."""

from __future__ import annotations

import threading
import zlib

import numpy as np
import pytest

from mpifl.rng import DRAWN_TOGETHER, SMALL_BATCH, draw_batches, reused_stream, stream

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


@pytest.mark.parametrize(
    "samples, size, steps",
    [
        (2, 1, 1), (9, 8, 3), (17, 16, 5), (40, 7, 1), (200, 8, 20), (10_001, 3, 5), (60_000, SMALL_BATCH, 1),
        (60_000, SMALL_BATCH + 1, 2), (30, 1, DRAWN_TOGETHER + 1), (11_000, 600, 2), (3 * 2**29, 9, 2),
        (2**32 + 1, 5, 1), (9, 3, 0),
    ],
)  # fmt: skip
def test_batches_are_those_of_choice(samples: int, size: int, steps: int) -> None:
    """With odd and even numbers of draws, repeated numbers (9, 8), and draws that are rejected (3 * 2**29)."""
    for round in range(200):
        generator = stream(7, "batch", 3, round)
        expected = [generator.choice(samples, size, replace=False, shuffle=False) for _ in range(steps)]
        batches = draw_batches(samples, size, steps, 7, "batch", 3, round)
        assert len(batches) == steps
        np.testing.assert_array_equal(batches, expected)
        assert all(batch.dtype == np.int64 for batch in batches)
        assert all(len(set(batch.tolist())) == size for batch in batches)


def test_a_rejected_draw_is_met() -> None:
    """The test above asks for batches with a draw that Lemire's method rejects: the first low half below the bound."""
    samples, rejected = 3 * 2**29, 0
    for round in range(200):
        word = int(stream(7, "batch", 3, round).bit_generator.random_raw()) % 2**32
        bound = samples - 8
        rejected += word * bound % 2**32 < 2**32 % bound
    assert 20 < rejected < 180
