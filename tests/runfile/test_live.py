"""A run file can be read at every instant: while it is written, after a kill, after the end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from mpifl.runfile import Run, open_run
from tests.tiers import examples

ROOT = Path(__file__).parents[2]
WRITER = [sys.executable, "-m", "tests.runfile.live_writer"]
Start = Callable[..., tuple[subprocess.Popen[bytes], Path]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    processes = []

    def begin(name: str = "live.h5", period: float = 0.005) -> tuple[subprocess.Popen[bytes], Path]:
        path = tmp_path / name
        process = subprocess.Popen([*WRITER, path, str(period)], stdin=subprocess.PIPE, cwd=ROOT)
        processes.append(process)
        deadline = time.monotonic() + 30
        while not Path(f"{path}.ready").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.005)
        return process, path

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def consistent(run: Run) -> int:
    """Checks every row against what the writer writes; returns the number of updates."""
    updates, k = run.updates, np.arange(len(run.updates))
    assert (updates.time == k / 1000).all() and (updates.norm == k / 2).all()
    assert (updates.client == k % 7).all() and (updates.version == k // 30 * 3).all()
    assert (updates.staleness == k // 10 % 3).all() and (updates.bytes == 8 * k).all()
    evaluations = run.evaluations
    assert (evaluations.updates == 100 * (1 + np.arange(len(evaluations)))).all()
    assert len(evaluations) * 100 <= len(updates)
    assert len(run.aggregations) * 10 <= len(updates) <= len(run.aggregations) * 10 + 10, "no version is missing"
    assert run.events.text.tolist() == [f"after {1000 * (i + 1)}" for i in range(len(run.events))]
    assert run.clients.updates.sum() >= len(updates) or run.status == "running"
    assert run.config == {"name": "live"}
    return len(updates)


@pytest.mark.timeout(120)
def test_reader_opens_the_file_hundreds_of_times_while_it_is_written(start: Start) -> None:
    process, path = start()
    seen, rows = [], 0
    opens = examples(200)
    for _ in range(opens):
        with open_run(path) as run:
            assert run.status == "running" and run.open_ended
            assert run.model_version == 0 and not run.model.any()
            seen.append(consistent(run))
            assert seen[-1] >= rows
            rows = seen[-1]
    assert len(set(seen)) > opens // 10, "the file must have grown between the looks"
    process.communicate(b"\n", timeout=30)
    assert process.returncode == 0
    with open_run(path) as run:
        assert consistent(run) >= rows
        assert run.status == "completed" and not run.open_ended and run.attrs["finished"]
        assert run.model.tolist() == list(range(1000)) and run.model_version == len(run.aggregations)
        assert run.clients.updates.sum() == len(run.updates)
        assert run.layout == [("w", (10, 100))]
    with h5py.File(path, "r") as plain:
        assert plain["updates/time"].shape[0] % 100 == 0


@pytest.mark.long
@pytest.mark.timeout(120)
def test_no_header_of_a_dataset_lies_across_two_pages(start: Start) -> None:
    """Linux ends the write of a killed process between two pages of 4,096 bytes: half a header has a wrong checksum."""
    process, path = start()
    process.kill()
    process.communicate()
    headers = {}
    with open_run(path) as run:
        run._open_file.visititems(lambda name, item: headers.update({name: h5py.h5o.get_info(item.id)}))
    assert len(headers) > 50
    for name, header in headers.items():
        first, last = header.addr, header.addr + header.hdr.space.total - 1
        assert first // 4096 == last // 4096, name


def test_reader_survives_the_end_of_the_run(start: Start) -> None:
    """Opening again and again while the writer closes the file never fails."""
    for trial in range(4):
        process, path = start(f"end{trial}.h5")
        with open_run(path) as run:
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            while run.status == "running":
                run.refresh()
                consistent(run)
        assert run.status == "completed"
        process.communicate(timeout=10)


@pytest.mark.timeout(60)
def test_an_open_run_keeps_its_rows_until_refreshed(start: Start) -> None:
    _, path = start()
    with open_run(path) as run:
        before = len(run.updates)
        time.sleep(0.2)
        assert len(run.updates) == before
        run.refresh()
        assert consistent(run) > before


LEFT = """
import sys
import numpy as np
import mpifl.runfile.writer as writer_module
from mpifl.runfile import RunWriter
from mpifl.runfile.tables import UpdateRow
writer_module.WRITE_INTERVAL = 1e-5
facts = {"attrs": {"name": "left"}, "clients": {"samples": np.ones(3), "rank": np.ones(3)}, "layout": [("w", (4,))]}
left = [RunWriter(f"{sys.argv[1]}/{k}.h5", **facts, x0=np.zeros(4)) for k in range(3)]
for k in range(20_000):
    for writer in left:
        writer.append(UpdateRow(k, 0, 0, 0, 1, 0, 0))
"""


@pytest.mark.timeout(120)
def test_a_process_that_closes_no_writer_ends(tmp_path: Path) -> None:
    """Although its threads write all the time: HDF5 is not left in the middle of an operation, nor waited for."""
    subprocess.run([sys.executable, "-c", LEFT, tmp_path], cwd=ROOT, timeout=60, check=True)
    for k in range(3):
        with open_run(tmp_path / f"{k}.h5") as run:
            assert (run.updates.time == np.arange(len(run.updates))).all()


THREADS = """
import sys, threading
import h5py
from h5py import h5p
from mpifl.runfile import reader
file = h5py.File(sys.argv[1], "w", libver="latest")
file["group/column"] = [0.0]
over = threading.Event()
def write():
    while not over.is_set():
        len(file["group"]["column"])
thread = threading.Thread(target=write)
thread.start()
sys.setswitchinterval(1e-5)
for _ in range(300):
    reader._limit_attempts(h5p.create(h5p.FILE_ACCESS))
over.set()
thread.join()
"""


@pytest.mark.timeout(120)
def test_a_file_is_opened_while_another_thread_uses_hdf5(tmp_path: Path) -> None:
    """HDF5 is not thread-safe: the setting that h5py does not have must wait for h5py's lock."""
    subprocess.run([sys.executable, "-c", THREADS, tmp_path / "a.h5"], cwd=ROOT, timeout=100, check=True)
