"""Clients with training loops of their own, which all ranks of a group run at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mpifl.objective import QuadraticTerm
from mpifl.problems.micro_batches import Group
from mpifl.problems.own_training import OwnObjective
from mpifl.problems.problem import HostedClients


class GroupTrained:
    """One client, whose `fit` and `load` every member calls; the leader alone computes everything else."""

    def __init__(self, objective: OwnObjective, client: int, group: Group) -> None:
        self._objective, self._client, self._group = objective, client, group
        objective.comm = group.communicator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objective, name)

    def fit(
        self, x: np.ndarray, round: int, steps: int | None, epochs: int | None, step: float, term: QuadraticTerm
    ) -> tuple[np.ndarray, int]:
        """The client's model after its training from x (d,), and its number of local steps; on the leader."""
        vectors = {"x": x, "shift": term.shift, "centre": term.centre}
        known = {name: v for name, v in vectors.items() if v is not None}
        counts = {"round": round, "steps": steps, "epochs": epochs}
        arguments = {**counts, "step": float(step), "weight": float(term.weight), "vectors": [*known]}
        self._group.call(self._client, "fit", arguments, [*known.values()])
        return self._group.agree(lambda: self._objective.fit(x, round, steps, epochs, step, term))

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restores what `save` returned, on all members; called on the leader."""
        self._group.call(self._client, "load", {"names": [*saved]}, [np.asarray(v) for v in saved.values()])
        self._objective.load(saved)

    def follow_call(self, name: str, arguments: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> None:
        """Does what the leader does; on the other members."""
        if name == "load":
            self._objective.load(dict(zip(arguments["names"], arrays, strict=True)))
            return
        given = dict(arguments)
        vectors = dict(zip(given.pop("vectors"), arrays, strict=True))
        term = QuadraticTerm(vectors.get("shift"), given.pop("weight"), vectors.get("centre"))
        self._group.agree(lambda: self._objective.fit(vectors["x"], **given, term=term))


def by_groups(hosted: HostedClients, group: Group) -> HostedClients:
    """A rank's clients with training loops of their own, which its group trains."""
    objectives: dict[int, Any] = {i: GroupTrained(own, i, group) for i, own in hosted.objectives.items()}  # type: ignore[arg-type]
    return hosted._replace(objectives=objectives)
