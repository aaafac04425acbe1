"""Sets of checkpoints for the tests; as a program, a run that saves without end until it is killed.

Checkpoint k of a rank r holds what k and r say, so a reader can tell whether it got what was saved.
"""

from __future__ import annotations

import sys
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from mpifl.records.checkpoint import Checkpoint, Part, commit


def content(number: int, rank: int, size: int = 50_000) -> dict[str, np.ndarray]:
    return {
        "x": np.full(size, number + 0.1, np.float32),
        "y/3": np.arange(rank, rank + 7)[::2],
        "count": np.array(number),
        "none": np.zeros((0, 3)),
    }


def facts(number: int, rank: int) -> dict[str, Any]:
    return {"time": number / 3, "rank": rank, "due": [nan, float("inf"), 0.1], "key": 2**128 - number}


def save(folder: Path, number: int, ranks: int = 2, run: str = "run", size: int = 50_000) -> None:
    """A complete set."""
    parts = {}
    for rank in range(ranks):
        part = Part(folder, rank)
        part.save(number, content(number, rank, size), facts(number, rank))
        (written,) = part.wait()
        part.close()
        assert written.number == number and not written.error
        parts[rank] = written.bytes, written.crc
    commit(folder, number, {"run": run, "updates": 10 * number}, parts)


def check(checkpoint: Checkpoint, size: int = 50_000) -> None:
    """It holds what `save` saved."""
    number = checkpoint.number
    assert checkpoint.facts["updates"] == 10 * number
    for rank in checkpoint.ranks:
        part = checkpoint.part(rank)
        assert repr(part.facts) == repr(facts(number, rank))  # nan is not equal to itself
        for name, array in content(number, rank, size).items():
            found = part[name]
            assert found.dtype == array.dtype and found.shape == array.shape and np.array_equal(found, array)


def main(folder: Path) -> None:
    """Saves as two ranks, two checkpoints under way at once; prints the number of each that is valid."""
    ranks = [Part(folder, rank) for rank in range(2)]
    for number in range(1, 1_000_000):
        for rank, part in enumerate(ranks):
            part.save(number, content(number, rank), facts(number, rank))
        if number % 2 == 0:
            written = [part.wait() for part in ranks]
            for k, both in zip((number - 1, number), zip(*written, strict=True), strict=True):
                assert not any(w.error for w in both)
                commit(folder, k, {"run": "run", "updates": 10 * k}, {r: (w.bytes, w.crc) for r, w in enumerate(both)})
                print(k, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
