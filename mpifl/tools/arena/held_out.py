"""The scenarios and methods that were not run while a suite was first chosen, beside those that were.

A suite that suits only what was known when it was chosen could look different in them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpifl.tools.arena import statistics

TITLES = {
    "scenarios": ["tau with all others", "tau of halves of the seeds", "failed (%)", "target reached (%)"],
    "methods": ["s.d. of rank over scenarios", "s.d. of rank over seeds", "failed (%)", "target reached (%)"],
}
TEXT = """\
{names} were held out: they were not run while the tasks, horizons and targets of the standard tier were first chosen.
When horizons, the targets of the quadratics and step sizes were changed later, results of the held-out methods were
known, and those of the held-out scenarios were not. A cell has the measure of a scenario or method that was held out,
and the range of the others in parentheses. For a scenario: Kendall's tau between its ranking and that of all other
scenarios, and between its rankings by random halves of the seeds. For a method: the standard deviation of its rank by
loss over the scenarios, and over the seeds of a scenario (mean over the scenarios). For both: the shares of the runs
that failed, and that reach the target. {inside} of {count} measures are within the range of the others. If what was
held out does not differ systematically from the others, at least {expected:.1f} are expected. So few scenarios and
methods can show a large difference only."""


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
    """What the page says of what was held out: sentences, and the rows of both tables.

    Empty where one of these scenarios and methods has no results, or there are fewer than two others.

    loss, time: (scenarios, methods, seeds).
    """
    every = {"scenarios": scenarios, "methods": methods}
    others = {kind: [name not in held for name in names] for kind, names in every.items()}
    if not held or not {*held} <= {*scenarios, *methods} or min(map(sum, others.values())) < 2:
        return "", {}
    tables: dict[str, list[list[str]]] = {"scenarios": [], "methods": []}
    inside = count = 0
    expected = 0.0
    for kind, values in measures(loss, time).items():
        low, high = (end(values[others[kind]], axis=0) for end in (np.min, np.max))
        for name, row in zip(every[kind], values, strict=True):
            if name in held:
                cells = [f"{x:.2f} ({a:.2f} to {b:.2f})" for x, a, b in zip(row, low, high, strict=True)]
                tables[kind].append([name, *cells])
                inside += int(((row >= low) & (row <= high)).sum())
                count += len(row)
                others_here = sum(others[kind])  # of m + 1 exchangeable values, 2 are outside the range of the others
                expected += len(row) * (others_here - 1) / (others_here + 1)
    return TEXT.format(names=", ".join(held), count=count, inside=inside, expected=expected), tables
