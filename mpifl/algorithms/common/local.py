"""The local solver: what clients do between two contacts, shared by all algorithms.

A client minimises phi(y) = f_i(y) + <shift, y> + weight/2 ||y - centre||^2 by steps y <- y - step * v, where v is

    sgd     grad f_i(y; batch)                                  + shift + weight (y - centre)
    gd      grad f_i(y)                                         + ...
    svrg    grad f_i(y; batch) - grad f_i(z; batch) + grad f_i(z)   + ..., z the point where the contact began
    sarah   grad f_i(y; batch) - grad f_i(y'; batch) + v'           + ..., y' and v' those of the step before

(Johnson and Zhang, NIPS 2013; Nguyen, Liu, Scheinberg, Takac, ICML 2017, arXiv 1703.00102.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mpifl.algorithms.base import Algorithm
from mpifl.errors import ConfigError, at_least, choice
from mpifl.objective import Objective, Vector, clone

STEP_WEIGHTS = ("one", "samples", "uniform", "relative")
Beside = Callable[[Vector, Vector, Any], None]  # (y before the step, y after it, the step's rows)
Done = Callable[[Vector, Vector], bool]  # (y, gradient of phi at y) -> y is good enough


class Solved(NamedTuple):
    """Where the solver ended."""

    x: Vector
    steps: int  # taken
    estimate: Vector | None = None  # of grad f_i(x), where the solver keeps one (sarah)


class Quadratic(NamedTuple):
    """What is added to f_i: <shift, y> + weight/2 ||y - centre||^2."""

    shift: Vector | None
    weight: float
    centre: Vector | None

    @property
    def adds(self) -> bool:
        """Whether anything is added at all."""
        return bool(self.weight) or self.shift is not None

    def add_gradient(self, y: Vector, gradient: Vector) -> None:
        """Adds shift + weight (y - centre) to a gradient."""
        if self.weight:
            gradient += self.weight * (y - self.centre)
        if self.shift is not None:
            gradient += self.shift


def update_buffers(objective: Objective, y: Vector) -> None:
    """Lets the objective write into y, after a step, what no gradient tells (see `Objective`)."""
    if hasattr(objective, "update_buffers"):
        objective.update_buffers(y)


@dataclass(frozen=True)
class Sgd:
    """A step along a batch's gradient."""

    name: str = "sgd"
    momentum: float = 0.0
    """heavy ball: v <- momentum * v + gradient, from 0 at each contact"""

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ConfigError("momentum", self.momentum, "a number of at least 0 and below 1")

    def solve(
        self, objective: Objective, x: Vector, step: float, batches: Sequence[Any], term: Quadratic,
        beside: Beside | None, done: Done | None, start: Any,
    ) -> Solved:  # fmt: skip
        y, velocity, taken = clone(x), None, 0
        if not (self.momentum or term.adds or beside or done) and hasattr(objective, "descend"):
            objective.descend(y, batches, step)
            return Solved(y, len(batches))
        for rows in batches:
            gradient = objective.gradient(y, rows)
            term.add_gradient(y, gradient)
            if done and done(y, gradient):
                break
            if self.momentum:
                velocity = gradient if velocity is None else self.momentum * velocity + gradient
                gradient = step * velocity
            else:
                gradient *= step
            before = clone(y) if beside else y
            y -= gradient
            update_buffers(objective, y)
            taken += 1
            if beside:
                beside(before, y, rows)
        return Solved(y, taken)


@dataclass(frozen=True)
class Gd(Sgd):
    """A step along the full gradient; an epoch is one step."""

    name: str = "gd"


@dataclass(frozen=True)
class Svrg:
    """Batch gradients, corrected by those at the point where the contact began."""

    name: str = "svrg"

    def solve(
        self, objective: Objective, x: Vector, step: float, batches: Sequence[Any], term: Quadratic,
        beside: Beside | None, done: Done | None, start: Any,
    ) -> Solved:  # fmt: skip
        """`start`: (z, what stands for grad f_i(z)); None: the true one at x."""
        z, full = start or (x, objective.gradient(x))
        y = clone(x)
        for rows in batches:
            at_z = objective.gradient(z, rows)
            v = objective.gradient(y, rows)
            v -= at_z
            v += full
            term.add_gradient(y, v)
            v *= step
            before = clone(y) if beside else y
            y -= v
            update_buffers(objective, y)
            if beside:
                beside(before, y, rows)
        return Solved(y, len(batches))


@dataclass(frozen=True)
class Sarah:
    """A running estimate of the full gradient, moved by the difference of two batch gradients at each step."""

    name: str = "sarah"

    def solve(
        self, objective: Objective, x: Vector, step: float, batches: Sequence[Any], term: Quadratic,
        beside: Beside | None, done: Done | None, start: Any,
    ) -> Solved:  # fmt: skip
        """`start`: the estimate of grad f_i(x); None: the true one. The estimate at the last point is given back."""
        y, estimate = clone(x), objective.gradient(x) if start is None else clone(start)
        for rows in batches:
            v = clone(estimate)
            term.add_gradient(y, v)
            v *= step
            before, y = y, y - v
            at_before = objective.gradient(before, rows)
            estimate += objective.gradient(y, rows)
            estimate -= at_before
            update_buffers(objective, y)
            if beside:
                beside(before, y, rows)
        return Solved(y, len(batches), estimate)


Solver = Sgd | Gd | Svrg | Sarah


@dataclass(frozen=True)
class Local(Algorithm):
    """The base of every method whose clients run a local solver: its hyper-parameters are the same in all."""

    step_size: float = 0.1
    """step of the local solver (eta)"""
    step_weights: str = "one"
    """factor on client i's step: samples s_i/S, uniform 1/n, relative n s_i/S, one 1"""
    local_steps: int = 1
    """steps of the local solver a contact (M, Q), each on a fresh batch"""
    local_epochs: int | None = None
    """passes over the client's rows instead of local_steps (E)"""
    solver: Solver = Sgd()
    """local solver: sgd, gd (full gradients), svrg or sarah (variance-reduced)"""

    def __post_init__(self) -> None:
        at_least("step_size", self.step_size, 0, strict=True)
        at_least("local_steps", self.local_steps, 1)
        at_least("local_epochs", self.local_epochs, 1)
        choice("step_weights", self.step_weights, STEP_WEIGHTS)

    def step(self, objective: Objective, size: float | None = None) -> float:
        """Client i's step: `size` (null: step_size) times w_i, w_i as `step_weights` says.

        With a server factor 1/n and one local step, steps alpha * w_i minimise sum_i w_i f_i: `samples` is what
        reproduces the tables of AREA (arXiv 2405.10123).
        """
        n, share = objective.clients, objective.share
        weights = {"one": 1.0, "samples": share, "uniform": 1 / n, "relative": n * share}
        return (self.step_size if size is None else size) * weights[self.step_weights]

    def reach(self, objective: Objective, steps: int) -> float:
        """(x - y)/v for `steps` steps from x to y along one and the same v: step * steps, and with momentum beta
        step * sum_j (1 - beta^j)/(1 - beta), j = 1 .. steps."""
        beta = getattr(self.solver, "momentum", 0.0)
        return self.step(objective) * (sum((1 - beta**j) / (1 - beta) for j in range(1, steps + 1)) if beta else steps)

    def solve(
        self,
        objective: Objective,
        x: Vector,
        round: int,
        *,
        step: float | None = None,
        steps: int | None = None,
        epochs: int | None = None,
        shift: Vector | None = None,
        weight: float = 0.0,
        centre: Vector | None = None,
        beside: Beside | None = None,
        done: Done | None = None,
        start: Any = None,
        solver: Solver | None = None,
    ) -> Solved:
        """Runs the local solver on f_i(y) + <shift, y> + weight/2 ||y - centre||^2 from y = x, which is not changed.

        `round` names the random batches: each value has its own. Null `step`: `self.step(objective)`; null `steps` and
        `epochs`: the method's own. `beside` is called after every step, `done` (gd alone) before every one; `start` is
        what svrg and sarah begin with, see there.
        """
        solver = solver or self.solver
        if steps is epochs is None:
            steps, epochs = self.local_steps, self.local_epochs
        batches: Sequence[Any]
        if isinstance(solver, Gd):
            batches = [None] * ((epochs if epochs is not None else steps) or 0)
        else:
            batches = objective.batches(round, steps or 0, epochs)
        step = self.step(objective) if step is None else step
        return solver.solve(objective, x, step, batches, Quadratic(shift, weight, centre), beside, done, start)
