"""A file of vectors that is mapped into memory, for client states that do not fit into memory."""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np

from mpifl.errors import ConfigError, RunFailed


class VectorFile:
    """Blocks of vectors in a file. It has no name: nothing is left of it, however a run ends."""

    def __init__(self, folder: str) -> None:
        """Raises ConfigError where no file can be made in the folder."""
        self._folder = folder
        try:
            self._file = tempfile.TemporaryFile(dir=folder, prefix=".client-states-")  # noqa: SIM115 - until the run ends
        except OSError as error:
            wrong = f"no file for the clients' states can be made there: {error.strerror}"
            raise ConfigError("memory.folder", folder, wrong, "a folder that can be written") from error
        self._end = 0

    def block(self, shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
        """Room for vectors, reserved on the disk. Raises RunFailed where it has none left."""
        size = shape[0] * shape[1] * dtype.itemsize
        try:
            os.posix_fallocate(self._file.fileno(), self._end, size)
            memory = mmap.mmap(self._file.fileno(), size, offset=self._end)
        except OSError as error:
            text = f"no room for the states of clients in {self._folder}: {error.strerror}"
            raise RunFailed(f"memory.client_states: {text}") from error
        self._end += -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        return np.frombuffer(memory, dtype).reshape(shape)
