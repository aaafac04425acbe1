"""Availability models: their laws, traces, what is refused; and the rule between message and due time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from math import inf, sqrt
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kstest

from mpifl.errors import ConfigError, RunFailed
from mpifl.scheduling.availability import (
    PERIODS,
    Always,
    Availability,
    NextOn,
    Renewal,
    TraceAvailability,
    checked_periods,
)
from mpifl.scheduling.timeline import Timeline
from mpifl.scheduling.trace_files import FOLDER, packaged_traces
from tests.mpi.cases import AREA, SMALL, job
from tests.mpi.conftest import write
from tests.scheduling.phones import DAY, PHONES, text

ON, OFF, WORK = 30.0, 10.0, 20.0  # s: METHODS' figures


def periods(next_on: NextOn, i: int, until: float) -> list[tuple[float, float]]:
    """The on periods of client i that begin before a time (s)."""
    found = [next_on(i, 0.0)]
    while found[-1][1] < inf and (following := next_on(i, found[-1][1]))[0] < until:
        found.append(following)
    return found


def trace(tmp_path: Path, text: str, clients: int = 1, **options: object) -> NextOn:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return TraceAvailability(path=str(path), **{"after": "off", **options}).on_periods(clients, 0)  # type: ignore[arg-type]


def test_lengths_are_independent_exponentials() -> None:
    own = np.array(periods(Renewal(on=ON, off=OFF).on_periods(2, 5), 1, 50_000.0))
    on, off = own[:, 1] - own[:, 0], own[1:, 0] - own[:-1, 1]
    assert len(on) > 1000
    assert kstest(on[1:], "expon", args=(0, ON)).pvalue > 1e-3
    assert kstest(off, "expon", args=(0, OFF)).pvalue > 1e-3
    assert abs(np.corrcoef(on[1:-1], off[1:])[0, 1]) < 5 / sqrt(len(on))


def test_a_stationary_start() -> None:
    """At time 0 on with probability pi, and the rest of the period has the stationary law: the same exponential, or of
    a fixed one uniform."""
    for law, on_law in (("exponential", ("expon", (0, ON))), ("fixed", ("uniform", (0, ON)))):
        next_on = Renewal(on=ON, off=OFF, distribution=law).on_periods(2000, 3)
        first = np.array([next_on(i, 0.0) for i in range(2000)])
        on = first[:, 0] == 0
        assert on.mean() == pytest.approx(0.75, abs=5 * sqrt(0.75 * 0.25 / 2000))
        assert kstest(first[on, 1], on_law[0], args=on_law[1]).pvalue > 1e-3
        assert kstest(first[~on, 0], on_law[0], args=(0, OFF)).pvalue > 1e-3


def test_a_start_on() -> None:
    next_on = Renewal(on=ON, off=OFF, start="on", distribution="fixed").on_periods(2, 0)
    assert periods(next_on, 1, 81.0) == [(0.0, 30.0), (40.0, 70.0), (80.0, 110.0)]
    assert [next_on(0, t) for t in (29.0, 30.0, 39.9, 40.0)] == [(0.0, 30.0), *[(40.0, 70.0)] * 3]
    drawn = Renewal(on=ON, off=OFF, start="on").on_periods(2000, 0)
    assert all(drawn(i, 0.0)[0] == 0 for i in range(2000))


def test_lists_and_spread() -> None:
    """Means by client, times factors spaced evenly from 1 to `spread`; a client with off 0 is always on."""
    model = Renewal(on=[1.0, 2.0, 3.0], off=[1.0, 0.0, 2.0], spread=3.0, start="on", distribution="fixed")
    next_on = model.on_periods(3, 0)
    assert periods(next_on, 0, 3.0) == [(0.0, 1.0), (2.0, 3.0)]
    assert next_on(1, 7.0) == (0.0, inf)
    assert periods(next_on, 2, 16.0) == [(0.0, 9.0), (15.0, 24.0)]
    np.testing.assert_allclose(Renewal(on=[1.0, 3.0], off=[1.0, 1.0], spread=4.0).fractions(2), [0.5, 0.75])
    assert Always().on_periods(3, 0) is None and Always().fractions(3).tolist() == [1, 1, 1]


def test_periods_are_functions_of_seed_and_client() -> None:
    """Whatever is asked in which order, back and forth over the blocks of draws, and by whom."""
    model = Renewal(on=ON, off=OFF)
    times = np.random.default_rng(0).uniform(0, 40 * 8 * PERIODS, 400).tolist()
    forward = model.on_periods(3, 7)
    expected = {(i, t): forward(i, t) for i in range(3) for t in sorted(times)}
    other = model.on_periods(3, 7)
    assert {(i, t): other(i, t) for i in (2, 0, 1) for t in times} == expected
    assert model.on_periods(3, 8)(0, 0.0) != forward(0, 0.0)
    assert all(start < end > t for (_, t), (start, end) in expected.items())
    own = periods(model.on_periods(3, 7), 2, 5e4)
    assert len(own) > 3 * PERIODS and all(a[1] < b[0] for a, b in pairwise(own))


def test_the_processor_does_not_change_periods_or_contact_times() -> None:
    """Their bits are the same when NumPy does not use the vector instructions of this CPU."""
    script = """if True:
        from mpifl.scheduling.availability import Renewal
        from mpifl.scheduling.delays import Exponential, Speed
        on = [Renewal(on=3.0, off=4.0, distribution=law).on_periods(500, 1) for law in ("exponential", "fixed")]
        delays = (Exponential(rate=3.0, spread=1.0), Speed(spread=7.0, noise="exponential"),
                  Speed(noise="lognormal", sigma=1.3))
        times = [each.contact_times(500, 1) for each in delays]
        print([next_on(i, 0.0) for next_on in on for i in range(500)])
        print([seconds(i, 3) for seconds in times for i in range(500)])
    """
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    here, other = (
        subprocess.run([sys.executable, "-c", script], env=os.environ | {"NPY_DISABLE_CPU_FEATURES": disabled},
                       capture_output=True, text=True, check=True, timeout=60).stdout
        for disabled in ("", " ".join(found))
    )  # fmt: skip
    assert len(here) > 40_000 and here == other


@pytest.mark.long
def test_a_model_that_never_ends_is_reported() -> None:
    with pytest.raises(RunFailed, match=r"client 0 has more than 1,000,000 on periods until 1e\+09 s"):
        Renewal(on=1e-3, off=1e-3).on_periods(1, 0)(0, 1e9)
    tiny = Timeline(Renewal(on=1.0, off=1.0, distribution="fixed").on_periods(1, 0), 1, restart=True)
    with pytest.raises(RunFailed, match=r"interrupted=restart: a contact of client 0, 2 s long, is not over"):
        tiny.contact(0, 0.0, 2.0)


# -- traces ------------------------------------------------------------------------------------------------------------
def test_a_trace_that_ends(tmp_path: Path) -> None:
    """Other columns and empty lines are ignored; a row that begins at the end of the one before continues it."""
    next_on = trace(tmp_path, "model,client,start,end\na,1,5,6\nb,0,0,2\n\nb,0,2,3.5\nb,0,7,8\n", 2)
    assert [next_on(0, t) for t in (0.0, 2.0, 3.5, 7.9, 8.0)] == [(0, 3.5), (0, 3.5), (7, 8), (7, 8), (inf, inf)]
    assert [next_on(1, t) for t in (0.0, 5.5, 6.0)] == [(5, 6), (5, 6), (inf, inf)]


def test_a_trace_that_repeats(tmp_path: Path) -> None:
    """Every `period` seconds; a period up to the end of the trace goes on at its start."""
    text = "client,start,end\n0,1,2\n1,0,2\n1,8,10\n2,0,10\n"
    next_on = trace(tmp_path, text, 3, after="repeat", period=10.0)
    assert periods(next_on, 0, 35.0) == [(1, 2), (11, 12), (21, 22), (31, 32)]
    assert periods(next_on, 1, 35.0) == [(0, 2), (8, 12), (18, 22), (28, 32)]
    assert next_on(2, 123.0) == (0.0, inf)
    assert trace(tmp_path, text, 3, after="repeat", period=12.0)(2, 11.0) == (12, 22)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("client,start,end,end\n0,1,2,3\n", "the header 'client,start,end,end' has not one column end"),
        ("client,start,end\n0,1,x\n", "line 2: could not convert string to float: 'x'"),
        ("client,start,end\n0,1\n", "line 2: 2 values"),
        ("client,start,end\n0,1,2\n0.5,3,4\n", "line 3: invalid literal for int"),
        ("client,start,end\n0,0,1\n1,0,1\n",
         r"line 3: it has client 1, start 0, end 1; expected 0 <= client < 1 and times from 0 to 1e\+09$"),
        ("client,start,end\n0,-1,1\n", "line 2: it has client 0, start -1, end 1; expected"),
        ("client,start,end\n0,0,nan\n", "line 2: it has client 0, start 0, end nan; expected"),
        ("client,start,end\n0,0,2e9\n", r"line 2: it has client 0, start 0, end 2e\+09; expected"),
        ("client,start,end\n0,1,2\n\n0,5,5\n", r"line 4: it has start 5, end 5; expected start < end"),
        ("client,start,end\n0,1,3\n0,2,4\n", "line 3: it has start 2, before the end of client 0's row before"),
        ("client,start,end\n", r"client 0 has no row; expected at least one for every client"),
        ("", "line 1: the header '' has not one column client"),
        ('client,start,end\n0,1,"2', "line 2"),
    ],
)  # fmt: skip
def test_a_wrong_trace_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    if text.endswith('"2'):
        text += "\0" * 200_000 + '"'
    with pytest.raises(ConfigError, match=rf"^path=.*trace.csv: .*{says}") as error:
        trace(tmp_path, text)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_wrong_options_of_a_trace(tmp_path: Path) -> None:
    for options, says in (
        ({"period": 9.0}, r"^period=9.0: the trace has after=off; expected null$"),
        ({"after": "repeat"}, r"^period=None: the trace has after=repeat; expected the length of the trace in sec"),
        ({"after": "repeat", "period": 4.0}, r"^period=4.0: client 0 has an end after it \(line 2\); expected at lea"),
        ({"after": "fail"}, "^after=fail: not valid; expected one of off, repeat$"),
    ):
        with pytest.raises(ConfigError, match=says):
            trace(tmp_path, "client,start,end\n0,1,5\n", **options)
    for name in (str(tmp_path / "absent.csv"), str(tmp_path), "/dev/zero", "", "package:absent"):
        with pytest.raises(ConfigError, match=r"^path="):
            TraceAvailability(path=name, after="off").on_periods(1, 0)


def test_the_trace_of_phones_is_that_of_its_script() -> None:
    """Each phone is on for between 10 % and 40 % of the week."""
    assert packaged_traces() == ["phones"]
    assert (FOLDER / "phones.csv").read_text(encoding="utf-8") == text()
    model = TraceAvailability(path="package:phones", after="repeat", period=7.0 * DAY)
    line = Timeline(model.on_periods(PHONES, 0), PHONES)
    assert all(0.1 < line.on_seconds(i, 0, 7 * DAY) / (7 * DAY) < 0.4 for i in range(PHONES))


# -- the rule ----------------------------------------------------------------------------------------------------------
def test_paused_and_restart(tmp_path: Path) -> None:
    """On periods 1..4, 6..10, 12..100; a contact is over before the end of a period."""
    next_on = trace(tmp_path, "client,start,end\n0,1,4\n0,6,10\n0,12,100\n")
    for sent, seconds, paused, restart in (
        (0.0, 2.0, (1, 3), (1, 3)),  # off at 0: waits until 1
        (1.0, 3.0, (1, 6), (1, 9)),  # would end with the period, so at the next on; or begins anew
        (3.0, 2.5, (3, 7.5), (3, 8.5)),
        (4.0, 4.0, (6, 12), (6, 16)),
        (7.0, 0.0, (7, 7), (7, 7)),
        (11.0, 50.0, (12, 62), (12, 62)),
        (2.0, 7.0, (2, 13), (2, 19)),
    ):
        assert Timeline(next_on, 1, False).contact(0, sent, seconds) == paused, sent
        assert Timeline(next_on, 1, True).contact(0, sent, seconds) == restart, sent


def test_a_client_that_is_not_on_again(tmp_path: Path) -> None:
    next_on = trace(tmp_path, "client,start,end\n0,1,4\n1,6,10\n", 2)
    line = Timeline(next_on, 2)
    assert line.contact(0, 4.0, 1.0) == (inf, inf)
    assert line.contact(0, 3.0, 2.0) == (3.0, inf)
    assert line.off(2.0) == {1} and line.off(7.0) == {0}
    assert line.off(4.5) == {0}, "nobody is on: those that come first are not counted as off"
    assert line.off(2.0, inactive={0}) == frozenset() and line.off(20.0) == frozenset()
    assert [line.on_seconds(0, *span) for span in ((0.0, 9.0), (2.0, 3.0), (3.0, 5.0), (5.0, 9.0))] == [3, 1, 1, 0]


def test_own_models_are_checked() -> None:
    class Own(Availability):
        def on_periods(self, clients: int, seed: int) -> NextOn:
            return lambda i, time: (time, time + 1) if time < 5 else (time - 2, time)

    next_on = checked_periods(Own(), 2, 0)
    assert next_on and next_on(0, 1.0) == (1.0, 2.0)
    with pytest.raises(RunFailed, match=r"Own.on_periods returned \(4.0, 6.0\) for client 1 at 6.0 s; start < end"):
        next_on(1, 6.0)


# -- jobs --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("never", "name=never: no such name; expected one of always, renewal, trace"),
        ("{name: always, on: 3}", "on=3: always has no on; renewal has it"),
        ("{name: renewal, on: [1, 2]}", "on=2 values: there are 7 clients; expected one number, or one for each"),
        ("{name: trace, path: x.csv}", "after=???: required; expected one of off, repeat"),
        ("{name: trace, after: off}", "path='': cannot be read: it is not a regular file"),
        ("{name: trace, after: off, path: 'package:x'}", "path=package:x: no such trace"),
        ("{name: renewal, cohort_from: available}", "cohort_from=available: the algorithm is area, and it has no"),
    ],
)
def test_a_wrong_availability_section_is_refused_before_there_is_a_file(
    tmp_path: Path, section: str, says: str, refused: Callable[..., str]
) -> None:
    """One line and exit code 2, before there is a file."""
    file = write(tmp_path, "wrong", job(AREA, SMALL))
    output = tmp_path / "wrong.h5"
    line = refused("run", "-q", file, f"clock.availability={section}", f"output={output}")
    assert line.startswith(f"mpifl: clock.availability.{says}") and not output.exists()
    if "cohort" in section:
        said = refused("check", file, f"clock.availability={section}", "algorithm=fedpd")
        assert "the algorithm is fedpd, and its rounds need every client; expected all" in said
