"""Gradients of batches as sums over micro-batches, which the ranks of a group may share.

A batch is cut into `problem.micro_batches` pieces. The gradients of these, each times its share of the rows, are added
in one binary tree that depends on their number alone. Results have therefore the same bits however many ranks share
the pieces, one included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from mpifl.errors import ConfigError
from mpifl.objective import Objective, Vector, to_numpy
from mpifl.problems.problem import HostedClients

GRADIENT = "gradient"  # asks the other members for their parts of a gradient (`MicroBatched.follow_gradient`)


class Group(Protocol):
    """The ranks that compute a client together. Member 0, the leader, has the client; the others follow it."""

    size: int
    member: int  # this rank's number in the group

    @property
    def communicator(self) -> Any:
        """An MPI communicator of the group alone."""

    def call(self, client: int, name: str, arguments: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> None:
        """Tells the other members, where this one is the leader, to call something; returns once they know."""

    def agree(self, run: Callable[[], tuple[np.ndarray, int]], alike: bool = True) -> tuple[np.ndarray, int]:
        """What `run` returns, the same on all members (`alike`), or the number alone; raises where it raised on one."""

    def compute(self, gradient: Callable[[], Vector]) -> Any:
        """The gradient of a micro-batch, or what it raised where the other members are to learn it."""

    def add(self, left: Any, right: Any, source: int, target: int) -> Any:
        """left + right on member `target`, which has `left`; `source` has `right`. Each may be what was raised."""


class MicroBatched:
    """One client's f_i, its gradients computed by micro-batches; the leader alone computes everything else."""

    def __init__(self, objective: Objective, client: int, micro_batches: int, group: Group | None) -> None:
        """group: its size divides `micro_batches`; each member computes as many of them, in order. None: one rank."""
        self._objective, self._client, self._group = objective, client, group
        self._member = group.member if group else 0
        self._micro_batches, self._each = micro_batches, micro_batches // (group.size if group else 1)
        self._round, self._gradients = -1, 0  # the contact, and the number of gradients in it

    def __getattr__(self, name: str) -> Any:
        if name == "descend":  # its steps are along gradients of whole batches
            raise AttributeError(name)
        return getattr(self._objective, name)

    def begin_round(self, round: int) -> None:
        """Called before the client trains."""
        self._round, self._gradients = round, 0
        if hasattr(self._objective, "begin_round"):
            self._objective.begin_round(round)

    def gradient(self, x: Vector, rows: Any = None) -> Vector:
        """The gradient at x, (d,), of the mean loss over `rows`, regulariser included; on the leader."""
        every = rows is None or (isinstance(rows, slice) and rows == slice(None))
        if not every and not (isinstance(rows, np.ndarray) and rows.dtype.kind in "iu"):
            raise TypeError(f"a batch of type {type(rows).__name__}, not row numbers, has no problem.micro_batches")
        some = None if every else rows
        self._gradients += 1
        if self._group:
            arrays = [to_numpy(x), *([] if every else [np.ascontiguousarray(rows, np.int64)])]
            self._group.call(self._client, GRADIENT, {"round": self._round, "number": self._gradients}, arrays)
        result = self._sum_of_parts(x, some, self._gradients)
        if isinstance(result, BaseException):
            raise result
        if hasattr(self._objective, "take_buffers"):
            self._objective.take_buffers(result)
        return result

    def follow_gradient(self, x: Vector, rows: np.ndarray | None = None, *, round: int, number: int) -> None:
        """Computes this member's part of a gradient, and sends it on; on members that are not the leader."""
        if round != self._round:
            self.begin_round(round)
        self._sum_of_parts(x, rows, number)

    def _sum_of_parts(self, x: Vector, rows: np.ndarray | None, number: int) -> Any:
        """The gradient on the leader, or what was raised on one of the members."""
        total: int = self._objective.samples if rows is None else len(rows)
        count = min(self._micro_batches, total)
        parts = [slice(*ends) for ends in pairwise(total * k // count for k in range(count + 1))]

        def part(k: int) -> Any:
            compute = partial(self._part, x, rows, parts[k], total, (number, k))
            return self._group.compute(compute) if self._group else compute()

        return self._sum(part, 0, count)

    def _part(self, x: Vector, rows: np.ndarray | None, part: slice, total: int, key: tuple[int, int]) -> Vector:
        """The gradient of a micro-batch times its share of the batch's rows; key: of what its pass draws."""
        objective: Any = self._objective
        if hasattr(objective, "begin_pass"):
            objective.begin_pass(self._round, key)
        result = objective.gradient(x, part if rows is None else rows[part])
        if hasattr(objective, "update_buffers"):  # their mean over the micro-batches is a part of the sum
            objective.update_buffers(result)
        result *= (part.stop - part.start) / total
        return result

    def _sum(self, part: Callable[[int], Any], first: int, last: int) -> Any:
        """The sum of the parts `first` to `last - 1` on the member that computes the first of them."""
        member, owner = self._member, first // self._each
        if last - first == 1:
            return part(first) if owner == member else None
        middle = first + (1 << (last - first - 1).bit_length() - 1)
        source = middle // self._each
        left: Any = None
        right: Any = None
        if owner <= member <= (middle - 1) // self._each:
            left = self._sum(part, first, middle)
        if source <= member <= (last - 1) // self._each:
            right = self._sum(part, middle, last)
        if self._group:
            return self._group.add(left, right, source, owner) if member in (source, owner) else None
        left += right
        return left


def by_micro_batches(hosted: HostedClients, micro_batches: int, group: Group | None = None) -> HostedClients:
    """A rank's clients, whose gradients are computed by micro-batches. Raises ConfigError where they cannot be."""
    if any(getattr(objective, "stats", None) is not None for objective in hosted.objectives.values()):
        wrong = f"a batch is computed in problem.micro_batches={micro_batches} passes, and each would change them"
        raise ConfigError("problem.torch.buffers", "local", wrong, "averaged", "or set problem.micro_batches=1")
    objectives = {i: MicroBatched(objective, i, micro_batches, group) for i, objective in hosted.objectives.items()}
    facts = {**hosted.facts, **({"batched": "no: problem.micro_batches is set"} if "batched" in hosted.facts else {})}
    return hosted._replace(objectives=objectives, facts=facts, train_batch=None)
