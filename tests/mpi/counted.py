"""Runs a job file, and counts in bytes.json the bytes of vectors that each rank receives from rank 0 and sends it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from mpi4py import MPI

import mpifl
from mpifl.transport.mpi import DATA

counts: Counter[str] = Counter()


class Counting(MPI.Intracomm):
    """A communicator that counts the bytes of vectors in messages from and to rank 0."""

    def Irecv(self, buf: Any, source: int = 0, tag: int = 0) -> MPI.Request:
        counts["received"] += buf.nbytes if tag >= DATA and source == 0 else 0
        return super().Irecv(buf, source, tag)

    def Isend(self, buf: Any, dest: int = 0, tag: int = 0) -> MPI.Request:
        counts["sent"] += buf.nbytes if tag >= DATA and dest == 0 else 0
        return super().Isend(buf, dest, tag)


if __name__ == "__main__":
    comm = Counting(MPI.COMM_WORLD)
    mpifl.run(sys.argv[1], *sys.argv[2:], comm=comm)
    every = comm.gather([counts["received"], counts["sent"]])
    if comm.rank == 0:
        Path("bytes.json").write_text(json.dumps(every))
