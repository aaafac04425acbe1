"""The interface of an algorithm: a frozen dataclass of hyper-parameters with a server side and a client side.

An algorithm computes with vectors and numbers; it has no access to MPI, clocks or files. Its methods keep no state in
the instance: all state is explicit, in a `State` of the server and one of each client, so that checkpoints can save it.

A *contact* of a client is one message from the server and the update that answers it. A synchronous *round* is one
contact of every member of a cohort; an asynchronous algorithm has no rounds.

Vectors are shared, not copied, so two rules hold. A vector that was returned in a `Message` or an `Update` is never
changed in place afterwards: it may still be in flight. NumPy arrays are read-only from then on. `train` and
`on_rollback` change no array and no dict of the client's state in place, they bind a new one to the name:
`State(**vars(state))` is then a snapshot of the state.

What a vector is, and which operations work on NumPy arrays and torch tensors alike: `mpifl.objective`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, get_args

import numpy as np

from mpifl.algorithms.participation import CohortSampler, Reply, Trigger
from mpifl.config.types import Config
from mpifl.errors import ConfigError, place_of
from mpifl.objective import Objective, OptimizerSettings, Vector, from_numpy, to_numpy

# What a method may need of a client with a training loop of its own, and what such a client offers to meet it.
NEEDS = {
    "a gradient": ("gradient",),
    "a proximal term": ("adds_term", "gradient"),
    "a control variate": ("gradient",),
    "a Fisher diagonal": (),
}


class State(SimpleNamespace):
    """The state of the server or of one client, by name.

    Values are vectors, numbers (Python's or NumPy's), and dicts of either with client numbers as keys. Checkpoints
    store `save()`; `load` restores the state bit for bit.
    """

    __slots__ = ("logged",)  # no part of the state: what was logged, until the server loop records it

    def log(self, **numbers: float) -> None:
        """Records numbers in the run file, under their names; for the server's rules after `init_server`.

        Those that are logged from `receive` on belong to its update, others to the aggregation.
        """
        if not hasattr(self, "logged"):
            raise TypeError("only the server's rules after init_server can log numbers")
        for name, value in numbers.items():
            if np.ndim(value):
                raise TypeError(f"{name} is logged, which is not a number: its shape is {np.shape(value)}")
            self.logged.append((name, float(value)))

    def save(self) -> dict[str, Any]:
        """The state as a flat dict of arrays, and of lists of arrays that are the rows of one.

        The arrays may be views: copy or write them before the algorithm runs again.

        Raises:
            TypeError: A value is neither an array, a number, nor a dict of them; the text has its name.
        """
        self.check()
        saved: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, dict):
                values = [_on_host(name, v) for v in value.values()]
                saved[f"{name}.keys"] = np.array(list(value), np.int64)
                rows = values if any(map(np.ndim, values)) else np.array(values)  # vectors are not copied
                saved[f"{name}.values{_type_suffix(name, *values)}"] = rows
            else:
                value = _on_host(name, value)
                saved[f"{name}{_type_suffix(name, value)}"] = np.asarray(value)
        return saved

    def check(self) -> None:
        """Raises TypeError for a value that `save` does not take; copies nothing."""
        for name, value in vars(self).items():
            values = list(value.values()) if isinstance(value, dict) else [value]
            _type_suffix(name, *(v for v in values if not hasattr(v, "cpu")))
            if isinstance(value, dict) and not all(
                isinstance(k, int | np.integer) and abs(int(k)) < 2**63 for k in value
            ):
                raise TypeError(f"state {name} is a dict whose keys are not client numbers")

    @classmethod
    def load(cls, saved: Mapping[str, Any], x: Vector | None = None) -> State:
        """The state that `save` returned. With `x`, arrays become vectors of x's kind, on x's device."""
        state = cls()
        for name, value in saved.items():
            stem, *suffixes = name.split(".")
            if suffixes == ["keys"]:
                keys = value.tolist()
            elif suffixes[:1] == ["values"]:
                items = [_restore(np.asarray(value[k]), suffixes[1:], x) for k in range(len(value))]
                setattr(state, stem, dict(zip(keys, items, strict=True)))
            else:
                setattr(state, stem, _restore(value, suffixes, x))
        return state


def _on_host(name: str, value: Any) -> Any:
    """A tensor as a NumPy array; any other value unchanged. Raises TypeError for a tensor that cannot be one."""
    try:
        return to_numpy(value) if hasattr(value, "cpu") else value
    except (TypeError, RuntimeError) as error:  # its type, or that it needs a gradient
        raise TypeError(f"state {name} is a tensor that cannot be saved: {error}") from error


def _type_suffix(name: str, *values: Any) -> str:
    """The suffix of a saved name: ".number" for NumPy scalars, ".point" for 0-dimensional arrays, else "".

    NumPy's scalars do not round as Python's numbers do, so the type has to be restored as well.
    Raises TypeError for a value that is neither an array nor a number, and for several types or shapes in one dict.
    """
    kinds: set[Any] = set()
    suffix = ""
    for v in values:
        if not isinstance(v, np.generic | np.ndarray | bool | int | float):
            raise TypeError(f"state {name} is a {type(v).__name__}, not an array, a number or a dict of them")
        array = np.asarray(v)
        if array.dtype.kind not in "biufc" or array.dtype.char in "gG":
            what = "an integer of more than 64 bits" if isinstance(v, int) else f"of type {array.dtype}"
            raise TypeError(f"state {name} is {what}, not an array, a number or a dict of them")
        kinds.add((type(v), array.dtype, array.shape))
        suffix = ".number" if isinstance(v, np.generic) else ".point" if v is array and not v.ndim else ""
    if len(kinds) > 1:
        raise TypeError(f"state {name} is a dict of values of several types or shapes")
    return suffix


def _restore(value: np.ndarray, suffixes: Sequence[str], x: Vector | None) -> Any:
    """The value that was saved under a name with these suffixes."""
    if suffixes == ["number"]:
        return value[()]
    if not value.ndim and not suffixes:
        return value.item()
    return value.copy() if x is None else from_numpy(value.copy(), like=x)


def checked_state(algorithm: Algorithm, rule: str, state: Any) -> State:
    """The state that `init_server` or `init_client` has returned.

    Raises ConfigError("name", ...) where it is no State, or one that checkpoints cannot store.
    """
    cls = type(algorithm)
    try:
        if not isinstance(state, State):
            raise TypeError(f"returned a {type(state).__name__}")
        if rule == "init_server" and not hasattr(state, "x"):
            raise TypeError("set no x, the global model")
        state.check()
    except TypeError as error:
        wrong, expected = f"{place_of(cls, rule)}: {error}", "a State of arrays, numbers and dicts of them by client"
        raise ConfigError("name", f"{cls.__module__}:{cls.__qualname__}", wrong, expected) from None
    return state


class Message(NamedTuple):
    """What the server sends a client: up to `vectors_down` vectors of x_0's shape and dtype, and at most 6 numbers.

    An algorithm fills `vectors`, `numbers` and `work`; the server loop adds the rest. A message may have no vectors, if
    the client keeps in its state what it needs.

    Attributes:
        vectors: (d,) each.
        numbers: Sent as float64.
        work: The local computation asked for, in the method's own unit; delay models multiply computing time by it.
        version: Aggregations of the server so far.
        round: The number of this contact of the client, from 0.
    """

    vectors: tuple[Vector, ...]
    numbers: tuple[float, ...] = ()
    work: int = 1
    version: int = 0
    round: int = 0

    def with_vectors(self, vectors: Iterable[Vector]) -> Message:
        """The message with these vectors."""
        return self._replace(vectors=tuple(vectors))


class Update(NamedTuple):
    """What a client sends the server: up to `vectors_up` vectors of x_0's shape and dtype, and at most 6 numbers.

    An algorithm fills `vectors`, `local_steps` and `numbers`; the client loop adds the rest. It refuses an update with
    other vectors, with fewer than `min_vectors_up`, with values that are not finite, or whose `local_steps` is no
    integer from 0 to 2^31 - 1, and restores the client's state.

    Attributes:
        vectors: (d,) each.
        local_steps: Steps that the client took.
        numbers: Sent as float64.
        version: The version of the message that the update answers.
        round: The round of that message.
        norm: The Euclidean norm of all vectors together.
        compute: Computing time of the contact (s); nan: unknown to the run's clock.
        exchange: Communication time of the contact, both ways (s); nan: unknown to the run's clock.
        busy: Time that the client's rank spent on the contact (s): computing, and evaluating personal models.
        accuracy: Accuracy of the client's personal model on its own test rows, 0 to 1; nan: none.
        refused: Why the client loop refused to send the update; empty if it did not.
        time: When the server received it, or in virtual time when it was due (s of the run's clock); a replay has the
            recorded time.
        waited: Time that the message waited until the client was on (s).
    """

    vectors: tuple[Vector, ...]
    local_steps: int
    numbers: tuple[float, ...] = ()
    version: int = 0
    round: int = 0
    norm: float = 0.0
    compute: float = nan
    exchange: float = nan
    busy: float = nan
    accuracy: float = nan
    refused: str = ""
    time: float = nan
    waited: float = 0.0

    def with_vectors(self, vectors: Iterable[Vector]) -> Update:
        """The update with these vectors."""
        return self._replace(vectors=tuple(vectors))


@dataclass(frozen=True)
class Clients:
    """What the server side knows about the n clients.

    Attributes:
        samples: (n,) s_i, the rows of each client.
        rates: (n,) contacts per second, off periods included; None: delay or availability model has no rates.
        seed: The run's seed, the key of all random draws of the server side.
    """

    samples: np.ndarray
    rates: np.ndarray | None = None
    seed: int = 0

    @property
    def n(self) -> int:
        """The number of clients."""
        return len(self.samples)

    @property
    def shares(self) -> np.ndarray:
        """(n,) s_i / S, S the sum of all s_i."""
        return self.samples / self.samples.sum()


def client_weights(clients: Clients, kind: str) -> np.ndarray:
    """(n,) the weights p_i of the f_i in a mean of them all: `samples`, s_i / S; `uniform`, 1/n."""
    return clients.shares if kind == "samples" else np.full(clients.n, 1 / clients.n)


@dataclass(frozen=True)
class Algorithm(Config):
    """Base of all algorithms.

    A subclass adds hyper-parameters as fields, and implements `init_server`, `message`, `receive`, `aggregate` and
    `train`; `init_client` too if clients have state. The server calls `message(i)` for each client that it sends to,
    `receive(i)` for each update, and `aggregate` when the trigger is due, or when all members of the round have
    answered.

    Attributes:
        vectors_up: The largest number of (d,) vectors in an update.
        min_vectors_up: The smallest one; 0 of a method whose clients may have nothing to send.
        vectors_down: The largest number of (d,) vectors in a message.
        pace: "asynchronous"; "synchronous", it works in rounds; or "either". Errors about options mention it.
        draws_cohorts: Whether a round may have any of the clients as its members; else it needs all of them.
        polls: Whether rounds begin at the times that `alarm` names. Clients work on between these polls, as long as the
            delay model says: a contact takes only the time of its exchange.
        personal_models: Whether each client has a model of its own.
        increment_of: Empty, or one entry for each of `vectors_up`: the name of the vector of the client's state whose
            increment that vector of an update is, if the server's state depends on the sum of these increments;
            else "".
        needs: What `train` asks of a client beyond local steps, keys of `NEEDS`. The value is the field that is 0 or
            null where it does not ask for that; "": it always does.
        message_fields: The vectors of a client's state that are vectors of its last message. In one process the members
            of a round share them.
    """

    vectors_up: ClassVar[int] = 1
    min_vectors_up: ClassVar[int] = 1
    vectors_down: ClassVar[int] = 1
    pace: ClassVar[str] = "asynchronous"
    draws_cohorts: ClassVar[bool] = False
    polls: ClassVar[bool] = False
    personal_models: ClassVar[bool] = False
    increment_of: ClassVar[tuple[str, ...]] = ()
    message_fields: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[Mapping[str, str]] = {"a gradient": ""}

    # -- policies; by default the algorithm is asynchronous ------------------------------------------------------------
    def participation(self, clients: Clients, seed: int) -> CohortSampler | None:
        """The sampler of each round's cohort. None: asynchronous, all clients take part, each at its own pace."""
        return None

    def aggregation_trigger(self) -> Trigger | None:
        """When the server aggregates: the field `trigger`. None: when all members of the round have answered, or, of
        an algorithm without rounds, as `ready` decides."""
        return getattr(self, "trigger", None)

    def reply_policy(self) -> Reply:
        """When the sender of an update gets its next message: the field `reply`, else "deferred".

        "before" or "after" the aggregation that its update triggers, or "deferred" to the next aggregation.
        """
        return getattr(self, "reply", "deferred")

    def validate(self, clients: int) -> None:
        """Raises ConfigError if the hyper-parameters do not fit the number of clients, or each other."""
        reply, trigger = self.reply_policy(), self.aggregation_trigger()
        if reply not in get_args(Reply):  # a user's own algorithm may have declared the field as text
            raise ConfigError("reply", reply, "unknown", f"one of {', '.join(get_args(Reply))}")
        if reply != "deferred" or not trigger:
            return
        if trigger.every and trigger.every > clients:
            wrong = f"replies are deferred, and there are {clients} clients"
            raise ConfigError("trigger.every", trigger.every, wrong, f"at most {clients}")
        if trigger.bernoulli:
            wrong = "with deferred replies all clients could end up waiting, and no update come"
            raise ConfigError("trigger.bernoulli", trigger.bernoulli, wrong, "another trigger")

    # -- server side ---------------------------------------------------------------------------------------------------
    @abstractmethod
    def init_server(self, x0: Vector, clients: Clients) -> State:
        """The server's state before the first message. `state.x` is the global model, (d,); x0 must be copied."""
        raise NotImplementedError

    def begin_round(self, server: State, members: list[int]) -> None:
        """Called when a synchronous round starts, before its messages; a client drawn twice is listed twice."""

    def on_poll(self, server: State, members: list[int], taken: Callable[[int, float, int], int]) -> None:
        """Called after `begin_round` if the algorithm `polls`: how far the members are.

        Args:
            server: The server's state.
            members: The round's members, each once.
            taken: (i, since, most) -> the local steps, at most `most`, that client i has taken since that time (s).
        """

    def end_round(self, server: State, time: float) -> None:
        """Called when a round has ended, at this time (s), if the algorithm `polls`: `alarm` then names the next."""

    @abstractmethod
    def message(self, server: State, i: int) -> Message:
        """The next message to client i."""
        raise NotImplementedError

    @abstractmethod
    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        """Processes one update of client i.

        Args:
            server: The server's state.
            i: The client.
            update: Its update. For methods of the package the vectors are receive buffers, which are reused, to be
                added or copied; other classes get copies of their own.
            staleness: Aggregations since the message that the update answers was sent.
        """
        raise NotImplementedError

    def ready(self, server: State) -> bool | None:
        """Whether the server aggregates after the update just received; None: the trigger decides.

        Called after each `receive` of an algorithm without rounds; must not change the state. With False the version
        does not increase, so that the staleness of later updates does not count an update that `receive` has discarded.
        `aggregate` may be called after False if no other update is to come.
        """
        return None

    def alarm(self, server: State) -> float:
        """The time (s of the run's clock) of the next aggregation that no update triggers; infinity: none.

        If the algorithm `polls`, the time at which the next round begins; infinity while it waits for answers.
        Called after every event; must not change the state. At equal times updates come first.
        """
        return inf

    def on_alarm(self, server: State, time: float) -> None:
        """Called before an aggregation that no update triggers, with its time (s): that of the alarm, or later."""

    def answers(self, server: State, waiting: list[int], aggregated: bool) -> list[int]:
        """The clients that are sent a message now, of those that wait for an answer, in order of arrival.

        Called where replies are deferred and there are no rounds: after each update that triggers no aggregation, and
        after each aggregation. Must not change `waiting`.
        """
        return waiting if aggregated else []

    @abstractmethod
    def aggregate(self, server: State) -> None:
        """One aggregation; the version of the server goes up by 1."""
        raise NotImplementedError

    def model(self, server: State) -> Vector:
        """The model that is evaluated and stored, (d,)."""
        return server.x

    def penalty(self, x: Vector) -> float:
        """g(x) of an algorithm that minimises f + g; evaluations add it to the training loss."""
        return 0.0

    def gradient_mapping(self, x: np.ndarray, gradient: np.ndarray) -> np.ndarray | None:
        """(d,) G_eta(x) of an algorithm that minimises f + g, from the gradient of f at x; None: there is no g."""
        return None

    def effective_steps(self, clients: Clients) -> np.ndarray | None:
        """(n,) by how much one local step of client i moves the global model, as a multiple of the client's gradient.

        This is for an update without staleness, at the start of the run; `mpifl check` prints it. None: the model is
        not moved by a fixed multiple of a gradient.
        """
        return None

    def server_vectors(self, clients: int) -> float:
        """How many vectors the server has at its peak besides those of `init_server`; for estimates of memory.

        clients: those that compute at least once.
        """
        return 0

    def needs_timings(self) -> bool:
        """Whether `receive` reads `Update.compute` and `Update.exchange`."""
        return False

    def client_needs(self) -> dict[str, str]:
        """The entries of `needs` that these hyper-parameters ask for, and what else they make the method need."""
        return {need: field for need, field in self.needs.items() if not field or getattr(self, field)}

    def torch_optimizer(self) -> OptimizerSettings | None:
        """The optimiser of torch.optim that clients take local steps with; None: they use none."""
        return None

    def passes_over_rows(self) -> bool:
        """Whether local steps are passes over a client's rows, whose last batch may be smaller than the others."""
        return False

    # -- server side: client failures ----------------------------------------------------------------------------------
    def on_client_lost(self, server: State, i: int) -> None:
        """Called when client i is lost: of an algorithm with rounds, a member of the current one that has not answered.

        The means of the round are then over the other members: those that have answered and those that will. If no
        other member is left, the server starts a new round instead; so every aggregated round has an update.
        """

    def forget_client(self, server: State, i: int) -> None:
        """Called when client i is lost, whatever it was doing, before `on_client_lost`.

        A method whose server keeps vectors of each client may drop those of client i here.
        """

    def on_client_rollback(self, server: State, i: int) -> None:
        """Called when client i was rolled back: its next message must resend what it lost.

        The client moved to another rank and continues from its last checkpoint, or from its initial state.
        """

    # -- client side ---------------------------------------------------------------------------------------------------
    def init_client(self, x0: Vector, i: int) -> State:
        """The state of client i before its first message.

        x0 is shared by the clients of a rank: clone it to change it in place.
        """
        return State()

    @abstractmethod
    def train(self, client: State, message: Message, objective: Objective) -> Update:
        """One contact: processes a message, changes the client's state, and returns the update to send.

        An exception, of whatever kind, is a failure of this client: the run continues as the job's `faults` say.
        """
        raise NotImplementedError

    def personal_model(self, client: State) -> Vector:
        """The client's own model, (d,), if `personal_models`."""
        raise NotImplementedError

    def on_rollback(self, client: State) -> None:
        """Recomputes the fields of the client's state that depend on the vectors named in `increment_of`.

        Called after the client was rolled back to a checkpoint or to its initial state. The named vectors already agree
        with the server: each is its value at the checkpoint, minus the pending update's increment if the server never
        consumed that update, plus all increments that the server has consumed since.
        """
