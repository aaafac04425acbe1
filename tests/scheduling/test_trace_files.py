"""The traces that come with mpifl."""

from __future__ import annotations

from mpifl.scheduling.availability import TraceAvailability
from mpifl.scheduling.timeline import Timeline
from mpifl.scheduling.trace_files import FOLDER, packaged_traces
from tests.scheduling.phones import DAY, PHONES, text


def test_the_trace_of_phones_is_that_of_its_script() -> None:
    """Each phone is on for between 10 % and 40 % of the week."""
    assert packaged_traces() == ["phones"]
    assert (FOLDER / "phones.csv").read_text(encoding="utf-8") == text()
    model = TraceAvailability(path="package:phones", after="repeat", period=7.0 * DAY)
    line = Timeline(model.on_periods(PHONES, 0), PHONES)
    assert all(0.1 < line.on_seconds(i, 0, 7 * DAY) / (7 * DAY) < 0.4 for i in range(PHONES))
