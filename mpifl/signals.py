"""The signals that end a run: at the first the run saves a checkpoint, the second has its previous action."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # USR1: what SLURM is asked to send ahead of a time limit


def exit_code(number: int) -> int:
    """The exit code of a run that a signal has ended: 130 or 143."""
    return 130 if number == signal.SIGINT else 143


class Interrupted(KeyboardInterrupt):
    """A signal has ended the run, or what was done before it; `code` is the exit code, 130 or 143."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(*([text] if text else []))
        self.code = code


class SignalRecorder:
    """Handles SIGNALS within a `with` block: raises Interrupted at first and, from `record` on, collects their numbers.

    After the first recorded signal, and after the block, the handlers are again those from before the block. Outside
    the main thread, where Python installs no handlers, it does nothing.
    """

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._before: dict[signal.Signals, Any] = {}
        self._recording = False

    def __enter__(self) -> SignalRecorder:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._catch) for s in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self.restore_handlers()

    def record(self) -> None:
        """From now on signals are collected in `numbers`, for the run to read, instead of raised."""
        self._recording = True

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if not self._recording:
            raise Interrupted(exit_code(number))
        self.numbers.append(number)
        self.restore_handlers()

    def restore_handlers(self) -> None:
        """Installs the handlers from before the block again."""
        for s, handler in self._before.items():
            signal.signal(s, handler if handler is not None else signal.SIG_DFL)  # None: not installed by Python
