"""A completed run goes on to a later end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import mpifl
from mpifl.checkpoint.sets import open_set
from mpifl.cli import main
from mpifl.runfile.checkpoint_folder import folder_of, sets
from mpifl.server.checkpointer import Checkpointer
from tests.faults.spy import replayed
from tests.mpi.cases import AREA, CASES, SMALL, job
from tests.mpi.files import differing
from tests.server.test_reports import check_times
from tests.server.test_resume import finish_at_once
from tests.tiers import parameters

NAMES = ["fedavg-cohort", "area-before", "area-period", "area-deferred", "feddane", "favas", "area-on-and-off"]
REAL = {"mode": "real", "delay": {"name": "exponential", "rate": 200}}


def begun(path: Path, case: dict[str, Any], **more: Any) -> mpifl.Run:
    """A run with a checkpoint at its end."""
    return mpifl.run({"name": "begun", "checkpoint": {"end": True}, **case, **more}, output=path)


@pytest.mark.parametrize("name", parameters(NAMES, ["area-before", "feddane"]))
def test_an_extended_run_is_the_longer_run(tmp_path: Path, name: str) -> None:
    """Twice: by updates from the checkpoint at its end, then by time, with the bits of a run that was never ended."""
    path = begun(tmp_path / "short.h5", CASES[name], stop={"updates": 40}).path
    end = float(mpifl.resume(path, "stop.updates=57").updates.time.iloc[-1]) * 1.5
    events = mpifl.resume(path, "stop.updates=null", f"stop.time={end}").events
    whole = begun(tmp_path / "whole.h5", CASES[name], stop={"time": end}, checkpoint={}).path
    assert not differing(path, whole, but=("events",))
    changed = events[events.kind == "changed"]
    assert changed.text.tolist()[0] == "stop.updates=57, before 40" and changed.updates.tolist()[:2] == [40, 57]
    assert main(["verify", str(path), "--replay"]) == 0


def test_a_run_without_a_checkpoint_is_computed_again_from_its_start(tmp_path: Path) -> None:
    path = begun(tmp_path / "area.h5", job(AREA), stop={"updates": 20}, checkpoint={}).path
    before = path.read_bytes()
    mpifl.resume(path, "stop.updates=50").close()
    assert not differing(path, begun(tmp_path / "whole.h5", job(AREA), stop={"updates": 50}).path, but=("events",))
    assert path.with_name("area.h5.before").read_bytes() == before


@pytest.mark.damaged
def test_the_job_of_a_damaged_file_is_neither_replayed_nor_computed_again(tmp_path: Path, refused: Any) -> None:
    """The line names the damage, not a key that nobody wrote."""
    path = begun(tmp_path / "area.h5", job(AREA), stop={"updates": 20}, checkpoint={}).path
    with h5py.File(path, "r+", libver="latest") as file:
        file.attrs["config"] = file.attrs["config"].replace("local_steps", "local_stepc")
    says = "it is damaged: attribute config: its checksum is"
    assert says in refused("replay", path) and says in refused("resume", path, "stop.updates=50")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["stop.updates=20"], "stop.updates=20: the run has reached 20; expected more than that, or null"),
        (["stop.time=1e9"], "stop.updates=20: the run has reached 20; expected more than that, or null"),
        (["stop.updates=40", "algorithm.local_steps=2"], "algorithm.local_steps=2: a resume cannot change it"),
        (["evaluate.every=1"], "the run is completed; to go on, give a later end: stop.updates=N or stop.time=S"),
    ],
)
def test_what_a_completed_run_cannot_be_given(tmp_path: Path, refused: Any, given: list[str], text: str) -> None:
    path = begun(tmp_path / "area.h5", job(AREA), stop={"updates": 20}).path
    before = path.read_bytes()
    assert text in refused("resume", path, *given) and path.read_bytes() == before


def test_a_run_in_real_time_goes_on_from_the_checkpoint_at_its_end_alone(tmp_path: Path, refused: Any) -> None:
    """No update that it had is lost; without that checkpoint the order of events cannot be repeated."""
    case = job(AREA, clock=REAL, stop={"updates": 20})
    first = begun(tmp_path / "area.h5", case)
    run = mpifl.resume(first.path, "stop.updates=45")
    assert len(run.updates) == 45 and run.updates[:20].equals(first.updates)
    check_times(run)
    assert replayed(run.path)
    other = begun(tmp_path / "other.h5", case, checkpoint={}).path
    says = "the completed run has no checkpoint at its end; expected a run with checkpoint.end: true"
    assert says in refused("resume", other, "stop.updates=45")


def test_the_file_of_a_completed_run_in_real_time_is_kept_where_updates_are_undone(tmp_path: Path) -> None:
    case = job(AREA, clock=REAL, stop={"time": 0.7})
    first = begun(tmp_path / "area.h5", case, checkpoint={"wall": 0.1})
    count = len(first.updates)
    before = first.path.read_bytes()
    run = mpifl.resume(first.path, "stop.time=1.5")
    saved = int(run.events[run.events.kind == "resumed"].updates.iloc[0])
    assert run.completed and len(run.updates) > count > saved
    assert run.updates[:saved].equals(first.updates[:saved])
    assert first.path.with_name("area.h5.before").read_bytes() == before


def test_another_step_holds_from_there_on(tmp_path: Path, refused: Any) -> None:
    """The distance to the optimum of a quadratic shrinks by another constant; such a run cannot be replayed."""
    distances, problem = {}, {"clients": 2, "model": {"name": "quadratic", "dim": 3}, "dtype": "float64"}
    case = job({"name": "async-sgd", "step_size": 0.1}, problem, stop={"updates": 10}, evaluate={"updates": 1})
    for step in (0.1, 0.2):
        path = begun(tmp_path / f"{step}.h5", case).path
        run = mpifl.resume(path, "stop.updates=20", f"algorithm.step_size={step}")
        distances[step] = run.evaluations.train_loss.to_numpy()
        assert ("algorithm.step_size=0.2, before 0.1" in set(run.events.text)) == (step == 0.2)
    assert np.array_equal(distances[0.1][:11], distances[0.2][:11])
    assert not np.array_equal(distances[0.1][12:], distances[0.2][12:])
    assert main(["verify", str(path)]) == 0
    assert "its method was changed on the way; expected a run of one method" in refused("replay", path)


def test_a_run_that_has_reached_its_accuracy_goes_on_without_it(tmp_path: Path) -> None:
    first = begun(tmp_path / "area.h5", CASES["area-accuracy"])
    path, count = first.path, len(first.updates)
    assert count < 500 and first.evaluations.test_accuracy.iloc[-1] >= 0.5
    with pytest.raises(mpifl.ConfigError, match=r"stop\.accuracy=0\.5"):
        mpifl.resume(path, "stop.updates=600")
    run = mpifl.resume(path, "stop.accuracy=null", f"stop.updates={count + 20}")
    assert len(run.updates) == count + 20
    whole = begun(tmp_path / "whole.h5", CASES["area-accuracy"], stop={"updates": count + 20})
    assert np.array_equal(run.model, whole.model)


def test_checkpoints_by_wall_time(tmp_path: Path) -> None:
    """By default every ten minutes; none in a short run. They are at least `wall` apart."""
    case, begin = job(AREA, clock=REAL, stop={"time": 0.7}), time.perf_counter()
    run = begun(tmp_path / "wall.h5", case, checkpoint={"wall": 0.1})
    seconds = time.perf_counter() - begin
    saved = run.events[run.events.kind == "checkpoint"]
    assert 1 <= len(saved) <= seconds / 0.1
    assert "checkpoint" not in set(begun(tmp_path / "default.h5", case, checkpoint={}).events.kind)


def test_a_failed_run_is_not_in_the_way_of_the_mended_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its file is kept under another name; the new one is that of the mended job alone."""
    path, wrong = tmp_path / "area.h5", {**AREA, "step_size": 1e300}
    with pytest.raises(mpifl.RunFailed), np.errstate(all="ignore"):
        mpifl.run(job(wrong, SMALL, name="area", output=str(path)))
    before = path.read_bytes()
    run = mpifl.run(job(AREA, SMALL, name="area", output=str(path)))
    assert run.status == "completed" and run.config["algorithm"]["step_size"] == 0.05
    assert (kept := path.with_name("area.h5.unfinished")).read_bytes() == before
    assert f"the file is kept as {kept.name}" in caplog.text
    with pytest.raises(mpifl.ConfigError, match="output="):  # a completed run is
        mpifl.run(job(wrong, SMALL, name="area", output=str(path)))


def test_a_target_that_is_reached_during_a_checkpoint_has_one_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `checkpoint.end` the run waits for the one in progress, and then begins that of its end."""
    poll, finish, waits = Checkpointer.poll, Checkpointer.finish, []

    def finished(self: Checkpointer, time: float, patience: float) -> None:
        waits.append(1)
        finish(self, time, patience)

    monkeypatch.setattr(Checkpointer, "poll", lambda self, time: poll(self, time) if waits else None)
    monkeypatch.setattr(Checkpointer, "finish", finished)
    run = begun(tmp_path / "area.h5", CASES["area-accuracy"], checkpoint={"updates": 10, "end": True})
    monkeypatch.undo()
    kinds = [kind for kind in run.events.kind if kind.startswith("checkpoint")]
    assert kinds[0] == "checkpoint-skipped" and kinds[-2:] == ["checkpoint", "checkpoint"]
    last = sets(folder_of(run.path))[-1]
    assert open_set(folder_of(run.path), last).server().loop.updates == len(run.updates)


def test_checkpoints_that_cannot_be_used_are_not_removed(tmp_path: Path, refused: Any) -> None:
    """A completed run with damaged ones is not computed again, which would remove them."""
    path = begun(tmp_path / "area.h5", job(AREA), stop={"updates": 20}).path
    folder, before = folder_of(path), path.read_bytes()
    for part in folder.glob("*.rank0"):
        part.write_bytes(part.read_bytes()[:-8])
    said = refused("resume", path, "stop.updates=50")
    assert "checkpoint 1 is damaged" in said and f"remove {folder} to compute the run again from its start" in said
    assert path.read_bytes() == before and sets(folder) == [1]


def test_a_run_that_goes_on_has_the_outputs_of_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`log_interval` and `output_tensorboard` are no part of what a run computes, and may change."""
    case = {**job(AREA), "name": "area", "output": str(tmp_path / "area.h5"), "stop": {"updates": 60}}
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        finish_at_once(patch, lambda checkpointer: 1 // 0)
        mpifl.run(case, checkpoint={"updates": 10})
    run = mpifl.run(case, checkpoint={"updates": 10}, log_interval=5, output_tensorboard=True)
    assert run.completed and "resumed" in run.events.kind.tolist()
    assert "log_interval=5.0, before 60.0" in run.events.text.tolist()
    assert list(tmp_path.glob("**/events.out.tfevents*"))
