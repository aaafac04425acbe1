"""The live line on a terminal: updates a second, mean staleness, latest loss and accuracy, time left."""

from __future__ import annotations

import sys
from typing import Any

from mpifl.evaluate import Evaluator


class Progress:
    """Passes what the server records on to the run file, and shows it where stderr is a terminal."""

    def __init__(self, record: Any, stop: Any, evaluator: Evaluator) -> None:
        self._record, self._evaluator = record, evaluator
        self.time, self._count, self._staleness = 0.0, 0, 0
        self._bar: Any = None
        self._stop = stop
        if sys.stderr.isatty():
            from tqdm import tqdm

            bar = "{desc} {percentage:3.0f}%|{bar}| {n:.3g}/{total:.3g} {unit} [{elapsed}<{remaining}{postfix}]"
            total, unit = (stop.time, "s") if stop.time else (stop.updates, "updates")
            self._bar = tqdm(total=total, unit=unit, bar_format=bar if total else None, mininterval=0.2, leave=True)

    def update(
        self, time: float, client: int, version: int, staleness: int, local_steps: int, bytes: int, norm: float
    ) -> None:
        self._record.update(time, client, version, staleness, local_steps, bytes, norm)
        self.time = time
        if self._bar is not None:
            self._count += 1
            self._staleness += staleness
            self._show()

    def aggregation(self, time: float, updates: int) -> None:
        self._record.aggregation(time, updates)

    def _show(self) -> None:
        bar = self._bar
        bar.n = self.time if self._stop.time else self._count
        if bar.update(0) or bar.last_print_n != bar.n and bar._time() - bar.last_print_t > bar.mininterval:
            seconds = max(bar.format_dict["elapsed"], 1e-9)
            latest = self._evaluator.latest
            bar.set_postfix_str(
                f"{self._count / seconds:,.0f} updates/s, staleness {self._staleness / self._count:.1f}, "
                f"loss {latest.get('train_loss', float('nan')):.3f}, "
                f"accuracy {latest.get('test_accuracy', float('nan')):.3f}",
                refresh=True,
            )
            bar.last_print_t, bar.last_print_n = bar._time(), bar.n

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
