"""Counter-based random streams: every random number belongs to (seed, purpose, client, round).

Two streams never overlap, none depends on which rank draws from it or in which order (Philox 4x64, Salmon et al.,
SC 2011): so a client's batch in its 17th job is the same on any rank, clock or link, and after a resume.
"""

from __future__ import annotations

import contextlib
import os
import sys
import zlib
from importlib import import_module
from types import ModuleType

import numpy as np


def import_generators() -> None:
    """Imports numpy.random without the module `secrets`, which loads OpenSSL: 1 MB of memory, on each of many ranks.

    NumPy uses its function `randbits` alone.
    """
    if "secrets" not in sys.modules:
        stand_in = ModuleType("secrets")
        stand_in.__dict__["randbits"] = _system_bits
        sys.modules["secrets"] = stand_in
        try:
            with contextlib.suppress(ImportError):  # a NumPy that uses more of it imports it below
                import_module("numpy.random")
        finally:
            del sys.modules["secrets"]
    import_module("numpy.random")


def _system_bits(k: int) -> int:
    """`secrets.randbits`: k random bits of the system."""
    size = -(-k // 8)
    return int.from_bytes(os.urandom(size)) >> 8 * size - k


def stream(seed: int, purpose: str, client: int = 0, round: int = 0) -> np.random.Generator:
    """The generator of one purpose ("batch", "delay", "partition", ...) of one client in one local round."""
    # The upper half of the key's second word is the purpose, the lower half is the client.
    key = np.array([seed, zlib.crc32(purpose.encode()) << 32 | client], np.uint64)
    counter = np.array([0, 0, 0, round], np.uint64)  # the low words count the draws: 2**192 of them a round
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
