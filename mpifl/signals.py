"""The signals that end a run: at the first one it saves what it can; a later one takes its previous action at once."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from math import inf
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # USR1: what SLURM is asked to send ahead of a time limit
REPEAT_SECONDS = 1.0  # s after the first signal in which others belong to it: launchers send several


def exit_code(number: int) -> int:
    """The exit code of a run that a signal has ended: 130 or 143."""
    return 130 if number == signal.SIGINT else 143


class Interrupted(KeyboardInterrupt):
    """A signal has ended the run, or the work that precedes it; `code` is the exit code, 130 or 143."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(*([text] if text else []))
        self.code = code


def is_from_signal(error: BaseException) -> bool:
    """Whether a handler of a signal has raised the error, and not the code that it interrupted."""
    if isinstance(error, Interrupted):
        return True
    place = error.__traceback__
    while place and place.tb_frame.f_code is not SignalRecorder._catch.__code__:
        place = place.tb_next
    return place is not None


class SignalRecorder:
    """Handles SIGNALS within a `with` block: raises Interrupted at first and, from `record` on, collects their numbers.

    Signals that arrive less than REPEAT_SECONDS after the first are ignored; a later one has the action from before the
    block. Outside the main thread, where Python installs no handlers, it does nothing.
    """

    def __init__(self, process_ends: bool = False) -> None:
        """process_ends: whether the process ends after the block; until then signals close to the first are ignored."""
        self.numbers: list[int] = []  # the first signal, and that of another rank
        self.asked = inf  # time.monotonic of the first signal, of whichever rank
        self._process_ends = process_ends
        self._before: dict[int, Any] = {}
        self._recording = False
        self._first = inf  # time.monotonic of the first signal that this process has received
        self.number = signal.SIGTERM  # number of the first signal, of whichever rank
        self._later = 0  # the number of a signal that came more than REPEAT_SECONDS after it
        self._raise_next = False
        self._watcher: _Watcher | None = None

    def __enter__(self) -> SignalRecorder:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._catch) for s in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        watcher, self._watcher = self._watcher, None  # a signal that comes now finds it open, or none
        if watcher:
            watcher.close()
        if self._process_ends and time.monotonic() <= self._first + REPEAT_SECONDS < inf:
            atexit.register(self._ignore_until_the_end)  # `_catch` restores the handlers when a later one comes
        else:
            self.restore_handlers()

    def _ignore_until_the_end(self) -> None:
        """Ignores the signals by the system: Python removes its handlers before the process has ended."""
        if time.monotonic() <= self._first + REPEAT_SECONDS:
            for s in SIGNALS:
                signal.signal(s, signal.SIG_IGN)

    def record(self) -> None:
        """From now on signals are collected in `numbers`, for the run to read, instead of raised."""
        self._recording = True

    def watch(self, grace: float, expired: Callable[[signal.Signals], None]) -> None:
        """Calls `expired` with the number of the first signal in a thread, `grace` seconds after it.

        The thread also ends the process after a later signal that the main thread does not handle: it may be computing
        outside Python.
        """
        if self._before:
            self._watcher = _Watcher(self, grace, expired)

    def add(self, number: int) -> None:
        """Records a signal that another rank has received; this one may still receive the same."""
        self.numbers.append(number)
        self._ask(number, time.monotonic())
        if self._watcher:
            self._watcher.wake()

    def _ask(self, number: int, now: float) -> None:
        if self.asked == inf:
            self.asked, self.number = now, signal.Signals(number)

    def left(self, grace: float) -> float:
        """What is left (s) of the time that a run has after the first signal; inf where there was none."""
        return max(0.0, self.asked + grace - time.monotonic())

    def interrupt_main(self, number: signal.Signals) -> bool:
        """Raises Interrupted in the main thread, as soon as it runs Python code; False where the previous action of the
        signal is to end the process. Called by another thread."""
        if not callable(self._before.get(number)):
            return False
        self._raise_next = True
        _thread.interrupt_main(number)
        return True

    def arrived(self, number: int) -> None:
        """Notes the time at which a signal has reached this process."""
        now = time.monotonic()
        if self._first == inf:
            self._first = now
            self._ask(number, now)
        elif now - self._first > REPEAT_SECONDS:
            self._later = number

    def ends_process(self) -> int:
        """The number of a later signal whose previous action is to end the process; 0: none."""
        return self._later if self._later and self._before.get(self._later) in (signal.SIG_DFL, None) else 0

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if self._raise_next:
            self._raise_next = False
            raise Interrupted(exit_code(number))
        if self._watcher:  # the system has told the watcher when the signal came, perhaps long ago
            self._watcher.read()
            self._watcher.wake()  # else the watcher goes on waiting if this thread has read its pipe first
        if not self._watcher or self._first == inf:
            self.arrived(number)
        if self._later:
            self.restore_handlers()
            before = self._before[number]
            if callable(before):
                before(number, frame)
            elif before != signal.SIG_IGN:
                os.kill(os.getpid(), number)
        elif not self.numbers:
            self.numbers.append(self.number)
            if not self._recording:
                self._recording = True
                raise Interrupted(exit_code(self.number))

    def restore_handlers(self) -> None:
        """Installs the handlers from before the block again."""
        for s, handler in self._before.items():
            signal.signal(s, handler if handler is not None else signal.SIG_DFL)  # None: not installed by Python


class _Watcher:
    """A thread that waits for signals, also while the main thread runs no Python code."""

    def __init__(self, signals: SignalRecorder, grace: float, expired: Callable[[signal.Signals], None]) -> None:
        self._signals, self._grace, self._expired = signals, grace, expired
        self._lock = threading.RLock()  # guards the pipe; the main thread may hold it when a signal comes
        self._out, self._in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = signal.set_wakeup_fd(self._in, warn_on_full_buffer=False)  # the system writes numbers there
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        os.write(self._in, b"\0")

    def close(self) -> None:
        signal.set_wakeup_fd(self._before)
        self._closed = True
        self.wake()
        self._thread.join()
        os.close(self._in)
        os.close(self._out)

    def read(self) -> None:
        """Notes the signals that have arrived."""
        with self._lock, contextlib.suppress(BlockingIOError):
            for number in os.read(self._out, 4096):
                if number in SIGNALS:
                    self._signals.arrived(number)

    def _run(self) -> None:
        signals, poll = self._signals, select.poll()  # `select` takes no descriptor above 1023
        poll.register(self._out, select.POLLIN)
        while not self._closed:
            left = signals.left(self._grace)
            if left == 0 and not self._closed:
                self._expired(signals.number)
                return
            poll.poll(None if left == inf else 1000 * min(left, 3600.0))
            self.read()
            if number := signals.ends_process():
                time.sleep(0.5)  # the main thread may be about to do so
                os._exit(exit_code(number))
