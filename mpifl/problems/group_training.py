"""Clients with custom training loops, which all ranks of a group run at the same time.

Where they are sharded each member has a part of the model: it applies the method's rule to its own part, and thus
calls `fit` by itself once the leader has asked it to train.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mpifl.objective import QuadraticTerm, parts_of
from mpifl.problems.micro_batches import Group
from mpifl.problems.own_training import OwnObjective
from mpifl.problems.problem import HostedClients


class GroupTrained:
    """One client, whose `fit` and `load` every member calls; the leader alone computes everything else."""

    def __init__(self, objective: OwnObjective, client: int, group: Group, d: int | None) -> None:
        """d: numbers of a model that is sharded; None: it is not."""
        self._objective, self._client, self._group, self._sharded = objective, client, group, d is not None
        objective.comm = group.communicator
        if d is not None:
            objective.shard(parts_of(d, group.size)[group.member])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objective, name)

    def fit(
        self, x: np.ndarray, round: int, steps: int | None, epochs: int | None, step: float, term: QuadraticTerm
    ) -> tuple[np.ndarray, int]:
        """The client's model after its training from x (d,), and its number of local steps; on the leader.

        Sharded: this member's part of the model, from its part x.
        """
        if self._sharded:
            if not self._group.member:
                self._group.call(self._client, "train", {}, [])
            return self._group.agree(lambda: self._objective.fit(x, round, steps, epochs, step, term), alike=False)
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


def by_groups(hosted: HostedClients, group: Group, meta: Mapping[str, Any]) -> HostedClients:
    """A rank's clients with custom training loops, which its group trains; meta: `OwnTraining.meta`."""
    d = meta["d"] if meta["sharded"] else None
    objectives: dict[int, Any] = {i: GroupTrained(own, i, group, d) for i, own in hosted.objectives.items()}  # type: ignore[arg-type]
    return hosted._replace(objectives=objectives)
