"""Resumes the run file argv[1] of `live_writer` again and again, each time from a little before its end, until killed.

Prints a line before each time. Every second one is closed before the next; the others are left open, as by a kill.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np

from mpifl.storage import RunWriter, open_run
from mpifl.storage.tables import AggregationRow, EvaluationRow, EventRow, UpdateRow
from tests.storage.test_resumed import attributes, rows_of


def counts(updates: int) -> dict[str, int]:
    """Rows of each table after so many updates."""
    return {"updates": updates, "aggregations": updates // 10, "evaluations": updates // 100, "client_evaluations": 0,
            "metrics": 0, "events": updates // 1000}  # fmt: skip


def main(path: Path) -> None:
    left = []
    for turn in itertools.count():
        with open_run(path) as run:
            first = len(run.updates) // 1000 * 1000
        rows, (kept, session) = rows_of(path, counts(first)), attributes(path, turn)
        print(first, flush=True)
        writer = RunWriter.resumed(
            path,
            attrs={
                "name": "live",
                "algorithm": "area",
                "config": "name: live\n",
                "clock": "real",
                "clients": 7,
                **kept,
            },
            clients={"samples": np.arange(7), "rank": np.ones(7), "rate": None},
            rows=[rows],
            session=session,
            states=["live"] * 7,
            x=np.zeros(1000, np.float32),
            version=0,
            layout=[("w", (10, 100))],
        )
        for k in range(first, first + 1700):
            writer.append(UpdateRow(k / 1000, k % 7, k // 30 * 3, k // 10 % 3, 1, 8 * k, k / 2))
            if k % 10 == 9:
                writer.append(AggregationRow((k + 1) / 1000, 10))
            if k % 100 == 99:
                writer.append(EvaluationRow((k + 1) / 1000, k + 1, (k + 1) // 10, train_loss=1 / k, test_accuracy=0.5))
            if k % 1000 == 999:
                writer.append(EventRow((k + 1) / 1000, "mark", (k + 1) % 7, f"after {k + 1}"))
        writer.flush()
        if turn % 2:
            writer.close("interrupted")
        else:
            left.append(writer)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
