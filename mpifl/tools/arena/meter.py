"""Restricts a submitted method, while it is verified, to what the arena's rules allow.

The review of its source (`audit`) does not run it, and cannot tell what a name refers to. So the method also gets only
the interface of its objective, as many gradients as its contact takes time for, copies of vectors, and no knowledge
that it does not declare. A method that keeps the rules computes the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import replace
from math import nan
from typing import Any

from mpifl.algorithms.base import Algorithm, Clients, Message, State, Update
from mpifl.config.schema import fields_of
from mpifl.errors import ConfigError
from mpifl.objective import Objective, Vector, clone
from mpifl.tools.arena.audit import KNOWLEDGE

INTERFACE = {"samples", "share", "clients", "update_buffers", "optimizer"}  # attributes of an objective that are free


class MeteredObjective:
    """A client's objective during one contact: its batches, and one gradient or loss of a batch for each local step."""

    __slots__ = ("_batches", "_left", "_objective")

    def __init__(self, objective: Objective, steps: int) -> None:
        self._objective, self._left = objective, steps
        self._batches: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if name == "descend" and hasattr(self._objective, name):
            return self._descend
        if name not in INTERFACE:
            raise AttributeError(f"a method of the arena may not use {name} of an objective")
        return getattr(self._objective, name)

    def batches(self, round: int, steps: int, epochs: int | None = None) -> Sequence[Any]:
        found = list(self._objective.batches(round, steps, epochs))
        self._batches += found
        return found

    def gradient(self, x: Vector, rows: Any = None) -> Vector:
        self._pay([rows])
        return self._objective.gradient(x, rows)

    def loss(self, x: Vector, rows: Any = None) -> float:
        self._pay([rows])
        return self._objective.loss(x, rows)

    def _descend(self, y: Vector, batches: Sequence[Any], step: float) -> None:
        self._pay(batches)
        self._objective.descend(y, batches, step)  # type: ignore[attr-defined]

    def _pay(self, batches: Sequence[Any]) -> None:
        if not all(any(rows is each for each in self._batches) for rows in batches):
            raise ValueError("rows that are no batch that `objective.batches` returned in this contact; use only those")
        self._left -= len(batches)
        if self._left < 0:
            raise ValueError("more gradients or losses in a contact than local steps; compute at most one a step")


def refuse_polls(cls: type[Algorithm]) -> None:
    """Raises ConfigError if the class polls: its contacts do not take the time of its local steps."""
    if cls.polls:
        raise ConfigError("method", cls.__qualname__, "it polls, and the time of its local steps is not checked",
                          "a method whose contacts take the time of their steps")  # fmt: skip


def meter(cls: type[Algorithm], knows: Collection[str]) -> None:
    """Restricts init_server, receive and train of a submitted class. Raises ConfigError if the class polls."""
    refuse_polls(cls)
    init_server, receive, train = cls.init_server, cls.receive, cls.train
    timed = "local_steps" in fields_of(cls)

    @functools.wraps(init_server)
    def metered_init(self: Any, x0: Vector, clients: Clients) -> State:
        told = KNOWLEDGE["rates"] in knows
        return init_server(self, x0, clients if told else replace(clients, rates=None))

    @functools.wraps(receive)
    def metered_receive(self: Any, server: State, i: int, update: Update, staleness: int) -> None:
        told = KNOWLEDGE["needs_timings"] in knows
        receive(self, server, i, update if told else update._replace(compute=nan, exchange=nan, busy=nan), staleness)

    @functools.wraps(train)
    def metered_train(self: Any, client: State, message: Message, objective: Objective) -> Update:
        steps = message.work * (self.local_steps if timed else 1)
        copies = message.with_vectors(map(clone, message.vectors))
        return train(self, client, copies, MeteredObjective(objective, steps))

    for name, rule in (("init_server", metered_init), ("receive", metered_receive), ("train", metered_train)):
        setattr(cls, name, rule)
