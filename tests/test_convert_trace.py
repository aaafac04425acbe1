"""FedScale's traces of devices: what becomes of them, and what is refused; nothing in a file is executed."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpifl.scheduling.availability import TraceAvailability
from mpifl.scheduling.delays import Trace

PHONE = {  # as in the public file
    "duration": 211625, "inactive": [65881, 133574, 208292], "finish_time": 518400, "active": [12788, 100044, 188992],
    "model": "CPH1801",
}  # fmt: skip
OTHERS = {
    "another length": {**PHONE, "finish_time": 604800},
    "unsorted": {**PHONE, "active": [100044, 12788, 188992]},
    "more ons": {**PHONE, "active": [1, *PHONE["active"]]},
    "beyond its end": {**PHONE, "inactive": [65881, 133574, 518401]},
    "no numbers": {**PHONE, "active": ["a", "b", "c"]},
    "no lists": {**PHONE, "inactive": 3},
}


def convert(folder: Path, devices: Any, protocol: int = 4) -> list[object]:
    """The command for the devices, without its options."""
    (folder / "devices").write_bytes(pickle.dumps(devices, protocol))
    return ["convert-trace", folder / "devices", "--out", folder / "trace.csv"]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_on_periods_are_those_of_the_first_devices_that_are_whole(
    tmp_path: Path, protocol: int, printed: Callable[..., Any]
) -> None:
    """The on periods of the first devices that are whole; the line that is printed has the job's section."""
    second = {**PHONE, "active": [0], "inactive": [518400]}
    devices = {7: PHONE, **dict(enumerate(OTHERS.values(), 10)), 99: second, 100: PHONE}
    out = printed(*convert(tmp_path, devices, protocol), "--clients", "2").out
    path = tmp_path / "trace.csv"
    assert path.read_text() == ("client,start,end\n0,12788,65881\n0,100044,133574\n0,188992,208292\n1,0,518400\n")
    section = f"clock.availability: {{name: trace, path: {path}, after: repeat, period: 518400}}"
    assert out == f"{path}: 2 clients, 4 rows; in a job: {section}\n"
    next_on = TraceAvailability(path=str(path), after="repeat", period=518400.0).on_periods(2, 0)
    assert next_on(0, 518400 + 70000.0) == (518400 + 100044, 518400 + 133574)


def test_contact_times_are_those_of_the_formula(tmp_path: Path, printed: Callable[..., Any]) -> None:
    """3 rows computation / 1000 + kilobits / communication: 3 * 20 * 0.162 + 5648/5648 = 10.72 s."""
    devices = {1: {"computation": 162.0, "communication": 5648.0}, 2: {"computation": 0.0, "communication": 1.0},
               3: {"computation": 10, "communication": 100}}  # fmt: skip
    out = printed(*convert(tmp_path, devices), "--clients", 2, "--rows", 20, "--kilobits", 5648).out
    assert (tmp_path / "trace.csv").read_text() == "client,seconds\n0,10.72\n1,57.08\n"
    assert Trace(path=str(tmp_path / "trace.csv"), exhausted="repeat").contact_times(2, 0)(0, 5) == 10.72
    assert "clock.delay: {name: trace" in out


class Evil:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("touched"),)


CAPACITY = {"computation": 1, "communication": 1}


@pytest.mark.parametrize(
    ("devices", "words", "says"),
    [
        ({1: PHONE}, "--clients 2", "expected at most 1"),
        ({1: PHONE}, "--clients 1 --rows 5", "--rows=5: the file is of availability; expected a file of capacities"),
        (
            {1: CAPACITY},
            "--clients 1",
            "--rows=None: required, since the file is of capacities; expected the number of",
        ),
        ({}, "--clients 1", "device trace="),
        ({1: [2]}, "--clients 1", "devices with active, inactive and finish_time, or with computation"),
        ([PHONE], "--clients 1", "it holds a list; expected a pickled dictionary of devices"),
        ({(1, 2): PHONE}, "--clients 1", "it has a dictionary with other keys"),
        ({1: Evil()}, "--clients 1", "it asks for"),
        ({1: PHONE}, "", "--clients=None: required; expected the number of clients of the trace"),
        ({1: PHONE}, "--clients 0", "--clients"),
        (b"client,start,end\n", "--clients 1", "device trace="),
    ],
)
def test_wrong_traces_and_options_are_refused_and_leave_no_file(
    tmp_path: Path, devices: Any, words: str, says: str, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("devices").write_bytes(devices if isinstance(devices, bytes) else pickle.dumps(devices))
    assert says in refused("convert-trace", "devices", "--out", "trace.csv", *words.split())
    assert [path.name for path in tmp_path.iterdir()] == ["devices"]


def test_nothing_is_overwritten(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "trace.csv").write_text("mine")
    says = refused(*convert(tmp_path, {1: PHONE}), "--clients", "1")
    assert "the file exists; choose another name" in says
    assert (tmp_path / "trace.csv").read_text() == "mine"
