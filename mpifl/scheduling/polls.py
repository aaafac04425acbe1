"""Polled clients: how many local steps they have taken when the server polls, and how long they take to answer.

One rule for every clock.
"""

from __future__ import annotations

from math import floor

from mpifl.scheduling.delays import ContactTimes, SplitTimes
from mpifl.scheduling.timeline import Timeline


class StepsSoFar:
    """The local steps of n clients since a time; a function of its arguments alone.

    A step takes the delay model's computing time for work 1; where the model has one time for a whole contact, that is
    the time of as many steps as a contact may have. Steps pause while the client is off.
    """

    def __init__(self, contact_times: ContactTimes, split_times: SplitTimes | None, timeline: Timeline | None) -> None:
        self._contact_times, self._split_times, self._timeline = contact_times, split_times, timeline

    def __call__(self, i: int, round: int, since: float, time: float, most: int) -> int:
        """How many steps, at most `most`, client i has taken from `since` to `time` (s).

        round: the number of the contact for which it takes them.
        """
        on = self._timeline.on_seconds(i, since, time) if self._timeline else time - since
        step = self._split_times(i, round, 1)[0] if self._split_times else self._contact_times(i, round) / most
        return min(most, floor(on / step + 1e-9)) if on < most * step else most  # 1e-9: 3 - 1 ulp is 3


def exchange_times(split_times: SplitTimes | None) -> tuple[ContactTimes, SplitTimes | None]:
    """The times of contacts whose local steps are taken already: the exchange, if the delay model has its time."""
    if split_times is None:
        return lambda client, round: 0.0, None
    exchange: ContactTimes = lambda client, round: split_times(client, round, 1)[1]  # noqa: E731
    return exchange, lambda client, round, work: (0.0, exchange(client, round))
