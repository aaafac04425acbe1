"""The last lines of a rank that ends the job."""

from __future__ import annotations

import os
import select
import threading
import time
from pathlib import Path

import pytest

from mpifl.transport import launcher


def test_a_rank_waits_until_its_last_lines_have_been_read() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"why it failed\n")
    read: list[bytes] = []
    thread = threading.Timer(0.1, lambda: read.append(os.read(reader, 100)))
    thread.start()
    launcher._await_reader(writer)
    assert select.select([reader], [], [], 0)[0] == []  # nothing is left
    thread.join()
    assert read == [b"why it failed\n"]
    os.write(writer, b"more")
    begin = time.monotonic()
    os.read(reader, 100)
    launcher._await_reader(writer)
    assert time.monotonic() - begin < launcher.READER_TIMEOUT / 2
    os.close(reader)
    os.close(writer)


def test_a_rank_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For what nobody reads: a pipe, a descriptor that is closed, a file."""
    monkeypatch.setattr(launcher, "READER_TIMEOUT", 0.05)
    reader, writer = os.pipe()
    os.write(writer, b"unread")
    launcher._await_reader(writer)
    os.close(reader)
    os.close(writer)
    monkeypatch.setattr(launcher, "READER_TIMEOUT", 60.0)
    launcher._await_reader(writer)
    with (tmp_path / "log").open("wb", buffering=0) as file:
        file.write(b"lines")
        begin = time.monotonic()
        launcher._await_reader(file.fileno())
        assert time.monotonic() - begin < 1
