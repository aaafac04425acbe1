"""`mpifl resume` in one process, from checkpoints of every kind of run."""

from __future__ import annotations

import os
import queue
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifl import open_run
from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Message, State, Update
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.checkpoint.snapshot import EvaluatorState
from mpifl.objective import Objective
from mpifl.runfile.checkpoint_folder import folder_of, sets
from mpifl.server.checkpointer import Checkpointer
from mpifl.server.evaluator import Evaluator
from mpifl.signals import SignalRecorder
from tests.mpi.cases import AREA, CASES, DIGITS, SMALL, job
from tests.mpi.conftest import mpifl, write
from tests.mpi.files import differing
from tests.runfile.checksums import changing
from tests.tiers import long, parameters

EVERY = 13  # updates from one checkpoint to the next
OTHERS: dict[str, dict[str, Any]] = {  # cases that have other checkpoints
    "before-any-update": {"every": 1e-3},
    "area-period": {"every": 0.13},
    "many-clients": {"updates": 90},
    "area-poisson": {"updates": 3},
    "area-accuracy": {"updates": 4},
    "area-large": {"updates": 33},
}
ADAM = {
    "name": "torch", "optimizer": {"name": "Adam", "weight_decay": 0.1}, "state": "kept",
    "schedule": {"name": "StepLR", "step_size": 5},
}  # fmt: skip
MORE = {
    "robust-median": job({"name": "fedavg", "cohort": 5, "aggregation": "median"}),
    "robust-krum": job({"name": "fedbuff", "trigger": {"every": 5}, "aggregation": {"name": "krum", "keep": 2}}),
    "feddane-odd": job({"name": "feddane", "mu": 0.1}, {**SMALL, "clients": 4}),  # cuts in both phases
    "refused": job({**AREA, "trigger": {"every": 2}}, faults={"norm": 0.9, "refusals": 3}),
    "torch-personal": job(
        {"name": "apfl", "local_steps": 2},
        {**DIGITS, "model": {"name": "torch-mlp", "hidden": [12]}, "test_split": 0.2, "validation_split": 0.2},
        evaluate={"updates": 20, "clients": True, "metrics": ["balanced_accuracy", "auroc"]},
    ),
    "torch-optimizer": job(
        {"name": "fedavg", "cohort": 3, "local_steps": 2, "step_size": 0.01, "solver": ADAM},
        {**DIGITS, "model": {"name": "torch-mlp", "hidden": [12]}},
    ),
}  # fmt: skip
ALL: dict[str, dict[str, Any]] = {
    name: {"checkpoint": OTHERS.get(name, {"updates": EVERY}), **case}
    for name, case in (CASES | MORE).items()
    if name != "one-update"  # nothing lies between its messages and its end
}


def run(folder: Path, name: str, case: dict[str, Any]) -> Path:
    """The file of an uninterrupted run."""
    path = folder / f"{name}.h5"
    assert mpifl("run", write(folder, name, case), f"output={path}") == 0
    return path


def moved(file: Path, to: Path) -> Path:
    """A copy of a run file and its checkpoints in their present state, in a folder of its own."""
    to.mkdir()
    shutil.copy(file, to)
    shutil.copytree(folder_of(file), folder_of(to / file.name))
    os.utime(to / file.name, (1e9, 1e9))  # nobody writes to it
    return to / file.name


def changed(file: Path, to: Path, **attrs: object) -> Path:
    """A copy with other attributes."""
    path = moved(file, to)
    with changing(path) as opened:
        opened.attrs.update(attrs)
    return path


def finish_at_once(patch: pytest.MonkeyPatch, then: Callable[[Checkpointer], None] = lambda checkpointer: None) -> None:
    """Runs wait for each of their checkpoints, until it is complete or given up, and call `then` after it."""
    cut = Checkpointer.begin

    def finished(self: Checkpointer, time: float) -> None:
        cut(self, time)
        self.finish(time, inf)
        then(self)

    patch.setattr(Checkpointer, "begin", finished)


def keep(folder: Path, patch: pytest.MonkeyPatch) -> list[Path]:
    """Completes every checkpoint at once, and copies the run's file and folder as a kill at that moment would leave
    them."""
    found: list[Path] = []

    def copy(checkpointer: Checkpointer) -> None:
        assert not checkpointer.busy and checkpointer.complete == checkpointer._number
        found.append(moved(checkpointer._writer.path, folder / f"kept-{len(found)}"))

    finish_at_once(patch, copy)
    return found


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The copies of the test's runs."""
    return keep(tmp_path, monkeypatch)


# A cut before any update, personal models, clients aside, availability.
SHORT = ["before-any-update", "apfl", "refused", "fedavg-available"]


@pytest.mark.parametrize("name", parameters(ALL, SHORT))
def test_every_kind_of_run(name: str, tmp_path: Path, kept: list[Path]) -> None:
    """A run with checkpoints equals the run without.

    So does a run resumed from one of them, and for every third kind a run resumed again from a checkpoint of the
    resumed run.
    """
    whole = run(tmp_path, "whole", {**ALL[name], "checkpoint": {}})
    made = run(tmp_path, "made", ALL[name])
    assert not differing(whole, made, but=("events",))
    count, draw = len(kept), list(ALL).index(name)
    assert count >= 1 and len(sets(folder_of(made))) == min(2, count)
    first = kept[draw % max(1, count - 1)]
    assert mpifl("resume", first) == 0
    assert not differing(whole, first, but=("events",))
    if len(kept) > count and draw % 3 == 0:
        second = kept[count + draw // 2 % (len(kept) - count)]
        assert mpifl("resume", second) == 0
        assert not differing(whole, second, but=("events",))
        with open_run(second) as file:
            assert file.events.kind.tolist().count("resumed") == 2 and file.status == "completed"
            assert file.clients.updates.sum() == len(file.updates)


def test_personal_accuracy_is_not_compared_with_the_target(tmp_path: Path, kept: list[Path]) -> None:
    """`stop.accuracy` is a test accuracy of the global model; APFL's best personal accuracy here is above 0.2."""
    run(tmp_path, "made", ALL["apfl"])
    with open_run(kept[-1]) as cut:
        assert cut.evaluations.personal_accuracy_best.max() > 0.2
    assert mpifl("resume", kept[-1], "stop.accuracy=0.2") == 0


def test_checkpoints_beside_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run does not wait for a checkpoint: those due while one is being written are skipped and reported."""
    case = {**CASES["area-digits"], "stop": {"updates": 2400}}
    whole = run(tmp_path, "whole", case)
    receive = Area.receive

    def slower(self: Area, server: State, *args: Any) -> None:
        receive(self, server, *args)
        if not sets(folder_of(tmp_path / "made.h5")):  # a slow disk has 24 s for the first checkpoint
            time.sleep(0.01)

    monkeypatch.setattr(Area, "receive", slower)
    made = run(tmp_path, "made", {**case, "checkpoint": {"updates": 1}})
    assert not differing(whole, made, but=("events",))
    with open_run(made) as file:
        kinds = file.events.kind.tolist()
        assert kinds.count("checkpoint") >= 1 and kinds.count("checkpoint-skipped") >= 1
        assert len(sets(folder_of(made))) >= min(2, kinds.count("checkpoint"))


@pytest.mark.parametrize("at", [0, long(1), 59, long(60)])
@pytest.mark.parametrize("number", parameters([signal.SIGTERM, signal.SIGINT, signal.SIGUSR1], [signal.SIGINT]))
def test_a_run_that_a_signal_interrupted_is_resumed_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, at: int
) -> None:
    """After a given number of updates the run is saved and resumed; if that was the last update, it is completed.

    0: when the run file is there, before the first message.
    """
    whole = run(tmp_path, "whole", CASES["area-after"])
    receive = Area.receive

    def hit(self: Area, server: State, *args: Any) -> None:
        receive(self, server, *args)
        counted.append(server)
        if len(counted) == at:
            os.kill(os.getpid(), number)

    counted: list[State] = []
    monkeypatch.setattr(Area, "receive", hit)
    if not at:
        monkeypatch.setattr("mpifl.server.start.log_start", lambda *_: counted or os.kill(os.getpid(), number))
    path = tmp_path / "hit.h5"
    code = mpifl("run", write(tmp_path, "hit", CASES["area-after"]), f"output={path}")
    if at < 60:
        assert code == (130 if number == signal.SIGINT else 143)
        with open_run(path) as file:
            assert file.status == "interrupted" and len(file.updates) == at
            assert file.events.kind.tolist() == ["interrupted"] and number.name in file.events.text[0]
        monkeypatch.undo()
        assert mpifl("resume", path) == 0
    else:
        assert code == 0
    assert not differing(whole, path, but=("events",))
    with open_run(path) as file:
        assert file.status == "completed"


def test_a_target_that_is_reached_when_a_signal_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real clock: the checkpoint of the signal is behind the evaluation; the resumed run ends at once."""
    heard = threading.Event()
    catch, measure, save = SignalRecorder._catch, Evaluator._evaluate, Evaluator.save

    def caught(self: SignalRecorder, *args: Any) -> None:
        catch(self, *args)
        heard.set()

    def measured(self: Evaluator, *asked: Any) -> float:
        if not heard.is_set():
            os.kill(os.getpid(), signal.SIGUSR1)
            assert heard.wait(20)
        return measure(self, *asked)

    def awaited(self: Evaluator) -> tuple[EvaluatorState, dict[str, int]]:
        for future, _ in self._pending:
            future.result()
        return save(self)

    monkeypatch.setattr(SignalRecorder, "_catch", caught)
    monkeypatch.setattr(Evaluator, "_evaluate", measured)
    monkeypatch.setattr(Evaluator, "save", awaited)
    clock = {"mode": "real", "delay": {"name": "exponential", "rate": 50}}
    more = {"evaluate": {"updates": 5}, "stop": {"accuracy": 0.01, "time": 30}}
    path = tmp_path / "reached.h5"
    assert mpifl("run", write(tmp_path, "reached", job(AREA, DIGITS, clock=clock, **more)), f"output={path}") == 143
    with open_run(path) as file:
        before = len(file.updates)
        assert file.evaluations.test_accuracy.max() >= 0.01
    assert mpifl("resume", path) == 0
    with open_run(path) as file:
        assert file.status == "completed" and before <= len(file.updates) <= before + 1


class Slow(FedBuff):
    def train(self, client: State, message: Message, objective: Objective) -> Update:
        time.sleep(0.02)
        return super().train(client, message, objective)


def test_updates_that_wait_at_the_server_for_their_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: list[Path]
) -> None:
    """Real clock: an update that has come while its client is off is in flight in a checkpoint, and is not lost.

    A client computes for longer than it is on, so that all its updates wait. After a resume all clients go on.
    """
    held, cut = list[int](), Checkpointer.begin

    def counted(self: Checkpointer, time: float) -> None:
        held.append(self._schedule.clock.held_count)
        cut(self, time)

    monkeypatch.setattr(Checkpointer, "begin", counted)
    clock = {
        "mode": "real",
        "availability": {"name": "renewal", "on": 0.01, "off": 0.05, "distribution": "fixed", "start": "on"},
    }
    algorithm = {"name": f"{__name__}:Slow", "trigger": {"every": 2}}
    more = {"stop": {"updates": 15, "time": 20}, "checkpoint": {"updates": 4}, "evaluate": {"updates": 15}}
    run(tmp_path, "made", job(algorithm, {**SMALL, "clients": 3}, clock=clock, **more))
    path = kept[next(k for k, count in enumerate(held) if count)]
    assert mpifl("resume", path, "--trust") == 0
    with open_run(path) as file:
        assert file.status == "completed" and len(file.updates) == 15
        resumed = file.events.updates[file.events.kind == "resumed"].item()
        assert set(file.updates.client[resumed:]) == {0, 1, 2}, file.updates.client.tolist()
    assert mpifl("replay", path, "--trust") == 0
    assert not differing(path, path.with_name("made-replay.h5"), but=("events",))


@dataclass(frozen=True)
class Own(Area):
    """A rule whose clients have something that is not saved."""

    last = None  # set by tests

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        client.last = self.last
        return super().train(client, message, objective)


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (None, "state last is a NoneType, not an array"),
        ({0: np.float64(1), 1: 1.0}, "state last is a dict of values of several types or shapes"),
        ({0: np.ones(2), 1: np.ones(3)}, "state last is a dict of values of several types or shapes"),
        ({2**70: 1.0}, "state last is a dict whose keys are not client numbers"),
        (2**70, "state last is an integer of more than 64 bits"),
        (np.array([None]), "state last is of type object"),
    ],
)
def test_a_state_that_cannot_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], last: Any, why: str
) -> None:
    """The run continues, and reports why it has no checkpoints."""
    monkeypatch.setattr(Own, "last", last)
    finish_at_once(monkeypatch)
    path = run(tmp_path, "unsaved", job({**AREA, "name": f"{__name__}:Own"}, checkpoint={"updates": 20}))
    assert not sets(folder_of(path)) and "; the last 2 checkpoints failed: rank 1: " in capsys.readouterr().out
    with open_run(path) as found:
        failed = found.events[found.events.kind == "checkpoint-failed"]
        assert failed.updates.tolist() == [20, 40]
        assert failed.text.str.contains("rank 1: ").all() and failed.text.str.contains(why).all()


# -- the thread that ends a run in time, where the main thread computes outside Python ---------------------------------
def test_the_grace_period_ends_where_many_files_are_open() -> None:
    """In a process with more than 1024 descriptors, such as a server that is connected to as many ranks; whichever
    thread reads the signal first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this process may not open 2048 files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    opened: list[int] = []
    try:
        while not opened or opened[-1] < 1100:
            opened.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(20):
            found: queue.Queue[int] = queue.Queue()
            with SignalRecorder() as signals:
                signals.record()
                signals.watch(0.01, found.put)
                os.kill(os.getpid(), signal.SIGTERM)
                assert found.get(timeout=20) == signal.SIGTERM
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
