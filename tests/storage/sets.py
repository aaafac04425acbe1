"""Sets of checkpoints for the tests; as a program, a run that saves without end until it is killed.

Checkpoint k of a rank r holds what k and r say, so a reader can tell whether it got what was saved.
"""

from __future__ import annotations

import sys
import time
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from mpifl.storage.checkpoint_set import Checkpoint, Part, Written, commit


def content(number: int, rank: int, size: int = 50_000) -> dict[str, np.ndarray]:
    return {
        "x": np.full(size, number + 0.1, np.float32),
        "y/3": np.arange(rank, rank + 7)[::2],
        "count": np.array(number),
        "none": np.zeros((0, 3)),
    }


def facts(number: int, run: str = "run") -> dict[str, Any]:
    """Of the manifest."""
    hard = {"time": number / 3, "due": [nan, float("inf"), 0.1], "key": 2**128 - number}
    return {"run": run, "updates": 10 * number, **hard}


def finished(part: Part, count: int = 1) -> list[Written]:
    """The next `count` that are durable, or failed, waited for."""
    written: list[Written] = []
    deadline = time.monotonic() + 20
    while len(written := written + part.done()) < count:
        assert time.monotonic() < deadline, f"{written} after 20 s, not {count}"
        time.sleep(0.001)
    return written


def save(folder: Path, number: int, ranks: int = 2, run: str = "run", size: int = 50_000, **more: Any) -> None:
    """A complete set; more: of its facts."""
    parts = {}
    for rank in range(ranks):
        part = Part(folder, rank)
        part.save(number, content(number, rank, size))
        (written,) = finished(part)
        part.close()
        assert written.number == number and not written.error
        parts[rank] = written.bytes, written.crc
    commit(folder, number, facts(number, run) | more, parts)


def check(checkpoint: Checkpoint, size: int = 50_000) -> None:
    """It holds what `save` saved."""
    number = checkpoint.number
    assert repr(checkpoint.facts) == repr(facts(number))  # nan is not equal to itself
    for rank in checkpoint.ranks:
        part = checkpoint.part(rank)
        for name, array in content(number, rank, size).items():
            found = part[name]
            assert found.dtype == array.dtype and found.shape == array.shape and np.array_equal(found, array)


def main(folder: Path) -> None:
    """Saves as two ranks, two checkpoints under way at once; prints the number of each that is valid."""
    ranks = [Part(folder, rank) for rank in range(2)]
    for number in range(1, 1_000_000):
        for rank, part in enumerate(ranks):
            part.save(number, content(number, rank))
        if number % 2 == 0:
            written = [finished(part, 2) for part in ranks]
            for k, both in zip((number - 1, number), zip(*written, strict=True), strict=True):
                assert not any(w.error for w in both)
                commit(folder, k, facts(k), {r: (w.bytes, w.crc) for r, w in enumerate(both)})
                print(k, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
