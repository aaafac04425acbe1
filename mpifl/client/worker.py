"""The one client loop: a rank hosts one client or thousands, and works off their messages in order of arrival."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import inf, isfinite, nan, sqrt
from typing import Any, NamedTuple

import numpy as np

from mpifl.algorithms.base import Algorithm, Message, State, Update
from mpifl.errors import described
from mpifl.memory import HOST, Memory
from mpifl.objective import Objective, check_vectors, from_numpy, to_numpy
from mpifl.storage.checkpoint import ClientSnapshot, UpdateSnapshot
from mpifl.transport.base import ClientTransport

MOST, ROOM = 64, 8 << 20  # clients that compute together, and bytes of one vector of each: they are in memory at once


class Failed(NamedTuple):
    """In the place of an update: what a client's code raised, and where."""

    text: str


class Worker:
    """The clients of one rank: their states and objectives, by client number."""

    def __init__(
        self,
        algorithm: Algorithm,
        x0: np.ndarray,
        objectives: Mapping[int, Objective],
        together: Callable[[Sequence[Callable[[], Any]]], list[Any]] | None = None,
        memory: Memory = HOST,
        norm: float | None = None,
        rank: int = 0,
    ) -> None:
        """together: computes several clients' updates in one go, where that is faster than one after another.
        memory: where the vectors of messages, states and updates live. norm: of an update, above which it is refused.
        """
        self._algorithm, self._together, self.memory, self._rank = algorithm, together, memory, rank
        self._objectives, self._norm = dict(objectives), inf if norm is None else norm
        self._groups = frozenset(objectives)  # those that `together` takes
        self._x0 = x0 = memory.inside(x0)
        self.meanwhile: Callable[[], None] = lambda: None  # called now and then while a device computes
        self.most = max(8, min(MOST, ROOM // x0.nbytes)) if together else 1  # messages to wait for each other
        self.states = {i: algorithm.init_client(x0, i) for i in objectives}
        self.last: dict[int, Update] = {}  # the update of each client that has had no message since
        self.failed: dict[int, str] = {}  # what clients raised

    def train_all(self, messages: Sequence[tuple[int, Message]]) -> list[Update | Failed]:
        """The answers of several clients, at most `most`, to a message each."""
        if self._together is None or len(messages) == 1 or not self._groups.issuperset(i for i, _ in messages):
            return [self.train(i, message) for i, message in messages]
        before = [self._snapshot(i) for i, _ in messages]  # `together` takes no client that could not be hosted
        try:
            updates = self._together([partial(self.train, i, message) for i, message in messages])
        except (Exception, SystemExit):  # of one of them, which is found where each computes alone
            for (i, _), snapshot in zip(messages, before, strict=True):
                self._put_back(i, *snapshot)
            return [self.train(i, message) for i, message in messages]
        return [
            u if isinstance(u, Failed) else u._replace(compute=u.compute / len(messages))  # each took as long as all
            for u in updates
        ]

    def train(self, i: int, message: Message) -> Update | Failed:
        """Client i's answer to a message. One that is not fit to be sent is refused: it is empty and says why, and the
        client is as it was before; rules never change a state's vectors in place, so that costs nothing."""
        if i not in self.states:
            return Failed(self.failed[i])
        self.failed.pop(i, None)
        self.last.pop(i, None)
        before = self._snapshot(i)
        begin = time.perf_counter()
        try:
            getattr(self._objectives[i], "begin_round", lambda round: None)(message.round)
            update = self._algorithm.train(self.states[i], message, self._objectives[i])
            self.memory.wait(self.meanwhile)
            refused, norm = self._refusal(i, update)
            compute, accuracy = time.perf_counter() - begin, nan
            if refused:
                self._put_back(i, *before)
                update = Update((), update.local_steps, refused=refused)
            elif self._algorithm.personal_models:
                accuracy = self._objectives[i].accuracy(self._algorithm.personal_model(self.states[i]))
        except (Exception, SystemExit) as error:  # sys.exit in a user's code: the others must not wait
            self._put_back(i, *before)
            self.failed[i] = described(self._rank, error)
            return Failed(self.failed[i])
        busy = time.perf_counter() - begin
        self.last[i] = update._replace(
            version=message.version, round=message.round, norm=norm, compute=compute, busy=busy, accuracy=accuracy
        )
        return self.last[i]

    def _refusal(self, i: int, update: Update) -> tuple[str, float]:
        """Why an update is not fit to be sent, or nothing; its norm."""
        try:
            check_vectors(f"client {i} sends", update.vectors, self._x0)
        except ValueError as error:
            return str(error), nan
        if len(update.vectors) > self._algorithm.vectors_up:
            return f"client {i} sends {len(update.vectors)} vectors, more than vectors_up", nan
        norm = sqrt(sum(float(v @ v) for v in update.vectors))
        if not isfinite(norm) or not all(map(isfinite, update.numbers)):
            return "the update is not finite", norm
        return (f"the update's norm {norm:.6g} is above faults.norm" if norm > self._norm else ""), norm

    def _snapshot(self, i: int) -> tuple[State, Mapping[str, Any]]:
        return State(**vars(self.states[i])), getattr(self._objectives[i], "save", dict)()

    def _put_back(self, i: int, state: State, own: Mapping[str, Any]) -> None:
        self.states[i] = state
        if own:
            self._objectives[i].load(own)  # type: ignore[attr-defined]

    # -- checkpoints ---------------------------------------------------------------------------------------------------
    def snapshots(self, holds: Mapping[int, float]) -> dict[int, ClientSnapshot]:
        """A snapshot of every client, to be written before any computes again: its arrays are views where possible.

        holds: how long updates are still held back (s), by client
        """
        saved = {}
        for i in {**self.states, **self.failed}:
            state = self.states[i].save() if i in self.states else None
            own: Mapping[str, Any] = getattr(self._objectives.get(i), "save", dict)() if i in self.states else {}
            update = self.last.get(i) if i in self.states else None
            saved[i] = ClientSnapshot(
                state,
                {name: to_numpy(value) for name, value in own.items()},
                update and _update_snapshot(update, holds.get(i, 0.0)),
                self.failed.get(i, ""),
            )
        return saved

    def restore(self, i: int, saved: ClientSnapshot) -> tuple[Update | None, float]:
        """Restores client i; its last update, if it has one, and how long that is to be held back (s)."""
        if saved.error:
            self.failed[i] = saved.error
        if saved.state is None:
            self.states.pop(i, None)
            return None, 0.0
        self.states[i] = State.load(saved.state, self._x0)
        if saved.objective:
            self._objectives[i].load(saved.objective)  # type: ignore[attr-defined]
        if not (u := saved.update):
            return None, 0.0
        self.last[i] = Update(
            tuple(from_numpy(v, self._x0) for v in u.vectors), u.local_steps, u.numbers, u.version, u.round, u.norm,
            u.compute, busy=u.busy, accuracy=u.accuracy, refused=u.refused,
        )  # fmt: skip
        return self.last[i], u.hold

    def adopt(self, objectives: Mapping[int, Objective]) -> None:
        """Hosts more clients, in their first state."""
        self._objectives.update(objectives)
        for i in objectives:
            self.failed.pop(i, None)
        self.states |= {i: self._algorithm.init_client(self._x0, i) for i in objectives}

    def reject(self, i: int, text: str) -> None:
        """Client i could not be hosted: what it is sent it will not answer."""
        self.states.pop(i, None)
        self.failed[i] = text

    def correct(self, i: int, consumed: Iterable[np.ndarray], pending: Update | None) -> None:
        """Makes client i's state fit what the server has of it: the vectors that grow by what it sends become what they
        were without the update `pending` and with the sums `consumed`, one for each of them; none: nothing was."""
        state, sums = self.states[i], list(consumed)
        for k, name in enumerate(self._algorithm.increment_of):
            if name:
                total = from_numpy(sums.pop(0), self._x0) if sums else 0 * self._x0
                if pending and len(pending.vectors) > k:
                    total = total - pending.vectors[k]
                setattr(state, name, getattr(state, name) + total)
        self._algorithm.on_rollback(state)
        self.last.pop(i, None)
        self.failed.pop(i, None)


def _update_snapshot(u: Update, hold: float) -> UpdateSnapshot:
    return UpdateSnapshot(
        tuple(map(to_numpy, u.vectors)), tuple(map(float, u.numbers)), u.local_steps, u.version, u.round, u.norm,
        u.compute, u.busy, u.accuracy, u.refused, hold,
    )  # fmt: skip


def serve_clients(
    worker: Worker, transport: ClientTransport, time_limit: Callable[[], AbstractContextManager[None]] = nullcontext
) -> None:
    """Answers the messages to a rank's clients until the run ends; clients compute inside `time_limit`."""
    worker.meanwhile = transport.poll
    for group in transport.messages(worker.most):
        with time_limit():
            updates = worker.train_all([(i, message) for i, message, _ in group])
        for (i, _, delay), update in zip(group, updates):
            if isinstance(update, Failed):
                transport.send_client_error(i, update.text)
            else:
                transport.send_update(i, update, delay)
