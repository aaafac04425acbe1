"""A loop rests where a background thread that works has too little of the interpreter lock."""

from __future__ import annotations

import pytest

from mpifl import interpreter_turns
from mpifl.interpreter_turns import REST_SECONDS, InterpreterTurns


def test_the_loop_rests_where_the_thread_had_less_than_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test sets the wall time and the thread's CPU time; the loop looks at them once in a millisecond."""
    rests, times = list[float](), {"wall": 5.0, "cpu": 1.0}

    def used(clock: int) -> float:
        if times["cpu"] < 0:
            raise OSError
        return times["cpu"]

    monkeypatch.setattr(interpreter_turns, "perf_counter", lambda: times["wall"])
    monkeypatch.setattr(interpreter_turns, "clock_gettime", used)
    monkeypatch.setattr(interpreter_turns, "sleep", rests.append)
    turns = InterpreterTurns()
    turns.give()
    assert not rests, "no thread works"
    with turns.working():
        for wall, cpu, rest in (
            (5.0, 1.0, True),  # 1 s of 5
            (5.0009, 1.0, False),  # less than a millisecond later
            (5.0011, 1.0, True),  # nothing of 1.1 ms
            (5.0022, 1.0006, False),  # 0.6 ms of 1.1
            (5.0033, 1.001, True),  # 0.4 ms of 1.1
            (6.0, -1.0, False),  # the thread has ended
        ):
            times |= {"wall": wall, "cpu": cpu}
            rests.clear()
            turns.give()
            assert rests == [REST_SECONDS] * rest, wall
    times |= {"wall": 7.0, "cpu": 1.0}
    turns.give()
    assert not rests, "the thread has done its work"
