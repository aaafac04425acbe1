"""Checks that the tables of a run file are a consistent history of the server's events.

Nothing here reads a file or runs a job: a `History` has the tables as arrays, and a `Rules` what the job says about the
order of events. Every check raises `Contradiction` at the first row that is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import product
from math import inf, isnan, nan, nextafter
from typing import Any

import numpy as np

from mpifl.algorithms.participation import CohortSampler, Trigger
from mpifl.config.job import Evaluate, Faults, Stop
from mpifl.errors import Contradiction
from mpifl.runfile.fairness import summarise
from mpifl.runfile.tables import TABLES, EventRow, UpdateRow
from mpifl.scheduling.timeline import Timeline
from mpifl.text import progress
from mpifl.transport.layout import Layout

Columns = Mapping[str, np.ndarray]
RUN_EVENTS = (  # events that are about no client
    "checkpoint", "checkpoint-skipped", "checkpoint-failed", "resumed", "changed", "interrupted", "failed", "dropped",
    "evaluation-skipped",
)  # fmt: skip
FAILURES = ("refused", "rehosted", "lost", "aside")  # events that change which messages are in flight


@dataclass(frozen=True)
class Rules:
    """What a job says about the order of events; only what is known is checked."""

    reply: str | None = None  # before, after or deferred; None: messages and triggers are not known
    trigger: Trigger | None = None  # None: an aggregation ends a round
    cohort: CohortSampler | None = None  # None: no rounds
    decides: bool = False  # the method itself decides which updates trigger an aggregation
    seed: int = 0
    virtual: bool = False
    contact_times: Callable[[int, int], float] | None = None  # (client, contact) -> s, of a virtual clock
    always: bool = True  # every client is on all the time
    timeline: Timeline | None = None  # when clients are on; None: always, or not known
    among_available: bool = False  # the members of a round are drawn among those that are on
    split: bool = True  # the delay model may have separate times of computing and exchanging
    rates: np.ndarray | None = None  # (n,) of the clients, 1/s
    header: int = 0  # bytes of a frame's header; 0: sizes are not known
    vectors: tuple[int, int] = (0, 0)  # maximum number of vectors in an update and in a message
    faults: Faults = Faults()
    ranks_per_client: int = 1
    stop: Stop | None = None
    evaluate: Evaluate | None = None
    evaluate_interval: bool = True  # the interval of evaluations is known; false: a resume changed it


@dataclass(frozen=True)
class History:
    """The content of a run file."""

    tables: Mapping[str, Columns]
    """every table by name; text as str"""
    attrs: Mapping[str, Any]
    """the root attributes"""
    config: Mapping[str, Any]
    """the resolved job"""
    model: np.ndarray
    """(d,)"""
    model_version: int
    layout: Sequence[tuple[str, tuple[int, ...]]]
    """names and shapes of the parts of the model"""
    closed: bool
    """whether the run has ended and its file was closed, so that nothing is missing"""
    firm: int
    """updates before which every event is in the tables; all of them in a closed file"""

    @cached_property
    def before(self) -> np.ndarray:
        """(updates + 1,) aggregations before each update, and after the last"""
        order = np.arange(self.rows("updates") + 1)
        return np.searchsorted(self.tables["aggregations"]["updates"], order, side="right")

    def rows(self, table: str) -> int:
        """The number of rows of a table."""
        return len(next(iter(self.tables[table].values())))

    def records(self, table: str, stop: int | None = None) -> Iterator[Any]:
        """The first `stop` rows of a table (None: all) as its typed records."""
        row: Any = TABLES[table].row
        return map(row._make, zip(*(self.tables[table][name][:stop].tolist() for name in row._fields), strict=True))

    def expect(self, table: str, column: str, good: np.ndarray, expected: str | Callable[[int], object]) -> None:
        """Raises Contradiction for the first row that is not good; expected: what would be right in a row."""
        bad = np.flatnonzero(~good)
        if bad.size:
            k = int(bad[0])
            raise wrong(
                table, k, column, self.tables[table][column][k], expected(k) if callable(expected) else expected
            )

    def expect_increasing(self, table: str, column: str, rows: np.ndarray | slice = slice(None)) -> None:
        """Raises Contradiction for the first of these rows with less than the one before."""
        values = self.tables[table][column]
        rows, before = np.arange(len(values))[rows], values.copy()
        before[rows[1:]] = values[rows[:-1]]
        self.expect(table, column, ~(values < before), lambda k: f"at least {before[k]}, as in the row before")


def wrong(table: str, row: int, column: str, value: object, expected: object) -> Contradiction:
    value = value.item() if isinstance(value, np.generic) else value
    return Contradiction(f"{table} row {row}: {column} is {value!r}, expected {expected}")


def is_missing(values: np.ndarray) -> np.ndarray:
    """(rows,) whether each value is missing, in a column that older versions did not have."""
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)


def verify(history: History, rules: Rules) -> None:
    """Raises Contradiction at the first row that contradicts another one, or the job."""
    for check in (
        _attributes, _values, _delays, _accuracies, _clients_at_start, _bytes, _versions, _order, _evaluations,
        _client_evaluations, _metrics, _logged, _clients_at_end, _end,
    ):  # fmt: skip
        check(history, rules)


# -- values by themselves ----------------------------------------------------------------------------------------------
def _attributes(h: History, rules: Rules) -> None:
    algorithm = h.config.get("algorithm")
    expected = {
        "clients": h.rows("clients"),
        "seed": h.config.get("seed"),
        "name": h.config.get("name"),
        "algorithm": algorithm.get("name") if isinstance(algorithm, Mapping) else algorithm,
    }
    for name, value in expected.items():
        if name in h.attrs and value is not None and h.attrs[name] != value:
            raise Contradiction(f"attribute {name} is {h.attrs[name]!r}, expected {value!r}")
    hosts, ranks = h.attrs.get("hosts"), h.attrs.get("ranks")
    hosts = json.loads(hosts) if isinstance(hosts, str) and hosts else hosts
    if hosts and ranks is not None and len(hosts) != ranks:
        raise Contradiction(f"attribute hosts has {len(hosts)} names, expected {ranks}, one for each rank")
    size = sum(int(np.prod(shape, dtype=float)) for _, shape in h.layout)
    if h.layout and size != h.model.size:
        raise Contradiction(f"model/x has {h.model.size} values, expected {size}, by its layout")
    for name in ("started", "finished"):
        if h.attrs.get(name):
            try:
                datetime.fromisoformat(str(h.attrs[name]))
            except ValueError:
                raise Contradiction(f"attribute {name} is {h.attrs[name]!r}, expected a time in ISO 8601") from None


def _values(h: History, rules: Rules) -> None:
    """Bounds of single values, and orders within a column."""
    n = h.rows("clients")
    for table, low in (("updates", 0), ("client_evaluations", 0), ("events", -1)):
        client = h.tables[table]["client"]
        h.expect(table, "client", (client >= low) & (client < n), f"one of {n} clients")
    for table in ("updates", "aggregations", "events", "evaluations"):
        time = h.tables[table]["time"]
        h.expect(table, "time", np.isfinite(time) & (time >= 0), "a time of 0 s or more")
        if table in ("updates", "aggregations"):
            h.expect_increasing(table, "time")
    for table, names in (("updates", ("version", "local_steps", "bytes")), ("evaluations", ("updates", "version"))):
        for name in names:
            h.expect(table, name, h.tables[table][name] >= 0, "0 or more")
    norm = h.tables["updates"]["norm"]
    most = f", at most {rules.faults.norm}" if rules.faults.norm else ""
    good = np.isfinite(norm) & (norm >= 0) & (norm <= (rules.faults.norm or inf))
    h.expect("updates", "norm", good, f"a finite number of 0 or more{most}")
    kind, client = h.tables["events"]["kind"], h.tables["events"]["client"]
    of_client, of_run = np.isin(kind, FAILURES), np.isin(kind, RUN_EVENTS)
    h.expect("events", "client", ~of_client | (client >= 0), lambda k: f"a client, since kind is {kind[k]!r}")
    h.expect("events", "client", ~of_run | (client == -1), lambda k: f"-1, since kind is {kind[k]!r}")


def _delays(h: History, rules: Rules) -> None:
    """Times that updates and evaluations took."""
    u, age = h.tables["updates"], h.tables["evaluations"]["age"]
    h.expect("updates", "compute", is_missing(u["compute"]) | (u["compute"] >= 0), "0 s or more")
    if rules.virtual and not rules.split:
        for name in ("compute", "exchange"):
            h.expect("updates", name, is_missing(u[name]), "NaN: the delay model does not give it")
    waited = u["waited"]
    if rules.always:
        h.expect("updates", "waited", waited == 0, "0 s: clients are always on")
    else:
        h.expect("updates", "waited", np.isfinite(waited) & (waited >= 0), "0 s or more")
    if rules.virtual:
        h.expect("evaluations", "age", is_missing(age) | (age == 0), "0 s")
    else:
        h.expect("evaluations", "age", is_missing(age) | (age >= 0), "0 s or more")


def _accuracies(h: History, rules: Rules) -> None:
    e = h.tables["evaluations"]
    names = [("evaluations", name) for name in e if "accuracy" in name]
    for table, name in [*names, ("client_evaluations", "accuracy"), ("client_evaluations", "personal_accuracy")]:
        values = h.tables[table][name]
        good = is_missing(values) & (name != "accuracy") | ((values >= 0) & (values <= 1))
        h.expect(table, name, good, "0 to 1")
    for whose, (lower, upper) in product(("personal", "client"), (("q25", "median"), ("median", "q75"))):
        least, name = e[f"{whose}_accuracy_{lower}"], f"{whose}_accuracy_{upper}"
        h.expect("evaluations", name, ~(e[name] < least), lambda k: f"at least {least[k]}")  # noqa: B023
    best = e["personal_accuracy_best"]
    if len(best) and not h.attrs.get("resumed_from"):  # a file resumed from an older version has only some
        highest = np.fmax.accumulate(e["personal_accuracy_mean"])
        good = is_missing(best) | (best == highest)
        h.expect("evaluations", "personal_accuracy_best", good, lambda k: highest[k])


def _clients_at_start(h: History, rules: Rules) -> None:
    """Columns of the clients that do not change during the run."""
    clients, n = h.tables["clients"], h.rows("clients")
    home = Layout(int(h.attrs.get("ranks") or 1), rules.ranks_per_client).home(np.arange(n))
    h.expect("clients", "rank", clients["rank"] == home, lambda k: home[k])
    if (rates := rules.rates) is not None:
        h.expect("clients", "rate", clients["rate"] == rates, lambda k: f"{rates[k]}, by the delay model")
    on = clients["on"]
    h.expect("clients", "on", is_missing(on) | ((on >= 0) & (on <= 1)), "0 to 1")
    h.expect("clients", "samples", clients["samples"] >= 0, "0 or more")


def _bytes(h: History, rules: Rules) -> None:
    """A frame has a header and whole vectors."""
    if not rules.header or not h.model.size:
        return
    for name, most in zip(("bytes", "bytes_down"), rules.vectors, strict=True):
        values = h.tables["updates"][name]
        count, rest = np.divmod(np.where(is_missing(values), rules.header, values) - rules.header, h.model.nbytes)
        good = (rest == 0) & (count >= 0) & ((count <= most) | (most == 0))
        if name == "bytes_down" and h.attrs.get("resumed_from"):  # 0 in rows of an older version
            good |= values == 0
        h.expect("updates", name, good, f"{rules.header} + {h.model.nbytes} for each of at most {most} vectors")


# -- versions ----------------------------------------------------------------------------------------------------------
def _versions(h: History, rules: Rules) -> None:
    """Staleness is the model's version when an update is consumed minus the update's version; counts agree."""
    u, made, total = h.tables["updates"], h.tables["aggregations"]["updates"], h.rows("updates")
    h.expect("aggregations", "updates", (made >= 0) & (made <= total), f"0 to {total}")
    h.expect_increasing("aggregations", "updates")
    version, client, before = u["version"], u["client"], h.before[:-1]
    h.expect("updates", "version", version <= before, lambda k: f"at most {before[k]}, the model's at that time")

    def staleness(k: int) -> str:
        return f"{before[k] - version[k]}: the model had version {before[k]}, the update {version[k]}"

    h.expect("updates", "staleness", u["staleness"] == before - version, staleness)
    order = np.argsort(client, kind="stable")
    same = client[order][1:] == client[order][:-1]
    last = np.full(total, -1)
    last[order[1:][same]] = before[order[:-1][same]]

    def earlier(k: int) -> str:
        return f"at least {last[k]}: client {client[k]} got its message after its previous update"

    h.expect("updates", "version", version >= last, earlier)


def _instants(h: History, table: str, low: np.ndarray) -> None:
    """`updates` and `version` of a row name a point between two updates, and never decrease. -1: not known."""
    updates, version, total = h.tables[table]["updates"], h.tables[table]["version"], h.rows("updates")
    known = (updates >= 0) & (version >= 0)
    h.expect(table, "updates", ~known | (updates <= total), f"at most {total}")
    at = np.clip(updates, 0, total)
    good = ~known | ((version >= low[at]) & (version <= h.before[at]))
    h.expect(table, "version", good, lambda k: f"{low[at[k]]} to {h.before[at[k]]} after {updates[k]} updates")
    h.expect_increasing(table, "updates", known)
    h.expect_increasing(table, "version", known)  # tested for rows between the same two updates, it holds for all


# -- the order of events -----------------------------------------------------------------------------------------------
class ServerModel:
    """The server as the job describes it: which message each client has, and when an aggregation is due."""

    def __init__(self, h: History, rules: Rules) -> None:
        self.h, self.rules, self.n = h, rules, h.rows("clients")
        # Under the real clock, older versions recorded when an event was due.
        self.times_are_exact = rules.virtual or not is_missing(h.tables["evaluations"]["age"]).any()
        self.version = self.pending = self.round_size = self.timed = 0
        self.message: list[int | None] = [None] * self.n  # version of the message in flight
        self.sent = [nan] * self.n  # s: when it was sent
        self.contacts = [0] * self.n  # messages sent
        self.refused = [0] * self.n  # updates refused in a row
        self.inactive: set[int] = set()
        self.waiting: list[int] = []
        self.in_flight = 0
        self.own = np.zeros(h.rows("updates") + 1, int)  # 1: the update triggered an aggregation by itself
        self.next_time = rules.trigger.next_time(0.0, 0, rules.seed) if rules.trigger else inf
        self._made = h.tables["aggregations"]["updates"].tolist()
        self._times = h.tables["aggregations"]["time"].tolist()
        events = enumerate(h.records("events"))
        self._failures: list[tuple[int, EventRow]] = [(k, event) for k, event in events if event.kind in FAILURES]
        self._failed = 0  # number of failures that were applied

    def run(self) -> None:
        """Goes through the updates in order. Raises Contradiction."""
        if any(event.updates < 0 for _, event in self._failures):  # an older version: their place is not known
            return
        self._start_round(0.0)
        self._between(0)
        for k, update in enumerate(progress(self.h.records("updates", self.h.firm), "checking updates", self.h.firm)):
            self._update(k, update)
            self._between(k + 1)
        if self.h.closed and self._failed < len(self._failures):
            raise self._out_of_place(*self._failures[self._failed])

    @staticmethod
    def _out_of_place(row: int, event: EventRow) -> Contradiction:
        return wrong("events", row, "version", event.version, f"one that the server had at {event.updates} updates")

    def _send(self, members: Sequence[int], time: float) -> None:
        for i in members:
            if self.message[i] is None:
                self.in_flight += 1
            self.message[i] = self.version
            self.sent[i] = time
            self.contacts[i] += 1

    def _start_round(self, time: float) -> None:
        cohort = self.rules.cohort
        if cohort is None:
            self._send([i for i in range(self.n) if i not in self.inactive], time)
            return
        inactive = frozenset(self.inactive)
        if self.rules.among_available and self.rules.timeline:
            drawn = cohort.sample(self.version, inactive, self.rules.timeline.off(time, inactive))
        else:
            drawn = cohort.sample(self.version, inactive)
        members = list(dict.fromkeys(drawn))
        self.round_size = len(members)
        self._send(members, time)

    def _drop(self, i: int) -> bool:
        """Client i has no message any more; whether it had one."""
        had = self.message[i] is not None
        self.in_flight -= had
        self.message[i] = None
        return had

    def _update(self, k: int, update: UpdateRow) -> None:
        rules, i, time, sent = self.rules, update.client, update.time, self.message[update.client]
        if i in self.inactive:
            raise wrong("updates", k, "client", i, "a live client; this one was lost or set aside")
        if sent is None:
            raise wrong("updates", k, "client", i, "a client with a message to answer; this one had none")
        if update.version != sent:
            raise wrong("updates", k, "version", update.version, f"{sent}, of the last message to client {i}")
        if rules.virtual:
            self._check_time(k, update)
            if time > self.next_time:
                raise wrong("updates", k, "time", time, f"at most {self.next_time}, when an aggregation is due")
        self._drop(i)
        self.refused[i] = 0
        self.pending += 1
        if rules.reply == "before":
            self._send([i], time)
        elif rules.reply == "deferred" and not rules.cohort:
            self.waiting.append(i)
        if rules.decides:
            due_now = self._next_made() == k + 1
        elif rules.trigger:
            due_now = rules.trigger.due(self.pending, k + 1, rules.seed)
        else:
            due_now = self.pending >= self.round_size
        if due_now:
            if self._next_made() == k + 1:
                self._own_aggregation(k, time)
            elif self.h.closed and (k + 1 < self.h.rows("updates") or not self._may_end_with_an_update()):
                found = self._next_made()
                if found is None:
                    raise Contradiction(f"aggregations: {self.version} rows, expected one more after {k + 1} updates")
                raise wrong("aggregations", self.version, "updates", found, k + 1)
        if rules.reply == "after":
            self._send([i], time)

    def _check_time(self, k: int, update: UpdateRow) -> None:
        """Checks when an update was due under the virtual clock."""
        rules, i, sent = self.rules, update.client, self.sent[update.client]
        seconds = update.compute + update.exchange
        if rules.contact_times:
            seconds = rules.contact_times(i, self.contacts[i] - 1)
        if isnan(seconds) or not (rules.always or rules.timeline):  # the due time is not known
            return
        if not rules.timeline:
            begin, due, models = sent, sent + seconds, "the delay model"
        else:
            (begin, due), models = rules.timeline.contact(i, sent, seconds), "the delay model and clock.availability"
        if update.time != due:
            raise wrong("updates", k, "time", update.time, f"{due}, by {models}")
        if update.waited != begin - sent:
            raise wrong("updates", k, "waited", update.waited, f"{begin - sent}, by clock.availability")

    def _may_end_with_an_update(self) -> bool:
        """Whether the last update may lack its aggregation: the run failed then, or repeats a record without it."""
        return self.h.attrs.get("status") == "failed" or self.h.attrs.get("clock") == "replay"

    def _next_made(self) -> int | None:
        return self._made[self.version] if self.version < len(self._made) else None

    def _own_aggregation(self, k: int, time: float) -> None:
        found = self._times[self.version]
        if found != time:
            raise wrong("aggregations", self.version, "time", found, f"{time}, the time of its last update")
        self.own[k + 1] = 1
        self._aggregate(time)

    def _aggregate(self, time: float) -> None:
        self.version, self.pending = self.version + 1, 0
        if self.rules.cohort:
            self._start_round(time)
        elif self.rules.reply == "deferred":
            waiting, self.waiting = self.waiting, []
            self._send(waiting, time)

    def _between(self, updates: int) -> None:
        """The aggregations and failures after so many updates and before the next one."""
        while True:
            if self._failed < len(self._failures):
                row, event = self._failures[self._failed]
                if (event.updates, event.version) == (updates, self.version):
                    self._failed += 1
                    self._fail(row, event)
                    continue
                if event.updates < updates:
                    raise self._out_of_place(row, event)
            if self._next_made() != updates:
                return
            self._separate_aggregation(updates)

    def _separate_aggregation(self, updates: int) -> None:
        """An aggregation that no update triggered: the clock did, or no other update is to come."""
        rules, time = self.rules, self._times[self.version]
        if rules.trigger and rules.trigger.timed:
            if self.times_are_exact and (time != self.next_time if rules.virtual else time < self.next_time):
                raise wrong("aggregations", self.version, "time", time, f"{self.next_time}, by the trigger")
            self.timed += 1
            after = rules.trigger.next_time(time, self.timed, rules.seed)
            self.next_time = max(after, nextafter(time, inf))
        elif not self.pending or self.in_flight:
            text = f"{self.pending} after the previous aggregation, expected as many as the trigger requires"
            raise Contradiction(f"aggregations row {self.version}: updates is {updates}, {text}")
        self._aggregate(time)

    def _fail(self, row: int, event: EventRow) -> None:
        i, rules = event.client, self.rules
        if i < 0:
            raise wrong("events", row, "client", i, "a client")
        if event.kind == "refused":
            if i in self.inactive:
                return
            if self.message[i] is None:
                raise wrong("events", row, "client", i, "a client with a message to answer; this one had none")
            self.refused[i] += 1
            if self.refused[i] >= rules.faults.refusals:
                return  # the client is set aside
            self._drop(i)
            self._send([i], event.time)
        elif event.kind == "rehosted":
            if self._drop(i):
                self._send([i], event.time)
        else:
            if i in self.inactive:
                raise wrong("events", row, "client", i, "a live client; this one was lost or set aside before")
            if event.kind == "aside" and self.refused[i] < (most := rules.faults.refusals):
                text = f"a client with {most} updates refused in a row; this one has {self.refused[i]}"
                raise wrong("events", row, "client", i, text)
            self.inactive.add(i)
            if i in self.waiting:
                self.waiting.remove(i)
            if self._drop(i) and rules.cohort:
                self.round_size -= 1
                if not self.round_size:
                    self._start_round(event.time)


def _order(h: History, rules: Rules) -> None:
    """Each client has one message in flight and answers its version; aggregations are made when they are due."""
    low = np.concatenate([[0], h.before[:-1]])  # before the update itself triggered an aggregation
    if rules.reply:
        model = ServerModel(h, rules)
        model.run()
        low += model.own
    _instants(h, "evaluations", low)
    _instants(h, "events", low)


# -- evaluations and events beside updates -----------------------------------------------------------------------------
def _evaluations(h: History, rules: Rules) -> None:
    """No row is earlier than an update that it reflects, nor later than the next one."""
    e, events = h.tables["evaluations"], h.tables["events"]
    exact = np.ones(len(e["time"]), bool) if rules.virtual else ~is_missing(e["age"])
    _beside(h, "evaluations", exact)
    if exact.all():
        h.expect_increasing("evaluations", "time")
        if len(exact):  # files of older versions have events with the time at which they were due
            _beside(h, "events", (events["updates"] >= 0) & (events["version"] >= 0))
    if not h.closed or h.attrs.get("clock") == "replay" or (events["kind"] == "evaluation-skipped").any():
        return
    if not rules.evaluate or not rules.evaluate_interval:
        return
    every, last = rules.evaluate.every, float(e["time"].max(initial=0.0))
    if (step := rules.evaluate.updates) and h.attrs.get("status") == "completed":
        made = set(e["updates"].tolist())
        for count in range(0, h.rows("updates") + 1, step):
            if count not in made:
                raise Contradiction(f"evaluations: none after {count} updates, expected one every {step}")
    if every and rules.virtual:
        if last / every > len(exact) + 1:
            raise Contradiction(f"evaluations: {len(exact)} rows up to {last} s, expected one every {every} s")
        made = set(e["time"].tolist())
        for k in range(int(last / every)):
            if k * every not in made:
                raise Contradiction(f"evaluations: none at {k * every} s, expected one every {every} s")


def _beside(h: History, table: str, which: np.ndarray) -> None:
    """Each row's time is between those of the updates and aggregations around it. which: the rows to check."""
    time = h.tables[table]["time"]
    for column, what, other in (("updates", "update", "updates"), ("version", "aggregation", "aggregations")):
        times = h.tables[other]["time"]
        count = np.clip(h.tables[table][column], 0, len(times))
        around = np.concatenate([[0.0], times, [inf]])
        low, high = around[count], around[count + 1]
        for good, text, bound in (
            (time >= low, f"at least {{}}, the time of the {what} before", low),
            (time <= high, f"at most {{}}, the time of the next {what}", high),
        ):
            h.expect(table, "time", ~which | good, lambda k: text.format(bound[k]))  # noqa: B023


def _client_evaluations(h: History, rules: Rules) -> None:
    """Each evaluation has its clients once, in ascending order, and their summary is that of its row."""
    table, e, total = "client_evaluations", h.tables["evaluations"], h.rows("evaluations")
    row, client, accuracy = (h.tables[table][name] for name in ("evaluation", "client", "accuracy"))
    h.expect(table, "evaluation", (row >= 0) & (row < total), f"0 to {total - 1}, a row of evaluations")
    h.expect_increasing(table, "evaluation")
    good = np.ones(len(row), bool)
    good[1:] = (row[1:] > row[:-1]) | (client[1:] > client[:-1])
    h.expect(table, "client", good, lambda k: f"more than {client[k - 1]}, as clients ascend in an evaluation")
    rows, first, counts = np.unique(row, return_index=True, return_counts=True)
    for k, start, count in zip(rows.tolist(), first.tolist(), counts.tolist(), strict=True):
        if not h.closed and k == rows[-1]:  # the last evaluation's rows may have been written in part
            break
        if count != counts[0]:
            raise Contradiction(f"{table}: {count} rows of evaluation {k}, expected {counts[0]}")
        for name, expected in summarise(accuracy[start : start + count]).items():
            value = e[f"client_accuracy_{name}"][k]
            if not np.isclose(value, expected, rtol=1e-9, atol=1e-12):
                raise wrong("evaluations", k, f"client_accuracy_{name}", value, f"{expected}, by the table {table}")
    if (
        rules.evaluate
        and rules.evaluate.clients
        and h.attrs.get("status") == "completed"
        and h.closed
        and len(rows) != total
    ):
        raise Contradiction(f"{table}: rows of {len(rows)} evaluations, expected {total}")


def _metrics(h: History, rules: Rules) -> None:
    """Each evaluation has the metrics of the job, in their order; fractions are from 0 to 1."""
    row, name, value = (h.tables["metrics"][column] for column in ("evaluation", "metric", "value"))
    if not rules.evaluate:
        return
    names, total, order = rules.evaluate.metrics, h.rows("evaluations"), np.arange(len(row))
    rows, count = total * len(names), max(1, len(names))
    h.expect("metrics", "evaluation", order < rows, f"{rows} rows in all")
    h.expect("metrics", "evaluation", row == order // count, lambda k: k // count)
    wanted = np.array([names[k % count] for k in range(len(row))], object)
    h.expect("metrics", "metric", name == wanted, lambda k: f"{wanted[k]!r}, by evaluate.metrics")
    own = np.array([":" in each for each in name.tolist()], bool)
    h.expect("metrics", "value", own | np.isnan(value) | ((value >= 0) & (value <= 1)), "0 to 1")
    if h.attrs.get("status") == "completed" and h.closed and len(row) != rows:
        raise Contradiction(f"metrics: {len(row)} rows, expected {len(names)} for each of {total} evaluations")


def _logged(h: History, rules: Rules) -> None:
    """Each number belongs to an update or to an aggregation, in their order."""
    update, aggregation = h.tables["logged"]["update"], h.tables["logged"]["aggregation"]
    for name, rows, table in (("update", update, "updates"), ("aggregation", aggregation, "aggregations")):
        good = (rows >= -1) & (rows < h.rows(table)) & ((update < 0) != (aggregation < 0))
        h.expect("logged", name, good, f"a row of {table}, or -1 where the number has one of the other table")
        h.expect_increasing("logged", name, rows >= 0)


# -- the end -----------------------------------------------------------------------------------------------------------
def _clients_at_end(h: History, rules: Rules) -> None:
    """Columns of the clients that follow from other tables once the run is over."""
    if not h.closed:
        return
    clients, events = h.tables["clients"], h.tables["events"]
    count = np.bincount(h.tables["updates"]["client"], minlength=h.rows("clients"))
    h.expect("clients", "updates", clients["updates"] == count, lambda k: f"{count[k]}, by the table updates")
    state = np.full(len(count), "live", object)
    for kind, i in zip(events["kind"].tolist(), events["client"].tolist(), strict=True):
        if kind in ("lost", "aside"):
            state[i] = kind
    h.expect("clients", "state", clients["state"] == state, lambda k: f"{state[k]!r}, by the table events")


def _end(h: History, rules: Rules) -> None:
    attrs, status, count, stop = h.attrs, h.attrs.get("status"), h.rows("updates"), rules.stop
    if stop and stop.updates and count > stop.updates:
        raise Contradiction(f"updates: {count} rows, expected at most stop.updates={stop.updates}")
    if rules.virtual and stop and stop.time:
        for table in ("updates", "aggregations", "evaluations"):
            h.expect(table, "time", h.tables[table]["time"] <= stop.time, f"at most stop.time={stop.time}")
    if not h.closed:
        return
    if not attrs.get("finished"):
        raise Contradiction(f"attribute finished is empty, expected a time, since status is {status!r}")
    kinds = h.tables["events"]["kind"].tolist()
    if status == "completed" and (ended := {*kinds} & {"failed", "interrupted"}):
        raise Contradiction(f"attribute status is 'completed', expected {ended.pop()!r}, by the table events")
    if status == "interrupted" and "interrupted" not in kinds:
        raise Contradiction("attribute status is 'interrupted', expected an event that says so")
    made = h.rows("aggregations")
    if status in ("completed", "interrupted") and h.model_version != made:
        raise Contradiction(f"model/x has version {h.model_version}, expected {made}, the number of aggregations")
    resumed = kinds.count("resumed")
    if "resumed_from" in attrs and bool(resumed) != bool(attrs["resumed_from"]):
        raise Contradiction(f"attribute resumed_from is {attrs['resumed_from']}, with {resumed} events 'resumed'")
    train_every = rules.evaluate.train_every if rules.evaluate else 1
    if status == "completed" and attrs.get("clock") != "replay" and stop and not any(_reached(h, stop, train_every)):
        raise Contradiction("attribute status is 'completed', but the run met no condition of its `stop`")


def _reached(h: History, stop: Stop, train_every: int) -> Iterator[bool]:
    """Whether each `stop` condition that the job gives was met."""
    e = h.tables["evaluations"]
    if stop.updates:
        yield h.rows("updates") >= stop.updates
    if stop.time:
        yield bool((e["time"] >= stop.time).any())
    if stop.accuracy:
        yield bool((e["test_accuracy"] >= stop.accuracy).any())
    if stop.plateau:
        values = e[stop.plateau.metric] * (1 if stop.plateau.metric.endswith("accuracy") else -1)
        values = np.nan_to_num(values, nan=-inf, posinf=inf, neginf=-inf)
        before = np.maximum.accumulate(np.append(-inf, values))[:-1]
        row = np.arange(len(values))
        best = np.maximum.accumulate(np.where(values > before, row, -1))
        yield bool((row - best >= stop.plateau.rows(train_every)).any())
