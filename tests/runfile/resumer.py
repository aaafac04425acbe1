"""Resumes the run file argv[1] of `live_writer` again and again, each time from a little before its end, until killed.

Prints a line before each time. Every second one is closed before the next; the others are left open, as by a kill.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np

from mpifl.runfile import RunWriter, open_run
from tests.runfile.live_writer import ATTRS, append
from tests.runfile.test_resumed import attributes, rows_of


def counts(updates: int) -> dict[str, int]:
    """Rows of each table after so many updates."""
    return {"updates": updates, "aggregations": updates // 10, "evaluations": updates // 100, "client_evaluations": 0,
            "logged": 0, "metrics": 0, "events": updates // 1000}  # fmt: skip


def main(path: Path) -> None:
    left = []
    for turn in itertools.count():
        with open_run(path) as run:
            first = len(run.updates) // 1000 * 1000
        rows, (kept, session) = rows_of(path, counts(first)), attributes(path, turn)
        print(first, flush=True)
        writer = RunWriter.resumed(
            path,
            attrs=ATTRS | kept,
            clients={"samples": np.arange(7), "rank": np.ones(7), "rate": None},
            rows=[rows],
            session=session,
            states=["live"] * 7,
            x=np.zeros(1000, np.float32),
            version=0,
            layout=[("w", (10, 100))],
        )
        append(writer, first, first + 1700)
        writer.flush()
        if turn % 2:
            writer.close("interrupted")
        else:
            left.append(writer)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
