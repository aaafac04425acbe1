"""The zoo of data folders: each is read as it is meant, or it is refused with one line that names the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mpifl
from mpifl.problems import load
from tests.mpi.conftest import write
from tests.problems.zoo.folders import CASES, GOOD, WRONG, Client

JOB = {
    "seed": 0,
    "problem": {"data": {"name": "folder", "path": ""}, "model": {"name": "logistic"}},
    "algorithm": {"name": "fedavg", "step_size": 0.5},
    "stop": {"updates": 4},
}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write(tmp_path, "job", JOB)


def written(job: Path, name: str) -> tuple[list[Client], str]:
    """Writes a folder; the rows of its clients, and the override with which a job reads it."""
    path = job.with_name(name)
    path.mkdir()
    return CASES[name].write(path), f"problem.data={ {'name': 'folder', 'path': str(path), **CASES[name].data} }"


@pytest.mark.parametrize("name", GOOD)
def test_a_folder_is_read_as_it_is_meant(job: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    clients, data = written(job, name)
    problem = load(mpifl.load_job(job, data).problem)
    assert len(caplog.messages) == bool(CASES[name].line) and CASES[name].line in "".join(caplog.messages)
    assert problem.clients == len(clients)
    for i, rows in enumerate(clients):
        for found, expected in zip(problem.shard(i), rows, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("name", WRONG)
def test_a_folder_is_refused_in_one_line(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, job: Path, name: str
) -> None:
    _, data = written(job, name)
    monkeypatch.chdir(job.parent)
    assert CASES[name].refused in refused("run", job, data, f"output={name}.h5")
    assert not job.with_name(f"{name}.h5").exists() and not job.with_name("unpickled").exists()
