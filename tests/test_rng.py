"""Random streams by (seed, purpose, client, round)."""

from __future__ import annotations

import subprocess
import sys
import threading
import zlib

import numpy as np
import pytest

from mpifl.rng import DRAWN_TOGETHER, SMALL_BATCH, _system_bits, draw_batches, reused_stream, stream

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


def test_generators_are_imported_without_openssl() -> None:
    """`secrets` is not replaced for others, and a seed that the system draws is one of 128 bits."""
    program = """
import sys
from mpifl.rng import import_generators
import_generators()
assert "numpy.random" in sys.modules and not {"secrets", "random", "hashlib", "_hashlib"} & set(sys.modules)
import secrets, numpy
assert len(secrets.token_hex(4)) == 8
seeds = {numpy.random.SeedSequence().entropy for _ in range(10)}
assert len(seeds) == 10 and 2**100 < max(seeds) < 2**128
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_generators_of_a_numpy_that_uses_more_of_secrets() -> None:
    """They are imported as usual."""
    program = """
import sys
class Finder:  # a module of NumPy's that uses `secrets`
    def find_spec(self, name, path=None, target=None):
        if name == "numpy.random.bit_generator":
            from secrets import choice
sys.meta_path.insert(0, Finder())
from mpifl.rng import import_generators
import_generators()
import numpy
assert sys.modules["secrets"].choice([1]) == 1 and numpy.random.default_rng(0).random() < 1
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("k", [1, 7, 8, 9, 128])
def test_bits_of_the_system(k: int) -> None:
    drawn = [_system_bits(k) for _ in range(200)]
    assert min(drawn) >= 0 and 2 ** (k - 1) <= max(drawn) < 2**k  # a first bit of 1 is missing once in 2**200
