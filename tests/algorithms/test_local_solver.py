"""The local solvers against their formulas, written down anew."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.common.local_solver import Decay, Gd, LocalTraining, Sarah, Sgd, Solver, Svrg
from mpifl.rng import stream
from tests.quadratic_runs import close

ROWS, D = 8, 3
SOLVERS = [Sgd(), Gd(), Svrg(), Sarah(), Sgd(momentum=0.6), Gd(momentum=0.6)]
each_solver = pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: f"{s.name}{getattr(s, 'momentum', '') or ''}")


@dataclass
class Squares:
    """f(x) = mean over rows of 1/2 (p_r x - q_r)^2 in batches of two rows."""

    share: float = 0.375
    clients: int = 4
    asked: list = field(default_factory=list)  # the round of each call of `batches`
    full: int = 0  # full gradients so far

    def __post_init__(self) -> None:
        rng = np.random.default_rng(5)
        self.p, self.q = rng.standard_normal((ROWS, D)), rng.standard_normal(ROWS)

    def batches(self, round: int, steps: int, epochs: int | None = None) -> list:
        self.asked.append(round)
        count = steps if epochs is None else epochs * (ROWS // 2)
        rng = stream(0, "batch", round=round)
        return [rng.choice(ROWS, 2, replace=False) for _ in range(count)]

    def gradient(self, x: np.ndarray, rows: Any = None) -> np.ndarray:
        self.full += rows is None
        p, q = (self.p, self.q) if rows is None else (self.p[rows], self.q[rows])
        return p.T @ (p @ x - q) / len(q)


X = np.array([1.0, -2.0, 0.5])
TERMS: list[dict[str, Any]] = [
    {},
    {"shift": np.array([0.3, -0.1, 2.0])},
    {"weight": 1.7, "centre": np.array([-1.0, 0.4, 0.2])},
    {"shift": np.array([0.3, -0.1, 2.0]), "weight": 0.6, "centre": np.array([-1.0, 0.4, 0.2])},
]
each_term = pytest.mark.parametrize("term", TERMS, ids=["plain", "shift", "proximal", "both"])


def extra(term: dict[str, Any], y: np.ndarray) -> Any:
    """shift + weight (y - centre)"""
    return term.get("shift", 0.0) + term.get("weight", 0.0) * (y - term.get("centre", 0.0))


def local(solver: Solver = Sgd(), **more: Any) -> LocalTraining:  # noqa: B008
    return LocalTraining(solver=solver, **{"step_size": 0.2, "local_steps": 5, **more})


# -- each solver's recursion -------------------------------------------------------------------------------------------
@each_term
@each_solver
def test_each_solver_follows_its_recursion(solver: Solver, term: dict[str, Any]) -> None:
    """y <- y - step u, a fresh batch B in each step, e = shift + weight (y - centre); x is the start. sgd: u =
    momentum u + g_B(y) + e; gd: of all rows, and no batch is drawn. svrg: u = g_B(y) - g_B(x) + grad f(x) + e. sarah: u
    = v + e, v_0 = grad f(x), v_t = g_B(y_t) - g_B(y_{t-1}) + v_{t-1}, which comes back. The last two compute one full
    gradient."""
    f = Squares()
    solved, full = local(solver).solve(f, X, 9, **term), isinstance(solver, Gd)
    assert solved.steps == 5 and f.full == (5 if full else solver.name != "sgd") and f.asked == [9][full:]
    y, u, v = X, np.zeros(D), f.gradient(X)
    for rows in [None] * 5 if full else f.batches(9, 5):
        if isinstance(solver, Sgd | Gd):
            u = solver.momentum * u + f.gradient(y, rows) + extra(term, y)
        elif solver.name == "svrg":
            u = f.gradient(y, rows) - f.gradient(X, rows) + f.gradient(X) + extra(term, y)
        else:
            u = v + extra(term, y)
        before, y = y, y - 0.2 * u
        v = v + f.gradient(y, rows) - f.gradient(before, rows)
    close(solved.x, y)
    if solver.name == "sarah":
        close(solved.estimate, v)


@pytest.mark.parametrize("kind", ["one", "relative"])
@each_solver
def test_the_reach_is_how_far_the_steps_go_along_a_constant_gradient(solver: Solver, kind: str) -> None:
    """Q steps along v go `reach` times v: step (Q - beta (1 - beta^Q)/(1 - beta))/(1 - beta), the geometric sum."""
    v, step = np.array([0.3, -1.1, 2.0]), {"one": 0.2, "relative": 0.2 * 4 * 0.375}[kind]

    class Linear(Squares):
        def gradient(self, x: np.ndarray, rows: Any = None) -> np.ndarray:
            return v.copy()

    beta, f = getattr(solver, "momentum", 0.0), Linear()
    for Q in (1, 2, 7):
        algorithm = local(solver, step_weights=kind, local_steps=Q)
        far = step * (Q - beta * (1 - beta**Q) / (1 - beta)) / (1 - beta)
        close(algorithm.cumulative_step(f, Q), far)  # type: ignore[arg-type]
        close(X - algorithm.solve(f, X, 0).x, far * v)  # type: ignore[arg-type]


# -- steps, epochs, weights --------------------------------------------------------------------------------------------
@each_solver
def test_steps_and_epochs(solver: Solver) -> None:
    """The method's own, or the call's; epochs before steps; an epoch of gd is one step."""
    f, algorithm = Squares(), local(solver)
    an_epoch = 1 if isinstance(solver, Gd) else ROWS // 2
    assert algorithm.solve(f, X, 0).steps == 5
    assert algorithm.solve(f, X, 0, steps=3).steps == 3
    assert algorithm.solve(f, X, 0, epochs=2).steps == 2 * an_epoch
    passes = local(solver, local_epochs=3)
    assert passes.solve(f, X, 0).steps == 3 * an_epoch
    assert passes.solve(f, X, 0, steps=2).steps == 2
    nothing = algorithm.solve(f, X, 0, steps=0)
    assert nothing.steps == 0 and np.array_equal(nothing.x, X)


@pytest.mark.parametrize(("kind", "factor"), [("one", 1.0), ("samples", 0.375), ("uniform", 0.25), ("relative", 1.5)])
@each_solver
def test_step_weights_multiply_the_step_unless_the_call_gives_one(solver: Solver, kind: str, factor: float) -> None:
    """alpha, alpha s_i/S, alpha/n, alpha n s_i/S; a step given in the call is taken as it is."""
    f = Squares()
    algorithm = local(solver, step_weights=kind)
    close(algorithm.client_step(f), 0.2 * factor)
    close(algorithm.client_step(f, 3.0), 3 * factor)
    plain = local(solver, step_size=0.2 * factor)
    close(algorithm.solve(f, X, 0).x, plain.solve(f, X, 0).x)
    close(algorithm.solve(f, X, 0, step=0.07).x, local(solver, step_size=0.07).solve(f, X, 0).x)


@each_solver
def test_on_step_is_called_after_every_step(solver: Solver) -> None:
    """(y before, y after, rows) of each step, in order; y after is the solver's own: whoever keeps it takes a copy."""
    f, seen = Squares(), []
    solved = local(solver).solve(f, X, 2, on_step=lambda before, after, rows: seen.append((before, after.copy(), rows)))
    assert len(seen) == solved.steps == 5
    assert np.array_equal(seen[0][0], X)
    assert np.array_equal(seen[-1][1], solved.x)
    for (_, after, _), (before, _, _) in pairwise(seen):
        assert np.array_equal(after, before)
    if isinstance(solver, Gd):
        assert all(rows is None for _, _, rows in seen)
    else:
        assert [r.tolist() for _, _, r in seen] == [r.tolist() for r in f.batches(2, 5)]
    assert np.array_equal(local(solver).solve(f, X, 2).x, solved.x)  # looking on changes nothing


@pytest.mark.parametrize("solver", [Sgd, Gd])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_step_decays_over_contacts_and_steps(solver: type[Sgd], momentum: float) -> None:
    """In contact r step q is step_size w_i/sqrt(1 + 120 r + q), also where a method has a step of its own."""
    f, x = Squares(), np.array([1.0, -2.0, 0.5])
    decay = Decay(contacts=120, steps=1, power=0.5)
    method = LocalTraining(step_size=0.1, step_weights="samples", local_steps=3, solver=solver("sgd", momentum, decay))
    for r in (0, 2):
        y, v, batches = x, 0 * x, [None] * 3 if solver is Gd else f.batches(r, 3)
        for q, rows in enumerate(batches):
            v = momentum * v + f.gradient(y, rows)
            y = y - 0.1 * f.share / np.sqrt(1 + 120 * r + q) * v
        close(method.solve(f, x, r).x, y)
        close(method.solve(f, x, r, step=lambda taken: 0.1 * f.share).x, y)
    assert method.effective_steps(None) is None  # type: ignore[arg-type]  # a step that decays is none of the job's
