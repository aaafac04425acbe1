"""A process group of `torch.distributed` over the ranks of a communicator, without addresses or ports to configure."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from mpifl.errors import host_name

ADDRESS_BYTES = 256
_made: list[Any] = []  # the communicator of the default process group


def process_group(comm: Any, backend: str | None = None) -> dist.ProcessGroup:
    """The default process group of `torch.distributed`, over the ranks of an mpi4py communicator, for DDP and FSDP.

    All its ranks call this at the same time. The group is made at the first call; later calls return it.

    Args:
        comm: `contact.comm` of a client's `fit`.
        backend: As `torch.distributed.init_process_group` takes it; None: gloo, and NCCL for GPUs where there are any.
    """
    if dist.is_initialized() and _made == [comm]:
        return _world()
    if dist.is_initialized():  # an earlier run has left it
        dist.destroy_process_group()
    hosts = np.empty((comm.size, ADDRESS_BYTES), np.uint8)
    comm.Allgather(_padded(host_name()), hosts)
    leader = hosts[0].tobytes().rstrip(b"\0").decode()
    address = "127.0.0.1" if (hosts == hosts[0]).all() else leader
    port = np.zeros(1, np.int64)
    if comm.rank == 0:  # the system chooses a free port
        store = dist.TCPStore(address, 0, comm.size, is_master=True, wait_for_workers=False)
        port[0] = store.port
    comm.Bcast(port, 0)
    if comm.rank:
        store = dist.TCPStore(address, int(port[0]), comm.size, is_master=False)
    found = backend or ("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    dist.init_process_group(found, store=store, rank=comm.rank, world_size=comm.size)
    _made[:] = [comm]
    return _world()


def _world() -> dist.ProcessGroup:
    found = dist.group.WORLD
    assert found is not None
    return found


def _padded(text: str) -> np.ndarray:
    return np.frombuffer(text.encode()[:ADDRESS_BYTES].ljust(ADDRESS_BYTES, b"\0"), np.uint8)
