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
from mpifl.transport import frames as wire
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

    # -- what a checkpoint keeps ---------------------------------------------------------------------------------------
    def saved(self, held: Mapping[int, float]) -> dict[str, np.ndarray]:
        """Every client's state, last update, and how long that is still held back (s), by name; views where it can be:
        to be written before any client computes again."""
        arrays: dict[str, np.ndarray] = {}
        for i, state in self.states.items():
            arrays |= {f"{i}.state.{name}": value for name, value in state.save().items()}
            own: Mapping[str, Any] = getattr(self._objectives[i], "save", dict)()
            arrays |= {f"{i}.own.{name}": to_numpy(value) for name, value in own.items()}
            if u := self.last.get(i):
                arrays[f"{i}.update"] = np.array([*wire.update_head(i, u), u.round, held.get(i, 0.0)])
                arrays[f"{i}.refused"] = np.frombuffer(u.refused.encode(), np.uint8)
                arrays |= {f"{i}.vector.{k}": to_numpy(v) for k, v in enumerate(u.vectors)}
        for i, text in self.failed.items():
            arrays[f"{i}.failed"] = np.frombuffer(text.encode(), np.uint8)
        return arrays

    def restore(self, i: int, saved: Mapping[str, np.ndarray]) -> tuple[Update | None, float]:
        """Puts client i into the state that `saved` wrote down, names without its number; its last update, if it has
        one, and how long that is to be held back (s)."""
        if "failed" in saved:
            self.failed[i] = saved["failed"].tobytes().decode()
        if saved.keys() == {"failed"}:
            self.states.pop(i, None)
            return None, 0.0
        state = {name.removeprefix("state."): value for name, value in saved.items() if name.startswith("state.")}
        self.states[i] = State.load(state, self._x0)
        own = {name.removeprefix("own."): value for name, value in saved.items() if name.startswith("own.")}
        if own:
            self._objectives[i].load(own)  # type: ignore[attr-defined]
        if "update" not in saved:
            return None, 0.0
        *head, round, held = saved["update"].tolist()
        vectors = tuple(from_numpy(saved[f"vector.{k}"], self._x0) for k in range(int(head[2])))
        update = wire.to_update(head, vectors, int(round))
        self.last[i] = update._replace(refused=saved["refused"].tobytes().decode())
        return self.last[i], held

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
