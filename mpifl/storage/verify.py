"""Checks that the tables of a run file are a consistent history of the server's events.

Nothing here reads a file or runs a job: tables are dicts of arrays, and what the job says about the order of events is
a `Rules`. Every check raises `Contradiction` at the first row that is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import product
from math import inf, isnan, nan, nextafter
from typing import Any, NamedTuple, Protocol

import numpy as np

from mpifl.errors import Contradiction
from mpifl.storage.fairness import summarise

Columns = Mapping[str, np.ndarray]
RUN_EVENTS = (  # of no client
    "checkpoint", "checkpoint-skipped", "checkpoint-failed", "resumed", "interrupted", "failed", "dropped",
    "evaluation-skipped",
)  # fmt: skip
FAILURES = ("refused", "rehosted", "lost", "aside")  # events that change which messages are in flight


class Sampler(Protocol):
    """Draws the cohort of a round (`mpifl.algorithms.participation.CohortSampler`)."""

    def sample(
        self, round: int, lost: Collection[int] = frozenset(), off: Collection[int] = frozenset()
    ) -> list[int]: ...


class Trigger(Protocol):
    """When the server aggregates (`mpifl.algorithms.participation.Trigger`)."""

    @property
    def timed(self) -> bool: ...

    def due(self, pending: int, updates: int, seed: int) -> bool: ...

    def next_time(self, last: float, aggregations: int, seed: int) -> float: ...


class Timeline(Protocol):
    """When clients are on (`mpifl.scheduling.timeline.Timeline`)."""

    def contact(self, i: int, sent: float, seconds: float) -> tuple[float, float]: ...

    def off(self, time: float, inactive: Collection[int] = ()) -> frozenset[int]: ...


@dataclass(frozen=True)
class Rules:
    """What a job says about the order of events; only what is known is checked."""

    reply: str | None = None  # before, after or deferred; None: messages and triggers are not known
    trigger: Trigger | None = None  # None: an aggregation ends a round
    cohort: Sampler | None = None  # None: no rounds
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
    refusals: int | None = None  # in a row, after which a client is set aside
    norm: float = inf  # of an update, at most
    stop_time: float | None = None
    stop_updates: int | None = None
    stop_accuracy: float | None = None
    evaluate_every: float | None = None
    evaluate_updates: int | None = None
    evaluate_clients: bool = False
    metrics: Sequence[str] = ()  # of `evaluate.metrics`


@dataclass(frozen=True)
class History:
    """The content of a run file.

    closed  whether the run has ended and its file was closed, so that nothing is missing
    firm    updates before which every event is in the tables; all of them in a closed file
    """

    updates: Columns
    aggregations: Columns
    evaluations: Columns
    client_evaluations: Columns
    metrics: Columns  # `metric` as str
    events: Columns  # `kind` as str
    clients: Columns  # `state` as str
    attrs: Mapping[str, Any]
    config: Mapping[str, Any]
    model_size: int
    model_itemsize: int
    model_version: int
    layout: Sequence[tuple[str, tuple[int, ...]]]
    closed: bool
    firm: int
    before: np.ndarray = field(init=False)  # (updates + 1,) aggregations before each update, and after the last

    def __post_init__(self) -> None:
        order = np.arange(len(self.updates["time"]) + 1)
        object.__setattr__(self, "before", np.searchsorted(self.aggregations["updates"], order, side="right"))


def verify(history: History, rules: Rules) -> None:
    """Raises Contradiction at the first row that contradicts another one, or the job."""
    for check in (_attributes, _values, _versions, _order, _evaluations, _client_evaluations, _metrics, _clients, _end):
        check(history, rules)


def expect(good: np.ndarray, table: str, column: str, values: np.ndarray, expected: Callable[[int], object]) -> None:
    """Raises Contradiction for the first row that is not good; expected: what would be right in a row."""
    bad = np.flatnonzero(~good)
    if bad.size:
        k = int(bad[0])
        raise wrong(table, k, column, values[k], expected(k))


def wrong(table: str, row: int, column: str, value: object, expected: object) -> Contradiction:
    value = value.item() if isinstance(value, np.generic) else value
    return Contradiction(f"{table} row {row}: {column} is {value!r}, expected {expected}")


def is_missing(values: np.ndarray) -> np.ndarray:
    """Where a column that older versions did not have has no value."""
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)


# -- values by themselves ----------------------------------------------------------------------------------------------
def _attributes(h: History, rules: Rules) -> None:
    attrs, n = h.attrs, len(h.clients["samples"])
    algorithm = h.config.get("algorithm")
    expected = {
        "clients": n,
        "seed": h.config.get("seed"),
        "name": h.config.get("name"),
        "algorithm": algorithm.get("name") if isinstance(algorithm, Mapping) else algorithm,
    }
    for name, value in expected.items():
        if name in attrs and value is not None and attrs[name] != value:
            raise Contradiction(f"attribute {name} is {attrs[name]!r}, expected {value!r}")
    hosts, ranks = attrs.get("hosts"), attrs.get("ranks")
    hosts = json.loads(hosts) if isinstance(hosts, str) and hosts else hosts
    if hosts and ranks is not None and len(hosts) != ranks:
        raise Contradiction(f"attribute hosts has {len(hosts)} names, expected {ranks}, one for each rank")
    size = sum(int(np.prod(shape, dtype=float)) for _, shape in h.layout)
    if h.layout and size != h.model_size:
        raise Contradiction(f"model/x has {h.model_size} values, expected {size}, by its layout")
    for name in ("started", "finished"):
        if attrs.get(name):
            try:
                datetime.fromisoformat(str(attrs[name]))
            except ValueError:
                raise Contradiction(f"attribute {name} is {attrs[name]!r}, expected a time in ISO 8601") from None


def _values(h: History, rules: Rules) -> None:
    """Bounds of single values, and orders within a column."""
    u, e, n = h.updates, h.evaluations, len(h.clients["samples"])
    for table, columns in (("updates", u), ("client_evaluations", h.client_evaluations), ("events", h.events)):
        clients, low = columns["client"], -1 if table == "events" else 0
        expect((clients >= low) & (clients < n), table, "client", clients, lambda k: f"one of {n} clients")
    for table, columns in (("updates", u), ("aggregations", h.aggregations), ("events", h.events), ("evaluations", e)):
        time = columns["time"]
        expect(np.isfinite(time) & (time >= 0), table, "time", time, lambda k: "a time of 0 s or more")
        if table in ("updates", "aggregations"):
            _increasing(table, "time", time)
    for table, columns, names in (
        ("updates", u, ("version", "local_steps", "bytes")),
        ("evaluations", e, ("updates", "version")),
    ):
        for name in names:
            expect(columns[name] >= 0, table, name, columns[name], lambda k: "0 or more")
    norm = u["norm"]
    expect(
        np.isfinite(norm) & (norm >= 0) & (norm <= rules.norm), "updates", "norm", norm,
        lambda k: "a finite number of 0 or more" + (f", at most {rules.norm}" if rules.norm < inf else ""),
    )  # fmt: skip
    expect(is_missing(u["compute"]) | (u["compute"] >= 0), "updates", "compute", u["compute"], lambda k: "0 s or more")
    if rules.virtual and not rules.split:
        for name in ("compute", "exchange"):
            expect(is_missing(u[name]), "updates", name, u[name], lambda k: "NaN: the delay model does not give it")
    waited = u["waited"]
    expect(
        np.isfinite(waited) & ((waited == 0) if rules.always else (waited >= 0)),
        "updates",
        "waited",
        waited,
        lambda k: "0 s: clients are always on" if rules.always else "0 s or more",
    )
    age = e["age"]
    expect(
        is_missing(age) | (age == 0 if rules.virtual else age >= 0),
        "evaluations",
        "age",
        age,
        lambda k: "0 s" if rules.virtual else "0 s or more",
    )
    kind, client = h.events["kind"], h.events["client"]
    expect(
        ~np.isin(kind, FAILURES) | (client >= 0),
        "events",
        "client",
        client,
        lambda k: f"a client, since kind is {kind[k]!r}",
    )
    expect(
        ~np.isin(kind, RUN_EVENTS) | (client == -1),
        "events",
        "client",
        client,
        lambda k: f"-1, since kind is {kind[k]!r}",
    )
    _bytes(h, rules)
    fractions = [("evaluations", name, values) for name, values in e.items() if "accuracy" in name]
    by_client = h.client_evaluations
    fractions += [("client_evaluations", name, by_client[name]) for name in ("accuracy", "personal_accuracy")]
    for table, name, values in fractions:
        good = is_missing(values) & (name != "accuracy") | ((values >= 0) & (values <= 1))
        expect(good, table, name, values, lambda k: "0 to 1")
    for whose, (lower, upper) in product(("personal", "client"), (("q25", "median"), ("median", "q75"))):
        values, least = e[f"{whose}_accuracy_{upper}"], e[f"{whose}_accuracy_{lower}"]
        expect(
            ~(values < least),
            "evaluations",
            f"{whose}_accuracy_{upper}",
            values,
            lambda k: f"at least {least[k]}",  # noqa: B023
        )
    best = e["personal_accuracy_best"]
    if len(best) and not h.attrs.get("resumed_from"):  # a file resumed from an older version has only some
        highest = np.fmax.accumulate(e["personal_accuracy_mean"])
        expect(
            is_missing(best) | (best == highest), "evaluations", "personal_accuracy_best", best, lambda k: highest[k]
        )
    ranks = int(h.attrs.get("ranks") or 1)
    home = 1 + np.arange(n) % (ranks - 1) if ranks > 1 else np.zeros(n, int)
    expect(h.clients["rank"] == home, "clients", "rank", h.clients["rank"], lambda k: home[k])
    if (rates := rules.rates) is not None:
        rate = h.clients["rate"]
        expect(rate == rates, "clients", "rate", rate, lambda k: f"{rates[k]}, by the delay model")
    on = h.clients["on"]
    expect(is_missing(on) | ((on >= 0) & (on <= 1)), "clients", "on", on, lambda k: "0 to 1")
    expect(h.clients["samples"] >= 0, "clients", "samples", h.clients["samples"], lambda k: "0 or more")


def _increasing(table: str, column: str, values: np.ndarray) -> None:
    good = np.ones(len(values), bool)
    good[1:] = values[1:] >= values[:-1]
    expect(good, table, column, values, lambda k: f"at least {values[k - 1]}, as in the row before")


def _bytes(h: History, rules: Rules) -> None:
    """A header and whole vectors."""
    vector = h.model_size * h.model_itemsize
    if not rules.header or not vector:
        return
    for name, most in zip(("bytes", "bytes_down"), rules.vectors, strict=True):
        values = h.updates[name]
        count, rest = np.divmod(np.where(is_missing(values), rules.header, values) - rules.header, vector)
        good = (rest == 0) & (count >= 0) & ((count <= most) | (most == 0))
        if name == "bytes_down" and h.attrs.get("resumed_from"):  # 0 in rows of an older version
            good |= values == 0
        expect(good, "updates", name, values, lambda k: f"{rules.header} + {vector} for each of at most {most} vectors")  # noqa: B023


# -- versions ----------------------------------------------------------------------------------------------------------
def _versions(h: History, rules: Rules) -> None:
    """Staleness is the model's version when an update is consumed minus the update's version; counts agree."""
    u, made = h.updates, h.aggregations["updates"]
    total = len(u["time"])
    expect((made >= 0) & (made <= total), "aggregations", "updates", made, lambda k: f"0 to {total}")
    _increasing("aggregations", "updates", made)
    version, before = u["version"], h.before[:-1]
    expect(version <= before, "updates", "version", version, lambda k: f"at most {before[k]}, the model's at that time")
    good = u["staleness"] == before - version
    expect(
        good, "updates", "staleness", u["staleness"],
        lambda k: f"{before[k] - version[k]}: the model had version {before[k]}, the update {version[k]}",
    )  # fmt: skip
    order = np.argsort(u["client"], kind="stable")
    same = u["client"][order][1:] == u["client"][order][:-1]
    last = np.full(total, -1)
    last[order[1:][same]] = before[order[:-1][same]]
    expect(
        version >= last, "updates", "version", version,
        lambda k: f"at least {last[k]}: client {u['client'][k]} got its message after its previous update",
    )  # fmt: skip


def _instants(h: History, table: str, rows: Columns, low: np.ndarray) -> None:
    """`updates` and `version` of a row name a point between two updates, and never decrease. -1: not known."""
    updates, version = rows["updates"], rows["version"]
    known = (updates >= 0) & (version >= 0)
    total = len(h.updates["time"])
    expect(~known | (updates <= total), table, "updates", updates, lambda k: f"at most {total}")
    at = np.clip(updates, 0, total)
    expect(
        ~known | ((version >= low[at]) & (version <= h.before[at])),
        table, "version", version, lambda k: f"{low[at[k]]} to {h.before[at[k]]} after {updates[k]} updates",
    )  # fmt: skip
    rank = np.flatnonzero(known)
    for name, fixed in (("updates", None), ("version", updates)):
        values = rows[name][rank]
        good = np.ones(len(rows[name]), bool)
        good[rank[1:]] = (values[1:] >= values[:-1]) | (
            np.zeros(len(rank) - 1 if len(rank) else 0, bool) if fixed is None else fixed[rank][1:] != fixed[rank][:-1]
        )
        expect(good, table, name, rows[name], lambda k: "not less than in the row before")


# -- the order of events -----------------------------------------------------------------------------------------------
class Failure(NamedTuple):
    row: int
    time: float
    kind: str
    client: int
    updates: int
    version: int


class ServerModel:
    """The server as the job describes it: which message each client has, and when an aggregation is due."""

    def __init__(self, h: History, rules: Rules) -> None:
        self.h, self.rules, self.n = h, rules, len(h.clients["samples"])
        self.times_are_exact = (
            rules.virtual or not is_missing(h.evaluations["age"]).any()
        )  # else some are when an event was due: the real clock of an older version
        self.version = self.pending = self.round_size = self.timed = 0
        self.message: list[int | None] = [None] * self.n  # version of the message in flight
        self.sent = [nan] * self.n  # s: when it was sent
        self.contacts = [0] * self.n  # messages sent
        self.refused = [0] * self.n  # updates refused in a row
        self.inactive: set[int] = set()
        self.waiting: list[int] = []
        self.in_flight = 0
        self.own = np.zeros(len(h.updates["time"]) + 1, int)  # 1: the update triggered an aggregation by itself
        self.next_time = rules.trigger.next_time(0.0, 0, rules.seed) if rules.trigger else inf
        self._made = h.aggregations["updates"].tolist()
        self._times = h.aggregations["time"].tolist()
        columns = [h.events[name].tolist() for name in ("time", "kind", "client", "updates", "version")]
        rows = (Failure(k, *row) for k, row in enumerate(zip(*columns, strict=True)))
        self._failures = [row for row in rows if row.kind in FAILURES]
        self._failed = 0  # of them, those that were applied

    def run(self) -> None:
        """Goes through the updates in order. Raises Contradiction."""
        if any(row.updates < 0 for row in self._failures):  # of an older version: their place is not known
            return
        u = self.h.updates
        self._start_round(0.0)
        self._between(0)
        columns = [
            u[name][: self.h.firm].tolist() for name in ("time", "client", "version", "compute", "exchange", "waited")
        ]
        for k, row in enumerate(zip(*columns, strict=True)):
            self._update(k, *row)
            self._between(k + 1)
        if self.h.closed and self._failed < len(self._failures):
            row = self._failures[self._failed]
            raise wrong("events", row.row, "version", row.version, f"one that the server had at {row.updates} updates")

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

    def _update(
        self, k: int, time: float, i: int, version: int, compute: float, exchange: float, waited: float
    ) -> None:  # fmt: skip
        rules, sent = self.rules, self.message[i]
        if i in self.inactive:
            raise wrong("updates", k, "client", i, "a live client; this one was lost or set aside")
        if sent is None:
            raise wrong("updates", k, "client", i, "a client with a message to answer; this one had none")
        if version != sent:
            raise wrong("updates", k, "version", version, f"{sent}, of the last message to client {i}")
        if rules.virtual:
            seconds = rules.contact_times(i, self.contacts[i] - 1) if rules.contact_times else compute + exchange
            self._check_time(k, time, i, seconds, waited)
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
            elif self.h.closed and (k + 1 < len(self.h.updates["time"]) or not self._may_end_with_an_update()):
                found = self._next_made()
                if found is None:
                    raise Contradiction(f"aggregations: {self.version} rows, expected one more after {k + 1} updates")
                raise wrong("aggregations", self.version, "updates", found, k + 1)
        if rules.reply == "after":
            self._send([i], time)

    def _check_time(self, k: int, time: float, i: int, seconds: float, waited: float) -> None:
        """Checks when an update was due under the virtual clock; seconds: of its contact, nan: not known."""
        rules, sent = self.rules, self.sent[i]
        if isnan(seconds) or not (rules.always or rules.timeline):
            return
        if not rules.timeline:
            begin, due, models = sent, sent + seconds, "the delay model"
        else:
            (begin, due), models = rules.timeline.contact(i, sent, seconds), "the delay model and clock.availability"
        if time != due:
            raise wrong("updates", k, "time", time, f"{due}, by {models}")
        if waited != begin - sent:
            raise wrong("updates", k, "waited", waited, f"{begin - sent}, by clock.availability")

    def _may_end_with_an_update(self) -> bool:
        """Whether the last update may lack its aggregation: the run failed then, or repeats a record without it."""
        return self.h.attrs.get("status") == "failed" or self.h.attrs.get("clock") == "replay"

    def _next_made(self) -> int | None:
        return self._made[self.version] if self.version < len(self._made) else None

    def _own_aggregation(self, k: int, time: float) -> None:
        if self._times[self.version] != time:
            raise wrong(
                "aggregations", self.version, "time", self._times[self.version], f"{time}, the time of its last update"
            )
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
            row = self._failures[self._failed] if self._failed < len(self._failures) else None
            if row and (row.updates, row.version) == (updates, self.version):
                self._failed += 1
                self._fail(row)
            elif row and row.updates < updates:
                raise wrong(
                    "events", row.row, "version", row.version, f"one that the server had at {row.updates} updates"
                )
            elif self._next_made() == updates:
                self._separate_aggregation(updates)
            else:
                return

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

    def _fail(self, row: Failure) -> None:
        i, rules = row.client, self.rules
        if i < 0:
            raise wrong("events", row.row, "client", i, "a client")
        if row.kind == "refused":
            if i in self.inactive:
                return
            if self.message[i] is None:
                raise wrong("events", row.row, "client", i, "a client with a message to answer; this one had none")
            self.refused[i] += 1
            if rules.refusals and self.refused[i] >= rules.refusals:
                return  # set aside
            self._drop(i)
            self._send([i], row.time)
        elif row.kind == "rehosted":
            if self._drop(i):
                self._send([i], row.time)
        else:
            if i in self.inactive:
                raise wrong("events", row.row, "client", i, "a live client; this one was lost or set aside before")
            if row.kind == "aside" and rules.refusals and self.refused[i] < rules.refusals:
                text = f"a client with {rules.refusals} updates refused in a row; this one has {self.refused[i]}"
                raise wrong("events", row.row, "client", i, text)
            self.inactive.add(i)
            if i in self.waiting:
                self.waiting.remove(i)
            if self._drop(i) and rules.cohort:
                self.round_size -= 1
                if not self.round_size:
                    self._start_round(row.time)


def _order(h: History, rules: Rules) -> None:
    """Each client has one message in flight and answers its version; aggregations are made when they are due."""
    low = np.concatenate([[0], h.before[:-1]])  # before the update itself triggered an aggregation
    if rules.reply:
        model = ServerModel(h, rules)
        model.run()
        low += model.own
    _instants(h, "evaluations", h.evaluations, low)
    _instants(h, "events", h.events, low)


# -- evaluations and events beside updates -----------------------------------------------------------------------------
def _evaluations(h: History, rules: Rules) -> None:
    """No row is earlier than an update that it reflects, nor later than the next one."""
    e, times = h.evaluations, h.updates["time"]
    exact = np.full(len(e["time"]), True) if rules.virtual else ~is_missing(e["age"])
    _beside("evaluations", e, h, exact)
    if exact.all():
        _increasing("evaluations", "time", e["time"])
        if len(exact):  # files of older versions have events with the time at which they were due
            _beside("events", h.events, h, (h.events["updates"] >= 0) & (h.events["version"] >= 0))
    every, last = rules.evaluate_every, float(e["time"].max(initial=0.0))
    if not h.closed or h.attrs.get("clock") == "replay" or (h.events["kind"] == "evaluation-skipped").any():
        return
    if rules.evaluate_updates and h.attrs.get("status") == "completed":
        made = set(e["updates"].tolist())
        for count in range(0, len(times) + 1, rules.evaluate_updates):
            if count not in made:
                raise Contradiction(
                    f"evaluations: none after {count} updates, expected one every {rules.evaluate_updates}"
                )
    if every and rules.virtual:
        if last / every > len(exact) + 1:
            raise Contradiction(f"evaluations: {len(exact)} rows up to {last} s, expected one every {every} s")
        made = set(e["time"].tolist())
        for k in range(int(last / every)):
            if k * every not in made:
                raise Contradiction(f"evaluations: none at {k * every} s, expected one every {every} s")


def _beside(table: str, rows: Columns, h: History, which: np.ndarray) -> None:
    """Each row's time is between those of the updates and aggregations around it. which: the rows to check."""
    time = rows["time"]
    for column, what, times in (
        ("updates", "update", h.updates["time"]), ("version", "aggregation", h.aggregations["time"])
    ):  # fmt: skip
        count = np.clip(rows[column], 0, len(times))
        padded = np.concatenate([[0.0], times, [inf]])
        after, before = padded[count], padded[count + 1]
        expect(
            ~which | (time >= after),
            table,
            "time",
            time,
            lambda k: f"at least {after[k]}, the time of the {what} before",  # noqa: B023
        )
        expect(
            ~which | (time <= before),
            table,
            "time",
            time,
            lambda k: f"at most {before[k]}, the time of the next {what}",  # noqa: B023
        )


def _client_evaluations(h: History, rules: Rules) -> None:
    """Each evaluation has its clients once, in ascending order, and their summary is that of its row."""
    table, c, e = "client_evaluations", h.client_evaluations, h.evaluations
    row, client, total = c["evaluation"], c["client"], len(e["time"])
    expect((row >= 0) & (row < total), table, "evaluation", row, lambda k: f"0 to {total - 1}, a row of evaluations")
    _increasing(table, "evaluation", row)
    good = np.ones(len(row), bool)
    good[1:] = (row[1:] > row[:-1]) | (client[1:] > client[:-1])
    expect(good, table, "client", client, lambda k: f"more than {client[k - 1]}, as clients ascend in an evaluation")
    rows, first, counts = np.unique(row, return_index=True, return_counts=True)
    for k, start, count in zip(rows.tolist(), first.tolist(), counts.tolist(), strict=True):
        if not h.closed and k == rows[-1]:  # its rows may have been written in part
            break
        if count != counts[0]:
            raise Contradiction(f"{table}: {count} rows of evaluation {k}, expected {counts[0]}")
        for name, expected in summarise(c["accuracy"][start : start + count]).items():
            value = e[f"client_accuracy_{name}"][k]
            if not np.isclose(value, expected, rtol=1e-9, atol=1e-12):
                raise wrong("evaluations", k, f"client_accuracy_{name}", value, f"{expected}, by the table {table}")
    if rules.evaluate_clients and h.attrs.get("status") == "completed" and h.closed and len(rows) != total:
        raise Contradiction(f"{table}: rows of {len(rows)} evaluations, expected {total}")


def _metrics(h: History, rules: Rules) -> None:
    """Each evaluation has the metrics of the job, in their order; fractions are from 0 to 1."""
    row, name, value, names = h.metrics["evaluation"], h.metrics["metric"], h.metrics["value"], rules.metrics
    total, count = len(h.evaluations["time"]), max(1, len(names))
    order = np.arange(len(row))
    expect((order < total * len(names)), "metrics", "evaluation", row, lambda k: f"{total * len(names)} rows in all")
    expect(row == order // count, "metrics", "evaluation", row, lambda k: k // count)
    wanted = np.array([names[k % count] for k in range(len(row))], object)
    expect(name == wanted, "metrics", "metric", name, lambda k: f"{wanted[k]!r}, by evaluate.metrics")
    own = np.array([":" in each for each in name.tolist()], bool)
    expect(own | np.isnan(value) | ((value >= 0) & (value <= 1)), "metrics", "value", value, lambda k: "0 to 1")
    if h.attrs.get("status") == "completed" and h.closed and len(row) != total * len(names):
        raise Contradiction(f"metrics: {len(row)} rows, expected {len(names)} for each of {total} evaluations")


# -- the end -----------------------------------------------------------------------------------------------------------
def _clients(h: History, rules: Rules) -> None:
    if not h.closed:
        return
    count = np.bincount(h.updates["client"], minlength=len(h.clients["updates"]))
    expect(
        h.clients["updates"] == count,
        "clients",
        "updates",
        h.clients["updates"],
        lambda k: f"{count[k]}, by the table updates",
    )
    state = np.full(len(count), "live", object)
    for kind, i in zip(h.events["kind"].tolist(), h.events["client"].tolist(), strict=True):
        if kind in ("lost", "aside"):
            state[i] = kind
    expect(
        h.clients["state"] == state,
        "clients",
        "state",
        h.clients["state"],
        lambda k: f"{state[k]!r}, by the table events",
    )


def _end(h: History, rules: Rules) -> None:
    attrs, status, count = h.attrs, h.attrs.get("status"), len(h.updates["time"])
    if rules.stop_updates is not None and count > rules.stop_updates:
        raise Contradiction(f"updates: {count} rows, expected at most stop.updates={rules.stop_updates}")
    if rules.virtual and rules.stop_time is not None:
        for table, columns in (
            ("updates", h.updates),
            ("aggregations", h.aggregations),
            ("evaluations", h.evaluations),
        ):
            time = columns["time"]
            expect(time <= rules.stop_time, table, "time", time, lambda k: f"at most stop.time={rules.stop_time}")
    if not h.closed:
        return
    if not attrs.get("finished"):
        raise Contradiction(f"attribute finished is empty, expected a time, since status is {status!r}")
    kinds = set(h.events["kind"].tolist())
    if status == "completed" and (ended := kinds & {"failed", "interrupted"}):
        raise Contradiction(f"attribute status is 'completed', expected {ended.pop()!r}, by the table events")
    if status == "interrupted" and "interrupted" not in kinds:
        raise Contradiction("attribute status is 'interrupted', expected an event that says so")
    made = len(h.aggregations["time"])
    if status in ("completed", "interrupted") and h.model_version != made:
        raise Contradiction(f"model/x has version {h.model_version}, expected {made}, the number of aggregations")
    resumed = [k for k in range(len(h.events["kind"])) if h.events["kind"][k] == "resumed"]
    if "resumed_from" in attrs and bool(resumed) != bool(attrs["resumed_from"]):
        raise Contradiction(f"attribute resumed_from is {attrs['resumed_from']}, with {len(resumed)} events 'resumed'")
    if status == "completed" and attrs.get("clock") != "replay" and not any(_reached(h, rules)):
        raise Contradiction("attribute status is 'completed', but the run met no condition of its `stop`")


def _reached(h: History, rules: Rules) -> Iterator[bool]:
    """Whether each `stop` condition that the job gives was met; True if it gives none."""
    e = h.evaluations
    if rules.stop_time is rules.stop_updates is rules.stop_accuracy is None:
        yield True
    if rules.stop_updates is not None:
        yield len(h.updates["time"]) >= rules.stop_updates
    if rules.stop_time is not None:
        yield bool((e["time"] >= rules.stop_time).any())
    if rules.stop_accuracy is not None:
        yield bool((e["test_accuracy"] >= rules.stop_accuracy).any())
