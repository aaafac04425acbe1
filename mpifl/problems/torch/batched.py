"""Clients of a rank that compute together: their gradients come from one call of torch.func.vmap.

A rule is code for one client. Here each client's runs in a greenlet, a function that can be left and entered again: it
is left where it asks its objective for steps or a gradient. Once all wait, those whose batches have equally many rows
are answered by one call on their stacked vectors (clients, d), and what is left over one after another.
"""

from __future__ import annotations

import warnings
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from math import prod
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from greenlet import getcurrent, greenlet
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.utils.flop_counter import FlopCounterMode

from mpifl.problems.base import Hosted, Layout
from mpifl.problems.torch.device import memory
from mpifl.problems.torch.flat import Vector, like, tensor
from mpifl.problems.torch.objective import MOST, Shared, TorchObjective

if TYPE_CHECKING:
    from mpifl.problems.settings import Torch

LEAST = 5  # clients in one call: fewer are as fast one after another
ROOM = 2**28  # entries of their vectors in one call, and as many of their gradients
WORK = 15 * 10**6  # floating-point operations of one gradient: with more, one client is work enough for a CPU
AHEAD = 512  # rows of a client's next batches that are looked up at once


class Request:
    """What a client asks for: a step y <- y - step * gradient for each batch, in place; or, with no step, one gradient
    at y, which is then its `answer`."""

    def __init__(self, objective: TorchObjective, y: Vector, batches: Sequence[Any], step: float | None) -> None:
        self.objective, self.y, self.batches, self.step = objective, y, batches, step
        self.at, self.answer = 0, None
        self._ahead: deque[tuple[Tensor, Tensor]] = deque()
        self._arrive()

    def _arrive(self) -> None:
        """Looks at the next batch. `kind`: requests of the same one can be answered together."""
        self.waits = self.at < len(self.batches)
        if self.waits:
            rows = self.batches[self.at]
            count = len(rows) if isinstance(rows, np.ndarray) else self.objective.samples
            self.kind = count, self.step is None, self.objective.rows.looks

    def read(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the next batch, which is done with."""
        if not self._ahead:
            self._look()
        self.at += 1
        self._arrive()
        return self._ahead.popleft()

    def _look(self) -> None:
        """Takes some of the next batches out of the rows at once."""
        take, rows = self.objective.rows.take, self.batches[self.at]
        if not isinstance(rows, np.ndarray):
            self._ahead.append(take(slice(None)))
            return
        some = self.batches[self.at : self.at + max(1, AHEAD // len(rows))]
        if len(some) == 1:
            self._ahead.append(take(rows))
            return
        x, y = take(np.concatenate(some))
        sizes = [len(rows) for rows in some]
        self._ahead.extend(zip(x.split(sizes), y.split(sizes), strict=True))

    def alone(self) -> None:
        """Has the objective itself do the next batch."""
        rows = self.batches[self.at]
        if self.step is None:
            self.answer = self.objective.gradient(self.y, rows)
        else:
            self.objective.descend(self.y, [rows], self.step)
        self._ahead.clear()
        self.at += 1
        self._arrive()


class Group:
    """Requests of one kind, and their vectors y (clients, d), stacked; the module's parameters are views of them."""

    def __init__(self, requests: Sequence[Request], layout: Layout) -> None:
        self.requests, self.y = requests, torch.stack([tensor(r.y) for r in requests])
        sizes = [prod(shape) for _, shape in layout]
        parts = zip(layout, self.y.split(sizes, 1), strict=True)
        self.weights = {name: part.view(-1, *shape) for (name, shape), part in parts}
        self._steps = self.y.new_tensor([r.step or 0.0 for r in requests])

    def descend(self, gradients: Mapping[str, Tensor]) -> None:
        """A step of every client, its own."""
        for name, weight in self.weights.items():
            steps = self._steps.view(-1, *[1] * (weight.ndim - 1))
            weight.addcmul_(gradients[name], steps, value=-1)

    def leave(self) -> None:
        """Writes the vectors back."""
        for request, y in zip(self.requests, self.y, strict=True):
            if request.step is not None:
                tensor(request.y).copy_(y)


class Hub:
    """Where the requests of all clients meet."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._gradients = vmap(grad(self._loss))  # of (clients, ...), (clients, rows, ...) and (clients, rows)
        self.rows = MOST  # of a batch, beyond which a client is answered alone

    def ask(self, objective: TorchObjective, y: Vector, batches: Sequence[Any], step: float | None = None) -> Any:
        """Leaves the client's greenlet until its request is done; the gradient, where it is for one."""
        return getcurrent().parent.switch(Request(objective, y, batches, step))

    def together(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """What the tasks return, each a client's. Raises what one of them raises, and gives up the others."""
        clients = [greenlet(task) for task in tasks]
        results: list[Any] = [None] * len(tasks)
        waiting: dict[int, Request] = {}

        def enter(k: int, *answer: Any) -> None:
            self._shared.meeting = self  # only while a client's own code runs
            try:
                said = clients[k].switch(*answer)
            finally:
                self._shared.meeting = None
            if clients[k].dead:
                results[k] = said
            else:
                waiting[k] = said

        try:
            for k, client in enumerate(clients):
                client.gr_context = copy_context()  # NumPy's error state is there
                enter(k)
            while waiting:
                asked = dict(waiting)
                waiting.clear()
                self.answer(list(asked.values()))
                for k, request in asked.items():
                    enter(k, request.answer)
        finally:
            for client in clients:
                if not client.dead:
                    client.throw()
        return results

    def answer(self, requests: Sequence[Request]) -> None:
        """Does all that is asked for, the commonest kind first: before their epochs' last, smaller batches clients wait
        for each other, and are then together again."""
        self._shared.flat.module.train()
        group: Group | None = None
        while waiting := [r for r in requests if r.waits]:
            kind, count = Counter(r.kind for r in waiting).most_common(1)[0]
            most = self.most(kind[0])
            now = [r for r in waiting if r.kind == kind][:most] if count >= LEAST else waiting
            alone = min(count, most) < LEAST
            if group and (alone or now != group.requests):
                group.leave()
                group = None
            if alone:
                for request in now:
                    request.alone()
                continue
            group = group or Group(now, self._shared.flat.layout)
            gradients = self.gradients(group)
            if now[0].step is not None:
                group.descend(gradients)
                continue
            for request, gradient in zip(now, flat(gradients), strict=True):
                request.answer = like(request.y, gradient.clone())  # a view would keep those of all clients in memory
        if group:
            group.leave()

    def most(self, rows: int) -> int:
        """Clients in one call, where each has so many rows."""
        return 1 if rows > self.rows else min(MOST // rows, ROOM // self._shared.flat.d)

    def gradients(self, group: Group) -> dict[str, Tensor]:
        """(clients, ...) of each parameter, on the next batches."""
        x, y = zip(*[request.read() for request in group.requests], strict=True)
        result: dict[str, Tensor] = self._gradients(group.weights, torch.stack(x), torch.stack(y))
        if self._shared.l2:
            for name, weight in group.weights.items():
                if weight.ndim > 2:  # one axis is that of the clients
                    result[name] = result[name].add(weight, alpha=self._shared.l2)
        return result

    def _loss(self, weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """The mean loss of one client's rows."""
        with self._shared.precision():
            return self._shared.loss(functional_call(self._shared.flat.module, weights, (x,)), y)


def flat(gradients: Mapping[str, Tensor]) -> Tensor:
    """(clients, d)"""
    return torch.cat([g.reshape(len(g), -1) for g in gradients.values()], 1)


def hosted(
    shared: Shared, objectives: Mapping[int, TorchObjective], settings: Torch, facts: Mapping[str, Any]
) -> Hosted:
    """A rank's clients, and what computes them together; the run file is told where nothing does, and why."""
    hub, own = Hub(shared), memory(shared.device, facts["transfers"])
    reason = refusal(hub, shared, list(objectives.values()), settings)
    if reason:
        return Hosted(objectives, {**facts, "batched": f"no: {reason}"}, memory=own)
    return Hosted(objectives, {**facts, "batched": True}, hub.together, own)


def refusal(hub: Hub, shared: Shared, clients: Sequence[TorchObjective], settings: Torch) -> str:
    """Why these clients are not computed together; empty where they are, and the hub then knows up to how many rows.

    Two clients' gradients on a few rows are held against those that they compute themselves.
    """
    if not settings.batched:
        return "problem.torch.batched is false"
    looks = Counter(c.rows.looks for c in clients).most_common(1)
    if not looks or looks[0][1] < LEAST:
        return f"fewer than {LEAST} clients on this rank, or with rows of one shape"
    if shared.flat.stats:
        return "the module has buffers, as batch norm has for running statistics, that a pass may change"
    if ROOM // shared.flat.d < LEAST:
        return f"more than {ROOM // LEAST} parameters"
    pair = [c for c in clients if c.rows.looks == looks[0][0]][:2]
    x, rows = shared.flat.values(), np.arange(min(8, *(c.samples for c in pair)))
    with FlopCounterMode(display=False) as counter:
        alone = torch.stack([c.gradient(x, rows) for c in pair])
    if shared.device.type == "cpu" and (work := counter.get_total_flops()):
        hub.rows = min(MOST, WORK * len(pair) * len(rows) // work)
        if all(c.batch > hub.rows for c in clients):
            return f"one client's batch is enough work for a CPU: it has more than {hub.rows} rows"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*batching rule")  # vmap would loop over the clients, slowly
            group = Group([Request(c, x, [rows], None) for c in pair], shared.flat.layout)
            together = flat(hub.gradients(group))
    except Exception as error:  # whatever this module comes to under vmap; by itself it has just worked
        return shorten(str(error), 200)
    precision = torch.finfo(torch.bfloat16 if settings.autocast else x.dtype).eps
    apart = float((together - alone).norm() / alone.norm())
    if not apart <= precision**0.5:
        return f"gradients under vmap are others: {apart:.1e} of their norm away"
    return ""
