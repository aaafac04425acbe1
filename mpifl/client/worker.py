"""The clients of a rank, one or thousands: trains them on their messages, and holds their updates back.

Both transports deliver messages to `Worker.step`. Over MPI `ClientRank.run` calls it for the messages that have
arrived; in one process the transport calls it when the server asks for an update, or begins a checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf, isfinite, nan
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifl.algorithms.base import Algorithm, Message, State, Update, checked_state
from mpifl.client.states import ClientStates
from mpifl.config.types import INT32_MAX
from mpifl.errors import MAX_PART, Cancelled, format_client_error, inside, place_of, shortened
from mpifl.objective import Objective, check_vectors, from_numpy, make_read_only, norm_of, to_numpy
from mpifl.scheduling.due_queue import DueQueue
from mpifl.signals import is_from_signal
from mpifl.transport.client_end import ClientError, ClientTransport, Delivery
from mpifl.transport.frames import as_float64
from mpifl.vector_memory import HOST, VectorMemory

if TYPE_CHECKING:
    from mpifl.checkpoint.snapshot import ClientSnapshot, UpdateSnapshot

MAX_BATCH = 64  # clients that compute together
BATCH_BYTES = 8 << 20  # maximum for one vector of each of these clients: all are in memory at once


class Worker:
    """The clients of one rank: their states and objectives, by client number."""

    def __init__(
        self,
        algorithm: Algorithm,
        x0: np.ndarray,
        objectives: Mapping[int, Objective],
        train_batch: Callable[[Sequence[Callable[[], Any]]], list[Any]] | None = None,
        memory: VectorMemory = HOST,
        norm: float | None = None,
        rank: int = 0,
        limit: float | None = None,
        folder: str = ".",
    ) -> None:
        """train_batch: computes several clients' updates together, where that is faster than one after another.
        memory: where the vectors of messages, states and updates live. norm: an update with a larger norm is refused.
        limit: bytes of the states' vectors in memory; those beyond are in a file in `folder`. None: all in memory.
        """
        self._algorithm, self._train_batch, self.memory, self._rank = algorithm, train_batch, memory, rank
        self._on_host = memory.on_host
        self.objectives = dict(objectives)
        self._norm = inf if norm is None else norm
        self._batchable = frozenset(objectives) if train_batch else frozenset()  # clients that `train_batch` takes
        self._x0 = x0 = memory.from_host(x0)
        self.on_wait: Callable[[], None] = lambda: None  # called now and then while a device computes
        # maximum number of messages that are answered together
        self.max_deliveries = max(8, min(MAX_BATCH, BATCH_BYTES // x0.nbytes)) if train_batch else 1
        if (optimizer := algorithm.torch_optimizer()) and objectives:
            with inside("algorithm.solver"):  # one objective is enough: all of a rank have one module, on one device
                next(iter(objectives.values())).check_optimizer(optimizer)  # type: ignore[attr-defined]
        for i in objectives:
            self._initial_state(i)  # made again at first contact; a wrong one is refused before the run
        self.states = ClientStates(objectives, self._initial_state, x0, limit, folder)
        self.link: ClientTransport  # where the updates go; the transport sets it
        self.held = DueQueue[Update]()  # updates whose contacts are not over, by perf_counter
        self.computing: Sequence[int] = ()  # clients that compute at this instant
        # Each client's last update, until its next message; in one process until the server has consumed it.
        self.last_updates: dict[int, Update] = {}
        self.failed_clients: dict[int, str] = {}  # what each client raised at its last message

    def _initial_state(self, i: int) -> State:
        """Client i's state before its first message. Raises ConfigError."""
        with inside("algorithm"):
            return checked_state(self._algorithm, "init_client", self._algorithm.init_client(self._x0, i))

    # -- the client loop -----------------------------------------------------------------------------------------------
    def step(self, deliveries: Sequence[Delivery]) -> None:
        """Trains clients on their messages, at most `max_deliveries`; sends each update once its contact is over."""
        self.computing = [delivery.client for delivery in deliveries]
        results = self.train_all([(delivery.client, delivery.message) for delivery in deliveries])
        self.computing = ()
        for delivery, result in zip(deliveries, results):
            self.answer(delivery.client, result, delivery.due)

    def answer(self, i: int, result: Update | ClientError, due: float) -> None:
        """Sends client i's error at once, or its update at `due` (perf_counter)."""
        if isinstance(result, ClientError):
            self.link.send_client_error(i, result.text)
        elif due > time.perf_counter():
            self.held.add(i, due, result)
        else:
            self.link.send_update(i, result)

    def release(self, now: float) -> float:
        """Sends the updates whose contacts are over at `now`; returns when the next one is (perf_counter)."""
        while due := self.held.pop_due(now):
            self.link.send_update(*due)
        return self.held.first()[0]

    def train_all(self, messages: Sequence[tuple[int, Message]]) -> list[Update | ClientError]:
        """Trains several clients, at most `max_deliveries`, on a message each; returns their updates or errors."""
        if self._train_batch is None or len(messages) == 1 or not self._batchable.issuperset(i for i, _ in messages):
            return [self.train(i, message) for i, message in messages]
        before = []
        try:
            before = [(self.states.copy_of(i), _saved(self.objectives[i])) for i, _ in messages]
            updates = self._train_batch([partial(self.train, i, message) for i, message in messages])
        except BaseException as error:  # one client failed: training one by one finds which
            if is_from_signal(error):
                raise
            for (i, _), (state, saved) in zip(messages, before):
                self.states[i] = state
                _load(self.objectives[i], saved)
            return [self.train(i, message) for i, message in messages]
        # the time of each is an equal share
        return [u if isinstance(u, ClientError) else u._replace(compute=u.compute / len(messages)) for u in updates]

    def train(self, i: int, message: Message) -> Update | ClientError:
        """Trains client i on a message; returns its update or error.

        An invalid update is refused: it is sent empty with the reason, and the client keeps the state that it had.
        Rules never change a state's vectors in place, so that costs nothing.
        """
        self.last_updates.pop(i, None)
        state: State | None = None
        objective: Any = None
        saved: Mapping[str, Any] | None = None
        begin = time.perf_counter()
        try:
            if i not in self.states:  # the client could not be hosted
                return ClientError(self.failed_clients[i])
            self.failed_clients.pop(i, None)
            state = self.states.copy_of(i)
            objective = self.objectives[i]
            saved = _saved(objective)
            make_read_only(message.vectors)
            if hasattr(objective, "begin_round"):
                objective.begin_round(message.round)
            update = self._algorithm.train(state, message, objective)
            if not isinstance(update, Update):
                raise TypeError(
                    f"{place_of(type(self._algorithm), 'train')} returned a {type(update).__name__}, not an Update"
                )
            if not self._on_host:
                self.memory.wait(self.on_wait)
            update = self._checked(i, update)
            compute, accuracy = time.perf_counter() - begin, nan
            busy = compute
            if update.refused:
                _load(objective, saved)
            elif self._algorithm.personal_models:
                accuracy = objective.accuracy(self._algorithm.personal_model(state))
                busy = time.perf_counter() - begin
        except BaseException as error:  # whatever a user's code raises: the others must not wait
            if isinstance(error, Cancelled) or is_from_signal(error):
                raise
            _load(objective, saved)
            if state is None:  # the client's initial state cannot be made
                self.states.remove(i)
            self.failed_clients[i] = format_client_error(self._rank, error)
            return ClientError(self.failed_clients[i])
        if not update.refused:
            self.states[i] = state
        update = update._replace(
            version=message.version, round=message.round, compute=compute, busy=busy, accuracy=accuracy
        )  # fmt: skip
        self.last_updates[i] = update
        return update

    def _checked(self, i: int, update: Update) -> Update:
        """The update as it is sent, with its norm; where it is invalid, an empty one with the reason."""
        vectors, who, norm = update.vectors, f"client {i} sends", nan
        try:
            if type(vectors) is not tuple and not isinstance(vectors, list):
                raise ValueError(f"{who} vectors={type(vectors).__name__}, not a tuple of vectors: Update((y,), steps)")
            check_vectors(who, vectors, self._x0)
            least, most = self._algorithm.min_vectors_up, self._algorithm.vectors_up
            if len(vectors) > most:
                raise ValueError(f"{who} {len(vectors)} vectors, more than vectors_up ({most})")
            if len(vectors) < min(least, most):
                raise ValueError(f"{who} {len(vectors)} vectors, fewer than min_vectors_up ({least})")
            steps, norm = _as_steps(who, update.local_steps), norm_of(vectors)
            numbers = as_float64(who, update.numbers)
            if not all(map(isfinite, (norm, *numbers))):
                entries = all(np.isfinite(to_numpy(v)).all() for v in vectors) and all(map(isfinite, numbers))
                raise ValueError("the update's norm overflows float64" if entries else "the update is not finite")
            if norm > self._norm:
                raise ValueError(f"the update's norm {norm:.6g} is above faults.norm")
        except ValueError as reason:
            return Update((), 0, norm=norm, refused=str(reason))
        make_read_only(vectors)
        return Update(tuple(vectors), steps, numbers, norm=norm)

    # -- checkpoints ---------------------------------------------------------------------------------------------------
    def snapshots(self) -> dict[int, ClientSnapshot]:
        """A snapshot of every client that is not in its initial state, to be written before any computes again.

        Arrays are views where possible. A client whose first update was refused is in its initial state, but that
        update may be in flight.
        """
        from mpifl.checkpoint.snapshot import ClientSnapshot

        saved, held, now = {}, self.held.entries(), time.perf_counter()
        for i in {**dict.fromkeys(self.states.changed()), **self.last_updates, **self.failed_clients}:
            hosted = i in self.states
            update = self.last_updates.get(i) if hosted else None
            saved[i] = ClientSnapshot(
                self.states[i].save() if hosted else None,
                {name: to_numpy(v) for name, v in _saved(self.objectives[i]).items()} if hosted else {},
                update and _update_snapshot(update, max(0.0, held[i][0] - now) if i in held else 0.0),
                self.failed_clients.get(i, ""),
            )
        return saved

    def restore(self, i: int, saved: ClientSnapshot) -> tuple[Update | None, float]:
        """Restores client i; its last update, if it has one, and how long that is to be held back (s)."""
        if saved.error:
            self.failed_clients[i] = saved.error
        if saved.state is None:
            self.states.remove(i)
            return None, 0.0
        self.states[i] = State.load(saved.state, self._x0)
        if saved.objective:
            self.objectives[i].load(saved.objective)  # type: ignore[attr-defined]
        if not (u := saved.update):
            return None, 0.0
        self.last_updates[i] = Update(
            vectors=tuple(from_numpy(v, self._x0) for v in u.vectors), local_steps=u.local_steps, numbers=u.numbers,
            version=u.version, round=u.round, norm=u.norm, compute=u.compute, busy=u.busy, accuracy=u.accuracy,
            refused=u.refused,
        )  # fmt: skip
        return self.last_updates[i], u.hold

    def add_clients(self, objectives: Mapping[int, Objective]) -> None:
        """Hosts more clients, in their initial state; they share no objective."""
        for i, objective in objectives.items():
            self.objectives[i] = objective
            self.failed_clients.pop(i, None)
            self.states[i] = self._initial_state(i)

    def add_failed_client(self, i: int, text: str) -> None:
        """Notes that client i could not be hosted: it answers its messages with this error."""
        self.states.remove(i)
        self.failed_clients[i] = text

    def roll_back(self, i: int, consumed: Iterable[np.ndarray], pending: Update | None) -> None:
        """Makes client i's state agree with what the server consumed of it.

        Recomputes the vectors of which the client sends increments: without the update `pending`, and with the sums
        `consumed`, one for each of these vectors; empty: nothing was consumed.
        """
        state, sums = self.states.copy_of(i), list(consumed)
        for k, name in enumerate(self._algorithm.increment_of):
            if name:
                total = from_numpy(sums.pop(0), self._x0) if sums else 0 * self._x0
                if pending and len(pending.vectors) > k:
                    total = total - pending.vectors[k]
                setattr(state, name, getattr(state, name) + total)
        self._algorithm.on_rollback(state)
        self.states[i] = state
        self.last_updates.pop(i, None)
        self.failed_clients.pop(i, None)


def _as_steps(who: str, steps: object) -> int:
    """The local steps of an update, as rows have them. Raises ValueError, which begins with `who`."""
    whole = int(steps) if isinstance(steps, float | np.floating) and steps.is_integer() else steps
    with suppress(TypeError):  # no integer
        if 0 <= (found := index(whole)) <= INT32_MAX:  # type: ignore[arg-type]
            return found
    raise ValueError(f"{who} local_steps={shortened(repr(steps), MAX_PART)}, not an integer from 0 to 2^31 - 1")


def _saved(objective: Any) -> Mapping[str, Any]:
    """What an objective keeps from one contact to the next."""
    saved: Mapping[str, Any] = objective.save() if hasattr(objective, "save") else {}
    return saved


def _load(objective: Any, saved: Mapping[str, Any] | None) -> None:
    """Restores what `_saved` returned; None: it has returned nothing."""
    if saved is not None and hasattr(objective, "load"):
        objective.load(saved)


def _update_snapshot(u: Update, hold: float) -> UpdateSnapshot:
    from mpifl.checkpoint.snapshot import UpdateSnapshot

    return UpdateSnapshot(
        vectors=tuple(map(to_numpy, u.vectors)), numbers=tuple(map(float, u.numbers)), local_steps=u.local_steps,
        version=u.version, round=u.round, norm=u.norm, compute=u.compute, busy=u.busy, accuracy=u.accuracy,
        refused=u.refused, hold=hold,
    )  # fmt: skip
