"""A rank writes its part without waiting for the disk: a thread does that."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from mpifl.checkpoint import part as part_module
from mpifl.checkpoint.part import PartWriter
from mpifl.checkpoint.sets import open_set
from mpifl.checkpoint.snapshot import ClientSnapshot
from tests.checkpoint.sets import finished, make_valid
from tests.checkpoint.test_checkpoint import ROOT, names


def test_arrays_may_change_once_they_are_saved_and_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes are those at the time of `save`, though the disk is slow; a second save waits for its turn in the
    thread."""
    slow, fsync = threading.Event(), os.fsync

    def wait(descriptor: int) -> None:
        assert slow.wait(20) and threading.current_thread() is not threading.main_thread()
        fsync(descriptor)

    monkeypatch.setattr(part_module.os, "fsync", wait)
    part, x = PartWriter(tmp_path / "a.ckpt", 5), np.zeros(100_000)
    for number in (1, 2):
        x[:] = number
        part.save(number, lambda: {0: ClientSnapshot({"x": x})})
    x[:] = 9
    assert part.done() == [] and all(name.startswith(".") for name in names(tmp_path / "a.ckpt"))
    slow.set()
    first, second = finished(part, 2)
    assert (first.number, second.number) == (1, 2) and first.bytes == second.bytes and first.crc != second.crc
    assert part.done() == [] and names(tmp_path / "a.ckpt") == ["000001.rank5", "000002.rank5"]
    monkeypatch.undo()
    make_valid(tmp_path / "a.ckpt", 2, {5: (second.bytes, second.crc)})
    state = open_set(tmp_path / "a.ckpt", 2).clients(5)[0].state
    assert state and (state["x"] == 2).all()
    part.close()


def test_closing_gives_up_what_was_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, slow, fsync = threading.Event(), threading.Event(), os.fsync

    def wait(descriptor: int) -> None:
        begun.set()
        assert slow.wait(20)
        fsync(descriptor)

    monkeypatch.setattr(part_module.os, "fsync", wait)
    part = PartWriter(tmp_path, 0)
    for number in (1, 2, 3):
        part.save(number, lambda: {0: ClientSnapshot({"x": np.zeros(10)})})
    assert begun.wait(20)
    closing = threading.Thread(target=part.close)
    closing.start()
    while not part._closing:
        time.sleep(0.001)
    slow.set()
    closing.join(20)
    assert not closing.is_alive() and [(w.number, w.error) for w in part.done()] == [
        (1, ""),
        (2, "given up at the end"),
        (3, "given up at the end"),
    ]
    assert names(tmp_path) == ["000001.rank0"]
    part.close()
    with pytest.raises(ValueError, match="after close"):
        part.save(4, lambda: {})


def test_a_rank_that_never_saved_ends_without_a_trace(tmp_path: Path) -> None:
    part = PartWriter(tmp_path / "a.ckpt", 0)
    assert part.done() == []
    part.close()
    assert part.done() == [] and names(tmp_path) == []


def test_a_client_rank_imports_no_h5py() -> None:
    code = "import sys, mpifl.checkpoint.sets; print(*{m.partition('.')[0] for m in sys.modules})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert not {"h5py", "pandas", "mpi4py", "yaml"} & {*out.split()} and "numpy" in out
