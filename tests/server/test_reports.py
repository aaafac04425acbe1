"""What a run says: the live line on a terminal, failures while it goes on, and its last line."""

from __future__ import annotations

import io
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mpifl
from mpifl import Run, open_run
from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Message, State, Update
from mpifl.cli import main
from mpifl.config.job import Faults
from mpifl.errors import RunFailed
from mpifl.objective import Objective
from mpifl.runfile.tables import UpdateRow
from mpifl.server import progress, reports
from mpifl.server.client_table import ASIDE, LOST, ClientTable
from mpifl.server.failures import Action, ClientFailures
from mpifl.server.reports import FailureReports
from mpifl.server.run_log import RunLog
from tests.mpi.cases import SMALL, job
from tests.mpi.conftest import write
from tests.tiers import long


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    for module in (reports, progress):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return now


# -- the live line -----------------------------------------------------------------------------------------------------
class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def last(self) -> str:
        return self.getvalue().rstrip("\n").split("\r")[-1]


def bar_on(screen: Terminal, patch: pytest.MonkeyPatch, earlier: int = 0, reached: bool = False, **stop: Any) -> Any:
    """The bar of a run with these ends on a terminal."""
    patch.setattr("sys.stderr", screen)
    evaluator: Any = SimpleNamespace(latest={"train_loss": 0.25}, reached=reached)
    return progress.ProgressBar(SimpleNamespace(**{"time": None, "updates": None} | stop), evaluator, earlier)


def test_rate_and_staleness_are_those_since_the_resume(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """201 updates of staleness 3 in 20 s are 10 a second, whatever happened before the resume."""
    screen = Terminal()
    bar = bar_on(screen, monkeypatch, earlier=1000, time=60.0)
    for k in range(201):
        clock[0] = 100 + 20 * (k + 1) / 201
        bar.on_update(UpdateRow(30 + (k + 1) / 10, 0, 7, 3, 1, 16, 1.0))
    bar.close()
    line = screen.last()
    assert "50.1/60" in line and "10 updates/s, staleness 3.0, loss 0.250" in line, "the end is drawn too"


@pytest.mark.parametrize(
    "ends", [{"time": 60.0}, {"updates": 40}, {"time": 60.0, "updates": 20}, {"time": 60.0, "reached": True}]
)
def test_the_bar_of_a_completed_run_ends_at_its_end(monkeypatch: pytest.MonkeyPatch, ends: dict[str, Any]) -> None:
    screen = Terminal()
    for completed in (True, False):
        bar = bar_on(screen, monkeypatch, **ends)
        for k in range(20):
            bar.on_update(UpdateRow(40 + k * 0.97, 0, 7, 3, 1, 16, 1.0))
        bar.close(completed)
        assert ("100%" in screen.last()) == completed and "loss 0.250" in screen.last()


def test_lines_stand_above_the_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the bar is cleared, the line printed, the bar drawn again; the handler is then as before."""
    screen = Terminal()
    log, handler = logging.getLogger("mpifl"), logging.StreamHandler(screen)
    handler.setFormatter(logging.Formatter("mpifl: %(message)s"))
    monkeypatch.setattr(log, "handlers", [*log.handlers, handler])
    before = list(log.handlers)
    bar = bar_on(screen, monkeypatch, time=60.0)
    log.warning("rank 2 died, with 16 clients")
    bar.close()
    assert log.handlers == before
    lines = [line.split("\r")[-1] for line in screen.getvalue().split("\n")]
    assert "0/60" in lines[lines.index("mpifl: rank 2 died, with 16 clients") + 1]


# -- failures ----------------------------------------------------------------------------------------------------------
def test_a_client_that_raised_and_moved_is_reported_when_it_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """A traceback that was printed stands for the loss only where the client is lost by that error."""
    table, transport, raised = ClientTable(2), SimpleNamespace(), "raised on rank 1:\nValueError: no"
    for lost, lines in (("rehost", 2), ("freeze", 1)):
        caplog.clear()
        failures = ClientFailures(Faults(lost=lost), table, transport)  # type: ignore[arg-type]
        decision = failures.decide_failed(1, raised)
        assert decision.action is (Action.MOVE if lost == "rehost" else Action.LOSE)
        failures.report_lost(1, LOST, "gave no answer for 2 s")
        assert len(caplog.messages) == lines


def test_at_most_one_line_a_second_and_every_dead_rank_is_named(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    log = FailureReports()
    log.refused("client 3: the update's norm 1.5e+07 is above faults.norm")
    log.refused("client 4: the update's norm 2 is above faults.norm")  # of the same kind
    assert caplog.messages == ["update refused: client 3: the update's norm 1.5e+07 is above faults.norm"]
    assert not log.waiting
    log.refused("client 5: the update is not finite")
    log.client_lost(6, "lost", "gave no answer for 2 s")
    log.client_lost(7, "aside", "3 updates refused in a row: the update is not finite")
    log.ranks_died({2: 16})
    log.client_lost(1, "lost", "rank 2 died")
    clock[0] += 0.9
    log.ranks_died({5: 16, 3: 1})
    assert log.waiting and len(caplog.messages) == 1
    clock[0] += 0.2
    log.flush()
    assert caplog.messages[1:] == [
        "ranks 2, 3, 5 died, with 33 clients; update refused: client 5: the update is not finite; 2 more such events"
    ]
    assert not log.waiting
    log.client_lost(8, "aside", "3 updates refused in a row: the update is not finite")
    log.flush(now=True)
    assert caplog.messages[2:] == ["client 8 is set aside: 3 updates refused in a row: the update is not finite"]


# -- the last line -----------------------------------------------------------------------------------------------------
def test_the_final_line_counts_lost_clients_and_refused_updates_where_there_are_any() -> None:
    clients = ClientTable(128)
    failures = ClientFailures(Faults(), clients, SimpleNamespace())  # type: ignore[arg-type]
    assert failures.notes() == []
    for i in range(51):
        clients.deactivate(i, LOST if i < 48 else ASIDE)
    for _ in range(1127):
        failures.count_refusal(60, "the update is not finite")
    line = progress.summary(1201, 50.1, {"train_loss": 0.25}, [*failures.notes(), "a note"])
    assert line.split("; ") == [
        "1,201 updates in 50.1 s (24 a second), train loss 0.2500", "of 128 clients 48 lost, 3 aside",
        "1,127 updates refused", "a note",
    ]  # fmt: skip


@pytest.mark.parametrize(("seconds", "text"), [(11999.2, "11,999"), (9999.96, "10,000"), (9999.4, "9999")])
def test_the_final_line_has_no_power_of_ten(seconds: float, text: str) -> None:
    assert progress.summary(1, seconds, {}) == f"1 update in {text} s (0 a second)"


@pytest.mark.parametrize("stop", [0.15, 1e3])
def test_a_run_that_consumed_nothing_has_failed(tmp_path: Path, printed: Callable[..., Any], stop: float) -> None:
    """Whether its time is over or no client is left: the first refusal is on stderr and in the last line."""
    path, says = tmp_path / "c.h5", "client 2: the update is not finite"
    clock = {"mode": "virtual", "delay": {"name": "fixed", "seconds": [0.3, 0.2, 0.1, 1, 1, 1, 1]}}
    file = write(tmp_path, "c", job({"name": "fedavg", "step_size": 1e45}, SMALL, clock=clock, stop={"time": stop}))
    out, err = printed("run", file, f"output={path}", code=3)
    assert f"mpifl: update refused: {says}\n" in err and "Traceback" not in err
    assert out.startswith(f"{path}: failed, 0 updates in 0 s") and out.endswith(f"the first refusal: {says}\n"), out
    if stop < 1:
        assert f"the run failed: no update was consumed and 1 refused; the first refusal: {says}\n" in err
        assert "; 1 update refused; " in out
    else:
        assert "of 7 clients 7 aside; 21 updates refused" in out and "the run failed: all clients are lost" in err
    with mpifl.open_run(path) as run:
        assert run.status == "failed" and not run.open_ended
        told = run.events[run.events.client == 2]
        assert stop < 1 or told.kind.tolist() == ["refused"] * 3 + ["aside"]
        assert stop < 1 or told.text.iloc[-1] == "3 updates refused in a row: the update is not finite"


@dataclass(frozen=True)
class Silent(Area):
    """A rule that fails without a word."""

    def aggregate(self, server: State) -> None:
        raise RunFailed


@dataclass(frozen=True)
class Refused(Area):
    """Sends what is not finite, later what is too large; interrupts the run unless there is a file `resumed`."""

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        if message.round == 3 and not Path("resumed").exists():
            os.kill(os.getpid(), signal.SIGUSR1)
        return Update((np.full(12, 1e9 if message.round else np.nan, np.float32),), 1)


def own(algorithm: type, path: Path) -> dict[str, Any]:
    section, faults = {"name": f"{__name__}:{algorithm.__name__}"}, {"refusals": 1000, "norm": 10.0}
    return {"name": "line", **job(section, SMALL, output=str(path), stop={"time": 1.0}, faults=faults)}


def test_a_failure_without_text_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(RunFailed):
        mpifl.run(own(Silent, tmp_path / "silent.h5"))
    with mpifl.open_run(tmp_path / "silent.h5") as run:
        assert run.status == "failed" and run.events.kind.tolist()[0] == "failed"


def test_a_resumed_run_names_the_first_refusal_of_all_its_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        mpifl.run(own(Refused, tmp_path / "refused.h5"))
    Path("resumed").touch()
    with pytest.raises(RunFailed, match=r"the first refusal: client \d: the update is not finite"):
        mpifl.resume(tmp_path / "refused.h5", trust=True)


# -- a server that cannot keep up in real time: when its run ends, what its rows and the last line say -----------------
CLIENTS = 2


def late_job(folder: Path, **more: Any) -> Path:
    content = {"clock": {"mode": "real"}, "problem": {"clients": CLIENTS}, "output": str(folder / "late.h5"), **more}
    return write(folder, "late", job({"name": "area", "trigger": {"every": 2}}, content.pop("problem"), **content))


def slow(monkeypatch: pytest.MonkeyPatch, seconds: Mapping[int, float]) -> None:
    """Contacts of this length, by round."""
    train = Area.train

    def waiting(self: Area, client: State, message: Message, objective: Objective) -> Update:
        time.sleep(seconds.get(message.round, 0.0))
        return train(self, client, message, objective)

    monkeypatch.setattr(Area, "train", waiting)


def check_times(run: Run) -> None:
    """No row of a run is earlier than an update or an aggregation that it reflects; times never decrease."""
    updates, aggregations, evaluations = run.updates, run.aggregations, run.evaluations
    for frame in (updates, aggregations, evaluations):
        assert frame.time.is_monotonic_increasing
    for row in evaluations.itertuples():
        assert row.updates == 0 or row.time >= updates.time[row.updates - 1]
        assert row.version == 0 or row.time >= aggregations.time[row.version - 1]
        assert row.updates == len(updates) or row.time <= updates.time[row.updates]
    assert np.all(aggregations.time >= updates.time[aggregations.updates - 1].to_numpy())
    assert evaluations.age.between(0, evaluations.time).all()


FIXED = {"mode": "real", "delay": {"name": "fixed", "seconds": 0.1}}
NOTHING = r"\A((?!overloaded|contacts took)[\s\S])*\Z"
OVERLOADED = r"the server was overloaded: evaluations up to \d\.\d s late \(use a longer evaluate.every than 0.05 s or "
CONTACTS = "contacts took .* s where the delay model says 0.1 s"


@pytest.mark.parametrize(
    ("seconds", "more", "says"),
    [
        ({1: 0.2}, {"clock": {**FIXED, "mode": "virtual"}}, NOTHING),  # is never late
        ({}, {"clock": FIXED}, NOTHING),
        long({3: 1.3}, {"stop": {"time": 1.5}}, OVERLOADED),
        (dict.fromkeys(range(9), 0.08), {"problem": {"clients": 4}, "clock": FIXED}, CONTACTS),
    ],
)
def test_the_final_line_and_show_say_what_was_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Callable[..., Any], seconds: dict[int, float],
    more: dict[str, Any], says: str,
) -> None:  # fmt: skip
    """Evaluations after a contact of 1.3 s; four clients in one process, whose contacts take 4 x 0.08 s, not 0.1 s."""
    slow(monkeypatch, seconds)
    path, more = tmp_path / "late.h5", {"stop": {"updates": 8}, "evaluate": {"every": 0.05}, **more}
    for words in ("run", late_job(tmp_path, **more)), ("show", path):
        assert re.search(says, printed(*words).out)
    with open_run(path) as run:
        check_times(run)
        late = run.evaluations.age[run.evaluations.age > 1.0]
        assert (1 <= len(late) <= CLIENTS and late.max() <= 2 * 1.3 + 1.0) if says == OVERLOADED else not len(late)
        due = (run.evaluations.time - run.evaluations.age).iloc[1:-1] / 0.05
        assert np.allclose(due, due.round(), atol=1e-6) and due.round().is_unique  # multiples of 0.05 s
        if says == CONTACTS:
            assert run.attrs["contact_delay"] == pytest.approx(0.1) and 0.25 < run.attrs["contact_seconds"] < 0.5


def test_virtual_time_that_would_never_pass_until_the_last_update(tmp_path: Path, refused: Callable[..., str]) -> None:
    """2 clients of 1 contact in 1,000 s make 30 updates in 15,000 s: 1.5 million evaluations every 0.01 s."""
    clock = {"mode": "virtual", "delay": {"name": "fixed", "seconds": 1000}}
    file = late_job(tmp_path, stop={"updates": 30}, evaluate={"every": 0.01}, clock=clock)
    says = "evaluate.every=0.01: more than 1,000,000 evaluations to the end (15000 s of virtual time)"
    assert says in refused("run", file) and not (tmp_path / "late.h5").exists()
    assert main(["run", str(file), "stop.time=1"]) == 0


# -- the log of a run: the block at its start, and a line at regular intervals -----------------------------------------
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
    job, loop = SimpleNamespace(stop=mpifl.load_job(JOB).stop), SimpleNamespace(clients=table)
    log = RunLog(job, evaluator, loop, 60.0, updates=100)  # type: ignore[arg-type]
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
    log.close()


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


def test_warnings_have_no_time_where_the_state_is_not_logged(here: Path, printed: Callable[..., Any]) -> None:
    *_, first, _, last = printed("run", "job.yaml", "output=a.h5", "faults={norm: 1e-9}", code=3).err.splitlines()
    assert re.match("mpifl: update refused: client 2: the update's norm", first)
    assert last.startswith("mpifl: the run failed: all clients are lost")


class Raising(Area):
    def train(self, client: Any, message: Any, objective: Any) -> Any:
        if objective.i == 0:
            raise AssertionError
        return super().train(client, message, objective)


def test_the_traceback_of_a_client_has_the_time(
    here: Path, monkeypatch: pytest.MonkeyPatch, printed: Callable[..., Any]
) -> None:
    """The run continues without this client: it is a warning, whose further lines are indented."""
    monkeypatch.setenv("MPIFL_LOG_LEVEL", "info")
    lines = printed("run", "job.yaml", "output=a.h5", f"algorithm={{name: {__name__}:Raising}}").err.splitlines()
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
    level: str, options: list[str], expected: str, here: Path, monkeypatch: pytest.MonkeyPatch, printed: Any
) -> None:
    monkeypatch.setenv("MPIFL_LOG_LEVEL", level)
    err = printed("run", "job.yaml", "output=a.h5", *options).err
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
