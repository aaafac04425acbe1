"""The clients' data, and the time of an update or round, the same for every framework: NumPy alone."""

from __future__ import annotations

import numpy as np

FEATURES, CLASSES, ROWS = 784, 10, 200  # rows of a client
STEP = 0.01


def rows(client: int) -> tuple[np.ndarray, np.ndarray]:
    """x (rows, features) float32 and y (rows,) of a client."""
    draw = np.random.default_rng(client)
    return draw.random((ROWS, FEATURES), np.float32), np.r_[
        np.arange(CLASSES), draw.integers(0, CLASSES, ROWS - CLASSES)
    ]


def seconds_each(times: list[float]) -> float:
    """Mean seconds from one of these times to the next, without the first fifth of the run."""
    warm = len(times) // 5
    return (times[-1] - times[warm]) / (len(times) - 1 - warm)
