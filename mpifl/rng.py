"""Counter-based random streams: every random number belongs to (seed, purpose, client, round).

Two streams never overlap, none depends on which rank draws from it or in which order (Philox 4x64, Salmon et al.,
SC 2011): so a client's batch in its 17th job is the same on any rank, clock or link, and after a resume.
"""

from __future__ import annotations

import zlib

import numpy as np


def stream(seed: int, purpose: str, client: int = 0, round: int = 0) -> np.random.Generator:
    """The generator of one purpose ("batch", "delay", "partition", ...) of one client in one local round."""
    # The upper half of the key's second word is the purpose, the lower half is the client.
    key = np.array([seed, zlib.crc32(purpose.encode()) << 32 | client], np.uint64)
    counter = np.array([0, 0, 0, round], np.uint64)  # the low words count the draws: 2**192 of them a round
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
