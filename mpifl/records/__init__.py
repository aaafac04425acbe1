"""The run file: written while the run goes on (`RunWriter`), read at any instant (`open_run`)."""

from mpifl.records.reader import Run, open_run
from mpifl.records.writer import RunWriter

__all__ = ["Run", "RunWriter", "open_run"]
