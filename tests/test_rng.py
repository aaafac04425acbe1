"""Random streams by (seed, purpose, client, round)."""

from __future__ import annotations

import subprocess
import sys
import zlib

import numpy as np
import pytest

from mpifl.rng import _system_bits, stream

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
