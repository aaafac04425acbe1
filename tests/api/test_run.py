"""The Python API in one process: what it returns, what it raises, and what it leaves behind: nothing."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpifl
from mpifl import cli, execution
from mpifl.algorithms.base import Message, State, Update
from mpifl.algorithms.fedavg import FedAvg
from mpifl.execution import THREAD_VARIABLES
from mpifl.objective import Objective
from mpifl.problems import loading
from mpifl.problems.models.quadratic import QuadraticProblem
from mpifl.problems.problem import ComputeResources
from mpifl.problems.settings import Torch
from mpifl.signals import SIGNALS
from tests.api.jobs import JOB, REAL
from tests.mpi.files import differing

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_of_a_dict(capfd: pytest.CaptureFixture[str]) -> None:
    run = mpifl.run(JOB, "stop.updates=30", seed=7)
    assert isinstance(run, mpifl.Run) and run.path == Path("results/small.h5")
    assert run.status == "completed" and run.config["seed"] == 7 and run.attrs["clients"] == 6
    assert len(run.updates) == 30 and len(run.aggregations) == 10 and run.model.shape == (20,)
    assert run.evaluations.updates.tolist() == [0, 20, 30] and len(run.clients) == 6
    assert run.events.kind.tolist() == ["dropped"]
    assert capfd.readouterr() == ("", "")


def test_a_run_of_a_file_is_that_of_the_command_line(folder: Path) -> None:
    """To the last bit, wherever NumPy's number of threads is left open."""
    quickstart = str(ROOT / "jobs" / "quickstart.yaml")
    more = ["clock={mode: virtual, delay: exponential}", "stop={updates: 300}"]
    assert cli.main(["run", quickstart, *more, "output=cli.h5"]) == 0
    code = f"import mpifl; print(mpifl.run({quickstart!r}, *{more!r}, output='api.h5').status)"
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "completed\n", "")
    assert not differing(folder / "cli.h5", folder / "api.h5")


def test_a_job_is_filled_in_and_given_back() -> None:
    job = mpifl.load_job(JOB)
    assert isinstance(job, mpifl.Job) and mpifl.load_job(job) is job
    assert job.output == "results/small.h5" and job.faults.lost == "freeze"
    run = mpifl.run(job)
    again = mpifl.run(run.config, output="again.h5")  # the configuration of a run is a job
    assert not differing(run.path, again.path)
    assert mpifl.load_job(job, seed=8).seed == 8 and job.seed == 3


def test_overrides_come_before_keys_and_both_replace_what_stood_there() -> None:
    job = mpifl.load_job(JOB, "seed=4", "stop.time=2", seed=5)
    assert (job.seed, job.stop.updates, job.stop.time) == (5, 60, 2)
    job = mpifl.load_job(JOB, stop={"time": 2})
    assert (job.stop.updates, job.stop.time) == (None, 2)
    assert JOB["seed"] == 3 and JOB["stop"] == {"updates": 60}
    fixed = {"mode": "virtual", "delay": {"name": "fixed", "seconds": np.ones(6)}}
    job = mpifl.load_job(JOB, output=Path("there") / "x.h5", seed=np.int64(9), clock=fixed)
    assert (job.output, job.seed) == ("there/x.h5", 9)


def test_replay_and_what_cannot_be_resumed() -> None:
    run = mpifl.run(JOB, clock=REAL)
    again = mpifl.replay(run.path)
    assert again.path == Path("results/small-replay.h5") and again.attrs["clock"] == "replay"
    assert np.array_equal(run.model, again.model)
    assert mpifl.replay(run.path, output="other.h5").path == Path("other.h5")
    with pytest.raises(mpifl.ConfigError, match="has no such option; expected output, overwrite, ranks_per_client or"):
        mpifl.replay(run.path, seed=4)
    with pytest.raises(mpifl.ConfigError, match="the run is completed; to go on, give a later end"):
        mpifl.resume(run.path)


@dataclass(frozen=True)
class Moving(FedAvg):
    """Each contact moves every parameter by `MOVE`, in a direction that does not change the norm of the update."""

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        return Update((message.vectors[0] + MOVE,), 1)


MOVE = 1.0


def test_a_replay_that_computes_something_else_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints one line with the first difference, and no result. The code changed between run and replay."""
    method = {"name": f"{__name__}:Moving", "cohort": 6}
    run = mpifl.run(JOB, algorithm=method, stop={"updates": 6}, evaluate={"updates": 9})
    assert np.array_equal(mpifl.replay(run.path, trust=True).model, run.model)
    monkeypatch.setattr(sys.modules[__name__], "MOVE", -1.0)
    with pytest.raises(mpifl.RunFailed) as failed:
        mpifl.replay(run.path, trust=True, overwrite=True)
    again = mpifl.open_run("results/small-replay.h5")
    assert np.allclose(again.model, run.model - 2) and again.updates.equals(run.updates)
    before, after = (file.evaluations.train_loss.tolist()[1] for file in (run, again))
    text = f"results/small.h5: evaluations row 1: train_loss is {before!r}, the replay has {after!r}"
    assert before != after and str(failed.value) == text
    capsys.readouterr()
    assert cli.main(["replay", str(run.path), "overwrite=true", "--trust"]) == 3
    out, err = capsys.readouterr()
    assert not out and err.splitlines()[1:] == [f"mpifl: {text}"], "after the line on the code that is imported"


def test_not_in_the_main_thread() -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(mpifl.run(JOB).status))
    thread.start()
    thread.join(60)
    assert found == ["completed"]


def test_one_problem_for_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[object] = []
    load = loading.load
    monkeypatch.setattr(loading, "load", lambda config: loaded.append(config) or load(config))
    monkeypatch.setattr(execution, "_kept", None)
    with mpifl.keep_problem():
        runs = [mpifl.run(JOB, seed=seed, name=f"r{seed}", output=f"{seed}.h5") for seed in (1, 1, 2)[1:]]
        assert len(loaded) == 1
        mpifl.run(JOB, "problem.clients=7", output="7.h5")
        assert len(loaded) == 2 and len(execution._kept or {}) == 1
    assert execution._kept is None
    assert not differing(runs[1].path, mpifl.run(JOB, seed=2, output="alone.h5").path) and len(loaded) == 3


@pytest.mark.parametrize(
    ("arguments", "keys", "text"),
    [
        ([JOB, "algorithm.step_sise=1"], {}, "algorithm.step_sise=1: no such key; the nearest is algorithm.step_size"),
        (
            [JOB],
            {"clock.delay.rate": 1},
            "clock.delay.rate=1: no key of this section; write it into its section, clock: {delay: {rate: ...}}$",
        ),
        ([JOB], {"sead": 1}, "sead=1: no such key; the nearest is seed"),
        ([JOB, "seed"], {}, "override=seed: not key=value; expected key=value, as in algorithm.step_size=0.1"),
        ([JOB], {"output": "there.h5"}, "output=there.h5: .*overwrite=true"),
        (["none.yaml"], {}, "job=none.yaml: no such file"),
        ([{}], {}, r"job=\{\}: empty; expected a dict with name, seed, problem, algorithm, stop"),
    ],
)
def test_mistakes_in_the_arguments_leave_no_file(
    arguments: list[Any], keys: dict[str, Any], text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("there.h5").touch()
    with pytest.raises(mpifl.ConfigError, match=text) as error:
        mpifl.run(*arguments, **keys)
    assert error.value.key and error.value.wrong
    assert os.listdir() == ["there.h5"] and capfd.readouterr() == ("", "")


def test_a_client_that_fails() -> None:
    failing = {"name": "tests.mpi.own:Failing"}
    with pytest.raises(mpifl.RunFailed, match="the rule train broke"):
        mpifl.run(JOB, algorithm={**failing, "at": "train"}, faults={"lost": "stop"})
    run = mpifl.open_run("results/small.h5")
    assert run.status == "failed" and "failed" in run.events.kind.tolist()
    with pytest.raises(SystemExit, match="7"):  # nobody's expectation: it passes
        mpifl.run(JOB, algorithm={**failing, "at": "leaves"}, overwrite=True)


def test_an_interrupted_run_is_closed_and_can_be_resumed(folder: Path) -> None:
    """Ctrl-C: the file is closed, a checkpoint written, KeyboardInterrupt raised; the run can be resumed."""
    handlers = [signal.getsignal(s) for s in SIGNALS]
    timer = interrupt_when(Path("results/small.h5"))
    with pytest.raises(KeyboardInterrupt, match=r"interrupted.*mpifl resume"):
        mpifl.run(JOB, clock=REAL, stop={"time": 1000}, evaluate={"every": 0.1})
    timer.join()
    assert [signal.getsignal(s) for s in SIGNALS] == handlers
    with mpifl.open_run("results/small.h5") as run:
        assert run.status == "interrupted" and not run.open_ended and run.clients.updates.sum() == len(run.updates)
        before = len(run.updates)
    timer = interrupt_when(Path("results/small.h5"), before)
    with pytest.raises(KeyboardInterrupt):
        mpifl.resume("results/small.h5")
    timer.join()
    assert len(mpifl.open_run("results/small.h5").updates) > before


def interrupt_when(path: Path, updates: int = 0) -> threading.Thread:
    """Sends this process SIGINT once the run has consumed more updates."""

    def watch() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            time.sleep(0.05)
            try:
                with mpifl.open_run(path) as run:
                    if run.status == "running" and len(run.updates) > updates:
                        break
            except mpifl.ConfigError:
                continue
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_an_import_and_a_run_leave_nothing_behind() -> None:
    """Open files, memory, garbage collector, signals, threads, generators and more; nor parts of the run."""
    environment = {key: value for key, value in os.environ.items() if key not in THREAD_VARIABLES}
    command = [sys.executable, str(ROOT / "benchmarks" / "sideeffects.py")]
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr

    def parts_of_runs() -> list[Any]:
        gc.collect()
        return [o for o in gc.get_objects() if type(o).__name__ in ("RunWriter", "Worker", "ServerLoop")]

    handlers, others = logging.getLogger("mpifl").handlers[:], parts_of_runs()  # which other tests hold in this process
    for seed in range(4):
        mpifl.run(JOB, "stop.updates=6", seed=seed, overwrite=True).close()
    assert logging.getLogger("mpifl").handlers == handlers
    assert not [part for part in parts_of_runs() if not any(part is other for other in others)]


def test_the_curve_of_a_job(folder: Path) -> None:
    """What `make run` ends with: a figure, and two commands that work."""
    script, job = ROOT / "jobs" / "curve.py", ROOT / "jobs" / "quickstart.yaml"
    mpifl.run(job, "stop={updates: 20}", clock={"mode": "virtual", "delay": "exponential"}).close()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, script, job, "stop.time=3"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and (folder / "results" / "quickstart.png").stat().st_size > 5000, done
    first, *commands = done.stdout.splitlines()
    assert first == "results/quickstart.png: the curve. Next:"
    for command in commands:
        assert cli.main([*command.split()[1:], *(["stop={updates: 5}"] if " run " in command else [])]) == 0


def test_public_names_are_listed_and_documented_and_others_are_errors() -> None:
    for name in mpifl.__all__:
        assert name in dir(mpifl)
        assert name == "__version__" or getattr(mpifl, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        _ = mpifl.runn


def test_torch_is_left_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where this process has prepared torch before, with another number of threads."""
    torch = pytest.importorskip("torch")
    from mpifl.problems.torch.device import prepare

    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # mpifl then leaves the numbers of threads of other libraries alone
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    prepare(Torch(threads=1, deterministic=before[1], device="cpu"), ComputeResources())
    torch.set_num_threads(2)
    mpifl.run(
        JOB, problem={"data": "digits", "clients": 4, "model": {"name": "torch-mlp"}, "torch": {"threads": 1}},
        stop={"updates": 6},
    )  # fmt: skip
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (2, before[1])
    torch.set_num_threads(before[0])


def test_a_run_whose_session_cannot_begin_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is closed as failed, and no longer locked: the same process may replace it."""
    with pytest.raises(mpifl.ConfigError, match=r"^algorithm\.at=participation: is too much"):
        mpifl.run(JOB, algorithm={"name": "tests.mpi.own:Failing", "at": "participation"})
    with mpifl.open_run("results/small.h5") as run:
        assert run.status == "failed" and not run.open_ended
        assert "ConfigError" in run.events.text.iloc[0]
    assert mpifl.run(JOB, overwrite=True).completed


@pytest.mark.parametrize("last", [True, False])
def test_an_error_of_an_evaluation_closes_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch, last: bool) -> None:
    """One that is none of mpifl's own, of the last evaluation or one before."""
    evaluate, calls = QuadraticProblem.evaluate, []

    def broken(self: QuadraticProblem, *given: Any) -> dict[str, float]:
        calls.append(1)
        if len(calls) == count - (not last):
            raise MemoryError("Unable to allocate 7 GiB")
        return evaluate(self, *given)

    monkeypatch.setattr(QuadraticProblem, "evaluate", broken)
    count = 0
    whole = mpifl.run(JOB)
    count = len(calls)
    calls.clear()
    with pytest.raises((mpifl.RunFailed, MemoryError), match="Unable to allocate 7 GiB"):
        mpifl.run(JOB, overwrite=True)
    with mpifl.open_run("results/small.h5") as run:
        assert run.status == "failed" and not run.open_ended and len(run.updates) <= len(whole.updates)
        assert run.events.text.iloc[-1].startswith("MemoryError: Unable to allocate 7 GiB (test_run.py:")
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert mpifl.run(JOB, overwrite=True).completed


@pytest.mark.parametrize(("at", "status"), [("hangs", "interrupted"), ("server hangs", "failed")])
def test_a_second_interrupt_ends_the_run_at_once(folder: Path, at: str, status: str) -> None:
    """While a client computes for ever the file has the model of the server; while a rule does, it has none."""

    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while not Path("trouble").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1.2)  # later than REPEAT_SECONDS
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start the tests with it ignored
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            mpifl.run(JOB, algorithm={"name": "tests.mpi.own:Failing", "at": at, "all": True})
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    with mpifl.open_run("results/small.h5") as run:
        assert run.status == run.events.kind.iloc[-1] == status and not run.open_ended
        assert run.attrs["status"] == status and run.has_final_model == (status == "interrupted")
        assert np.array_equal(run.model, np.zeros(20)) == (status == "failed")
