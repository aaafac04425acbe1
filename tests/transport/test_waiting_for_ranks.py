"""What rank 0 logs while it waits for other ranks at the start of a run."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from mpifl.transport import handshake


class Comm:
    """Eight ranks; rank k answers k - 1/2 minutes after the start, rank 1 at once."""

    size = 8

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 2.0
        return self.now

    def Irecv(self, buffer: bytearray, rank: int, tag: int) -> Any:
        def test() -> bool:
            buffer[: len(b"{}")] = b"{}"
            return rank == 1 or self.now > 60 * rank - 30

        return SimpleNamespace(Test=test)


def test_ranks_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Every ten seconds in the first minute, then every minute: which ranks it waits for, to do what."""
    comm = Comm()
    monkeypatch.setattr(handshake, "time", comm)
    monkeypatch.setattr(handshake, "Backoff", lambda: SimpleNamespace(pause=lambda: None))
    with caplog.at_level(logging.INFO, "mpifl"):
        assert handshake.Handshake(comm)._gather("start") == [{}] * 7  # type: ignore[arg-type]
    many = "waiting for ranks 2, 3, 4, 5, 6 and 1 more of 8 to start"
    assert caplog.messages[:6] == [f"{many} ({k} s)" for k in (10, 20, 30, 40, 50)] + [f"{many} (1 min 0 s)"]
    assert caplog.messages[6:] == [
        "waiting for ranks 3, 4, 5, 6, 7 to start (2 min 0 s)", "waiting for ranks 4, 5, 6, 7 to start (3 min 0 s)",
        "waiting for ranks 5, 6, 7 to start (4 min 0 s)", "waiting for ranks 6, 7 to start (5 min 0 s)",
        "waiting for rank 7 to start (6 min 0 s)",
    ]  # fmt: skip
