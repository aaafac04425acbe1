"""Deaths of ranks that Open MPI does not notice: reported, and received, as events of PMIx, its launcher's interface.

With fault tolerance (ULFM) the launcher sends all ranks an event when a signal ends a rank, or when one exits with
status 0 before the end of MPI; of one that exits with another status it says nothing, and MPI waits for it for ever.
A rank of the same host therefore watches the process and sends that event itself. MPI then treats the rank as dead.
Between hosts MPI notices it by itself: the system closes the connection.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import select
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi4py import MPI

log = logging.getLogger("mpifl")

# pmix_common.h, the same in all versions since PMIx 2
LIBRARY = "libpmix.so.2"
ENDED, SIGNALLED = -200, -402  # PMIX_ERR_PROC_TERM_WO_SYNC and PMIX_ERR_PROC_ABORTED_BY_SIG: what MPI handles
NAMESPACE = ctypes.c_uint8(3)  # PMIX_RANGE_NAMESPACE: all ranks of the job
PROC, BOOL = 22, 1  # types of values
DONE = -157  # PMIX_OPERATION_SUCCEEDED
REPORT_TIMEOUT = 1.0  # s


class _Proc(ctypes.Structure):
    """pmix_proc_t"""

    _fields_ = (("nspace", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


class _Data(ctypes.Union):
    """The union of pmix_value_t, as far as it is used."""

    _fields_ = (("proc", ctypes.POINTER(_Proc)), ("flag", ctypes.c_bool), ("all", ctypes.c_byte * 24))


class _Value(ctypes.Structure):
    """pmix_value_t"""

    _fields_ = (("type", ctypes.c_uint16), ("data", _Data))


class _Info(ctypes.Structure):
    """pmix_info_t"""

    _fields_ = (("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", _Value))


# pmix_event_notification_cbfunc_fn_t, called by a handler when it is done, and pmix_notification_fn_t, a handler
_Done = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
_Handler = ctypes.CFUNCTYPE(
    None, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Info), ctypes.c_size_t, ctypes.c_void_p,
    ctypes.c_size_t, _Done, ctypes.c_void_p,
)  # fmt: skip

_Received = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)  # pmix_op_cbfunc_t
_callbacks: list[object] = []  # PMIx may call these until the process ends


def report_death(rank: int) -> None:
    """Tells MPI on all ranks that this rank (`launcher_rank`) has died. Any thread may call it.

    Returns when the launcher has received the report, so that the caller may end, or after REPORT_TIMEOUT.
    """
    dead = _Proc(os.environ.get("PMIX_NAMESPACE", "").encode(), rank)
    info = _Info(b"pmix.evproc", 0, _Value(PROC, _Data(ctypes.pointer(dead))))
    received = threading.Event()
    _callbacks.append(callback := _Received(lambda status, data: received.set()))
    try:
        status = ctypes.CDLL(LIBRARY).PMIx_Notify_event(
            ENDED, ctypes.byref(dead), NAMESPACE, ctypes.byref(info), ctypes.c_size_t(1), callback, None
        )
        why = f"PMIx error {status}" if status not in (0, DONE) else ""
    except (OSError, AttributeError) as error:
        status, why = -1, str(error)
    if why:
        log.warning("rank %d has ended, which cannot be reported to MPI: %s", rank, why)
    if status == 0:  # DONE: at once
        received.wait(REPORT_TIMEOUT)


@contextlib.contextmanager
def on_death(rank: int, act: Callable[[], None]) -> Iterator[None]:
    """Inside, a thread of PMIx calls `act`, once, when this rank (`launcher_rank`) has died; it must return at once."""
    namespace, called = os.environ.get("PMIX_NAMESPACE", "").encode(), False

    def handle(*arguments: Any) -> None:
        nonlocal called
        (info, count), (done, data) = arguments[3:5], arguments[7:]
        affected = [info[k].value.data.proc.contents for k in range(count) if info[k].value.type == PROC]
        if not called and any(dead.rank == rank and dead.nspace == namespace for dead in affected):
            called = True  # else again, where both the launcher and a rank report it
            act()
        if done:
            done(0, None, 0, None, None, data)  # MPI's handler follows

    handler = _Handler(handle)
    codes = (ctypes.c_int * 2)(ENDED, SIGNALLED)
    first = _Info(b"pmix.evprepend", 0, _Value(BOOL, _Data(flag=True)))
    try:
        pmix = ctypes.CDLL(LIBRARY)
        reference = pmix.PMIx_Register_event_handler(
            codes, ctypes.c_size_t(2), ctypes.byref(first), ctypes.c_size_t(1), handler, None, None
        )
    except (OSError, AttributeError):  # this MPI has no PMIx
        reference = -1
    try:
        yield
    finally:
        if reference >= 0:
            pmix.PMIx_Deregister_event_handler(ctypes.c_size_t(reference), None, None)


def launcher_rank(comm: MPI.Comm, rank: int) -> int:
    """The launcher's number of a rank of `comm`."""
    from mpifl.transport.mpi import MPI

    (number,) = MPI.Group.Translate_ranks(comm.Get_group(), [rank], MPI.COMM_WORLD.Get_group())
    return int(number)


class ProcessWatch:
    """A thread that calls `ended` with the rank of each process of this host that has ended. Waits in the system."""

    def __init__(self, processes: Mapping[int, int], ended: Callable[[int], None]) -> None:
        """processes: rank -> process id. A system older than Linux 5.3 cannot watch them."""
        self._ended, self._out, self._in = ended, *os.pipe2(os.O_CLOEXEC)
        self._ranks: dict[int, int] = {}  # descriptor of a process -> its rank
        for rank, process in processes.items():
            try:
                self._ranks[os.pidfd_open(process)] = rank
            except ProcessLookupError:
                ended(rank)
            except (OSError, AttributeError):
                continue
        self._thread = threading.Thread(target=self._run, name="ranks", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        poll = select.poll()
        for descriptor in (self._out, *self._ranks):
            poll.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._out:
                    return
                poll.unregister(descriptor)
                self._ended(self._ranks[descriptor])

    def close(self) -> None:
        """Ends the thread."""
        os.close(self._in)
        self._thread.join()
        for descriptor in (self._out, *self._ranks):
            os.close(descriptor)
