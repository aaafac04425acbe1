"""Objectives made on demand: those of a million clients would take more memory than small data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence

import numpy as np

from mpifl.objective import MAX_CLIENTS_AS_OBJECTS, Objective

Shard = Sequence[np.ndarray]  # a client's part of the data


class ObjectivesOnUse(MutableMapping[int, Objective]):
    """Objectives by client. Those that were set are kept; any other is made each time that it is asked for."""

    def __init__(self, build: Callable[[Shard, int], Objective], shards: Mapping[int, Shard]) -> None:
        """build: builds the objective of a client from its data; the same one each time."""
        self._build, self._shards = build, shards
        self._set: dict[int, Objective] = {}

    def __getitem__(self, i: int) -> Objective:
        if self._set and i in self._set:
            return self._set[i]
        return self._build(self._shards[i], i)

    def __setitem__(self, i: int, objective: Objective) -> None:
        self._set[i] = objective

    def __delitem__(self, i: int) -> None:
        raise TypeError("the clients of a rank are never removed")

    def __iter__(self) -> Iterator[int]:
        yield from self._shards
        yield from (i for i in self._set if i not in self._shards)

    def __len__(self) -> int:
        return len(self._shards) + sum(1 for i in self._set if i not in self._shards)

    def __contains__(self, i: object) -> bool:
        return i in self._shards or i in self._set


def objectives(build: Callable[[Shard, int], Objective], shards: Mapping[int, Shard]) -> Mapping[int, Objective]:
    """The clients' objectives, from client -> data: built now; if there are many, made on demand (`ObjectivesOnUse`).

    An objective that keeps something from one contact to the next (`Objective.save`) is built now in any case.
    """
    first = {i: build(shards[i], i) for i in list(shards)[:1]}
    if len(shards) > MAX_CLIENTS_AS_OBJECTS and not any(hasattr(objective, "save") for objective in first.values()):
        return ObjectivesOnUse(build, shards)
    return {i: first.get(i) or build(shards[i], i) for i in shards}
