"""The log of a run: the block at its start, and a line at regular intervals."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mpifl
from mpifl.algorithms.area import Area
from mpifl.cli import main
from mpifl.runfile.tables import UpdateRow
from mpifl.server.client_table import LOST, ClientTable
from mpifl.server.run_log import RunLog

JOB = {
    "name": "logged", "seed": 0,
    "problem": {"data": "digits", "clients": 4},
    "algorithm": {"name": "fedbuff", "trigger": {"every": 2}},
    "clock": {"mode": "virtual", "delay": {"name": "exponential", "rate": 10}},
    "stop": {"time": 2, "updates": 1000},
    "evaluate": {"every": 0.5},
}  # fmt: skip


def test_line_gives_rates_since_the_line_before_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    evaluator = SimpleNamespace(latest={"train_loss": 0.25, "test_accuracy": 0.875})
    table = ClientTable(4)
    log = RunLog(SimpleNamespace(stop=mpifl.load_job(JOB).stop), evaluator, 60.0, updates=100)  # type: ignore[arg-type]
    log._loop, log._first_share = SimpleNamespace(clients=table), log._share()  # type: ignore[assignment]
    assert log._first_share == 0.1  # 100 of 1,000 updates
    for k in range(200):
        log.on_update(UpdateRow(0.5 + k / 1000, 0, 0, k % 4, 1, 8, 1.0))
    table.deactivate(2, LOST)
    now[0] += 10.0
    # 300 of 1,000 updates; 20 % in 10 s, so that 70 % take 35 s; staleness is the mean of 0, 1, 2, 3
    text = log.line()
    assert re.sub(r"[\d.]+ GB", "1 GB", text) == (
        "0.699 of 2 s (35%), 300 updates (20 a second), staleness 1.5, train loss 0.2500, test accuracy 87.50%, "
        "3 clients live, 1 lost or set aside, 1 GB, about 26 s left"
    )
    now[0] += 5.0
    assert "300 updates (0 a second), train" in log.line()  # no staleness without an update


STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, with the job."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(mpifl.api.job_yaml(mpifl.load_job(JOB)))
    return tmp_path


def test_commands_log_where_stderr_is_no_terminal(here: Path) -> None:
    changes = ["clock={mode: real}", "stop={time: 1.2, updates: 3000000}", "log_interval=0.25", "output=x.h5"]
    words = [sys.executable, "-m", "mpifl", "run", "job.yaml", *changes]
    env = {"MPIFL_LOG_LEVEL": "", "PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(mpifl.__file__).parents[1])}
    run = subprocess.run(words, env=env, text=True, capture_output=True, timeout=60)
    assert run.returncode == 0, run.stderr
    first, *lines = run.stderr.splitlines()
    assert re.match(STAMP + r"mpifl [\d.]+", first)
    block = [line.strip() for line in lines if line.startswith("    ")]
    assert [line.split(":")[0] for line in block] == ["job", "ranks", "clock", "stop", "output"]
    assert block[0] == "job: logged, fedbuff, 4 clients, 640 parameters, seed 0"
    assert block[3] == "stop: 1.2 s or 3,000,000 updates; evaluation: every 0.5 s"
    saved = "checkpoints: every 10 min 0 s of wall time and when a signal ends the run"
    assert block[4] == f"output: {here}/x.h5; {saved}"
    progress = [line for line in lines if not line.startswith("    ")]
    assert 3 <= len(progress) <= 5  # 1.2 s at 0.25 s
    assert all(re.match(STAMP + r"[\d.]+ of 1.2 s \(\d+%\), [\d,]+ updates", line) for line in progress)


def test_warnings_have_no_time_where_the_state_is_not_logged(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "job.yaml", "output=a.h5", "faults={norm: 1e-9}"]) == 3
    *_, first, _, last = capsys.readouterr().err.splitlines()
    assert re.match("mpifl: update refused: client 2: the update's norm", first)
    assert last.startswith("mpifl: the run failed: all clients are lost")


class Raising(Area):
    def train(self, client: Any, message: Any, objective: Any) -> Any:
        if objective.i == 0:
            raise AssertionError
        return super().train(client, message, objective)


def test_the_traceback_of_a_client_has_the_time(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run continues without this client: it is a warning, whose further lines are indented."""
    monkeypatch.setenv("MPIFL_LOG_LEVEL", "info")
    assert main(["run", "job.yaml", "output=a.h5", f"algorithm={{name: {__name__}:Raising}}"]) == 0
    lines = capsys.readouterr().err.splitlines()
    first = next(k for k, line in enumerate(lines) if "raised on rank" in line)
    assert re.match(STAMP + "mpifl: client 0 raised on rank 0", lines[first])
    assert lines[first + 1] == "    Traceback (most recent call last):" and "    AssertionError" in lines[first + 2 :]


@pytest.mark.parametrize(
    ("level", "options", "expected"),
    [
        ("", [], "block"),
        ("", ["-q"], ""),
        ("info", ["--quiet"], ""),
        ("warning", [], ""),
        ("warning", ["-v"], "evaluation at"),
    ],
)
def test_level_is_chosen_by_options_then_by_the_environment(
    level: str, options: list[str], expected: str, here: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("MPIFL_LOG_LEVEL", level)
    assert main(["run", "job.yaml", "output=a.h5", *options]) == 0
    err = capsys.readouterr().err
    assert ("job: logged, fedbuff" in err) == bool(expected)
    assert ("evaluation at 2 s" in err) == (expected == "evaluation at")
    assert bool(err) == bool(expected)
    assert logging.getLogger("mpifl").level == logging.NOTSET  # as before


def test_unknown_level_is_refused(monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]) -> None:
    monkeypatch.setenv("MPIFL_LOG_LEVEL", "loud")
    says = "mpifl: MPIFL_LOG_LEVEL=loud: no such level; expected one of debug, info, warning, error\n"
    assert refused("list") == says


def test_python_api_logs_nothing_unless_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mpifl.run(JOB, output=str(tmp_path / "a.h5")).close()
    assert not caplog.records
    with caplog.at_level(logging.INFO, "mpifl"):
        mpifl.run(JOB, output=str(tmp_path / "b.h5")).close()
    (record,) = caplog.records
    assert record.name == "mpifl.server" and record.getMessage().startswith(f"mpifl {mpifl.__version__}")
