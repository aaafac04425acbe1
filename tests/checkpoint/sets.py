"""Sets of checkpoints for the tests.

Checkpoint k of a rank r holds what k and r say, so a reader can tell whether it got what was saved.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np

from mpifl.checkpoint import snapshot
from mpifl.checkpoint.part import PartStatus, PartWriter
from mpifl.checkpoint.segments import Segment
from mpifl.checkpoint.sets import Checkpoint, Manifest, commit, newest
from mpifl.checkpoint.snapshot import ClientSnapshot, PendingEvaluation


def arrays(number: int, rank: int, size: int = 50_000) -> dict[str, np.ndarray]:
    return {
        "x": np.full(size, number + 0.1, np.float32),
        "y/3": np.arange(rank, rank + 7)[::2],
        "count": np.array(number),
        "none": np.zeros((0, 3)),
    }


def server(number: int, size: int = 50_000, **more: Any) -> snapshot.ServerSnapshot:
    """The server's snapshot, with values that are hard to store; more: other values of its fields."""
    clients = snapshot.ClientTableState(
        ["live", "aside"], [number, 0], [8, 9], [0, 1], [2, 0], [1, 0], [0.1, inf], [], [nan, 0.1]
    )  # fmt: skip
    clock = snapshot.ClockState(number / 3, [1, 0], [inf, 0.1], [nan, 0.3], [nan, 0.7], [inf, 0.2])
    pending = [
        PendingEvaluation(nan, 3, 2, np.arange(3.0)),
        PendingEvaluation(1.0, 3, 2, np.ones(2), np.array([nan])),
    ]
    fields: dict[str, Any] = {
        "run": "run", "session": "session", "resumed_from": 0, "resumes": 0, "started": "2026-01-01",
        "began": nan, "config": "name: ünï\n", "time": number / 3, "wall_seconds": 0.1,
        "rows": {"updates": 10 * number}, "client_rank": [1, 1], "loop": snapshot.LoopState(2, 10 * number, clients),
        "schedule": snapshot.ScheduleState(clock, 2, 3, 4, 5, 6, inf, 7, 8, 9), "algorithm": arrays(number, 0, size),
        "evaluator": snapshot.EvaluatorState(nan, False, pending),
    }  # fmt: skip
    return snapshot.ServerSnapshot(number, **(fields | more))


def clients(number: int, rank: int, size: int = 50_000) -> dict[int, ClientSnapshot]:
    """Two clients: one has sent an update, one has raised."""
    state = arrays(number, rank, size)
    update = snapshot.UpdateSnapshot((state["x"],), (0.1, nan), 3, 2, number, 0.1, nan, 0.2, nan, "", 0.5)
    other = {**state, "x": -state["x"], "more": np.array([rank])}
    return {
        10 + rank: ClientSnapshot(state, {"mean": np.ones(rank)}, update),
        0: ClientSnapshot(other, error="ünï"),
    }


def content(number: int, rank: int, size: int = 50_000, **more: Any) -> snapshot.PartContent:
    return clients(number, rank, size) if rank else server(number, size, **more)


def finished(part: PartWriter, count: int = 1) -> list[PartStatus]:
    """Waits for the next `count` checkpoints that are durable or failed."""
    written: list[PartStatus] = []
    deadline = time.monotonic() + 20
    while len(written := written + part.done()) < count:
        assert time.monotonic() < deadline, f"{written} after 20 s, not {count}"
        time.sleep(0.001)
    return written


def save_part(folder: Path, number: int, rank: int, content: snapshot.PartContent) -> PartStatus:
    """Saves one part, and waits until it is durable or failed."""
    part = PartWriter(folder, rank)
    part.save(number, lambda: content)
    (written,) = finished(part)
    part.close()
    return written


def make_valid(
    folder: Path, number: int, parts: dict[int, tuple[int, int]], run: str = "run", session: str = "session",
    resumed_from: int = 0, resumes: int = 0, segments: Sequence[Segment] = (),
) -> None:  # fmt: skip
    """Writes a manifest."""
    commit(folder, Manifest(number, run, session, resumed_from, resumes, parts, segments))


def save(
    folder: Path, number: int, ranks: int = 2, run: str = "run", size: int = 50_000,
    segments: Sequence[Segment] = (), **more: Any,
) -> None:  # fmt: skip
    """Saves a complete set; more: `session` and `resumed_from`."""
    parts = {}
    for rank in range(ranks):
        written = save_part(folder, number, rank, content(number, rank, size, run=run, **more))
        assert written.number == number and not written.error
        parts[rank] = written.bytes, written.crc
    make_valid(folder, number, parts, run, segments=segments, **more)


def current(folder: Path, run: str = "run") -> Checkpoint:
    """The checkpoint of a run that is used; no later one is passed over."""
    checkpoint, passed = newest(folder, run)
    assert checkpoint is not None and not passed, passed
    return checkpoint


def same(found: Any, saved: Any) -> bool:
    """Whether two snapshots are equal, including types, the order of names, and NaNs."""
    if isinstance(saved, np.ndarray):
        kind = saved.dtype.newbyteorder("<")
        equal = found.dtype == kind and found.shape == saved.shape and found.tobytes() == saved.astype(kind).tobytes()
        return bool(equal and found.flags.writeable and found.flags.c_contiguous)
    if isinstance(saved, dict):
        return [*found] == [*saved] and all(same(found[name], value) for name, value in saved.items())
    if isinstance(saved, (list, tuple)):
        return len(found) == len(saved) and all(map(same, found, saved))
    if hasattr(saved, "__dataclass_fields__"):
        return type(found) is type(saved) and same(vars(found), vars(saved))
    return type(found) is type(saved) and repr(found) == repr(saved)  # nan is not equal to itself


def check(checkpoint: Checkpoint, size: int = 50_000, **more: Any) -> None:
    """The snapshot holds what `save` saved."""
    number = checkpoint.number
    for rank in checkpoint.ranks:
        if rank:
            found, saved = checkpoint.clients(rank), clients(number, rank, size)
            assert same([found[i] for i in saved], list(saved.values())) and found.keys() == saved.keys()
        else:
            assert same(checkpoint.server(), server(number, size, **more))
