"""The traces that come with mpifl."""

from __future__ import annotations

from mpifl.scheduling.availability import TraceAvailability
from mpifl.scheduling.timeline import Timeline
from mpifl.scheduling.trace_files import FOLDER, packaged_traces
from tests.scheduling.phones import DAY, HOUR, PHONES, text


def test_the_trace_of_phones_is_that_of_its_script() -> None:
    assert packaged_traces() == ["phones"]
    assert (FOLDER / "phones.csv").read_text(encoding="utf-8") == text()


def test_the_phones_are_on_at_night() -> None:
    """On for between 10 % and 40 % of the week; at 1 o'clock more than half of them, at 13 o'clock few."""
    model = TraceAvailability(path="package:phones", after="repeat", period=7.0 * DAY)
    line = Timeline(model.on_periods(PHONES, 0), PHONES)
    assert all(0.1 < line.on_seconds(i, 0, 7 * DAY) / (7 * DAY) < 0.4 for i in range(PHONES))
    on = {
        hour: sum(line.next_on(i, t) == t for t in (d * DAY + hour * HOUR for d in range(1, 7)) for i in range(PHONES))
        for hour in (1, 13)
    }
    assert on[1] > 6 * PHONES / 2 and 0 <= on[13] < 6 * PHONES / 5
