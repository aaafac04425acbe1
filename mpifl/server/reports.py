"""Reports failures of clients and ranks in the log while the run continues: at most one line a second."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping

from mpifl.server.client_table import ASIDE
from mpifl.text import format_count, list_numbers

log = logging.getLogger(__package__)

INTERVAL = 1.0  # s between two lines


class FailureReports:
    """Logs the first failure at once; those of the next second are one line that names the first and counts the rest.

    Ranks that died are always named. The caller calls `flush` while `waiting` is true.
    """

    def __init__(self) -> None:
        self.waiting = False
        self._next = 0.0  # perf_counter from which a line may be logged
        self._died: dict[int, int] = {}  # rank that died -> number of clients that it hosted
        self._texts: list[str] = []
        self._kinds: set[str] = set()  # kinds of refusals that have been reported

    def refused(self, text: str) -> None:
        """An update was refused. Each kind is reported once; texts that differ in numbers alone are of one kind."""
        kind = re.sub(r"\d[\d.e+-]*", "", text)
        if kind not in self._kinds:
            self._kinds.add(kind)
            self._add(f"update refused: {text}")

    def client_lost(self, i: int, state: str, reason: str) -> None:
        """Client i is no longer live. A client whose rank died is reported with the rank."""
        if not re.fullmatch(r"rank \d+ died", reason):
            self._add(f"client {i} is {'set aside' if state == ASIDE else state}: {reason}")

    def ranks_died(self, hosted: Mapping[int, int]) -> None:
        """Ranks have died; hosted: rank -> clients that were on it."""
        self._died |= hosted
        self.waiting = True
        self.flush()

    def _add(self, text: str) -> None:
        self._texts.append(text)
        self.waiting = True
        self.flush()

    def flush(self, now: bool = False) -> None:
        """Logs what is waiting if the last line is a second old, or `now`."""
        if not self.waiting or not (now or time.perf_counter() >= self._next):
            return
        clauses = []
        if self._died:
            clients = format_count(sum(self._died.values()), "client")
            clauses.append(f"{list_numbers('rank', sorted(self._died))} died, with {clients}")
        clauses += self._texts[:1]
        if more := len(self._texts[1:]):
            clauses.append(format_count(more, "more such event"))
        log.warning("; ".join(clauses))
        self.waiting, self._next = False, time.perf_counter() + INTERVAL
        self._died, self._texts = {}, []
