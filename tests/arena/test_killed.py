"""An arena that is killed again and again has the results of one that was never killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpifl.tools.arena.table import read_table
from tests.arena.conftest import JOB

KILLS = 20
DEADLINE = 120.0  # s
COMMAND = """
import sys
from pathlib import Path
from mpifl.tools.arena import suite
suite.FOLDER = Path(sys.argv[1])
from mpifl.tools.arena.command import arena
arena("standard", out=Path(sys.argv[2]), processes=2)
"""


def start(suite: Path, out: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", COMMAND, str(suite), str(out)]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_arena_that_is_killed_twenty_times_has_the_same_table(small: Path, tmp_path: Path) -> None:
    """Of 24 runs the k-th kill comes at a random moment once k + 1 have begun."""
    for name in ("small", "large"):
        job = JOB.replace("name: small", f"name: {name}").replace("{time: 20}", "{time: 400}")
        (small / f"{name}.yaml").write_text(job)
    begin = time.monotonic()
    assert start(small, tmp_path / "whole").wait(DEADLINE) == 0
    each, rng = (time.monotonic() - begin) / 24, random.Random(5)
    out = tmp_path / "killed"
    for k in range(1, KILLS + 1):
        process, end = start(small, out), time.monotonic() + DEADLINE
        while len([*out.rglob("*.h5")]) <= k:
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.01)
        time.sleep(rng.uniform(0, each))
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert start(small, out).wait(DEADLINE) == 0
    table = "arena-1-standard.csv"
    assert len(read_table(out / table)) == 24
    assert (out / table).read_bytes() == (tmp_path / "whole" / table).read_bytes()
