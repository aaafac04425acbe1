"""What clients do between two contacts: the local solver and the scaling of its step, shared by all algorithms."""

from __future__ import annotations

from mpifl.algorithms.base import Objective, Vector
from mpifl.errors import choice

STEP_WEIGHTS = ("one", "samples", "uniform", "relative")


def check_step_weights(value: str) -> None:
    """Raises ConfigError unless `value` names a scaling of the local step."""
    choice("step_weights", value, STEP_WEIGHTS)


def step_weight(kind: str, objective: Objective) -> float:
    """The factor w_i on client i's step: one 1, samples s_i/S, uniform 1/n, relative n s_i/S.

    With a server factor 1/n and one local step, steps alpha * w_i minimise sum_i w_i f_i: `samples` is what reproduces
    the tables of AREA (arXiv 2405.10123).
    """
    n, share = objective.clients, objective.share
    return {"one": 1.0, "samples": share, "uniform": 1 / n, "relative": n * share}[kind]


def descend(
    objective: Objective, x: Vector, step: float, round: int, steps: int, epochs: int | None = None, anchor: float = 0.0
) -> tuple[Vector, int]:
    """SGD from x (unchanged): y <- y - step * (g_i(y; batch) + anchor * (y - x)); the last y and the steps taken.

    `steps` fresh batches, or `epochs` passes over the client's rows. `anchor` is the weight of a proximal term
    anchor/2 ||y - x||^2 (rho in FedAsync, mu in FedProx).
    """
    y, taken = x.copy(), 0
    for rows in objective.batches(round, steps, epochs):
        gradient = objective.gradient(y, rows)
        if anchor:
            gradient += anchor * (y - x)
        gradient *= step
        y -= gradient
        taken += 1
    return y, taken
