"""Estimates the memory that a run needs on each rank, and compares it with what the hosts have, before the run.

Data, messages and tables are known from the job. The vectors that the method keeps are counted in the first states of
the server and of a client; a method declares what the server adds later (`server_vectors`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, exp, inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpifl.algorithms.base import Clients, State
from mpifl.errors import ConfigError, inside
from mpifl.problems.problem import ProblemSize
from mpifl.server.evaluator import QUEUE_LIMIT
from mpifl.transport.layout import Layout

if TYPE_CHECKING:
    from mpifl.config.job import Job
    from mpifl.problems import Problem
    from mpifl.transport.handshake import Hello

# Bytes besides the vectors, measured with 1e4 to 1e6 clients (docs/results/scale.md):
TABLE_BYTES = 170  # per client, on the server
FLIGHT_BYTES = 970  # per message that waits for its update, its due time included
CLIENT_BYTES = 120  # per client that has computed, on the rank that hosts it
RECORD_BYTES = 24 << 20  # rows that are not written yet, the libraries that write them, and the first evaluation
TORCH_BYTES = 200 << 20  # torch, once it is imported
OBJECT_BYTES = 128  # per vector, besides its entries
LOCAL_VECTORS = 4  # vectors of a client that computes: its model, a gradient, and two of the local solver
MANY_RATES = 10_000_000  # clients beyond which the delay model is not asked for their rates
RECEIVE_BYTES = 256 << 20  # maximum of a server's receive buffers under MPI


class KeptVectors(NamedTuple):
    """The (d,) vectors that a method keeps."""

    server: float = 2  # the model and a sum
    client: float = 0  # for each client that has computed
    shared: float = 0  # the vectors of its last message among them


class MemoryEstimate(NamedTuple):
    """The memory that a run needs at its peak, in bytes by what takes it."""

    server: Mapping[str, int]  # rank 0, or the one process
    clients: Mapping[str, int]  # maximum of every other rank; empty: there is one process
    ranks: int

    def needs(self) -> list[int]:
        """(ranks,) bytes of each rank, without what the process has already."""
        return [_sum(self.server), *[_sum(self.clients)] * (self.ranks - 1)]

    def describe(self, process: int = 0) -> str:
        """The estimate in one line; process: bytes that each process has already, to be included."""
        if self.ranks == 1:
            return f"{gigabytes(process + _sum(self.server))} in one process ({_parts(self.server, process)})"
        return (
            f"{gigabytes(process + _sum(self.server))} on rank 0 ({_parts(self.server, process)}), and "
            f"{gigabytes(process + _sum(self.clients))} on each other rank ({_parts(self.clients, process)})"
        )


def _sum(parts: Mapping[str, int]) -> int:
    return sum(parts.values())


def _parts(parts: Mapping[str, int], process: int) -> str:
    """The parts, the largest first; those below a hundredth of all are left out."""
    every = {**parts, "Python and libraries": process} if process else parts
    largest = sorted(every.items(), key=lambda part: -part[1])
    return ", ".join(f"{name} {gigabytes(size)}" for name, size in largest if size >= 0.01 * sum(every.values()))


def gigabytes(size: float) -> str:
    """A number of bytes as text."""
    return f"{size / 1e9:.3g} GB" if size >= 1e8 else f"{size / 1e6:.3g} MB"


def problem_size(job: Job, problem: Problem | None = None) -> ProblemSize | None:
    """The dimension, the clients and the memory (bytes) of the job's problem; None if they depend on data not loaded.

    problem: the loaded problem.
    """
    config = job.problem
    known = None
    if config.entry is None and config.data is not None:
        known = config.model.size(config.data, config.settings)
    if problem is None:
        return known
    evaluating = known.evaluating if known else 0
    return ProblemSize(problem.d, problem.clients, array_bytes([problem]), 0, evaluating)


def array_bytes(objects: Iterable[Any]) -> int:
    """Bytes of the arrays and tensors that the objects refer to, each counted once."""
    total, stack, seen = 0, list(objects), set[int]()
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            stack += value.values()
        elif isinstance(value, list | tuple):
            stack += value
        elif isinstance(value, type):  # a class of tensors has the attributes of tensors
            continue
        elif isinstance(value, np.ndarray) or hasattr(value, "untyped_storage"):
            while isinstance(getattr(value, "base", None), np.ndarray):
                value = value.base
            if id(value) not in seen:
                seen.add(id(value))
                total += int(value.nbytes)
        elif hasattr(value, "__dict__") and id(value) not in seen:
            seen.add(id(value))
            stack += vars(value).values()
    return total


def kept_vectors(job: Job, server: State, x0: np.ndarray, clients: int) -> KeptVectors:
    """The vectors that the method keeps in the course of a run; server: the server's first state."""
    algorithm = job.algorithm
    client = _vectors(algorithm.init_client(x0, 0), x0)
    shared = sum(name in algorithm.message_fields for name, _ in client)
    optimizer = algorithm.torch_optimizer()
    moments = 2 if optimizer and optimizer.state == "kept" else 0  # as Adam; others of torch.optim keep 0 to 2
    at_first = sum(v.size for v in {id(v): v for _, v in _vectors(server, x0)}.values()) / x0.size
    later = algorithm.server_vectors(ceil(_computing(job, clients))) if clients else 0
    return KeptVectors(at_first + later, len(client) + moments, shared)


def small_kept_vectors(job: Job, clients: int) -> KeptVectors:
    """As `kept_vectors`, counted in states of a model of 2 or 3 numbers: `mpifl check` makes no other."""
    x0 = np.zeros(2 if clients != 2 else 3)
    return kept_vectors(job, job.algorithm.init_server(x0, Clients(np.ones(clients, int), seed=job.seed)), x0, clients)


def _vectors(state: State, x0: np.ndarray) -> list[tuple[str, Any]]:
    """The vectors in a state, or arrays of them, of the server or of a client, each with the name that it has there."""
    values = [
        (name, v) for name, each in vars(state).items() for v in (each.values() if isinstance(each, dict) else [each])
    ]
    return [(name, v) for name, v in values if getattr(v, "shape", ())[-1:] == x0.shape]


def estimate(job: Job, size: ProblemSize, ranks: int = 1, kept: KeptVectors = KeptVectors()) -> MemoryEstimate:  # noqa: B008
    """The memory of a run of the job on so many ranks; kept: what the method keeps, as far as it is known."""
    n = size.clients
    vector = size.d * np.dtype(job.problem.dtype).itemsize
    computing, in_flight = _computing(job, n), _in_flight(job, n)
    evaluation = (
        size.evaluating + int(min(QUEUE_LIMIT, _evaluations(job, n)) + 1 + (job.keep.best is not None)) * vector
    )
    saved = any(value is not None for value in (job.checkpoint.every, job.checkpoint.updates, job.checkpoint.wall))
    server = {
        "data": size.data,
        "server's state": int(kept.server * vector),
        "clients' table": n * TABLE_BYTES + RECORD_BYTES,
        "evaluation": evaluation,
    }
    if ranks > 1:
        hosted = -(-n // Layout(ranks, job.ranks_per_client).groups)
        share = computing / n * hosted
        sending = min(in_flight, ranks) * vector + in_flight * FLIGHT_BYTES
        server["messages"] = int(min(RECEIVE_BYTES, n * vector) + sending)
        clients = {
            "data": int(size.data / max(1, n) * hosted),
            "clients' records": int(share * CLIENT_BYTES),
            "last updates": int(share * job.algorithm.vectors_up * (vector + OBJECT_BYTES)),
            "clients' states": _states(job, share * kept.client, vector),
            "vectors of local steps": LOCAL_VECTORS * vector,
        }
        return MemoryEstimate(_with_loading(server, size), {**clients, **_torch(job)}, ranks)
    server["clients' records"] = int(computing * CLIENT_BYTES)
    own = min(_vectors_in_flight(job, min(computing, in_flight)), _updates(job, n))  # the first messages share x_0
    if saved:  # a checkpoint waits for the updates of all messages
        own = max(own, in_flight * job.algorithm.min_vectors_up)
    own_states = computing * (kept.client - kept.shared)
    shared = computing if getattr(job.algorithm, "cohort", None) else 1.0  # rounds of all clients: one vector
    server["clients' states"] = _states(job, own_states + kept.shared * shared, vector)
    server["messages in flight"] = int(own * (vector + OBJECT_BYTES) + in_flight * FLIGHT_BYTES)
    server["vectors of local steps"] = LOCAL_VECTORS * vector
    return MemoryEstimate({**_with_loading(server, size), **_torch(job)}, {}, 1)


def _with_loading(parts: Mapping[str, int], size: ProblemSize) -> dict[str, int]:
    """The parts, and what loading takes beyond them: it is over before vectors are allocated."""
    later = _sum(parts) - parts["data"] - parts["clients' table"]
    return {**parts, "loading": max(0, size.loading - later)}


def _states(job: Job, vectors: float, vector: int) -> int:
    """Bytes of the clients' states of a rank: so many vectors, of which `memory.client_states` stay in memory."""
    limit = inf if job.memory.client_states is None else job.memory.client_states
    return int(min(limit, vectors * vector) + vectors * OBJECT_BYTES)


def _vectors_in_flight(job: Job, in_flight: float) -> float:
    """The different vectors of so many messages or updates in flight in one process, at least."""
    if job.clock.mode == "real":  # updates are held back until their delays are over
        return in_flight * job.algorithm.vectors_up
    trigger = job.algorithm.aggregation_trigger()
    if getattr(job.algorithm, "cohort", None) or job.algorithm.pace == "synchronous" or trigger is None:
        return 1.0  # all messages of a round share the server's vectors; the model of the round before is kept
    return in_flight * job.algorithm.vectors_down / trigger.every if trigger.every else 0.0


def _torch(job: Job) -> dict[str, int]:
    # The function of `problem.entry` has imported it by now, or does without.
    loaded = "torch" in sys.modules or job.problem.torch is None or job.problem.entry is not None
    return {} if loaded else {"torch": TORCH_BYTES}


def _updates(job: Job, n: int) -> float:
    """How many updates the run consumes, at most."""
    updates: float = job.stop.updates or inf
    with inside("clock.delay"):
        rates = job.clock.delay.rates(n, job.seed) if job.stop.time and n <= MANY_RATES else None
    if job.stop.time and rates is not None:
        updates = min(updates, job.stop.time * float(rates.sum()))
    return updates


def _evaluations(job: Job, n: int) -> float:
    """How many models are evaluated, at most."""
    by_updates = _updates(job, n) / job.evaluate.updates if job.evaluate.updates else 0.0
    return 1 + by_updates + ((job.stop.time or inf) / job.evaluate.every if job.evaluate.every else 0.0)


def _computing(job: Job, n: int) -> float:
    """How many clients compute at least once, in expectation."""
    updates = _updates(job, n)
    if getattr(job.algorithm, "cohort", None) is None and job.algorithm.pace == "synchronous":
        return min(updates, n)
    return n if updates == inf else n * (1 - exp(-updates / n))


def _in_flight(job: Job, n: int) -> float:
    """How many clients have a message whose update is not consumed, at most."""
    return min(n, getattr(job.algorithm, "cohort", None) or n)


# -- before a run ------------------------------------------------------------------------------------------------------
def check_memory(
    job: Job, size: ProblemSize | None, hellos: Sequence[Hello], kept: KeptVectors = KeptVectors()  # noqa: B008
) -> None:  # fmt: skip
    """Raises ConfigError where the ranks of a host need more memory than it has for them, by the estimate.

    size: None where it is not known yet. kept: what the method keeps.
    """
    if not job.memory.check or size is None or not any(hello.limits for hello in hellos):
        return
    found = estimate(job, size, len(hellos), kept)
    ranks: dict[tuple[str, str], list[int]] = {}
    left: dict[tuple[str, str], tuple[int, int]] = {}  # free and total bytes, as reported by the ranks under a limit
    for rank, hello in enumerate(hellos):
        for name, total, free in hello.limits:
            key = hello.host, name
            ranks.setdefault(key, []).append(rank)
            left[key] = min(left.get(key, (free, total)), (free, total))
    needs = found.needs()
    for (host, name), members in ranks.items():
        need, (free, total) = sum(needs[rank] for rank in members), left[host, name]
        if need > free:
            where = f"on {host}" if name == "this host" else f"in {name} on {host}"
            who = "" if len(hellos) == 1 else f" for {len(members)} ranks" if len(members) > 1 else " for a rank"
            wrong = f"the run is estimated to need {found.describe()}"
            expected = f"at most {gigabytes(free)}{who} (free {where}, of {gigabytes(total)})"
            raise ConfigError("memory", gigabytes(need), wrong, expected, "memory.check=false runs it all the same")
