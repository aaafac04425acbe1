"""What a client's contact costs beside its bare arithmetic, and what ranks cost that wait; a JSON line for each.

    python benchmarks/client_cost.py [--repeats 15] [--parts numpy torch contact simulation]
    mpirun -n 130 python benchmarks/client_cost.py --parts waiting [--seconds 5]

numpy    a step of multinomial logistic regression (784 x 10, 32 rows, drawn afresh) by the local solver, beside the
         same operations in a plain loop; contacts of one step, and of 200
torch    the same model as a torch module, on the flat vector, beside a plain loop on the module; likewise
contact  what the worker adds to a client's rule (d = 7,850, 1,000 clients on the rank): the snapshot from which a
         refused update is rolled back, the check of the update and its norm
simulation  an update of AREA on scikit-learn's digits under the virtual clock, 128 clients in one process
waiting  CPU time of all client ranks that wait for a message, as a share of the host's cores

Ratios are of one repeat, in which both are measured in turn; the figure is the median of the repeats. Both loops of
`numpy` and `torch` end with the same bits.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from common import ROOT

import mpifl
from mpifl.algorithms.base import Algorithm, Clients, Message, Objective, State, Update
from mpifl.algorithms.fedavg import FedAvg
from mpifl.client.worker import Worker
from mpifl.problems.models.logistic import Logistic
from mpifl.problems.settings import ProblemSettings
from mpifl.rng import stream
from mpifl.transport.layout import Layout

FEATURES, CLASSES, ROWS, BATCH, STEP, L2 = 784, 10, 400, 32, 0.01, 1e-3
STEPS, CONTACTS, HOSTED = 200, 2000, 1000
SHORT_RUN, LONG_RUN = 1_000, 11_000  # updates
SETTLE = 4.0  # s after which ranks that wait poll as rarely as they ever do


def pairs(ours: Callable[[], float], bare: Callable[[], float], repeats: int) -> dict[str, float]:
    """The median of the ratios of two measurements (s) that are made in turn, and their spread."""
    ours(), bare()
    found = [(ours(), bare()) for _ in range(repeats)]
    ratios = [one / other for one, other in found]
    return {
        "us": 1e6 * statistics.median(one for one, _ in found), "bare_us": 1e6 * statistics.median(b for _, b in found),
        "figure": statistics.median(ratios), "low": min(ratios), "high": max(ratios),
    }  # fmt: skip


# -- a step in NumPy ---------------------------------------------------------------------------------------------------
def numpy_step(repeats: int, steps: int) -> dict[str, Any]:
    """steps: of a contact."""
    draw = np.random.default_rng(0)
    x, y = draw.random((ROWS, FEATURES), np.float32), draw.integers(0, CLASSES, ROWS)
    settings = ProblemSettings(clients=1, batch_size=BATCH, l2=L2)
    model = Logistic()
    meta = {"samples": [ROWS], "clients": 1, "layout": model.layout(FEATURES, CLASSES), "classes": CLASSES}
    objective = model.objective(settings, meta, [x, y], 0, 0)
    algorithm, x0 = FedAvg(step_size=STEP, local_steps=steps), np.zeros(FEATURES * CLASSES, np.float32)
    hot = np.zeros((ROWS, CLASSES), np.float32)
    hot[np.arange(ROWS), y] = 1
    l2, share = np.float32(L2), np.float32(1 / BATCH)

    def ours(round: int) -> np.ndarray:
        return algorithm.solve(objective, x0, round).x

    def bare(round: int) -> np.ndarray:
        w, generator = x0.reshape(FEATURES, CLASSES).copy(), stream(0, "batch", 0, round)
        for _ in range(steps):
            rows = generator.choice(ROWS, BATCH, replace=False, shuffle=False)
            batch = x[rows]
            residual = batch.dot(w)
            residual -= residual.max(1, keepdims=True)
            np.exp(residual, residual)
            residual /= residual.sum(1, keepdims=True)
            residual -= hot[rows]
            residual *= share
            gradient = batch.T.dot(residual)
            gradient += l2 * w
            gradient *= STEP
            w -= gradient
        return w.ravel()

    return compare(ours, bare, steps, repeats)


def compare(
    ours: Callable[[int], np.ndarray], bare: Callable[[int], np.ndarray], steps: int, repeats: int
) -> dict[str, Any]:
    """Times a step of both, functions of the round that return the model after so many steps."""

    def seconds(contact: Callable[[int], np.ndarray]) -> float:
        begin = time.perf_counter()
        for round in range(STEPS // steps):
            contact(round)
        return (time.perf_counter() - begin) / STEPS

    row = pairs(lambda: seconds(ours), lambda: seconds(bare), repeats)
    return {**row, "steps": steps, "same_bits": all(np.array_equal(ours(k), bare(k)) for k in range(3))}


# -- a step in torch ---------------------------------------------------------------------------------------------------
def torch_step(repeats: int, steps: int) -> dict[str, Any]:
    """steps: of a contact."""
    import torch
    from local import Case

    case = Case("torch-logistic", 1)
    algorithm, loss = FedAvg(step_size=STEP, local_steps=steps), torch.nn.functional.cross_entropy
    weights = list(case.module.parameters())
    message = Message((case.x0,))

    def ours(round: int) -> np.ndarray:
        update = algorithm.train(State(), message._replace(round=round), case.objective)
        return update.vectors[0]

    def bare(round: int) -> np.ndarray:
        case.module.load_state_dict(case.start)
        for rows in case.objective.batches(round, steps):
            at = torch.from_numpy(rows)
            loss(case.module(case.x.index_select(0, at)), case.y.index_select(0, at)).backward()
            with torch.no_grad():
                for p in weights:
                    p.add_(p.grad, alpha=-STEP)
                    p.grad = None
        return torch.cat([p.detach().reshape(-1) for p in weights]).numpy()

    return compare(ours, bare, steps, repeats)


# -- a contact ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Echo(Algorithm):
    """Clients answer with a vector that they keep."""

    def init_server(self, x0: np.ndarray, clients: Clients) -> State:
        return State(x=x0.copy())

    def message(self, server: State, i: int) -> Message:
        return Message((server.x,))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None: ...

    def aggregate(self, server: State) -> None: ...

    def init_client(self, x0: np.ndarray, i: int) -> State:
        return State(y=x0, control=x0)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        return Update((client.y,), 1)


class NoObjective:
    """No data: the rule asks for nothing."""


def contact(repeats: int) -> dict[str, Any]:
    x0 = np.ones(FEATURES * CLASSES + CLASSES, np.float32)
    algorithm, objective = Echo(), NoObjective()
    worker = Worker(algorithm, x0, dict.fromkeys(range(HOSTED), objective))  # type: ignore[arg-type]
    message, state = Message((x0,)), algorithm.init_client(x0, 0)

    def ours() -> float:
        begin = time.perf_counter()
        for k in range(CONTACTS):
            worker.train_all([(k % HOSTED, message)])
        return (time.perf_counter() - begin) / CONTACTS

    def bare() -> float:
        begin = time.perf_counter()
        for _ in range(CONTACTS):
            algorithm.train(state, message, objective)  # type: ignore[arg-type]
        return (time.perf_counter() - begin) / CONTACTS

    ours(), bare()
    found = sorted(1e6 * (ours() - bare()) for _ in range(repeats))
    return {"figure": statistics.median(found), "low": found[0], "high": found[-1]}


# -- many clients in one process ---------------------------------------------------------------------------------------
def simulation(repeats: int) -> dict[str, Any]:
    """CPU time of an update: that of a long run, without that of a short one."""
    job = mpifl.load_job(ROOT / "jobs" / "quickstart.yaml", "clock.mode=virtual", "evaluate.every=1000")

    def seconds(updates: int, folder: str) -> float:
        begin = time.process_time()
        mpifl.run(job, f"stop={{updates: {updates}}}", f"output={folder}/{updates}.h5", overwrite=True).close()
        return time.process_time() - begin

    with tempfile.TemporaryDirectory() as folder:
        seconds(SHORT_RUN, folder)
        found = sorted(
            1e6 * (seconds(LONG_RUN, folder) - seconds(SHORT_RUN, folder)) / (LONG_RUN - SHORT_RUN)
            for _ in range(repeats // 3)
        )
    return {"figure": statistics.median(found), "low": found[0], "high": found[-1]}


# -- ranks that wait ---------------------------------------------------------------------------------------------------
def waiting(seconds: float) -> dict[str, Any]:
    """On all ranks of the job; the row on rank 0, which sleeps."""
    from mpifl.transport.mpi import MPI
    from mpifl.transport.mpi_client import MPIClientTransport
    from mpifl.transport.mpi_server import MPIServerTransport

    comm, dtype = MPI.COMM_WORLD, np.dtype(np.float32)
    n, d = comm.size - 1, FEATURES * CLASSES
    begin = comm.bcast(time.perf_counter() + SETTLE)  # of one host, whose processes share the clock
    if comm.rank:
        x0 = np.zeros(d, dtype)
        transport = MPIClientTransport(comm, Worker(Echo(), x0, {comm.rank: NoObjective()}), 1, d, dtype, 1)  # type: ignore[dict-item]
        marks: list[float] = []

        def note() -> None:
            if time.perf_counter() >= begin + len(marks) * seconds:
                marks.append(time.process_time())

        transport.on_progress = note
        for _ in transport.messages(1):
            pass
        comm.gather(marks[1] - marks[0])
        return {}
    server = MPIServerTransport(comm, n, d, dtype, 1, lambda i: [], Layout(comm.size))
    time.sleep(SETTLE + seconds + 1)
    server.shut_down()
    return {"ranks": n, "figure": sum(comm.gather(0.0) or []) / seconds / len(os.sched_getaffinity(0))}


PARTS: dict[str, list[Callable[[int], dict[str, Any]]]] = {
    "numpy": [partial(numpy_step, steps=steps) for steps in (1, STEPS)],
    "torch": [partial(torch_step, steps=steps) for steps in (1, STEPS)],
    "contact": [contact],
    "simulation": [simulation],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=5.0, help="for how long ranks wait")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=[*PARTS, "waiting"])
    args = parser.parse_args()
    for name in args.parts:
        measured = [waiting(args.seconds)] if name == "waiting" else [part(args.repeats) for part in PARTS[name]]
        for row in filter(None, measured):
            rounded = {key: value if isinstance(value, bool) else round(value, 4) for key, value in row.items()}
            print(json.dumps({"part": name, **rounded}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
