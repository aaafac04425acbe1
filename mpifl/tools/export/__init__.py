"""Run files in the formats of other tools: CSV, Parquet, TensorBoard, safetensors, PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpifl.config.job import Job
    from mpifl.tools.export.live_tensorboard import LiveScalars


def observers(job: Job, resumed: bool) -> list[LiveScalars]:
    """The exports that a job asks for while it runs, for `execution.execute`. Raises ConfigError."""
    if not job.output_tensorboard:
        return []
    from mpifl.tools.export.live_tensorboard import LiveScalars, check_output

    check_output(job.output, replaced=job.overwrite or resumed)
    return [LiveScalars(job.output)]
