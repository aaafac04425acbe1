"""What an algorithm is: a frozen dataclass of hyper-parameters with a server rule and a client rule.

A rule knows vectors and nothing else: no MPI, no clock, no files. `State` holds all it remembers, server or client, as
arrays and numbers, so that it can be saved. A vector handed out in a `Message` or an `Update` is never changed in place
afterwards: it may still be on its way. Nor does a client rule change a vector of its state in place: it binds a new one
to the name, so that State(**vars(state)) is the state as it was before.

What vectors are, and what a rule may do with them: `mpifl.objective`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mpifl.algorithms.common.participation import CohortSampler, Trigger
from mpifl.errors import ConfigError
from mpifl.objective import Objective, Vector, from_numpy, to_numpy


class State(SimpleNamespace):
    """What a rule remembers: arrays, numbers (Python's or NumPy's), and either by client, each under a name.

    `save` and `load` are the one way in which it is written down and read again, to the bit.
    """

    def save(self) -> dict[str, np.ndarray]:
        """Arrays alone, by name, views where that can be: copy or write them before a rule runs again.

        Raises TypeError for what is neither an array, a number, nor a dict of them.
        """
        saved: dict[str, np.ndarray] = {}
        for name, value in vars(self).items():
            if isinstance(value, dict):
                values = [_plain(v) for v in value.values()]
                saved[f"{name}.keys"] = np.array(list(value), np.int64)
                saved[f"{name}.values{_mark(name, *values)}"] = np.array(values)
            else:
                value = _plain(value)
                saved[f"{name}{_mark(name, value)}"] = np.asarray(value)
        return saved

    @classmethod
    def load(cls, saved: Mapping[str, np.ndarray], x: Vector | None = None) -> State:
        """The state that `save` wrote down; arrays become what x is, on a client's side its rank's copy of x_0."""
        state = cls()
        for name, value in saved.items():
            stem, *marks = name.split(".")
            if marks == ["keys"]:
                keys = value.tolist()
            elif marks[:1] == ["values"]:
                items = [_read(value[k, ...], marks[1:], x) for k in range(len(value))]
                setattr(state, stem, dict(zip(keys, items, strict=True)))
            else:
                setattr(state, stem, _read(value, marks, x))
        return state


def _plain(value: Any) -> Any:
    """A tensor as an array, all else as it is."""
    return to_numpy(value) if hasattr(value, "cpu") else value


def _mark(name: str, *values: Any) -> str:
    """What is added to the name of NumPy's numbers and of arrays without axes, which do not round as Python's numbers.

    Raises TypeError for what is neither an array nor a number, and for several kinds in one dict.
    """
    kinds: set[tuple[str, type]] = set()
    for v in values:
        if isinstance(v, np.generic) and v.dtype.kind in "biufc":
            kinds.add((".number", type(v)))
        elif isinstance(v, (np.ndarray, bool, int, float)):
            kinds.add((".point" if isinstance(v, np.ndarray) and not v.ndim else "", object))
        else:
            raise TypeError(f"state {name} is a {type(v).__name__}, not an array, a number or a dict of them")
    if len(kinds) > 1:
        raise TypeError(f"state {name} is a dict of numbers of several kinds")
    return kinds.pop()[0] if kinds else ""


def _read(value: np.ndarray, marks: Sequence[str], x: Vector | None) -> Any:
    """What was written under such marks."""
    if marks == ["number"]:
        return value[()]
    if not value.ndim and not marks:
        return value.item()
    return value.copy() if x is None else from_numpy(value.copy(), like=x)


class Message(NamedTuple):
    """Server to client: a fixed number of (d,) vectors and at most 6 numbers. The loop adds version and round."""

    vectors: tuple[Vector, ...]
    numbers: tuple[float, ...] = ()
    work: int = 1  # local work asked for, in the method's own unit: delay models multiply their computing time by it
    version: int = 0  # server version at the moment of sending
    round: int = 0  # how many messages this client had before


class Update(NamedTuple):
    """Client to server: a fixed number of (d,) vectors, the local steps taken, at most 6 numbers; the rest is added."""

    vectors: tuple[Vector, ...]
    local_steps: int
    numbers: tuple[float, ...] = ()
    version: int = 0  # of the message that it answers
    round: int = 0  # likewise
    norm: float = 0.0  # Euclidean, over all vectors
    compute: float = nan  # s, what the computation took; nan: the run's clock does not know
    exchange: float = nan  # s, what the message's and the update's ways took; likewise
    busy: float = nan  # s that its rank was at work for it: computing, and testing the client's own model
    accuracy: float = nan  # 0 to 1, of the client's personal model on its own test rows; nan: there is none
    refused: str = ""  # why the client's loop did not let out what the rule returned


@dataclass(frozen=True)
class Clients:
    """What the server rule may know of the n clients."""

    samples: np.ndarray  # (n,) s_i
    rates: np.ndarray | None = None  # (n,) contacts a second, where the delay model has rates
    seed: int = 0  # the run's: what a server rule draws belongs to it

    @property
    def n(self) -> int:
        return len(self.samples)

    @property
    def shares(self) -> np.ndarray:
        """(n,) s_i / S"""
        return self.samples / self.samples.sum()


@dataclass(frozen=True)
class Algorithm:
    """The base of every method. Subclasses add hyper-parameters as fields and write the five rules below."""

    vectors_up: ClassVar[int] = 1  # most (d,) vectors in one update
    vectors_down: ClassVar[int] = 1  # most (d,) vectors in one message
    reply_policies: ClassVar[tuple[str, ...]] = ("before", "after", "deferred")  # reply policies that make sense
    personal_models: ClassVar[bool] = False  # whether every client has a model of its own
    # Of each vector of an update, the vector of the client's state whose increment it is ("": of none): the server's
    # state counts on the sum of these increments.
    increment_of: ClassVar[tuple[str, ...]] = ()

    # -- policies: asynchronous unless a subclass says otherwise -------------------------------------------------------
    def participation(self, clients: Clients, seed: int) -> CohortSampler | None:
        """Who works in each synchronous round; None: every client, each at its own pace."""
        return None

    def aggregation_trigger(self) -> Trigger | None:
        """When the server aggregates; None: when a round's cohort is complete."""
        return getattr(self, "trigger", None)

    def reply_policy(self) -> str:
        """When an update's sender is answered: `before` or `after` the aggregation that it triggers, or `deferred`."""
        return getattr(self, "reply", "deferred")

    def validate(self, clients: int) -> None:
        """Raises ConfigError where the hyper-parameters do not fit each other or the number of clients."""
        if self.reply_policy() not in self.reply_policies:
            text = f"this method answers {' or '.join(self.reply_policies)}"
            raise ConfigError("reply", self.reply_policy(), text)
        trigger = self.aggregation_trigger()
        if self.reply_policy() != "deferred" or not trigger:
            return
        if trigger.every and trigger.every > clients:
            raise ConfigError("trigger.every", trigger.every, f"at most {clients}, the clients, with deferred replies")
        if trigger.bernoulli:
            text = (
                "another trigger: with deferred replies all clients may come to wait for the coin that none can throw"
            )
            raise ConfigError("trigger.bernoulli", trigger.bernoulli, text)

    # -- server rule ---------------------------------------------------------------------------------------------------
    def init_server(self, x0: Vector, clients: Clients) -> State:
        """The server's state before the first message; `state.x` is the global model."""
        raise NotImplementedError

    def message(self, server: State, i: int) -> Message:
        """What client i is sent now."""
        raise NotImplementedError

    def begin_round(self, server: State, members: list[int]) -> None:
        """A synchronous round starts with these clients (one drawn twice is there twice)."""

    def on_client_lost(self, server: State, i: int) -> None:
        """Client i, a member of the present round whose answer has not come, will not answer: the round's means go
        over the other members, whether these have answered or will.

        At least one member of a round has answered when it is aggregated; where all are dropped, it begins again.
        """

    def on_client_rollback(self, server: State, i: int) -> None:
        """Client i goes on from an earlier state: what it was sent since then it has not; its next message tells it."""

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        """Takes in client i's update; its vectors are the loop's buffers and are not kept."""
        raise NotImplementedError

    def aggregate(self, server: State) -> None:
        """One global step."""
        raise NotImplementedError

    def model(self, server: State) -> Vector:
        """The model that is evaluated and stored."""
        return server.x

    def penalty(self, x: Vector) -> float:
        """g(x), where the method minimises f + g; added to the training loss of an evaluation."""
        return 0.0

    def needs_timings(self) -> bool:
        """Whether a rule reads `Update.compute` and `Update.exchange`."""
        return False

    # -- client rule ---------------------------------------------------------------------------------------------------
    def init_client(self, x0: Vector, i: int) -> State:
        """Client i's state before its first message."""
        return State()

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        """One contact: what client i sends back for `message`; changes `client`."""
        raise NotImplementedError

    def on_rollback(self, client: State) -> None:
        """Recomputes the fields of a rolled-back state that depend on the vectors named in `increment_of`.

        Called after a client was rolled back to a checkpoint or to its initial state. By then those vectors agree with
        the server: the value at the checkpoint, minus the pending update if the server never consumed it, plus all
        increments consumed since.
        """

    def personal_model(self, client: State) -> Vector:
        """The client's own model, (d,), of a method with `personal_models`."""
        raise NotImplementedError
