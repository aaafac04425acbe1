"""The scenarios and methods that were not run while a suite was chosen, beside those that were.

A suite that suits what was known when it was chosen would look different in them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpifl.tools.arena import statistics

TITLES = {
    "scenarios": ["tau with all others", "tau of halves", "failed (%)", "target at all (%)"],
    "methods": ["spread over scenarios", "spread over seeds", "failed (%)", "target at all (%)"],
}
TEXT = """\
{names} were not run while tasks, horizons and targets of the standard tier were first chosen. Results of the methods
among these, and not of the scenarios, were known when horizons, targets of quadratics and step sizes were changed
later. A cell has the measure of one
of them, and the range of the others in parentheses. For a scenario: Kendall's tau between its ranking and that of all
other scenarios, and between its rankings by random halves of the seeds; for a method: the standard deviation of its
rank of the loss, over the scenarios and over the seeds of a scenario (mean). Both: the runs that failed, and those that
reach the target. Of {count} measures {inside} are within the range of the others."""


def measures(loss: np.ndarray, time: np.ndarray) -> dict[str, np.ndarray]:
    """(scenarios, 4) and (methods, 4), in the order of TITLES."""
    ranks = statistics.ranks(loss)
    apart = [
        [statistics.kendall(statistics.mean_ranks(loss[[k]]), statistics.mean_ranks(np.delete(loss, k, axis=0))),
         statistics.tau_of_halves(loss[[k]])] for k in range(len(loss))
    ]  # fmt: skip
    spread = np.array([ranks.mean(axis=2).std(axis=0), ranks.std(axis=2).mean(axis=0)]).T

    def shares(axes: tuple[int, int]) -> np.ndarray:
        ends = np.isinf(loss).mean(axis=axes), np.isfinite(time).mean(axis=axes)
        return 100 * np.array(ends).T

    return {
        "scenarios": np.hstack([apart, shares((1, 2))]),
        "methods": np.hstack([spread, shares((0, 2))]),
    }


def beside_others(
    held: Sequence[str], scenarios: Sequence[str], methods: Sequence[str], loss: np.ndarray, time: np.ndarray
) -> tuple[str, dict[str, list[list[str]]]]:
    """What the page says of those that were held out: sentences, and the rows of both tables; empty where one of them
    has no results, or there are fewer than two others.

    loss, time: (scenarios, methods, seeds).
    """
    every = {"scenarios": scenarios, "methods": methods}
    others = {kind: [name not in held for name in names] for kind, names in every.items()}
    if not held or not {*held} <= {*scenarios, *methods} or min(map(sum, others.values())) < 2:
        return "", {}
    tables: dict[str, list[list[str]]] = {"scenarios": [], "methods": []}
    inside = count = 0
    for kind, values in measures(loss, time).items():
        low, high = (end(values[others[kind]], axis=0) for end in (np.min, np.max))
        for name, row in zip(every[kind], values, strict=True):
            if name in held:
                cells = [f"{x:.2f} ({a:.2f} to {b:.2f})" for x, a, b in zip(row, low, high, strict=True)]
                tables[kind].append([name, *cells])
                inside += int(((row >= low) & (row <= high)).sum())
                count += len(row)
    return TEXT.format(names=", ".join(held), count=count, inside=inside), tables
