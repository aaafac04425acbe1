"""What both ends of the MPI link share: `server` on rank 0, `client` on the others.

Buffers only, every receive named by its source, waits that sleep. Small vectors travel in one frame with what is said
of them (`wire`), large ones behind it, under a tag of their client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import mpi4py
import numpy as np

from mpifl.errors import ConfigError
from mpifl.transport.backoff import Backoff

mpi4py.rc.thread_level = "funneled"  # the evaluating and the writing thread never call MPI
from mpi4py import MPI  # noqa: E402

STUCK = 5.0  # s that ranks whose clients were given up are left to end by themselves
FRAME, TEXT, SETUP, DATA = 1, 2, 3, 16  # tags; large vectors of client i travel under DATA + i


def wait(*requests: MPI.Request) -> None:
    """Waits for requests without spinning."""
    backoff = Backoff()
    while not MPI.Request.Testall(list(requests)):
        backoff.sleep()


def post(comm: MPI.Comm, buffers: list[np.ndarray], rank: int, client: int = 0) -> list[MPI.Request]:
    """Sends a frame, and a client's vectors behind it."""
    frame, *vectors = buffers
    return [comm.Isend(frame, rank, FRAME), *(comm.Isend(v, rank, DATA + client) for v in vectors)]


def tags(comm: MPI.Comm, clients: int) -> None:
    """Raises ConfigError where so many clients cannot be told apart."""
    most = (comm.Get_attr(MPI.TAG_UB) or 32767) - DATA
    if clients > most:
        raise ConfigError("problem.clients", clients, f"at most {most} clients: this MPI has no more message tags")


def dead(comm: MPI.Comm) -> set[int]:
    """The ranks that have died, as far as this one knows; none where the MPI cannot tell."""
    try:
        failed = comm.Get_failed()
        group = comm.Get_group()
        return set(MPI.Group.Translate_ranks(failed, list(range(failed.size)), group))
    except (MPI.Exception, NotImplementedError):
        return set()


class Outgoing:
    """Sends under way: their buffers live until they are done, and for ever where the receiver has died."""

    def __init__(self, died: Callable[[MPI.Exception], None]) -> None:
        """died: called with the error of a call that fails since somebody has died; raises it where nobody has."""
        self._died = died
        self._sends: deque[tuple[list[MPI.Request], object, int]] = deque()  # requests, buffers, to which rank
        self._graves: list[object] = []  # what a dead rank's messages may still touch

    def __len__(self) -> int:
        return len(self._sends)

    def add(self, begin: Callable[[], list[MPI.Request]], buffers: object, rank: int) -> None:
        """Begins sends to a rank."""
        try:
            self._sends.append((begin(), buffers, rank))
        except MPI.Exception as error:
            self._died(error)

    def look(self) -> None:
        """Looks at two, for one that is added: old models are let go soon after their last send."""
        for _ in range(min(2, len(self._sends))):
            try:
                done = MPI.Request.Testall(self._sends[0][0])
            except MPI.Exception as error:
                self._died(error)
                return
            if done:
                self._sends.popleft()
            else:
                self._sends.rotate(-1)

    def bury(self, dead: set[int]) -> None:
        """Forgets what was on its way to ranks that have died."""
        self._graves += [entry for entry in self._sends if entry[2] in dead]
        self._sends = deque(entry for entry in self._sends if entry[2] not in dead)

    def drain(self) -> None:
        """Waits for all."""
        backoff = Backoff()
        while self._sends:
            self.look()
            backoff.sleep()
