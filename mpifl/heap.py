"""Configures this process's heap, and how often Python collects garbage.

The heap keeps freed memory and asks for huge pages (glibc on Linux; these functions do nothing elsewhere).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import mmap
import threading
from collections.abc import Iterator

RESERVED_BYTES = 128 << 20  # of the heap, for vectors up to 4 MiB: NumPy asks for huge pages for larger ones
HUGE_PAGE = 2 << 20  # bytes; some systems have only huge pages of 512 MiB, which nobody wants for a vector
HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
MADV_COLLAPSE = 25  # <sys/mman.h>, from Linux 6.1 on
MAX_THRESHOLD = 2**31 - 1  # of the garbage collector


def keep_freed_memory() -> None:
    """Keeps freed memory for the next vectors: a new one of 40 MB would cost 10,000 page faults."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(M_TRIM_THRESHOLD, 1 << 30)


def release_free_memory() -> None:
    """Returns freed memory to the system: what reading data and importing modules took for a while."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@functools.cache
def use_huge_pages() -> None:
    """Asks for huge pages for the heap and for the next RESERVED_BYTES of it, once; after `keep_freed_memory`.

    On one host MPI has the system copy a large vector from the memory of its sender. The system looks up and pins each
    page of the sender's, which takes longer than to copy 4 KiB. So senders of large vectors need huge pages.

    Reserved memory is not occupied before it is used. What the heap has already is moved to huge pages where more than
    a quarter of one is in use, because new vectors fill the gaps between older objects.
    """
    with contextlib.suppress(OSError, AttributeError, ValueError):
        with open(f"{HUGE_PAGES}/hpage_pmd_size") as size, open(f"{HUGE_PAGES}/enabled") as enabled:
            if int(size.read()) != HUGE_PAGE or "[never]" in enabled.read():
                return
        if not (before := _heap()):
            return
        libc = ctypes.CDLL(None)
        libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
        libc.free(libc.malloc(RESERVED_BYTES))
        heap = _heap()
        libc.madvise(heap.start, len(heap), mmap.MADV_HUGEPAGE)
        resident = ctypes.create_string_buffer(HUGE_PAGE // mmap.PAGESIZE)  # by page
        for start in range(-(-before.start // HUGE_PAGE) * HUGE_PAGE, before.stop, HUGE_PAGE):
            libc.mincore(start, HUGE_PAGE, resident)
            is_last = start + HUGE_PAGE >= before.stop  # the next vectors are there
            if is_last or sum(page & 1 for page in resident.raw) > len(resident) // 4:
                libc.madvise(start, HUGE_PAGE, MADV_COLLAPSE)


def _heap() -> range:
    """The addresses of the heap; empty where there is none."""
    with open("/proc/self/maps") as file:
        spans = [line.split()[0].split("-") for line in file if line.rstrip().endswith("[heap]")]
    return range(int(spans[0][0], 16), int(spans[-1][1], 16)) if spans else range(0)


# -- Python's garbage collector ----------------------------------------------------------------------------------------
_thresholds: list[tuple[int, int, int]] = []  # of the garbage collector, before each `rare_full_collections`
_thresholds_lock = threading.Lock()


@contextlib.contextmanager
def rare_full_collections() -> Iterator[None]:
    """Inside, the garbage collector looks at old objects a hundred times less often, and not at those that exist now.

    A full collection visits every object, which are millions where there are many clients. Garbage of a rule's own is
    young, and collected as before. Where runs in several threads overlap, the last to end restores the thresholds.
    """
    with _thresholds_lock:
        _thresholds.append(gc.get_threshold())
        if len(_thresholds) == 1:
            young, middle, old = _thresholds[0]
            gc.freeze()
            gc.set_threshold(young, middle, min(100 * old, MAX_THRESHOLD))
    try:
        yield
    finally:
        with _thresholds_lock:
            before, *others = _thresholds
            if not others:
                gc.set_threshold(*before)
                gc.unfreeze()
            _thresholds.pop()
