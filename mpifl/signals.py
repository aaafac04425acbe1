"""The signals that end a run, cleanly at first."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # USR1: what SLURM is asked to send ahead of a time limit


def code_of(number: int) -> int:
    """The exit code of a run that a signal has ended: 130 or 143."""
    return 130 if number == signal.SIGINT else 143


class Interrupted(KeyboardInterrupt):
    """A signal, before there is a run that could be saved."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__()
        self.code = code_of(number)


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """Has signals raise Stopped in a block."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    before = {s: signal.signal(s, stop) for s in SIGNALS}
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


class SignalRecorder:
    """The signals that this process has heard from now on; a second one ends it at once."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._before = {s: signal.signal(s, self._catch) for s in SIGNALS}

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self.numbers.append(number)
        for s in SIGNALS:
            signal.signal(s, signal.SIG_DFL)

    def forget(self) -> None:
        """Signals are again what they were."""
        for s, handler in self._before.items():
            signal.signal(s, handler)
