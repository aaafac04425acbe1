"""State: every algorithm's, server and client, is written down and read again to the bit, and there is no other."""

from __future__ import annotations

import io
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from mpifl.algorithms import find, names
from mpifl.algorithms.base import Algorithm, Clients, Message, State, Update
from mpifl.algorithms.common.indicators import Equal
from mpifl.algorithms.common.local_solver import Gd, Sarah, Sgd, Svrg
from mpifl.algorithms.common.robust import Clip, Krum, Median, TrimmedMean
from mpifl.algorithms.common.server_optimizers import Adagrad, AmsGrad, Momentum, Yogi
from mpifl.client.worker import Worker
from mpifl.errors import ConfigError
from mpifl.problems import ProblemConfig, load, objective
from mpifl.problems.models.quadratic import Quadratic
from mpifl.runfile.tables import Row
from mpifl.scheduling.clocks import VirtualClock
from mpifl.scheduling.delays import Speed
from mpifl.scheduling.live_schedule import LiveSchedule
from mpifl.server.loop import Ending, ServerLoop
from mpifl.transport.in_process import InProcessTransport
from tests.quadratic_runs import close
from tests.tiers import parameters

N = 5
UPDATES = 45  # nine full rounds

# What changes what an algorithm remembers, beside its defaults.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "ace": [{"delay_threshold": 3, "lost": "drop"}, {"fill": "zero", "reply": "before"}],
    "apfl": [{"adapt": "round"}, {"adapt": "step"}, {"aggregation": TrimmedMean(trim=0.2)}],
    "area": [{"output": "average"}, {"reply": "after"}, {"first_contact": "zero"}],
    "async-comm-sgd": [{"draw": "fixed", "gap": [1, 2, 3, 4, 5]}],
    "async-fedavg": [{"rule": "server-memory"}, {"rule": "mix-over-n"}],
    "async-sgd": [
        {"step_rule": "adaptive", "reply": "before"},
        {"step_rule": "ringmaster", "threshold": 4},
        {"rescale": "times"},
        {"rescale": "counts"},
    ],
    "asypfl": [{"mode": "synchronous", "indicators": Equal()}, {"local_epochs": 2}],
    "f-svrg": [{"cohort": 2}],
    "fedamp": [{"attention": "cosine"}],
    "fedavg": [
        {"cohort": 2, "sampling": "samples", "weights": "samples"},
        {"cohort": 3, "aggregation": Median()},
        {"optimizer": Momentum()},
        {"optimizer": Yogi(), "cohort": 3},
    ],
    "fedbuff": [
        {"staleness": "inverse-sqrt", "server_step": None},
        {"aggregation": Krum(keep=2)},
        {"calibrate": True, "staleness": "inverse-sqrt", "lost": "drop"},
        {"optimizer": AmsGrad(), "delay_threshold": 0, "delay_rule": "scale"},
    ],
    "fedcompass": [{"min_steps": 2, "max_steps": 5, "upload": "delta", "staleness": "polynomial"}],
    "feddane": [{"variant": "pipelined"}, {"cohort": 2, "decay": 0.9}],
    "fedadmm": [{"cohort": 2, "eta": None}],
    "feddr": [{"cohort": 2}],
    "feddyn": [{"cohort": 2, "output": "all"}],
    "fedexp": [{"cohort": 2, "weights": "samples"}],
    "fedgate": [{"levels": 3, "server_step": 0.5}],
    "fednova": [{"steps": [1, 2, 3, 4, 5], "weights": "samples"}, {"mu": 0.5, "local_epochs": 2}],
    "fedpd": [{"skip": 0.5}, {"skip": 0.5, "refresh": 2, "solver": Sarah()}],
    "fedprox": [
        {"drop_percent": 0.5, "local_epochs": 3, "cohort": 3},
        {"aggregation": Clip(norm=0.01)},
        {"optimizer": Adagrad()},
    ],
    "favas": [{"cohort": 2, "alpha": "deterministic"}],
    "mifa": [{"cohort": 2, "lost": "drop"}, {"cohort": 3, "fill": "zero", "step_schedule": "inverse"}, {"period": 0.2}],
    "mime": [{"momentum": 0.9}, {"momentum": 0.9, "lite": True, "cohort": 2}],
    "proxskip": [{"probability": 0.4}],
    "quafl": [{"cohort": 2}],
    "scaffold": [{"option": "I"}, {"cohort": 2, "weights": "samples"}],
    "vrl-sgd": [{"warm_up": True}],
}


def cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """Every algorithm with its defaults, with each local solver it takes, and with the options above."""
    found = {}
    for name in names():
        free = {field.name for field in fields(find(name)) if field.init}
        choices = [{"local_steps": 3}] if "local_steps" in free else [{}]
        solvers = [Sgd(momentum=0.5), Svrg(), Sarah(), Gd()] if "solver" in free else []
        choices += [{"solver": solver} for solver in solvers] + OPTIONS.get(name, [])
        for options in choices:
            try:
                find(name)(**options)
            except ConfigError:  # a method may refuse momentum
                continue
            label = ",".join(f"{k}={getattr(v, 'name', v)}" for k, v in options.items())
            found[f"{name}-{label or 'default'}"] = name, options
    return found


CASES = cases()
# Local solvers start afresh at each contact and add nothing to what is remembered: in the short tier each one once.
SOLVERS = ["fedavg-solver=sgd", "fedprox-solver=svrg", "fedpd-solver=sarah", "feddr-solver=gd"]
LONG = {case for case, (_, options) in CASES.items() if {*options} == {"solver"} and case not in SOLVERS}
assert {*SOLVERS} <= {*CASES}
every_case = pytest.mark.parametrize("case", parameters(CASES, CASES.keys() - LONG))


def build(case: str) -> Algorithm:
    name, options = CASES[case]
    algorithm = find(name)(step_size=0.02, **options)  # type: ignore[call-arg]
    algorithm.validate(N)
    return algorithm


# -- runs --------------------------------------------------------------------------------------------------------------
class Anew:
    """An algorithm that is built anew for every single call: what an instance keeps beside its fields is lost."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm

    def __getattr__(self, rule: str) -> Any:
        return getattr(replace(self._algorithm), rule)


def written(state: State) -> State:
    """The state, through a file."""
    file = io.BytesIO()
    np.savez(file, **state.save())  # type: ignore[arg-type]
    file.seek(0)
    return State.load(dict(np.load(file)))


class Frozen:
    """An algorithm whose clients' vectors, and all that is sent, cannot be changed in place; each client's answer is
    computed twice, the second time from a snapshot of its state."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm, self.contacts = algorithm, 0
        self.wrong: list[object] = []  # a link may keep a client's error to itself

    def __getattr__(self, rule: str) -> Any:
        return getattr(self._algorithm, rule)

    def train(self, client: State, message: Message, objective: Any) -> Update:
        freeze(*vars(client).values(), *message.vectors)
        before = State(**vars(client))
        try:
            update = self._algorithm.train(client, message, objective)
            freeze(*update.vectors)
            again = self._algorithm.train(before, message, objective)
        except ValueError as error:
            self.wrong.append(error)
            raise
        self.contacts += 1
        if not (same(client, before) and all(map(same, update.vectors, again.vectors))):
            self.wrong.append(message)
        return update


def freeze(*values: object) -> None:
    """Makes the arrays among the values read-only."""
    for value in values:
        if isinstance(value, np.ndarray):
            value.flags.writeable = False


class Forgetful(Worker):
    """Clients whose states are saved and loaded anew before each contact."""

    def train(self, i: int, message: Message) -> Update:
        self.states[i] = written(self.states[i])
        return super().train(i, message)


@cache
def clients(dtype: str) -> tuple[np.ndarray, dict[int, Any]]:
    """The first model and the clients: noisy quadratics, so that each round's batches matter."""
    config = ProblemConfig(clients=N, model=Quadratic(dim=4, sigma=0.3), dtype=dtype)
    problem = load(config)
    return problem.initial(0), {i: objective(config, problem.meta, problem.shard(i), i, 0) for i in range(N)}


class Outcome:
    """How a run went: the model after each event, and all states at its end."""

    def __init__(
        self, algorithm: Algorithm, dtype: str = "float64", forget: bool = False, rules: Any = None,
        hosted: tuple[np.ndarray, Worker] | None = None,
    ) -> None:  # fmt: skip
        """hosted: the first model and the clients, where these are others."""
        rules = rules or (Anew(algorithm) if forget else algorithm)
        x0, objectives = clients(dtype)
        x0, worker = hosted or (x0, (Forgetful if forget else Worker)(rules, x0, objectives))
        people = Clients(np.array([1, 2, 3, 4, 5]), seed=3)
        self.models: list[np.ndarray] = []
        self.server = algorithm.init_server(x0, people)
        speed = Speed(compute=0.1, exchange=0.02, spread=2.5, noise="exponential")
        clock = VirtualClock(speed.contact_times(N, 0), speed.split_times(N, 0))

        def ending() -> Ending:
            self.models.append(algorithm.model(self.server).copy())
            if forget:
                again = written(self.server)
                vars(self.server).clear()
                vars(self.server).update(vars(again))
            return ""

        plan = LiveSchedule(clock, algorithm.aggregation_trigger(), 0, stop_updates=UPDATES)
        ServerLoop(rules, self.server, people, InProcessTransport(worker), plan, Silent(), lambda *_: False, 0).run(
            ending
        )
        self.clients = [worker.states[i] for i in range(N)]

    def states(self) -> list[State]:
        return [self.server, *self.clients]


@cache
def plain(case: str) -> Outcome:
    """The run as it is."""
    return Outcome(build(case))


class Silent:
    """A recorder that records nothing."""

    def append(self, row: Row) -> None: ...

    def set_client_state(self, client: int, state: str) -> None: ...


def same(one: Any, other: Any) -> bool:
    """Equality of type, shape and bits."""
    if isinstance(one, State):
        return same(vars(one), vars(other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(v, other[k]) for k, v in one.items())
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return type(one) is type(other) and np.array(one).tobytes() == np.array(other).tobytes()


# -- what holds for every algorithm ------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["written", "frozen"])
@every_case
def test_states_are_all_there_is(case: str, how: str) -> None:
    """A run in which the server's state is saved and loaded after every event, each client's before each contact, and
    the algorithm built anew for every call: bit for bit the run without all this.

    So is one in which vectors cannot be changed: a client's state before a contact is kept by keeping its vectors, and
    goes on from there as if nothing had been; what was sent may still be read."""
    rules = Frozen(build(case)) if how == "frozen" else None
    one, other = plain(case), Outcome(build(case), forget=not rules, rules=rules)
    assert len(one.models) == len(other.models) > UPDATES
    assert sum(bool(np.abs(m).max()) for m in one.models) > UPDATES / 2
    assert all(same(a, b) for a, b in zip(one.models, other.models, strict=True))
    assert all(same(a, b) for a, b in zip(one.states(), other.states(), strict=True))
    assert not rules or (rules.contacts >= UPDATES and not rules.wrong)


@every_case
def test_vectors_of_a_float32_run_stay_float32(case: str) -> None:
    """Models, messages, updates and what is kept of them are of the problem's dtype, and near the run in float64.

    (What is neither (d,) nor n of those, such as the clients' shares, is not a model.)
    """
    algorithm = build(case)
    outcome, exact = Outcome(algorithm, "float32"), plain(case)  # the loop checks what is sent
    assert {m.dtype for m in outcome.models} == {np.dtype(np.float32)}
    for state in outcome.states():
        for key, value in vars(state).items():
            for array in value.values() if isinstance(value, dict) else [value]:
                if isinstance(array, np.ndarray) and array.shape[-1:] == (4,):
                    assert array.dtype == np.float32, key
    if algorithm.personal_models:
        assert {algorithm.personal_model(state).dtype for state in outcome.clients} == {np.dtype(np.float32)}
    close(outcome.models[20:40], exact.models[20:40], 1e-3)  # 7 digits, less what divisions by small steps take


# -- the format --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "value",
    [
        True, False, 0, -3, 2**62, 0.1, -0.0, float("nan"), float("inf"), np.float64(0.3), np.arange(3.0), np.zeros(0),
        np.ones((2, 3), np.float32), np.arange(4), np.array([True, False]), {}, {3: 0.5, 1: -2.0}, {2: 7, 0: 8},
        {0: np.arange(3.0), 5: -np.arange(3.0)}, {1: np.ones(2, np.float32)}, {4: True},
        np.int64(3), np.float32(0.1), np.bool_(True), np.array(0.1), np.array(7),
        {3: np.float32(0.1), 1: np.float32(2)}, {2: np.array(0.5), 0: np.array(0.25)},
    ],
    ids=repr,
)  # fmt: skip
def test_what_a_state_may_hold(value: Any) -> None:
    """Arrays, numbers of Python's and of NumPy's types, which round in other ways, and dicts of either by client, in
    their order. What is loaded is what was saved, and shares no memory with it."""
    state = State(value=value, other=1)
    loaded = State.load(state.save())
    assert same(written(state), state) and same(loaded, state)
    arrays, copies = ([*v.values()] if isinstance(v, dict) else [v] for v in (value, loaded.value))
    assert not any(np.shares_memory(a, b) for a, b in zip(arrays, copies, strict=True))


@pytest.mark.parametrize(
    "value", [None, "text", [1, 2], (1.0,), {1, 2}, np.str_("a"), 1j, {0: np.float32(1), 1: 0.5}], ids=repr
)
def test_what_a_state_may_not_hold(value: Any) -> None:
    with pytest.raises(TypeError, match="value"):
        State(value=value).save()
