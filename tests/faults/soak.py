"""Soak: a real-clock run whose client ranks are killed one after the other, their clients rehosted; rank 0 is watched.

python -m tests.faults.soak [--minutes 60]

Ranks die at a steady rate until one is left, shortly before the end. Every second rank 0's memory (RSS) and open files
are read from /proc. It fails unless the run ends well, every client goes on to the end, AREA's sums add up in the last
checkpoint, and memory and open files stay what they were: the least memory and the median of open files in the last
quarter against those in the second one (the first is the start). A leak raises the least memory; what the C library
keeps for a while of a buffer that was freed, as after a merge of segments of rows, does not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpifl import open_run
from tests.faults.harness import began, intolerant, job, pids, saved, write_counts
from tests.faults.spy import gap_at_checkpoint
from tests.mpi.conftest import Command, until, write

GROWTH = 0.05  # of memory, from the second quarter to the last one
RANKS, CLIENTS, DIM = 33, 64, 1000
JOB: dict[str, Any] = {
    "problem": {"clients": CLIENTS, "model": {"name": "quadratic", "dim": DIM, "sigma": 0.01}, "dtype": "float64"},
    "algorithm": {"name": "area", "step_size": 0.05, "step_weights": "one", "trigger": {"every": 8}},
    "clock": {"mode": "real", "delay": {"name": "exponential", "rate": 10}},
    "evaluate": {"every": 5}, "checkpoint": {"every": 5}, "faults": {"lost": "rehost"}, "output": "soak.h5", "seed": 0,
}  # fmt: skip


def reading(pid: int) -> tuple[float, int]:
    """Resident memory (MB) and open files of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, len(os.listdir(f"/proc/{pid}/fd"))


def watched(command: Command, start: float, seconds: float, deaths: int) -> list[tuple[float, float, int]]:
    """Kills ranks at a steady rate; (s, MB, files) once a second."""
    ranks = pids(command)
    server = ranks.pop(0)
    draw, rows, killed = random.Random(0), [], 0
    while command.process.poll() is None and (now := time.time() - start) < seconds - 1:
        if now > (killed + 1) * 0.95 * seconds / deaths and killed < deaths:
            rank = draw.choice(sorted(ranks))
            os.kill(ranks.pop(rank), signal.SIGKILL)
            killed += 1
        rows.append((now, *reading(server)))
        time.sleep(1)
    return rows


def quarters(of: Callable[[list[float]], float], values: list[float]) -> tuple[float, float]:
    """What `of` returns for the second quarter and for the last."""
    k = len(values) // 4
    return of(values[k : 2 * k]), of(values[3 * k :])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    minutes = parser.parse_args().minutes
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    if reason := intolerant():
        print(f"soak: {reason}", file=sys.stderr)
        return 2
    path, deaths, seconds = folder / "soak.h5", RANKS - 2, 60 * minutes
    with job(folder, RANKS, "run", write(folder, "soak", {**JOB, "stop": {"time": seconds}})) as command:
        start = until(lambda: began(path), command, "the start")
        rows = watched(command, start, seconds, deaths)
        done = command.end(120)
    (folder / "soak-readings.json").write_text(json.dumps(rows))
    memory, files = quarters(min, [row[1] for row in rows]), quarters(statistics.median, [row[2] for row in rows])
    with open_run(path) as run:
        late = set(run.updates[run.updates.time > seconds - 5].client)
        wrong = [
            *(["exit code and status"] if (done.code, run.status) != (0, "completed") else []),
            *(["not every client goes on to the end"] if late != set(run.clients.index) else []),
            *(["memory grows"] if memory[1] > (1 + GROWTH) * memory[0] else []),
            *(["open files grow"] if files[1] > files[0] + 2 else []),
        ]
        updates, moved = len(run.updates), int((run.events.kind == "rehosted").sum())
    gap = gap_at_checkpoint(path)
    wrong += ["the sums do not add up"] if gap > 1e-11 else []
    row = {
        "item": 8, "what": f"{minutes:g} minutes, {RANKS} ranks, {CLIENTS} clients, d = {DIM}",
        "runs": 1, "outcomes": {", ".join(wrong) or "passed": 1, **({"failed": 1} if wrong else {})},
        "seconds": round(done.seconds), "ranks killed": deaths, "clients moved": moved, "updates": updates,
        "checkpoints": saved(path), "MB, second quarter": round(memory[0], 1), "MB, last": round(memory[1], 1),
        "files, second quarter": files[0], "files, last": files[1], "gap in the sums": f"{gap:.1e}",
    }  # fmt: skip
    print(json.dumps(row))
    write_counts("soak", [row])
    if wrong:
        print(done, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
