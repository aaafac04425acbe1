"""A run file is read by another process at any instant: while a real run writes it, as the run is killed, and after.

A short pass, or the full one of 1,000 opens and more where MPIFL_FAULTS is `full`; see `harness`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from random import Random

import pandas as pd
import pytest

from mpifl.runfile import open_run
from mpifl.runfile.tables import TABLES
from tests.faults.harness import FULL, Counted, counting, job
from tests.mpi.conftest import until, write

RUNS, OPENS = (27, 40) if FULL else (3, 20)
PAUSE = 0.06  # s from one open to the next, in the mean; rows come twice a second
WRITERS = ((0, signal.SIGKILL), (3, signal.SIGKILL), (3, signal.SIGTERM))  # ranks, and what ends the run
JOB = {
    "seed": 0, "stop": {"time": 300}, "evaluate": {"every": 0.02},
    "problem": {"model": {"name": "quadratic", "dim": 20, "sigma": 1.0}, "clients": 6},
    "algorithm": {"name": "area", "step_size": 0.1, "trigger": {"every": 2}, "reply": "before"},
    "clock": {"mode": "real", "delay": {"name": "exponential", "rate": 300}},
}  # fmt: skip
Tables = dict[str, pd.DataFrame]

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(1800 if FULL else 120)]

counted = counting(4, "reader")


@pytest.mark.long
@pytest.mark.parametrize("number", range(RUNS))
def test_reader(number: int, tmp_path: Path, counted: Counted) -> None:
    """Opened again and again, from before the run's end to after it; the end comes at a random instant."""
    random = Random(number)
    ranks, how = WRITERS[number % len(WRITERS)]
    path, words = tmp_path / "results" / "live.h5", ["run", write(tmp_path, "live", JOB)]
    with job(tmp_path, ranks, *words, tolerant=False) as writer:
        until(path.exists, writer, "run file")
        server = writer.rank(0) if ranks else writer.process.pid
        end = threading.Timer(random.uniform(0.6, PAUSE * OPENS), os.kill, (server, how))
        end.start()
        seen, lengths = look(path), set()
        for _ in range(OPENS - 2):
            with counted(f"{max(1, ranks)} rank{'s' if ranks > 1 else ''}, ended by {how.name}"):
                new = look(path)
                follows(new, seen)
            seen = new
            lengths.add(len(seen["updates"]))
            time.sleep(random.uniform(0, 2 * PAUSE))
        end.join()
        writer.end()
    follows(look(path), seen)
    assert writer.code not in (0, 2, 3) and len(lengths) > 1, f"it must have grown between the looks: {writer}"
    with open_run(path) as run:
        assert (run.status, run.open_ended) == (("running", True) if how == signal.SIGKILL else ("interrupted", False))


def look(path: Path) -> Tables:
    """All tables, as they are at this instant; checked."""
    with open_run(path) as run:
        tables: Tables = {name: getattr(run, name) for name in TABLES}
        updates, evaluations, aggregations = (tables[name] for name in ("updates", "evaluations", "aggregations"))
        assert len(run.clients) == JOB["problem"]["clients"]  # type: ignore[index]
    for table in tables.values():
        assert "time" not in table or (table.time.diff().dropna() >= 0).all()
    assert updates.client.between(0, 5).all() and (updates.bytes > 0).all() and (updates.norm > 0).all()
    assert (updates.version + updates.staleness).between(0, len(aggregations)).all()
    assert (aggregations.updates == 2 + 2 * aggregations.index).all()
    assert aggregations.updates.max() <= len(updates) if len(aggregations) else True
    for table in (evaluations, tables["events"]):
        assert (table.updates <= len(updates)).all() and (table.version <= len(aggregations)).all()
    assert evaluations.train_loss.notna().all()
    return tables


def follows(new: Tables, old: Tables) -> None:
    """What was there is there, as it was."""
    for name, table in old.items():
        assert len(new[name]) >= len(table), name
        assert table.empty or new[name].iloc[: len(table)].equals(table), name
