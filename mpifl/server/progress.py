"""The live line on a terminal: updates a second, mean staleness, latest loss and accuracy, time left."""

from __future__ import annotations

import sys
import time
from math import isnan, nan
from typing import Any

from mpifl.server.evaluator import Evaluator

PERIOD = 0.2  # s between two looks of the line


class Progress:
    """Passes what the server records on to the run file, and shows it where stderr is a terminal."""

    def __init__(self, record: Any, stop: Any, evaluator: Evaluator) -> None:
        self._record, self._evaluator = record, evaluator
        self.time, self.count, self._earlier, self._staleness = 0.0, 0, 0, 0
        self._bar: Any = None
        self._begin = self._next = time.perf_counter()
        self._stop = stop
        if sys.stderr.isatty():
            from tqdm import tqdm

            bar = "{desc} {percentage:3.0f}%|{bar}| {n:.3g}/{total:.3g} {unit} [{elapsed}<{remaining}{postfix}]"
            total, unit = (stop.time, "s") if stop.time else (stop.updates, "updates")
            self._bar = tqdm(total=total, unit=unit, bar_format=bar if total else None, leave=True)

    def resume(self, time: float, updates: int) -> None:
        """The run goes on from here."""
        self.time, self.count, self._earlier = time, updates, updates

    def update(self, at: float, client: int, version: int, staleness: int, *row: Any) -> None:
        self._record.update(at, client, version, staleness, *row)
        self.time = at
        self.count += 1
        if self._bar is not None:
            self._staleness += staleness
            self._show()

    def aggregation(self, at: float, updates: int) -> None:
        self._record.aggregation(at, updates)

    def event(self, *row: Any) -> None:
        self._record.event(*row)

    def state(self, client: int, state: str) -> None:
        self._record.state(client, state)

    def _show(self) -> None:
        now = time.perf_counter()
        if now < self._next:
            return
        self._next, bar, latest = now + PERIOD, self._bar, self._evaluator.latest
        bar.n = self.time if self._stop.time else self.count
        count = self.count - self._earlier
        bar.set_postfix_str(
            f"{count / (now - self._begin):,.0f} updates/s, staleness {self._staleness / count:.1f}, "
            f"loss {latest.get('train_loss', nan):.3f}, accuracy {latest.get('test_accuracy', nan):.3f}",
            refresh=False,
        )
        bar.refresh()

    def summary(self) -> str:
        """The run in one line."""
        rate = f" ({self.count / self.time:,.0f} a second)" if self.time else ""
        parts = [f"{self.count:,} updates in {self.time:.4g} s{rate}"]
        latest = self._evaluator.latest
        for key, text in (("train_loss", "train loss {:.4f}"), ("test_accuracy", "test accuracy {:.2%}")):
            if not isnan(latest.get(key, nan)):
                parts.append(text.format(latest[key]))
        return ", ".join(parts)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
