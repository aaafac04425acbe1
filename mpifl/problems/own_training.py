"""Clients with custom training loops: `problem.entry` returns x0, and for each client an object with `fit`.

    fit(x, contact) -> (y, local_steps)     trains from the model x; `contact` is a `Contact`
    evaluate(x) -> {"test_loss": ...}       optional: means over the client's rows, by the names in MEANS
    gradient(x, generator) -> g             optional: of the mean loss over a batch drawn with it; None: over all rows
    save() -> {name: value}, load(saved)    optional: what the client keeps between contacts; arrays and numbers
    samples                                 optional: the number of its rows; 1
    adds_term                               optional: whether `fit` adds `contact.term` to the loss; False
    sharded                                 optional: whether each rank of its group has a shard of the model; False
    trial                                   optional: False: no contact of client 0 is tried before the run

A model is what x0 is: a flat array (d,) or a mapping of arrays by name, of NumPy or torch. The server's metrics are
computed by clients of rank 0 that never train.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from inspect import getattr_static
from math import ceil, isnan, nan, prod
from operator import index
from typing import Any, NamedTuple

import numpy as np

from mpifl.errors import ConfigError, RunFailed, describe_unexpected
from mpifl.objective import NO_TERM, QuadraticTerm, to_numpy
from mpifl.problems.entry_function import DATA_SEED, call, entry_error, kind
from mpifl.problems.generators import seeded_generators
from mpifl.problems.problem import ComputeResources, HostedClients, Layout, Problem, metric_values
from mpifl.problems.settings import ProblemSettings, Torch
from mpifl.rng import stream
from mpifl.user_code import ChangedDirectory, working_directory_kept

log = logging.getLogger(__package__)

MEANS = ("train_loss", "test_loss", "test_accuracy")  # what `evaluate` may return, and `rows`: of the test rows
# Options of the other problems, which clients with custom training loops refuse.
OPTIONS = ("batch_size", "drop_last", "l2", "test_split", "validation_split", "evaluation_rows")
HOOKS = ("gradient", "adds_term", "sharded")  # what all clients may offer
MAX_SAMPLES = 2**53  # of a client: a larger number is not exact as a weight
LONG = 10.0  # s, the longest contact that is tried twice
LONGEST_SILENCE = 10.0  # s, the longest time without a line while something is tried
SCALAR = ".scalar"  # end of the name of a NumPy number in a saved state: it does not round as Python's numbers do


class ReturnError(TypeError):
    """A client has returned something else than it is to return; the text says which client, and what."""


class Contact(NamedTuple):
    """What a client is told of one contact.

    Attributes:
        client: Its number i.
        round: How many contacts this client has had before: the key of its random draws.
        steps: The local steps that the method asks for; None: `epochs` says it.
        epochs: Passes over the client's rows; None: `steps` says it.
        step_size: The method's step size for this contact, multiplied by the client's entry of `step_weights`.
        term: What `adds_term` adds to the loss: `term.add_gradient(y, g)` adds its gradient at y (d,) to g (d,).
        generator: A generator seeded by the run's seed, the client and the round.
        seed: A number below 2^32 from the same three; Python's, NumPy's and torch's generators are seeded with it.
        comm: The communicator of the ranks that train the client together; None: it has one rank.
        part: This rank's shard of the model, if the client is sharded; else all of it.
    """

    client: int
    round: int
    steps: int | None
    epochs: int | None
    step_size: float
    term: QuadraticTerm
    generator: np.random.Generator
    seed: int
    comm: Any = None
    part: slice = slice(None)


class ModelForm:
    """How clients take and return a model: flat or by name, of NumPy or torch. Raises ConfigError."""

    def __init__(self, settings: ProblemSettings, x0: Any) -> None:
        self.dtype, self._named = np.dtype(settings.dtype), isinstance(x0, Mapping)
        parts = x0 if self._named else {"x": x0}
        self._torch = any(hasattr(part, "detach") for part in parts.values())
        try:
            arrays = {str(name): _array(part) for name, part in parts.items()}
        except TypeError as error:
            raise entry_error(settings, f"x0 is {error}", "a flat array, or a mapping of arrays by name") from None
        if len(arrays) < len(parts):
            raise entry_error(settings, f"x0 has the names {list(parts)!r}", "names that differ as text")
        for name, array in arrays.items():
            what = f"x0[{name!r}]" if self._named else "x0"
            if array.dtype != self.dtype:
                other = f"set problem.dtype={array.dtype}, or " if array.dtype in (np.float32, np.float64) else ""
                remedy = f"{other}return {settings.dtype} in {settings.entry}"
                raise ConfigError("problem.dtype", settings.dtype, f"{what} is {array.dtype}", remedy=remedy)
            if not np.isfinite(array).all():
                raise entry_error(settings, f"{what} has nan or infinity", "finite numbers")
        self.layout: Layout = [(name, array.shape) for name, array in arrays.items()]
        self.d = sum(array.size for array in arrays.values())
        if not self.d or not (self._named or arrays["x"].ndim == 1):
            shape = "empty" if not self.d else f"an array of shape {arrays['x'].shape}"
            raise entry_error(settings, f"x0 is {shape}", "a flat array (d,), or a mapping of arrays by name")
        self.x0 = np.concatenate([array.ravel() for array in arrays.values()])

    def flat(self, model: Any, what: str) -> np.ndarray:
        """(d,) a copy of a model that a client has returned. Raises ReturnError, which begins with `what`."""
        names = [name for name, _ in self.layout]
        if not self._named:
            model = {"x": model}
        elif not isinstance(model, Mapping):
            raise ReturnError(f"{what} that is {kind(model)}, not a mapping with the names of x0")
        elif missing := [name for name in names if name not in model]:
            raise ReturnError(f"{what} without {missing[0]!r}, a name of x0")
        elif more := [name for name in model if name not in names]:
            raise ReturnError(f"{what} with {more[0]!r}, which is no name of x0")
        arrays = []
        for name, shape in self.layout:
            of = f"{what} whose {name!r}" if self._named else f"{what} that"
            try:
                array = _array(model[name])
            except TypeError as error:
                raise ReturnError(f"{of} is {error}, not {self.dtype} of shape {shape}") from None
            if array.shape != shape or array.dtype != self.dtype:
                raise ReturnError(f"{of} is {kind(array)}, not {self.dtype} of shape {shape}")
            arrays.append(array.ravel())
        return np.concatenate(arrays)

    def shaped(self, x: np.ndarray) -> Any:
        """The model x (d,) as clients take it, in memory of its own."""
        x, first, parts = x.copy(), 0, {}
        for name, shape in self.layout:
            part = x[first : first + prod(shape)].reshape(shape)
            parts[name] = sys.modules["torch"].from_numpy(part) if self._torch else part
            first += part.size
        return parts if self._named else parts["x"]


def _array(value: Any) -> np.ndarray:
    """An array, or a tensor of torch or JAX, as a NumPy array. Raises TypeError."""
    if hasattr(value, "detach"):
        value = value.detach()
    if not hasattr(value, "__array__"):
        raise TypeError(kind(value))
    return to_numpy(value) if hasattr(value, "cpu") else np.asarray(value)


class OwnObjective:
    """A client with a custom training loop, which takes the local steps of a method."""

    # There is no `__dict__`: the estimate of memory does not look into a user's objects.
    __slots__ = (
        "_form", "_i", "_own", "_seed", "_unloaded", "adds_term", "clients", "comm", "part", "samples", "share",
    )  # fmt: skip

    def __init__(self, own: Any, form: ModelForm, meta: Mapping[str, Any], i: int, seed: int) -> None:
        self._own, self._form, self._i, self._seed = own, form, i, seed
        self.comm: Any = None  # communicator of the ranks that train the client together
        self.part = slice(None)  # this rank's part of the model
        self.samples, self.clients = meta["samples"][i], meta["clients"]
        self.share = self.samples / sum(meta["samples"])
        self.adds_term = bool(_offered(own, "adds_term", False))
        self._unloaded: Mapping[str, Any] | None = None  # a state that the client has not been given yet

    def shard(self, part: slice) -> None:
        """Makes this rank have only a shard of the flat model."""
        self.part, self._form = part, copy(self._form)
        self._form.d = part.stop - part.start
        self._form.layout = [("x", (self._form.d,))]

    # -- local steps ---------------------------------------------------------------------------------------------------
    def fit(
        self, x: np.ndarray, round: int, steps: int | None, epochs: int | None, step: float, term: QuadraticTerm
    ) -> tuple[np.ndarray, int]:
        """The client's model after its training from x (d,), and its number of local steps."""
        if steps == 0:
            return x.copy(), 0
        self._load()
        draws = stream(self._seed, "batch", self._i, round)
        seed = int(stream(self._seed, "fit", self._i, round).integers(2**32))
        contact = Contact(self._i, round, steps, epochs, step, term, draws, seed, self.comm, self.part)
        with _in_place(f"client {self._i}: fit"), seeded_generators(seed):
            found = self._own.fit(self._form.shaped(x), contact)
        who = f"client {self._i}: fit returned"
        if not isinstance(found, tuple) or len(found) != 2:
            raise ReturnError(f"{who} {kind(found)}, not (y, local_steps)")
        y = self._form.flat(found[0], f"{who} a y")
        if self.part != slice(None) and not np.isfinite(y).all():  # no rank has the whole update, to refuse it
            raise ReturnError(f"{who} a y that is not finite")
        with suppress(TypeError):
            if not isinstance(found[1], bool) and (taken := index(found[1])) > 0:
                return y, taken
        raise ReturnError(f"{who} local_steps={found[1]!r}, not an integer of at least 1")

    def batches(self, round: int, steps: int, epochs: int | None = None) -> Sequence[Any]:
        """The key of each local step's batch."""
        if epochs is not None:
            raise TypeError(
                "local_epochs: gradient(x, generator) does not define the length of an epoch; set local_steps"
            )
        return [(round, k) for k in range(steps)]

    def gradient(self, x: np.ndarray, rows: Any = None) -> np.ndarray:
        """(d,) what the client's `gradient` returns at x, for the batch of a key; None: for all rows."""
        self._load()
        draws = None if rows is None else stream(self._seed, f"batch {rows[1]}", self._i, rows[0])
        with _in_place(f"client {self._i}: gradient"):
            found = self._own.gradient(self._form.shaped(x), draws)
        return self._form.flat(found, f"client {self._i}: gradient returned a vector")

    def loss(self, x: np.ndarray, rows: Any = None) -> float:
        """The training loss at x."""
        return self.means(x).get("train_loss", nan)

    def fisher(self, x: np.ndarray) -> np.ndarray:
        """Not known of such a client."""
        raise ReturnError(f"client {self._i} has no Fisher diagonal")

    # -- metrics -------------------------------------------------------------------------------------------------------
    def accuracy(self, x: np.ndarray) -> float:
        """The accuracy at x on the client's test rows; nan where its `evaluate` does not tell."""
        self._load()
        return self.means(x).get("test_accuracy", nan)

    def means(self, x: np.ndarray) -> dict[str, float]:
        """What the client's `evaluate` returns at x (d,). Raises ReturnError."""
        if (evaluate := _offered(self._own, "evaluate")) is None:
            return {}
        with seeded_generators(int(stream(self._seed, "evaluate", self._i).integers(2**32))):
            found = evaluate(self._form.shaped(x))
        who = f"client {self._i}: evaluate returned"
        if not isinstance(found, Mapping):
            raise ReturnError(f"{who} {kind(found)}, not a mapping")
        for name, value in found.items():
            if name not in (*MEANS, "rows"):
                raise ReturnError(f"{who} {name!r}, which is none of {', '.join(MEANS)}, rows")
            if isinstance(value, str) or not hasattr(value, "__float__") or np.ndim(value):
                raise ReturnError(f"{who} {name}={value!r}, not a number")
        numbers = {str(name): float(value) for name, value in found.items()}
        if not numbers.get("rows", 1.0) >= 0:
            raise ReturnError(f"{who} rows={found['rows']!r}, not a number of at least 0")
        return numbers

    # -- what the client keeps between contacts ------------------------------------------------------------------------
    def save(self) -> Mapping[str, Any]:
        """What the client's `save` returns, as arrays of its own; numbers have no axis. Raises ReturnError."""
        if self._unloaded is not None:
            return self._unloaded
        save = _offered(self._own, "save")
        found = save() if save else {}
        who = f"client {self._i}: save returned"
        if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
            raise ReturnError(f"{who} {kind(found)}, not a mapping of arrays and numbers by name")
        saved = {}
        for name, value in found.items():
            plain = isinstance(value, bool | int | float) and not isinstance(value, np.generic)
            array = np.array(value if plain else _array_or_none(value))
            if array.dtype.kind not in "biufc" or array.dtype.char in "gG" or name.endswith(SCALAR):
                raise ReturnError(f"{who} {name}, which is {kind(value)}, not an array or a number")
            saved[name if plain or array.ndim else f"{name}{SCALAR}"] = array
        return saved

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restores what `save` returned, when the client is next asked for something."""
        self._unloaded = saved if _offered(self._own, "load") else None

    def _load(self) -> None:
        if self._unloaded is not None:
            self._own.load(dict(_restored(name, value) for name, value in self._unloaded.items()))
            self._unloaded = None

    # -- before the run ------------------------------------------------------------------------------------------------
    @property
    def wants_trial(self) -> bool:
        """Whether a contact may be tried before the run."""
        return bool(_offered(self._own, "trial", True))

    def try_contact(self, patience: float | None) -> bool | None:
        """Trains for one step from x0, twice: whether both give the same bits. None: the first has taken too long.

        Raises ReturnError where one takes longer than `patience` s.
        """

        def fit() -> tuple[np.ndarray, int]:
            with _watched(f"fit of client {self._i}", patience):
                return self.fit(self._form.x0, 0, 1, 1, 0.01, NO_TERM)

        saved, begin = self.save(), time.perf_counter()
        y, steps = fit()
        if not np.isfinite(y).all():
            raise ReturnError(f"client {self._i}: fit returned a y that is not finite")
        if time.perf_counter() - begin > LONG:
            return None
        self.save()  # tried as well
        self.load(saved)
        again = fit()
        return (y.tobytes(), steps) == (again[0].tobytes(), again[1])


def _offered(own: Any, name: str, default: Any = None) -> Any:
    """An optional attribute of a client; an AttributeError that its own code raises is not taken for its absence."""
    try:
        getattr_static(own, name)
    except AttributeError:  # only a `__getattr__` may give it
        return getattr(own, name, default)
    return getattr(own, name)


@contextmanager
def _in_place(what: str) -> Iterator[None]:
    """Raises ReturnError where the block changes the working directory, and changes it back."""
    try:
        with working_directory_kept():
            yield
    except ChangedDirectory as error:
        raise ReturnError(f"{what}: {error}") from None


def _array_or_none(value: Any) -> Any:
    """An array; None for what is none."""
    with suppress(TypeError, RuntimeError):
        return _array(value)
    return None


def _restored(name: str, value: np.ndarray) -> tuple[str, Any]:
    """The name and the value of which `OwnObjective.save` made these; a tensor is a NumPy array."""
    if name.endswith(SCALAR):
        return name.removesuffix(SCALAR), value[()]
    return name, value.copy() if value.ndim else value.item()


@contextmanager
def _one_line(settings: ProblemSettings, remedy: str) -> Iterator[None]:
    """Raises what the code of client 0 raises in the block as a ConfigError of one line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise entry_error(settings, _reason(error, 0), remedy=remedy) from error


@contextmanager
def _watched(what: str, patience: float | None = None) -> Iterator[None]:
    """Logs now and then that `what` is still tried in the block, and raises ReturnError there after `patience` s.

    A timer's signal does both. Python handles it in the main thread, between two operations of the interpreter.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    begin = time.perf_counter()

    def on_alarm(*_: object) -> None:
        waited = time.perf_counter() - begin
        if patience and waited >= patience:
            raise ReturnError(f"{what} has not returned after faults.patience={patience:g} s")
        log.info("own training: %s is tried before the run, for %.0f s so far", what, waited)

    interval = patience / ceil(patience / LONGEST_SILENCE) if patience else LONGEST_SILENCE
    before, timer = signal.signal(signal.SIGALRM, on_alarm), signal.setitimer(signal.ITIMER_REAL, interval, interval)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)


def _reason(error: BaseException, i: int) -> str:
    return str(error) if isinstance(error, ReturnError) else f"client {i}: {describe_unexpected(error)}"


class OwnTraining(Problem):
    """`train_loss` is the mean over the clients weighted by s_i, test metrics are weighted by their numbers of rows."""

    draws = True  # clients may share their loops with those that are evaluated

    def __init__(self, settings: ProblemSettings, made: Any) -> None:
        for option in OPTIONS:
            if value := getattr(settings, option):
                raise ConfigError(f"problem.{option}", value, "the clients have custom training loops", "null")
        for key, default in (("autocast", None), ("buffers", "averaged")):
            if settings.torch and (value := getattr(settings.torch, key)) != default:
                wrong = "the clients have custom training loops"
                raise ConfigError(f"problem.torch.{key}", value, wrong, default or "null")
        self._settings, self._form = settings, ModelForm(settings, made[0])
        self.dtype, self.layout, self.d = self._form.dtype, self._form.layout, self._form.d
        self.clients = len(made[1])
        if not self.clients:
            raise entry_error(settings, "there are no clients", "at least one")
        if isinstance(made[1], Mapping) and {*made[1]} != {*range(self.clients)}:
            raise entry_error(settings, f"the clients are {kind(made[1])}", "a list of clients")
        if settings.clients not in (None, self.clients):
            wrong = f"{settings.entry} returns {self.clients} clients"
            raise ConfigError("problem.clients", settings.clients, wrong, f"{self.clients}, or null")
        every = [_checked_client(settings, made[1][i], i) for i in range(self.clients)]
        hooks = [{hook for hook in HOOKS if _offered(own, hook)} for own in every]
        self.offers: frozenset[str] = frozenset(set.intersection(*hooks))
        if "sharded" in set.union(*hooks):
            self._check_sharded(every, made[0])
        samples = [index(_offered(own, "samples", 1)) for own in every]
        self.samples = np.array(samples, np.int64)
        self.meta = {"own_training": True, "clients": self.clients, "samples": samples, "d": self.d,
                     "sharded": "sharded" in self.offers}  # fmt: skip
        measured = "gradient" in self.offers or any(_offered(own, "evaluate") for own in every)
        self._measured = [OwnObjective(own, self._form, self.meta, i, 0) for i, own in enumerate(every) if measured]
        with _one_line(settings, "correct its evaluate, which is tried before the run"):
            for objective in self._measured[:1]:
                with _watched("evaluate of client 0"), _in_place("evaluate of client 0"):
                    objective.means(self._form.x0)

    def _check_sharded(self, clients: Sequence[Any], x0: Any) -> None:
        """Raises ConfigError where clients that are sharded cannot be."""
        if "sharded" not in self.offers:
            raise entry_error(self._settings, "some clients are sharded and others are not", "all of them, or none")
        if isinstance(x0, Mapping):
            raise entry_error(self._settings, "the clients are sharded, and x0 is a mapping", "a flat array (d,)")
        for hook in ("gradient", "save"):
            if any(_offered(own, hook) for own in clients):
                wrong = f"the clients are sharded, and have {hook}, which one rank of a group calls for all"
                raise entry_error(self._settings, wrong, f"clients without {hook}")

    def prepare(self, resources: ComputeResources) -> Mapping[str, Any]:
        return _prepare_torch(self._settings.torch, resources, evaluation=True)

    def initial(self, seed: int) -> np.ndarray:
        """(d,) the x0 that the function returns under the run's seed."""
        form = ModelForm(self._settings, call(self._settings, seed)[0])
        if form.layout != self.layout:
            raise entry_error(self._settings, "x0 has other shapes for another seed", "the same")
        return form.x0

    def shard(self, i: int) -> list[np.ndarray]:
        """[]: a rank gets its clients from the user's function."""
        return []

    def evaluate_with_clients(self, x: np.ndarray, training: bool = True) -> tuple[dict[str, float], np.ndarray]:
        found = []
        for i, client in enumerate(self._measured):
            try:
                found.append(client.means(x))
            except (Exception, SystemExit) as error:  # whatever a user's code raises
                raise RunFailed(f"an evaluation failed: {_reason(error, i)}") from error
        rows = [each.get("rows", float(s)) for each, s in zip(found, self.samples.tolist())]
        train, loss, accuracy = (
            _mean(zip(weights, (each.get(name, nan) for each in found)))
            for name, weights in zip(MEANS, (self.samples.tolist(), rows, rows))
        )
        own = np.full(self.clients, nan)
        own[: len(found)] = [each.get("test_accuracy", nan) for each in found]
        return metric_values(train if training else nan, (loss, accuracy), own, None), own

    def client_accuracies(self, x: np.ndarray) -> np.ndarray:
        return self.evaluate_with_clients(x, training=False)[1]

    def gradient(self, x: np.ndarray) -> np.ndarray:
        if "gradient" not in self.offers:
            raise NotImplementedError
        found: np.ndarray = sum(client.share * client.gradient(x).astype(np.float64) for client in self._measured)
        return found


def _mean(pairs: Iterable[tuple[float, float]]) -> float:
    """The mean of the values of (weight, value) that are numbers; nan where there is none."""
    known = [(weight, value) for weight, value in pairs if not isnan(value)]
    total = sum(weight for weight, _ in known)
    return sum(weight * value for weight, value in known) / total if total else nan


def _checked_client(settings: ProblemSettings, own: Any, i: int) -> Any:
    """The client, which must have the attributes that it is to have. Raises ConfigError."""
    who = f"client {i} is a {type(own).__name__}"
    if not callable(getattr(own, "fit", None)):
        raise entry_error(settings, f"{who} without a method fit", "clients with fit(x, contact)")
    try:
        has = {name: _offered(own, name) for name in ("save", "load", "evaluate", "trial", *HOOKS)}
        samples = _offered(own, "samples", 1)
    except Exception as error:  # of a property
        raise entry_error(settings, _reason(error, i), remedy="correct the client's property") from error
    if bool(has["save"]) != bool(has["load"]):
        lacking = "load" if has["save"] else "save"
        raise entry_error(settings, f"{who} without {lacking}", "both save and load, or none of them")
    if isinstance(samples, bool) or not isinstance(samples, int | np.integer) or not 1 <= samples <= MAX_SAMPLES:
        raise entry_error(settings, f"{who} with samples={samples!r}", "an integer from 1 to 2^53")
    return own


def host_own(
    settings: ProblemSettings, meta: Mapping[str, Any], clients: Sequence[int], seed: int, resources: ComputeResources,
    alone: bool = True, patience: float | None = None,
) -> HostedClients:  # fmt: skip
    """A rank's clients. Tries a contact of client 0 where it is among them. Raises ConfigError.

    alone: whether no other rank trains them. patience: s that the contact may take.
    """

    def build(numbers: Sequence[int]) -> dict[int, OwnObjective]:
        made = call(settings, DATA_SEED)
        form, n = ModelForm(settings, made[0]), len(made[1])
        if (form.d, n) != (meta["d"], meta["clients"]):
            wrong = f"this rank got {n} clients and {form.d} parameters, rank 0 got {meta['clients']} and {meta['d']}"
            raise entry_error(settings, wrong, "the same clients and x0 on every rank")
        return {i: OwnObjective(_checked_client(settings, made[1][i], i), form, meta, i, seed) for i in numbers}

    objectives = build(clients)
    facts = dict(_prepare_torch(settings.torch, resources))
    if alone and 0 in objectives and objectives[0].wants_trial:
        with _one_line(settings, "correct its class, or set trial = False in it to skip the trial before the run"):
            facts["repeats"] = objectives[0].try_contact(patience)
        objectives = build(clients)  # what the trial has left in the client does not enter the run
    return HostedClients(objectives, facts)


def describe_trial(facts: Mapping[str, Any]) -> str:
    """A line on the contact that was tried, from the facts of the rank that hosts client 0."""
    if "repeats" not in facts:
        return "own training: no contact was tried before the run, so it is not known whether results are reproducible"
    text = "own training: a contact of client 0 was tried before the run"
    if facts["repeats"] is None:
        return f"{text}, once, as it took more than {LONG:g} s; set trial = False in the client's class to skip this"
    if facts["repeats"]:
        return f"{text}, twice, with the same bits"
    remedy = "draw from contact.generator or contact.seed, and let save return what a client keeps"
    return f"{text}, twice, with different bits, so no run of this job can be repeated exactly; {remedy}"


def _prepare_torch(settings: Torch | None, resources: ComputeResources, evaluation: bool = False) -> Mapping[str, Any]:
    """Configures torch as `problem.torch` says, if the user's code has imported it; facts for the run file."""
    if "torch" not in sys.modules:
        return {}
    from mpifl.problems.torch.device import prepare, prepare_evaluation

    assert settings is not None
    return (prepare_evaluation if evaluation else prepare)(settings, resources)[1]
