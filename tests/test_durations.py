"""Durations as text."""

from __future__ import annotations

import pytest

from mpifl.text import format_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59, "59 s"), (59.6, "1 min 0 s"), (200.2, "3 min 20 s"), (3600, "1 h 0 min"), (7500, "2 h 5 min"),
     (172800 + 3 * 3600, "2 days 3 h")],
)  # fmt: skip
def test_a_duration_is_written_in_at_most_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
