"""The mean over trials and how far they spread: standard deviation, range, or 95 % interval."""

from __future__ import annotations

import numpy as np

SPREADS = {
    "range": "mean (min-max)",
    "sd": "mean ± standard deviation",
    "ci95": "mean ± half the width of its 95 % interval (Student's t)",
}
BANDS = {"range": "the range from the smallest value to the largest", "sd": "the standard deviation",
         "ci95": "the 95 % interval of the mean"}  # fmt: skip


def mean_and_spread(values: np.ndarray, spread: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean over the first axis, and the two ends of its spread.

    values: (trials, ...), at least one trial; of NaN comes NaN. Of one trial all three are its value.

    range  smallest and largest value
    sd     mean -+ s, s the standard deviation with divisor trials - 1
    ci95   mean -+ t s / sqrt(trials), t the 0.975 quantile of Student's t with trials - 1 degrees of freedom
    """
    mean = values.mean(axis=0)
    if spread == "range" or len(values) == 1:
        return mean, values.min(axis=0), values.max(axis=0)
    half = half_width(values, spread)
    return mean, mean - half, mean + half


def half_width(values: np.ndarray, spread: str) -> np.ndarray:
    """s for "sd", t s / sqrt(trials) for "ci95", as in `mean_and_spread`; NaN of fewer than two trials."""
    trials = len(values)
    if trials < 2:
        return np.full(values.shape[1:], np.nan)
    with np.errstate(over="ignore", invalid="ignore"):  # infinite losses have no deviation
        deviation = values.std(axis=0, ddof=1)
    if spread == "sd":
        return np.asarray(deviation)
    from scipy.special import stdtrit

    return np.asarray(stdtrit(trials - 1, 0.975) * deviation / np.sqrt(trials))
