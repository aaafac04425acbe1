"""How many vectors a method keeps: counted in a run of it with a few clients and short vectors."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from mpifl.algorithms.base import Algorithm, Clients
from mpifl.algorithms.common.local_solver import Sgd, TorchSolver
from mpifl.client.worker import Worker
from mpifl.config.job import Faults
from mpifl.problems.models.quadratic import Quadratic, QuadraticProblem
from mpifl.problems.settings import ProblemSettings
from mpifl.scheduling.delays import Exponential, Speed
from mpifl.scheduling.live import LiveSchedule, VirtualClock
from mpifl.server.loop import Ending, ServerLoop
from mpifl.storage.tables import Row
from mpifl.transport.in_process import InProcessTransport

FEW, MANY = 12, 24  # clients of the two runs
DIM = 256
CONTACTS = 8  # mean contacts of a client before the vectors are counted
COUNT_TIME = 1.0  # s that counting may take; it takes some hundredths where rules only compute


class MethodVectors(NamedTuple):
    """Vectors (d,) that a method keeps."""

    server: float
    server_client: float  # on the server, for each client that has been in contact
    client: float  # in the state of such a client
    message: float  # of its own in the message that a client has not answered yet


class SlowRules(Exception):
    """The rules of a method take too long for its vectors to be counted."""


def count_vectors(algorithm: Algorithm) -> MethodVectors:
    """Counts a method's vectors under the virtual clock. Raises what its rules raise, and SlowRules after a second."""
    end = time.perf_counter() + COUNT_TIME
    few, many = (_count(_reduced(algorithm, n), n, end) for n in (FEW, MANY))
    slope = (many[0] - few[0]) / (MANY - FEW)
    return MethodVectors(max(0.0, few[0] - slope * FEW), max(0.0, slope), many[1] / MANY, many[2] / MANY)


def _reduced(algorithm: Algorithm, clients: int) -> Algorithm:
    """The method for few clients, with plain local steps instead of those of a torch optimiser."""
    changes: dict[str, Any] = {}
    if (cohort := getattr(algorithm, "cohort", None)) is not None:
        changes["cohort"] = min(cohort, clients)
    trigger = getattr(algorithm, "trigger", None)
    if trigger is not None and getattr(trigger, "every", None):
        changes["trigger"] = dataclasses.replace(trigger, every=min(trigger.every, clients))
    if isinstance(getattr(algorithm, "solver", None), TorchSolver):
        changes["solver"] = Sgd()
    return dataclasses.replace(algorithm, **changes) if changes else algorithm


class _NoRecorder:
    def append(self, row: Row) -> None:
        """Nothing is recorded."""

    def set_client_state(self, client: int, state: str) -> None:
        """Likewise."""


def _count(algorithm: Algorithm, n: int, end: float) -> tuple[float, float, float]:
    """Vectors of the server, of all clients, and of all messages in flight that the server does not keep.

    end: perf_counter after which it raises SlowRules.
    """
    settings = ProblemSettings(clients=n, dtype="float64")
    model = Quadratic(dim=DIM)
    problem = QuadraticProblem(settings, model)
    objectives = {i: model.objective(settings, problem.meta, problem.shard(i), i, 0) for i in range(n)}
    x0 = problem.initial(0)
    rates = np.ones(n)
    clients = Clients(problem.samples, rates, 0)
    worker = Worker(algorithm, x0, objectives)
    transport = InProcessTransport(worker, n)
    times = Exponential(rate=1.0).contact_times(n, 0)
    split = Speed().split_times(n, 0) if algorithm.needs_timings() else None
    schedule = LiveSchedule(
        VirtualClock(times, split), algorithm.aggregation_trigger(), 0, stop_updates=CONTACTS * n,
        evaluate_updates=10 * CONTACTS * n,
    )  # fmt: skip
    server = algorithm.init_server(x0, clients)
    found: list[tuple[float, float, float]] = []

    def count() -> Ending:
        if time.perf_counter() > end:
            raise SlowRules(f"the method's rules take more than {COUNT_TIME:g} s for {loop.updates} contacts")
        if loop.updates > (CONTACTS - 2) * n and loop.updates % 3 == 0:
            seen: set[int] = set()
            kept = vectors([server], seen)
            states = vectors([worker.states[i] for i in worker.states.changed()], seen)
            found.append(
                (kept, states, vectors([m.vectors for m in [d.message for d in transport._messages.values()]], seen))
            )
        return ""

    loop = ServerLoop(
        algorithm, server, clients, transport, schedule, _NoRecorder(), lambda *_: False, 0, Faults(lost="stop")
    )  # fmt: skip
    with np.errstate(all="ignore"):  # the steps may be too long for these quadratics
        loop.run(count)
    (server_vectors, states, _), (_, _, messages) = np.max(found, 0).tolist(), np.mean(found, 0).tolist()
    return server_vectors, states, messages


def vectors(objects: Iterable[Any], seen: set[int]) -> float:
    """Vectors of `DIM` float64 entries that the objects refer to, without those in `seen`, to which they are added."""
    return array_bytes(objects, seen) / (8 * DIM)


def array_bytes(objects: Iterable[Any], seen: set[int]) -> int:
    """Bytes of the arrays and tensors that the objects refer to, without those in `seen`, to which they are added."""
    total, stack = 0, list(objects)
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            stack += value.values()
        elif isinstance(value, list | tuple):
            stack += value
        elif isinstance(value, np.ndarray) or hasattr(value, "untyped_storage"):
            while isinstance(getattr(value, "base", None), np.ndarray):
                value = value.base
            if id(value) not in seen:
                seen.add(id(value))
                total += int(value.nbytes)
        elif hasattr(value, "__dict__") and not isinstance(value, type) and id(value) not in seen:
            seen.add(id(value))
            stack += vars(value).values()
    return total
