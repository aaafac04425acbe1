"""Event files, read by TensorBoard itself."""

from __future__ import annotations

import os
from pathlib import Path

import mpifl
from mpifl.tools.export import live_tensorboard as live


def scalars(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """(step, wall time, value) by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {tag: [(e.step, e.wall_time, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def assert_complete(path: Path) -> dict[str, list[tuple[int, float, float]]]:
    """What was written live is what an export of the run file writes: one event file, each step once."""
    folder, out = live.folder_of(path), path.with_name("exported")
    assert len(os.listdir(folder)) == 1
    mpifl.export_run(path, "tensorboard", out, overwrite=True)
    found = scalars(folder)
    assert found == scalars(out)
    steps = [step for step, *_ in found["evaluations/train_loss"]]
    assert steps == sorted(set(steps)) == sorted(set(mpifl.open_run(path).evaluations.updates))
    return found
