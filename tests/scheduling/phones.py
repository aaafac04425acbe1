"""Makes the trace of phones that comes with mpifl.

    python -m tests.scheduling.phones > mpifl/scheduling/traces/phones.csv

20 phones in one week. Each is on while it is charged: in most nights, from an hour of its own in the evening for some
hours of its own, and now and then for an hour at daytime. Times are whole minutes; nothing is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from mpifl.rng import stream

PHONES, DAYS, DAY = 20, 7, 86400


def rows() -> Iterator[tuple[int, int, int]]:
    """Client, start and end (s) of each on period."""
    for i in range(PHONES):
        rng = stream(0, "phones", i)
        evening, hours = rng.normal(22.5, 1.0), rng.uniform(5.0, 8.0)  # o'clock, and how long
        found: list[list[int]] = []
        for day in range(DAYS):
            for begin, length, probability in (
                (rng.uniform(8.0, 18.0), rng.exponential(1.0), 0.4),
                (rng.normal(evening, 0.5), rng.normal(hours, 0.7), 0.9),
            ):
                start = day * DAY + round(begin * 60) * 60
                end = min(start + max(10, round(length * 60)) * 60, DAYS * DAY)
                if rng.random() < probability and end > start and (not found or start > found[-1][1]):
                    found.append([start, end])
        yield from ((i, start, end) for start, end in found)


def text() -> str:
    return "client,start,end\n" + "".join(f"{i},{start},{end}\n" for i, start, end in rows())


if __name__ == "__main__":
    sys.stdout.write(text())
