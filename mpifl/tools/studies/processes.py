"""New processes on this machine, in each of which one run is computed at a time."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import connection
from types import ModuleType
from typing import Any

from mpifl.signals import exit_code
from mpifl.transport.handshake import RANKS_BEFORE


@contextmanager
def processes(count: int) -> Iterator[Executor]:
    """An executor with at most `count` new processes, whose runs save checkpoints where the block raises an error.

    An error while it waits for these, such as a second Ctrl-C, kills the processes.
    """
    executor = _Processes(count)
    try:
        yield executor
    except BaseException:
        _send(signal.SIGTERM)
        raise
    finally:
        try:
            executor.shutdown()
        except BaseException:
            _send(signal.SIGKILL)
            raise


def _send(number: signal.Signals) -> None:
    """Sends a signal to the processes that this one has started and that have not ended."""
    for process in multiprocessing.active_children():
        with suppress(ProcessLookupError):
            os.kill(process.pid or 0, number)


class _Processes(Executor):
    """A pool of its own for each process: one that dies takes no other task with it, and is replaced.

    Its user submits a task when fewer than `count` are running.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pools: dict[int, tuple[ProcessPoolExecutor, Future[Any]]] = {}
        """the pools with their last tasks, by a number below `count`"""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        idle = [number for number, (_, last) in self._pools.items() if last.done()]
        assert idle or len(self._pools) < self._count
        if idle:
            number, pool = idle[0], self._pools[idle[0]][0]
        else:
            number = min(set(range(self._count)) - self._pools.keys())
            environment = {**os.environ, RANKS_BEFORE: str(number)}  # the processes take the GPUs in turn
            pool = ProcessPoolExecutor(1, multiprocessing.get_context("forkserver"), _start, (environment,))
        try:
            with _no_main_module():
                future = pool.submit(_task, fn, *args, **kwargs)
        except BrokenProcessPool:  # its process has died, in its last task or after it
            pool.shutdown(wait=False)
            del self._pools[number]
            return self.submit(fn, *args, **kwargs)
        self._pools[number] = pool, future
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for pool, _ in self._pools.values():
            pool.shutdown(wait, cancel_futures=cancel_futures)


_main_lock = threading.Lock()  # sweeps may run in several threads


@contextmanager
def _no_main_module() -> Iterator[None]:
    """Keeps processes that start in the block from importing the program's main module.

    A script without `if __name__ == "__main__"` would begin anew in each of them.
    """
    with _main_lock:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _start(environment: Mapping[str, str]) -> None:
    """Prepares a process: Ctrl-C reaches its runs alone, and it ends with the process that started it.

    environment: That process's; the server from which processes are forked may have been started with another one.
    """
    os.environ.clear()
    os.environ.update(environment)
    os.environ["TQDM_DISABLE"] = "1"  # the bars of several runs would overwrite the line of the study
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("mpifl").propagate = False
    parent = multiprocessing.parent_process()
    assert parent

    def end_with_parent() -> None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)  # the run saves a checkpoint; without a run the process ends
        _idle.wait()
        os._exit(exit_code(signal.SIGTERM))

    threading.Thread(target=end_with_parent, daemon=True).start()


_idle = threading.Event()  # set while this process runs no task


def _task(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Runs a task in a process of a pool."""
    _idle.clear()
    try:
        return fn(*args, **kwargs)
    finally:
        _idle.set()
