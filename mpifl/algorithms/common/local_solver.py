"""The local solver: what a client computes during a contact, shared by all algorithms.

A client minimises `phi(y) = f_i(y) + <shift, y> + weight/2 ||y - centre||^2` by steps `y <- y - step * v`, where v is

    sgd     grad f_i(y; batch)                                  + shift + weight (y - centre)
    gd      grad f_i(y)                                         + ...
    svrg    grad f_i(y; batch) - grad f_i(z; batch) + grad f_i(z)   + ..., z the start of the contact
    sarah   grad f_i(y; batch) - grad f_i(y'; batch) + v'           + ..., y' and v' those of the previous step

or, with `torch`, by steps of an optimiser of torch.optim along the gradient of `sgd`
(Johnson and Zhang, NIPS 2013; Nguyen, Liu, Scheinberg, Takac, ICML 2017, arXiv 1703.00102.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from mpifl.algorithms.base import Algorithm, Clients, Message, State
from mpifl.config.types import Bounds, Config, NonNegativeFloat, PositiveFloat, PositiveInt
from mpifl.errors import ConfigError
from mpifl.objective import NO_TERM, Objective, OptimizerSettings, QuadraticTerm, Vector, clone

Momentum = Annotated[float, Bounds(at_least=0, below=1)]
StepWeights = Literal["one", "samples", "uniform", "relative"]
StepCallback = Callable[[Vector, Vector, Any], None]  # (y before the step, y after it, the step's rows)
Step = float | Callable[[int], float]  # a step, or a function of the number of steps taken at this contact
StopCriterion = Callable[[Vector, Vector], bool]  # (y, gradient of phi at y) -> y is accurate enough


class LocalSolution(NamedTuple):
    """The result of a local solver.

    Attributes:
        x: (d,) the last iterate.
        steps: The number of steps taken.
        estimate: (d,) an estimate of grad f_i(x), from a solver that has one (`sarah`).
    """

    x: Vector
    steps: int
    estimate: Vector | None = None


def update_buffers(objective: Objective, y: Vector) -> None:
    """Called after each step: the objective updates, in place, the entries of y that have no gradient (batch norm)."""
    if hasattr(objective, "update_buffers"):
        objective.update_buffers(y)


def step_at(step: Step, taken: int) -> float:
    """The step after `taken` steps of this contact."""
    return step(taken) if callable(step) else step


def descend(objective: Objective, y: Vector, batches: Sequence[Any], step: float) -> None:
    """y <- y - step * gradient(y, rows) for each batch, in place."""
    if hasattr(objective, "descend"):
        objective.descend(y, batches, step)
        return
    for rows in batches:
        gradient = objective.gradient(y, rows)
        gradient *= step
        y -= gradient
        update_buffers(objective, y)


@dataclass(frozen=True)
class Decay(Config):
    """A step that decays: step_size w_i/(1 + contacts r + steps q)^power, after r contacts and q steps of this one."""

    contacts: NonNegativeFloat = 0.0
    """weight of each contact that the client has had, with FedPD of each round, communicated or not; set to
    local_steps, it counts all steps so far alike"""
    steps: NonNegativeFloat = 0.0
    """weight of each step that it has taken in this contact"""
    power: PositiveFloat = 1.0
    """exponent: 0.5 for 1/sqrt"""

    def decayed(self, step: Step, round: int) -> Step:
        """The step of a contact, as a function of the steps taken."""
        return lambda taken: step_at(step, taken) / (1 + self.contacts * round + self.steps * taken) ** self.power


@dataclass(frozen=True)
class Sgd(Config):
    """A step along the gradient of a batch."""

    name: str = "sgd"
    momentum: Momentum = 0.0
    """heavy ball: v <- momentum * v + gradient, from v = 0 at each contact"""
    decay: Decay | None = None
    """how the step decays over contacts and steps, with `sgd` and `gd`; null: it is constant"""

    def solve(
        self, objective: Objective, x: Vector, step: Step, batches: Sequence[Any], term: QuadraticTerm,
        on_step: StepCallback | None, stop: StopCriterion | None, initial_estimate: Any,
    ) -> LocalSolution:  # fmt: skip
        y, velocity, taken = clone(x), None, 0
        if term is NO_TERM and not (self.momentum or on_step or stop or callable(step)):
            descend(objective, y, batches, step)
            return LocalSolution(y, len(batches))
        for rows in batches:
            gradient = objective.gradient(y, rows)
            term.add_gradient(y, gradient)
            if stop and stop(y, gradient):
                break
            if self.momentum:
                velocity = gradient if velocity is None else self.momentum * velocity + gradient
                gradient = step_at(step, taken) * velocity
            else:
                gradient *= step_at(step, taken)
            before = clone(y) if on_step else y
            y -= gradient
            update_buffers(objective, y)
            taken += 1
            if on_step:
                on_step(before, y, rows)
        return LocalSolution(y, taken)


@dataclass(frozen=True)
class Gd(Sgd):
    """A step along the full gradient; an epoch is one step."""

    name: str = "gd"


@dataclass(frozen=True)
class Svrg(Config):
    """Batch gradients, corrected by those at the start of the contact."""

    name: str = "svrg"

    def solve(
        self, objective: Objective, x: Vector, step: Step, batches: Sequence[Any], term: QuadraticTerm,
        on_step: StepCallback | None, stop: StopCriterion | None, initial_estimate: Any,
    ) -> LocalSolution:  # fmt: skip
        """initial_estimate: (z, an estimate of grad f_i(z)); None: x and the gradient there."""
        z, full = initial_estimate or (x, objective.gradient(x))
        y = clone(x)
        for taken, rows in enumerate(batches):
            at_z = objective.gradient(z, rows)
            v = objective.gradient(y, rows)
            v -= at_z
            v += full
            term.add_gradient(y, v)
            v *= step_at(step, taken)
            before = clone(y) if on_step else y
            y -= v
            update_buffers(objective, y)
            if on_step:
                on_step(before, y, rows)
        return LocalSolution(y, len(batches))


@dataclass(frozen=True)
class Sarah(Config):
    """A running estimate of the full gradient; each step adds the difference of two batch gradients to it."""

    name: str = "sarah"

    def solve(
        self, objective: Objective, x: Vector, step: Step, batches: Sequence[Any], term: QuadraticTerm,
        on_step: StepCallback | None, stop: StopCriterion | None, initial_estimate: Any,
    ) -> LocalSolution:  # fmt: skip
        """initial_estimate: of grad f_i(x); None: that gradient. The solution has the estimate at the last iterate."""
        y, estimate = clone(x), objective.gradient(x) if initial_estimate is None else clone(initial_estimate)
        for taken, rows in enumerate(batches):
            v = clone(estimate)
            term.add_gradient(y, v)
            v *= step_at(step, taken)
            before, y = y, y - v
            at_before = objective.gradient(before, rows)
            estimate += objective.gradient(y, rows)
            estimate -= at_before
            update_buffers(objective, y)
            if on_step:
                on_step(before, y, rows)
        return LocalSolution(y, len(batches), estimate)


@dataclass(frozen=True)
class TorchSolver(Config):
    """Steps of an optimiser of torch.optim along batch gradients; `step_size` times `step_weights` is its `lr`."""

    name: str = "torch"
    optimizer: Any = "SGD"
    """class of torch.optim and its options: Adam, or {name: Adam, betas: [0.9, 0.99], weight_decay: 0.01}"""
    state: Literal["fresh", "kept"] = "fresh"
    """the optimiser's state at a contact: fresh, it starts anew; kept, the client keeps that of its last contact"""
    schedule: Any = None
    """class of torch.optim.lr_scheduler and its options: {name: StepLR, step_size: 10}; null: a constant step"""
    per: Literal["step", "contact"] = "step"
    """unit of the schedule: step, a local step (counted anew at each contact, unless kept), or contact of the client"""

    def __post_init__(self) -> None:
        super().__post_init__()
        _section("optimizer", self.optimizer)
        if self.schedule is not None:
            _section("schedule", self.schedule)
        elif self.per != "step":
            raise ConfigError("per", self.per, "there is no schedule, whose unit it is", "step")

    @property
    def settings(self) -> OptimizerSettings:
        """The solver as objectives take it."""
        schedule = ("", {}) if self.schedule is None else _section("schedule", self.schedule)
        return OptimizerSettings(*_section("optimizer", self.optimizer), self.state, *schedule, self.per)

    def solve(
        self, objective: Objective, x: Vector, step: Step, batches: Sequence[Any], term: QuadraticTerm,
        on_step: StepCallback | None, stop: StopCriterion | None, initial_estimate: Any,
    ) -> LocalSolution:  # fmt: skip
        y = clone(x)
        if callable(step):
            raise TypeError("a torch optimiser takes a number as step; its schedule is the option `schedule`")
        optimizer = objective.optimizer(self.settings, y, step)  # type: ignore[attr-defined]
        for rows in batches:
            gradient = objective.gradient(y, rows)
            term.add_gradient(y, gradient)
            before = clone(y) if on_step else y
            optimizer.step(gradient)
            update_buffers(objective, y)
            if on_step:
                on_step(before, y, rows)
        optimizer.close()
        return LocalSolution(y, len(batches))


def _section(key: str, section: Any) -> tuple[str, dict[str, Any]]:
    """The name and the options of a section, which may be the name alone. Raises ConfigError."""
    kind = {"optimizer": "a class of torch.optim", "schedule": "a class of torch.optim.lr_scheduler"}[key]
    options = {"name": section} if isinstance(section, str) else section
    if not isinstance(options, Mapping):
        raise ConfigError(key, section, "neither text nor a section", f"{kind}, or a section with its name and options")
    options = dict(options)
    name = options.pop("name", "???")
    if not isinstance(name, str) or not name.isidentifier():
        raise ConfigError(f"{key}.name", name, "required" if name == "???" else "not the name of a class", kind)
    for option, value in options.items():
        if isinstance(value, Mapping):
            raise ConfigError(
                f"{key}.{option}", dict(value), "it is a section", "a number, true or false, text, null or a list"
            )
    return name, options


Solver = Sgd | Gd | Svrg | Sarah | TorchSolver


@dataclass(frozen=True)
class LocalTraining(Algorithm):
    """Base of all algorithms whose clients run a local solver; adds its hyper-parameters."""

    step_size: PositiveFloat = 0.1
    """step of the local solver (eta)"""
    step_weights: StepWeights = "one"
    """factor on client i's step: samples s_i/S, uniform 1/n, relative n s_i/S, one 1"""
    local_steps: PositiveInt = 1
    """steps of the local solver per contact (M, Q), each on a fresh batch"""
    local_epochs: PositiveInt | None = None
    """passes over the client's rows instead of local_steps (E)"""
    solver: Solver = Sgd()
    """local solver: sgd, gd (full gradients), svrg or sarah (variance-reduced), torch (a torch optimiser)"""

    needs = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        if reason := self.needs_plain_steps():
            if isinstance(self.solver, TorchSolver):
                wrong = f"{reason}, which a torch optimiser does not take"
                raise ConfigError("solver", self.solver.name, wrong, "sgd")
            if self.step_decay:
                wrong = f"{reason}, and these have steps of another size"
                raise ConfigError("solver.decay", asdict(self.step_decay), wrong, "null")

    def message(self, server: State, i: int) -> Message:
        """The global model."""
        return Message((server.x,))

    def needs_plain_steps(self) -> str:
        """A clause that says which formula of the method is for plain gradient steps; empty: none, any solver fits."""
        return ""

    def client_needs(self) -> dict[str, str]:
        plain = {"a gradient": ""} if self.needs_plain_steps() else {}
        chosen = {"a gradient": "solver"} if self.solver != Sgd() else {}
        return chosen | plain | super().client_needs()

    def torch_optimizer(self) -> OptimizerSettings | None:
        return self.solver.settings if isinstance(self.solver, TorchSolver) else None

    @property
    def step_decay(self) -> Decay | None:
        """How the local step decays."""
        return self.solver.decay if isinstance(self.solver, Sgd) else None

    def _decayed(self, step: Step, round: int) -> Step:
        return self.step_decay.decayed(step, round) if self.step_decay else step

    def passes_over_rows(self) -> bool:
        return self.local_epochs is not None and not isinstance(self.solver, Gd)

    def client_step(self, objective: Objective, step_size: float | None = None) -> float:
        """The step of client i: `step_size` (None: the field) times the factor w_i of `step_weights`.

        With a server factor 1/n and one local step, steps alpha * w_i minimise sum_i w_i f_i; the tables of AREA
        (arXiv 2405.10123) are reproduced with `samples`.
        """
        factor = self._step_factor(objective.clients, objective.share)
        return (self.step_size if step_size is None else step_size) * factor

    def _step_factor(self, n: int, share: Any) -> Any:
        """w_i of a client with the share s_i/S of all rows: a number, or (n,) for the shares of all clients."""
        match self.step_weights:
            case "one":
                return 1.0
            case "samples":
                return share
            case "uniform":
                return 1 / n
            case "relative":
                return n * share

    def update_weights(self, clients: Clients) -> np.ndarray | float | None:
        """(n,) or one number: the weight of a change of client i's model in the global model.

        None: there is no fixed weight, or the global model is not made of the clients' models alone.
        """
        return None

    def effective_steps(self, clients: Clients) -> np.ndarray | None:
        """(n,) step_size w_i times `update_weights`; None with a torch optimiser or a step that decays."""
        weights = self.update_weights(clients)
        if weights is None or self.step_decay or isinstance(self.solver, TorchSolver):
            return None
        return np.broadcast_to(self.step_size * self._step_factor(clients.n, clients.shares) * weights, (clients.n,))

    def cumulative_step(self, objective: Objective, steps: int) -> float:
        """The total step length of `steps` steps: (x - y)/v if all steps from x to y went along the same v.

        That is step * steps, and with momentum beta step * sum_j (1 - beta^j)/(1 - beta), j = 1 .. steps.
        """
        beta = getattr(self.solver, "momentum", 0.0)
        factor = sum((1 - beta**j) / (1 - beta) for j in range(1, steps + 1)) if beta else steps
        return self.client_step(objective) * factor

    def solve(
        self,
        objective: Objective,
        x: Vector,
        round: int,
        *,
        step: Step | None = None,
        steps: int | None = None,
        epochs: int | None = None,
        shift: Vector | None = None,
        weight: float = 0.0,
        centre: Vector | None = None,
        on_step: StepCallback | None = None,
        stop: StopCriterion | None = None,
        initial_estimate: Any = None,
        solver: Solver | None = None,
    ) -> LocalSolution:
        """Minimises `f_i(y) + <shift, y> + weight/2 ||y - centre||^2`, starting at y = x.

        A client with a training loop of its own takes the steps itself (`OwnObjective.fit`), unless that is not enough:
        for a term that it does not add, a look at each step, a formula for plain steps, another solver than `sgd`.

        Args:
            objective: f_i of this client.
            x: (d,) the first iterate; it is not changed.
            round: The key of the random batches, usually `message.round`.
            step: The step before it decays, or a function of the number of steps taken at this contact; None:
                `self.client_step(objective)`. A torch optimiser takes a number only.
            steps: The number of steps; None: the field `local_steps`, unless `epochs` is given.
            epochs: Passes over the client's rows; None: the field `local_epochs`, unless `steps` is given.
            shift: (d,) the linear term; None: 0.
            weight: The weight of the quadratic term.
            centre: (d,) the centre of the quadratic term.
            on_step: Called after every step.
            stop: Called before every step of `gd` and `sgd`; true ends the iteration.
            initial_estimate: Of the full gradient, for `svrg` and `sarah`: see their `solve`.
            solver: The local solver; None: the field.
        """
        if steps is epochs is None:
            steps, epochs = self.local_steps, self.local_epochs
        step = self.client_step(objective) if step is None else step
        term = NO_TERM if shift is None and not weight else QuadraticTerm(shift, weight, centre)
        solver = solver or self.solver
        fit = getattr(objective, "fit", None)  # a client with a training loop of its own has it
        if fit and solver == Sgd() and not self.needs_plain_steps():
            watched = on_step or stop or callable(step) or initial_estimate is not None
            if not watched and (term is NO_TERM or objective.adds_term):  # type: ignore[attr-defined]
                return LocalSolution(*fit(x, round, steps, epochs, step, term))
        batches: Sequence[Any]
        if isinstance(solver, Gd):
            batches = [None] * ((epochs if epochs is not None else steps) or 0)
        else:
            batches = objective.batches(round, steps or 0, epochs)
        return solver.solve(objective, x, self._decayed(step, round), batches, term, on_step, stop, initial_estimate)
