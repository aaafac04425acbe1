"""A record gives every row its place in the order of events, or reports that it has none."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from mpifl.algorithms.base import Update
from mpifl.errors import RunFailed
from mpifl.scheduling.replayed_schedule import ClientIncident, ReplaySchedule

UPDATES = [(float(t), t % 2, 0.0, 0.0, 0.0) for t in range(1, 5)]


class Answers:
    def receive_from(self, i: int, timeout: float = inf) -> Update:
        return Update((), 1)


def told(aggregations: Any, evaluations: Any, incidents: Any = (), timed: bool = False) -> list[tuple]:
    """The events of a record of four updates, one a second, as (kind, time, whether it aggregates)."""
    incidents = [ClientIncident(*row) for row in incidents]
    record = ReplaySchedule(UPDATES, aggregations, [(*row, 0.0) for row in evaluations], timed, incidents)
    events = record.events(Answers())  # type: ignore[arg-type]
    return [(event.kind, event.time, event.kind == "update" and record.aggregates(None)) for event in events]


def test_an_aggregation_with_its_update_or_after_what_lies_between() -> None:
    """With the second update; after the fourth, an evaluation between them: version 1 is measured after it."""
    found = told([(2.0, 2), (4.0, 4)], [(0.0, 0, 0), (2.0, 2, 1), (4.0, 4, 1), (4.5, 4, 2)])
    assert found == [
        ("evaluate", 0.0, False), ("update", 1.0, False), ("update", 2.0, True), ("evaluate", 2.0, False),
        ("update", 3.0, False), ("update", 4.0, False), ("evaluate", 4.0, False), ("aggregate", 4.0, False),
        ("evaluate", 4.5, False),
    ]  # fmt: skip


def test_an_evaluation_before_a_timed_aggregation() -> None:
    found = told([(2.5, 2)], [(2.0, 2, 0), (3.0, 2, 1)], timed=True)
    assert [row[:2] for row in found[2:5]] == [("evaluate", 2.0), ("aggregate", 2.5), ("evaluate", 3.0)]


@pytest.mark.parametrize(
    ("aggregations", "evaluations", "incidents", "what"),
    [
        ([(2.0, 2), (9.0, 9)], [], [], "aggregation 2"),
        ([(2.0, 2)], [(0.0, 0, 0), (2.0, 3, 0), (4.0, 4, 1)], [], "evaluation 2"),
        ([(2.0, 2)], [(0.0, 0, 0), (4.0, 4, 2)], [], "evaluation 2"),
        ([], [(9.0, 9, 0)], [], "evaluation 1"),
        ([(2.0, 2)], [], [("lost", 1.5, 0, "", 1, 1)], "incident 1"),
        ([(2.0, 2)], [], [("lost", 1.5, 0, "", 1, 0), ("refused", 9.0, 1, "", 5, 1)], "incident 2"),
    ],
)
def test_what_has_no_place(aggregations: Any, evaluations: Any, incidents: Any, what: str) -> None:
    """A version that did not exist yet, or no longer; updates that never came."""
    with pytest.raises(RunFailed, match=f"^the recorded events contradict each other: {what} has no place among them$"):
        told(aggregations, evaluations, incidents)
