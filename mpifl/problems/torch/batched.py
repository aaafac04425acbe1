"""Batched training of a rank's clients: their gradients are computed by one call of torch.func.vmap.

A client rule is code for one client. Each client's rule runs in a greenlet, a function that can be suspended: it is
suspended where it requests steps or a gradient from its objective. Once all are suspended, requests with equally many
rows are computed by one call on the stacked vectors (clients, d), and the remaining ones one after another.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from math import prod
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from greenlet import getcurrent, greenlet
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.utils.flop_counter import FlopCounterMode

from mpifl.errors import Cancelled
from mpifl.objective import Vector
from mpifl.problems.problem import HostedClients, Layout
from mpifl.problems.settings import Torch
from mpifl.problems.torch.device import memory
from mpifl.problems.torch.flat import tensor, vector_like
from mpifl.problems.torch.module_objective import MAX_ROWS, Shared, TorchObjective

MIN_CLIENTS = 5  # clients in one call: fewer are as fast one after another
MAX_ENTRIES = 2**28  # entries of their vectors in one call, and as many of their gradients
MAX_FLOPS = 15 * 10**6  # floating-point operations of one gradient: with more, one client is work enough for a CPU


class Request:
    """A client's request: a step y <- y - step * gradient for each batch, in place; or, without a step, one gradient at
    y, which becomes its `result`."""

    def __init__(self, objective: TorchObjective, y: Vector, batches: Sequence[Any], step: float | None) -> None:
        self.objective, self.y, self.batches, self.step = objective, y, batches, step
        self.position, self.result = 0, None
        self._classify()

    def _classify(self) -> None:
        """Sets `kind` from the next batch: requests of equal kinds can be computed in one call."""
        self.pending = self.position < len(self.batches)
        if self.pending:
            rows = self.batches[self.position]
            count = len(rows) if isinstance(rows, np.ndarray) else self.objective.samples
            self.kind = count, self.step is None, self.objective.rows.signature

    def next_rows(self) -> Any:
        """The next batch; moves on to the one after it."""
        rows = self.batches[self.position]
        self.position += 1
        self._classify()
        return rows

    def run_alone(self) -> None:
        """Computes the next batch by the objective alone."""
        rows = self.next_rows()
        if self.step is None:
            self.result = self.objective.gradient(self.y, rows)
        else:
            self.objective.descend(self.y, [rows], self.step)


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

    def write_back(self) -> None:
        """Writes the vectors back."""
        rows = vector_like(self.requests[0].y, self.y)  # few entries are copied faster by NumPy
        for request, row in zip(self.requests, rows, strict=True):
            if request.step is not None:
                request.y[:] = row


def read_batches(requests: Sequence[Request]) -> tuple[Tensor, Tensor]:
    """Inputs and targets (clients, rows, ...) of the next batches, which have equally many rows; moves on."""
    read = []
    for request in requests:
        rows = request.next_rows()
        read.append(request.objective.rows.take(rows if isinstance(rows, np.ndarray) else slice(None)))
    return torch.stack([x for x, _ in read]), torch.stack([y for _, y in read])


class BatchTrainer:
    """Collects the requests of all clients and computes them in batches."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._gradients = vmap(grad(self._loss))  # takes (clients, ...), (clients, rows, ...), (clients, rows)
        self.rows = MAX_ROWS  # maximum number of rows of a batch; a client with more is computed alone

    def submit(self, objective: TorchObjective, y: Vector, batches: Sequence[Any], step: float | None = None) -> Any:
        """Suspends the client's greenlet until its request is computed; the gradient, where it asks for one."""
        return getcurrent().parent.switch(Request(objective, y, batches, step))

    def train_batch(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """Runs the tasks, one per client, and returns their results; cancels all when one of them raises."""
        clients = [greenlet(task) for task in tasks]
        results: list[Any] = [None] * len(tasks)
        waiting: dict[int, Request] = {}

        def resume(k: int, *result: Any) -> None:
            self._shared.executor = self  # set only while a client's own code runs
            try:
                yielded = clients[k].switch(*result)
            finally:
                self._shared.executor = None
            if clients[k].dead:
                results[k] = yielded
            else:
                waiting[k] = yielded

        try:
            for k, client in enumerate(clients):
                client.gr_context = copy_context()  # the context has NumPy's error state
                resume(k)
            while waiting:
                requests = dict(waiting)
                waiting.clear()
                self.compute(list(requests.values()))
                for k, request in requests.items():
                    resume(k, request.result)
        finally:
            for client in clients:
                if not client.dead:
                    with suppress(Cancelled):
                        client.throw(Cancelled)
        return results

    def compute(self, requests: Sequence[Request]) -> None:
        """Computes all requests, the commonest kind first, so that clients wait for each other before the last, smaller
        batches of their epochs and are of one kind again after them."""
        self._shared.flat.train()
        group: Group | None = None
        while waiting := [r for r in requests if r.pending]:
            kind, count = Counter(r.kind for r in waiting).most_common(1)[0]
            most = self.max_clients(kind[0])
            now = [r for r in waiting if r.kind == kind][:most] if count >= MIN_CLIENTS else waiting
            alone = min(count, most) < MIN_CLIENTS
            if group and (alone or now != group.requests):
                group.write_back()
                group = None
            if alone:
                for request in now:
                    request.run_alone()
                continue
            group = group or Group(now, self._shared.flat.layout)
            gradients = self.gradients(group)
            if now[0].step is not None:
                group.descend(gradients)
                continue
            for request, gradient in zip(now, flat(gradients), strict=True):
                request.result = vector_like(
                    request.y, gradient.clone()
                )  # a view would keep those of all clients in memory
        if group:
            group.write_back()

    def max_clients(self, rows: int) -> int:
        """Clients in one call, where each has so many rows."""
        return 1 if rows > self.rows else min(MAX_ROWS // rows, MAX_ENTRIES // self._shared.flat.d)

    def gradients(self, group: Group) -> dict[str, Tensor]:
        """(clients, ...) of each parameter, on the next batches."""
        result: dict[str, Tensor] = self._gradients(group.weights, *read_batches(group.requests))
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


def host_clients(
    shared: Shared, objectives: Mapping[int, TorchObjective], settings: Torch, facts: Mapping[str, Any]
) -> HostedClients:
    """A rank's clients with their batch trainer; where they cannot be batched, the facts for the run file say why."""
    trainer, own = BatchTrainer(shared), memory(shared.device, facts["transfers"])
    reason = reason_not_batched(trainer, shared, list(objectives.values()), settings)
    if reason:
        return HostedClients(objectives, {**facts, "batched": f"no: {reason}"}, memory=own)
    return HostedClients(objectives, {**facts, "batched": True}, trainer.train_batch, own)


def reason_not_batched(
    trainer: BatchTrainer, shared: Shared, clients: Sequence[TorchObjective], settings: Torch
) -> str:
    """Why these clients are not computed in batches; empty where they are, and `trainer.rows` is then set.

    Two clients' gradients on a few rows are compared with those that the clients compute alone.
    """
    if not settings.batched:
        return "problem.torch.batched is false"
    if any(c.rows.drawn for c in clients):
        return "rows are drawn anew in each contact"
    signatures = Counter(c.rows.signature for c in clients).most_common(1)
    if not signatures or signatures[0][1] < MIN_CLIENTS:
        return f"fewer than {MIN_CLIENTS} clients on this rank, or with rows of one shape"
    if shared.flat.stats:
        return "the module has buffers, as batch norm has for running statistics, that a pass may change"
    if MAX_ENTRIES // shared.flat.d < MIN_CLIENTS:
        return f"more than {MAX_ENTRIES // MIN_CLIENTS} parameters"
    pair = [c for c in clients if c.rows.signature == signatures[0][0]][:2]
    x, rows = shared.flat.values(), np.arange(min(8, *(c.samples for c in pair)))
    with FlopCounterMode(display=False) as counter:
        alone = torch.stack([c.gradient(x, rows) for c in pair])
    if shared.device.type == "cpu" and (work := counter.get_total_flops()):
        trainer.rows = min(MAX_ROWS, MAX_FLOPS * len(pair) * len(rows) // work)
        if all(c.batch > trainer.rows for c in clients):
            return f"one client's batch is enough work for a CPU: it has more than {trainer.rows} rows"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*batching rule")  # vmap would loop over the clients, slowly
            group = Group([Request(c, x, [rows], None) for c in pair], shared.flat.layout)
            batched = flat(trainer.gradients(group))
    except Exception as error:  # whatever this module comes to under vmap; by itself it has just worked
        return shorten(str(error), 200)
    precision = torch.finfo(torch.bfloat16 if settings.autocast else x.dtype).eps
    apart = float((batched - alone).norm() / alone.norm())
    if not apart <= precision**0.5:
        return f"gradients under vmap are others: {apart:.1e} of their norm away"
    return ""
