"""What both ends of the MPI transport share: tags, waiting, sends in flight, and which ranks have died.

Buffer calls only, every receive names its source, waits sleep.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable

import mpi4py
import numpy as np

from mpifl.errors import ConfigError
from mpifl.transport.backoff import Backoff
from mpifl.transport.detection import check_library, check_size

mpi4py.rc.initialize = False  # MPI starts below, once the library has been checked
mpi4py.rc.finalize = True
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "suspicious MPI execution environment")  # what `check_library` says in one line
    from mpi4py import MPI

    if not MPI.Is_initialized():
        check_library(MPI.Get_library_version())
        MPI.Init_thread(
            MPI.THREAD_SERIALIZED
        )  # one thread calls MPI at a time: the main one, or that of `worker_groups`
check_size(MPI.COMM_WORLD.size, MPI.Get_library_version())

STUCK_TIMEOUT = 5.0  # s that ranks with abandoned clients have to end by themselves
FRAME, TEXT, SETUP, END, DATA = 1, 2, 3, 4, 16  # tags; large vectors of client i travel under DATA + i


def wait(*requests: MPI.Request) -> None:
    """Waits for requests without spinning."""
    backoff = Backoff()
    while not MPI.Request.Testall(list(requests)):
        backoff.sleep()


def send_frame(comm: MPI.Comm, buffers: list[np.ndarray], rank: int, client: int = 0) -> list[MPI.Request]:
    """Starts to send a frame, and a client's vectors behind it."""
    frame, *vectors = buffers
    return [comm.Isend(frame, rank, FRAME), *(comm.Isend(v, rank, DATA + client) for v in vectors)]


def check_tags(comm: MPI.Comm, clients: int) -> None:
    """Raises ConfigError where this MPI has fewer tags than there are clients."""
    most = (comm.Get_attr(MPI.TAG_UB) or 32767) - DATA
    if clients > most:
        raise ConfigError("problem.clients", clients, f"at most {most} clients: this MPI has no more message tags")


def dead_ranks(comm: MPI.Comm) -> set[int]:
    """The ranks that have died, as far as this one knows; none where the MPI cannot detect it."""
    try:
        failed = comm.Get_failed()
        group = comm.Get_group()
        return set(MPI.Group.Translate_ranks(failed, list(range(failed.size)), group))
    except (MPI.Exception, NotImplementedError):
        return set()


class SendQueue:
    """Sends in flight: their buffers live until they complete, and for ever where the receiver has died."""

    def __init__(self, on_error: Callable[[MPI.Exception], None]) -> None:
        """on_error: handles the error of a call that fails because a rank has died; raises it where none has."""
        self._on_error = on_error
        self._sends: deque[tuple[list[MPI.Request], object, int]] = deque()  # requests, buffers, to which rank
        self._quarantined: list[object] = []  # what MPI may still read for a dead rank

    def __len__(self) -> int:
        return len(self._sends)

    def start(self, send: Callable[[], list[MPI.Request]], buffers: object, rank: int) -> None:
        """Starts sends to a rank."""
        try:
            self._sends.append((send(), buffers, rank))
        except MPI.Exception as error:
            self._on_error(error)

    def poll(self) -> None:
        """Tests two sends; called for each send that is started, so that old models are freed soon."""
        for _ in range(min(2, len(self._sends))):
            try:
                done = MPI.Request.Testall(self._sends[0][0])
            except MPI.Exception as error:
                self._on_error(error)
                return
            if done:
                self._sends.popleft()
            else:
                self._sends.rotate(-1)

    def forget_ranks(self, dead: set[int]) -> None:
        """Stops waiting for sends to ranks that have died."""
        self._quarantined += [entry for entry in self._sends if entry[2] in dead]
        self._sends = deque(entry for entry in self._sends if entry[2] not in dead)

    def drain(self) -> None:
        """Waits for all sends."""
        backoff = Backoff()
        while self._sends:
            self.poll()
            backoff.sleep()
