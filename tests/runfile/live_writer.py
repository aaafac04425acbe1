"""Writes the run file argv[1] as fast as a test wants, until it is told to close (a line on stdin) or is killed.

Row k of /updates is (k / 1000, k mod 7, 3 (k div 30), k div 10 mod 3, 1, 8 k, k / 2): version and staleness add up to
k div 10. After every 10 rows there is an aggregation, after every 100 an evaluation, after every 1000 an event that
says how many there were.
"""

from __future__ import annotations

import select
import sys
import time
from itertools import count
from typing import Any

import numpy as np

import mpifl.runfile.writer as writer_module
from mpifl.runfile.create import Start
from mpifl.runfile.tables import AggregationRow, EvaluationRow, EventRow, UpdateRow
from mpifl.runfile.writer import RunWriter

ATTRS: dict[str, Any] = {
    "name": "live", "algorithm": "area", "config": "name: live\n", "clock": "real", "clients": 7
}  # fmt: skip


def append(writer: RunWriter, k: int) -> None:
    """Appends update k and the rows that follow from it."""
    writer.append(UpdateRow(k / 1000, k % 7, k // 30 * 3, k // 10 % 3, 1, 8 * k, k / 2))
    done = k + 1
    if done % 10 == 0:
        writer.append(AggregationRow(done / 1000, 10))
    if done % 100 == 0:
        writer.append(EvaluationRow(done / 1000, done, done // 10, train_loss=1 / done, test_accuracy=0.5))
    if done % 1000 == 0:
        writer.append(EventRow(done / 1000, "mark", done % 7, f"after {done}"))


def main(path: str, period: float) -> None:
    writer_module.WRITE_INTERVAL = period
    clients = {"samples": np.arange(7), "rank": np.ones(7), "rate": None}
    writer = RunWriter(path, Start(ATTRS, clients, np.zeros(1000, np.float32), [("w", (10, 100))]))

    for k in count():
        append(writer, k)
        if k % 100 == 99:
            if select.select([sys.stdin], [], [], 0)[0]:
                break
            writer.check()
            time.sleep(0.004)
    writer.close("completed", np.arange(1000, dtype=np.float32))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
