"""Objectives made on demand: those of a million clients would take more memory than small data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from mpifl.objective import MAX_CLIENTS_AS_OBJECTS, Objective

Shard = Sequence[np.ndarray]  # a client's part of the data


class ObjectivesOnUse(MutableMapping[int, Objective]):
    """Objectives by client. Those that were set are kept; any other is made each time that it is asked for.

    If clients share one objective, it is that of the client that was asked for last: use it before the next one.
    """

    def __init__(
        self, build: Callable[[Shard, int], Objective], shards: Mapping[int, Shard], shared: Objective | None = None
    ) -> None:
        """build: builds the objective of a client from its data; the same one each time.

        shared: the one that all clients share, which `set_client(shard, i)` switches to client i; None: each is built.
        """
        self._build, self._shards, self._shared = build, shards, shared
        self._shard = shards.__getitem__
        self._set_client: Any = None if shared is None else shared.set_client  # type: ignore[attr-defined]
        self._set: dict[int, Objective] = {}

    def __getitem__(self, i: int) -> Objective:
        if self._set and i in self._set:
            return self._set[i]
        if self._shared is None:
            return self._build(self._shard(i), i)
        self._set_client(self._shard(i), i)
        return self._shared

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


def objectives(
    build: Callable[[Shard, int], Objective], shards: Mapping[int, Shard], shared: bool = False
) -> Mapping[int, Objective]:
    """The clients' objectives, from client -> data: built now; if there are many, made on demand (`ObjectivesOnUse`).

    An objective that keeps something from one contact to the next (`Objective.save`) is built now in any case.
    shared: many clients share one objective, which `set_client(shard, i)` switches from one to the next.
    """
    first = {i: build(shards[i], i) for i in list(shards)[:1]}
    if len(shards) > MAX_CLIENTS_AS_OBJECTS and not any(hasattr(objective, "save") for objective in first.values()):
        return ObjectivesOnUse(build, shards, next(iter(first.values())) if shared else None)
    return {i: first.get(i) or build(shards[i], i) for i in shards}
