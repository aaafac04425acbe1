"""The progress bar on a terminal, and the one-line summary of a run."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from math import isnan, nan
from typing import Any

from mpifl.runfile.tables import UpdateRow
from mpifl.server.evaluator import Evaluator
from mpifl.text import format_count

LOGGERS = (logging.getLogger("mpifl"), logging.getLogger())
PERIOD = 0.2  # s between two redraws


class ProgressBar:
    """Updates a second, mean staleness, latest loss and accuracy, time left. An observer of the server loop."""

    def __init__(self, stop: Any, evaluator: Evaluator, updates: int = 0) -> None:
        """stop: the job's; updates: those consumed before the run was resumed."""
        from tqdm import tqdm
        from tqdm.contrib.logging import logging_redirect_tqdm

        self._stop, self._evaluator = stop, evaluator
        self._earlier, self._count, self._staleness = updates, 0, 0
        self._begin = self._next = time.perf_counter()
        form = "{desc} {percentage:3.0f}%|{bar}| {n:.3g}/{total:.3g} {unit} [{elapsed}<{remaining}{postfix}]"
        total, unit = (stop.time, "s") if stop.time else (stop.updates, "updates")
        self._bar = tqdm(total=total, unit=unit, bar_format=form if total else None, leave=True)
        self._redirected = logging_redirect_tqdm([log for log in LOGGERS if _on_terminal(log)])
        self._redirected.__enter__()  # what is logged gets lines of its own, above the bar

    def on_update(self, row: UpdateRow) -> None:
        self._count += 1
        self._staleness += row.staleness
        self._bar.n = row.time if self._stop.time else self._earlier + self._count
        if (now := time.perf_counter()) >= self._next:
            self._next = now + PERIOD
            self._draw(now)

    def _draw(self, now: float) -> None:
        latest = self._evaluator.latest
        self._bar.set_postfix_str(
            f"{self._count / (now - self._begin):,.0f} updates/s, staleness {self._staleness / self._count:.1f}, "
            f"loss {latest.get('train_loss', nan):.3f}, accuracy {latest.get('test_accuracy', nan):.3f}",
            refresh=False,
        )
        self._bar.refresh()

    def close(self, completed: bool = False) -> None:
        """Ends the bar; that of a completed run at 100 %, although its last update comes before its stop."""
        bar, updates = self._bar, self._stop.updates
        if completed and bar.total:
            if self._evaluator.reached or (updates and self._earlier + self._count >= updates):
                bar.total = bar.n  # another stop than that of the bar
            bar.n = bar.total
        if self._count:
            self._draw(time.perf_counter())
        self._redirected.__exit__(None, None, None)
        self._bar.close()


def _on_terminal(logger: logging.Logger) -> bool:
    """Whether a logger prints to the terminal of the bar."""
    return any(isinstance(h, logging.StreamHandler) and h.stream in (sys.stdout, sys.stderr) for h in logger.handlers)


def summary(updates: int, seconds: float, latest: Mapping[str, float], notes: Sequence[str] = ()) -> str:
    """A run in one line; seconds of the run's clock; latest: evaluated metrics; notes: clauses at the end."""
    rate = f" ({updates / seconds:,.0f} a second)" if seconds else ""
    time = f"{seconds:.4g}" if seconds < 9999.5 else f"{seconds:,.0f}"
    parts = [f"{format_count(updates, 'update')} in {time} s{rate}", *format_metrics(latest)]
    return "; ".join([", ".join(parts), *notes])


def format_metrics(latest: Mapping[str, float]) -> list[str]:
    """Training loss and test accuracy as clauses, those that are known."""
    texts = {"train_loss": "train loss {:.4f}", "test_accuracy": "test accuracy {:.2%}"}
    return [text.format(latest[key]) for key, text in texts.items() if not isnan(latest.get(key, nan))]
