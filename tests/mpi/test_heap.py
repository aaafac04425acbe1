"""Both ends of the MPI transport ask for huge pages where vectors are large, and only there."""

from __future__ import annotations

import json

import pytest

from tests.mpi.conftest import Start
from tests.test_heap import asked

# Prints for each rank whether its heap asks for huge pages, with vectors (argv[1],) float32 and with none yet.
RANKS = """
import json, sys
import numpy as np
from mpifl.transport.mpi import MPI
from mpifl.transport.mpi_client import MPIClientTransport
from mpifl.transport.mpi_server import MPIServerTransport

def asks():
    inside, found = False, []
    for words in map(str.split, open("/proc/self/smaps")):
        if "-" in words[0]:
            inside = words[-1] == "[heap]"
        elif inside and words[0] == "VmFlags:":
            found.append("hg" in words)
    return any(found)

comm, size = MPI.COMM_WORLD, (1, int(sys.argv[1]), np.dtype(np.float32), 1)
before = asks()
if comm.rank:
    transport = MPIClientTransport(comm, *size)
    comm.gather((before, asks()))
    for _ in transport.messages(1):
        pass
else:
    transport = MPIServerTransport(comm, *size)
    print(json.dumps(comm.gather((before, asks()))), flush=True)
    transport.shut_down(0)
"""


@pytest.mark.mpi
@pytest.mark.timeout(120)
@asked
@pytest.mark.parametrize(("d", "asks"), [(100_000, True), (16_000, True), (500, False)])
def test_ranks_ask_where_mpi_reads_vectors_from_their_memory(run: Start, d: int, asks: bool) -> None:
    done = run(2, "-c", RANKS, str(d))
    assert done.code == 0, done.err
    assert json.loads(done.out) == [[False, asks], [False, asks]]
