"""What goes wrong in mid-run ends the run at once: exit code 3, one traceback, a file that says so, no process left."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from mpifl import open_run
from tests.mpi.conftest import RUN, Start, write

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]
REAL = {"mode": "real", "delay": {"name": "exponential", "rate": 20}}
VIRTUAL = {**REAL, "mode": "virtual"}


@pytest.fixture
def failing(tmp_path: Path) -> Any:
    """Writes the job that goes wrong in a rule; its own module lies beside it, where the command is given."""
    shutil.copy(Path(__file__).with_name("own.py"), tmp_path / "own_rules.py")

    def job(at: str, clock: dict[str, Any] = REAL, dim: int = 20) -> Path:
        algorithm = {"name": "own_rules:Failing", "at": at, "step_size": 0.05, "trigger": {"every": 3}}
        problem = {"clients": 6, "model": {"name": "quadratic", "dim": dim}}
        more = {"seed": 1, "clock": clock, "stop": {"time": 120}, "evaluate": {"updates": 10}, "output": "f.h5"}
        return write(tmp_path, "failing", {"problem": problem, "algorithm": algorithm, **more})

    return job


@pytest.mark.parametrize(
    ("at", "clock", "dim", "says"),
    [
        pytest.param("train", REAL, 20, "RuntimeError: the rule train broke", marks=pytest.mark.smoke),
        ("train", VIRTUAL, 20000, "RuntimeError: the rule train broke"),
        ("init_client", REAL, 20, "RuntimeError: the rule init_client broke"),
        ("longer", REAL, 20, "ValueError: client 1 sends float32 of shape (21,), not float32 of shape (20,)"),
        (
            "shorter",
            VIRTUAL,
            20000,
            "ValueError: client 1 sends float32 of shape (19999,), not float32 of shape (20000,)",
        ),
        ("wider", REAL, 20000, "ValueError: client 1 sends float64 of shape (20000,), not float32 of shape (20000,)"),
        ("two", REAL, 20, "ValueError: client 1 sends 2 vectors, more than vectors_up"),
    ],
)
def test_a_client_raises(
    run: Start, failing: Any, tmp_path: Path, at: str, clock: dict[str, Any], dim: int, says: str
) -> None:
    done = run(4, *RUN, failing(at, clock, dim))
    assert done.code == 3, str(done)
    assert done.err.count("Traceback") == 1, str(done)
    assert f"mpifl: the run failed: rank 2 on {socket.gethostname()} (process " in done.err, str(done)  # client 1's
    assert f"\n{says}\n" in done.err, str(done)
    with open_run(tmp_path / "f.h5") as file:
        assert file.status == "failed"
        (text,) = file.events.text[file.events.kind == "failed"]
        assert text.startswith(f"rank 2 on {socket.gethostname()}") and text.endswith(says)
        assert file.attrs["wall_seconds"] < 20


@pytest.mark.parametrize(
    ("at", "ranks"), [("receive", 3), ("aggregate", 3), ("message", 3), ("model", 3), ("receive", 0)]
)
def test_the_server_raises(run: Start, failing: Any, tmp_path: Path, at: str, ranks: int) -> None:
    done = run(ranks, *RUN, failing(at))
    assert done.code == 3, str(done)
    assert done.err.count("Traceback") == 1 and f"RuntimeError: the rule {at} broke\n" in done.err, str(done)
    assert f"rank 0 on {socket.gethostname()}:\n" in done.err
    with open_run(tmp_path / "f.h5") as file:
        assert file.status == "failed" and len(file.updates) > 10
        assert file.events.text.tolist() == [f"RuntimeError: the rule {at} broke"]


def test_the_server_raises_before_the_run(run: Start, failing: Any, tmp_path: Path) -> None:
    done = run(3, *RUN, failing("init_server"))
    assert done.code == 3 and done.err.count("Traceback") == 1, str(done)
    assert not (tmp_path / "f.h5").exists()
