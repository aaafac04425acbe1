"""How accuracy is spread over the clients: mean, quartiles, the worst tenth, variance.

The measures are those of q-FFL (Li, Sanjabi, Beirami, Smith, arXiv 1905.10497, Table 1), as fractions.
"""

from __future__ import annotations

import numpy as np

SUMMARY = ("mean", "q25", "median", "q75", "worst", "variance")


def summarise(accuracies: np.ndarray) -> dict[str, float]:
    """The members of `SUMMARY` over the clients whose accuracy is known; none where it is of no client.

    worst: the mean of the ceil(m/10) lowest of m accuracies. variance: mean squared distance from the mean.

    accuracies: (n,), from 0 to 1; NaN where a client has no test rows
    """
    known = np.sort(accuracies[~np.isnan(accuracies)])
    if not len(known):
        return {}
    worst = known[: -(-len(known) // 10)]
    values = [known.mean(), *np.percentile(known, [25, 50, 75]), worst.mean(), known.var()]
    return dict(zip(SUMMARY, map(float, values), strict=True))
