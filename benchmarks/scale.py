"""Time and memory of simulated clients against their number, and AREA's Table 3 row beside a loop by hand.

    python benchmarks/scale.py [--most 1000000] [--repeats 3] [--out docs/results]

Writes scale.md and scale.png. Each measurement is a process of its own; a ratio is that of two of one repeat, which
follow each other. `make bench` runs it.
"""

from __future__ import annotations

import argparse
import copy
import heapq
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from common import ROOT, one_thread_environment, touch_memory
from performance import machine

from mpifl.algorithms.area import Area
from mpifl.algorithms.base import State, Update
from mpifl.host_memory import resident_bytes

PATHS = ROOT, ROOT / "benchmarks"  # from which other processes import
TOUCHED = 4 << 30  # bytes: more than the largest run takes
UPDATES, WARM = 150_000, 30_000  # of a run, and those that are not timed: the first evaluation runs during these
PROBLEM = {"model": {"name": "quadratic", "dim": 10}}
SIZES = 100, 1000, 10_000, 100_000, 1_000_000
COLUMNS = ("clients", "set-up, s", "us an update", "lowest to highest", "memory, MB", "bytes a client")
TARGET_TIME, TARGET_HAND = 2.0, 1.5

PAGE = """# Simulated clients

What an update costs under the virtual clock by the number of clients, and how much memory a client takes.
`python benchmarks/scale.py` measures and writes this page.

{machine}

![Time and memory by number of clients](scale.png)

{table}

{sentence}

AREA on quadratics with 10 parameters, exponential contact times, {updates:,} updates in one process, of which the first
{warm:,} are not timed; no evaluations between the first and the last. Times are CPU time of the process, medians of
{repeats} runs; a factor is the median of those of the repeats. Memory is the peak of the run minus what the process had
before it. Bytes a client are that memory minus that of the smallest run, divided by the number of clients: data,
states, messages in flight and bookkeeping. Before the runs another process writes to {touched} GB, so that a virtual
machine has the memory.
[Many clients](../guides/many-clients.md) has the estimate of memory before a run.

## Beside a loop by hand

{hand}
"""


@dataclass(frozen=True)
class Timed(Area):
    """AREA that notes the CPU time at its updates `WARM` and `UPDATES`."""

    marks: ClassVar[list[float]] = []

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        super().receive(server, i, update, staleness)
        if server.k in (2 * WARM - 1, 2 * UPDATES - 1):  # k counts uploads and aggregations
            self.marks.append(time.process_time())


def measure(clients: int) -> dict[str, Any]:
    """Runs one job in this process."""
    from mpifl import load_job
    from mpifl.server.start import run_server

    base = resident_bytes()
    with tempfile.TemporaryDirectory() as folder:
        job = load_job(
            {
                "name": "scale", "seed": 0, "problem": {**PROBLEM, "clients": clients},
                "algorithm": {"name": "scale:Timed", "step_size": 0.1, "step_weights": "one"},
                "clock": {"mode": "virtual", "delay": {"name": "exponential", "rate": 1.0}},
                "stop": {"updates": UPDATES}, "evaluate": {"updates": 10**9}, "log_interval": None,
                "output": f"{folder}/scale.h5",
            }
        )  # fmt: skip
        begin = time.process_time()
        run_server(job)
    first, last = sys.modules["scale"].Timed.marks
    status = Path("/proc/self/status").read_text()
    peak = 1024 * int(status.partition("VmHWM:")[2].split()[0])
    each = (last - first) / (UPDATES - WARM)
    return {
        "clients": clients, "update_us": 1e6 * each, "peak": peak - base,
        "setup_s": max(0.0, first - begin - WARM * each),
    }  # fmt: skip


# -- AREA's row of Table 3 ---------------------------------------------------------------------------------------------
STOP, RATE, EVERY, BATCH, ALPHA = 15.0, 10.0, 4, 32, 100.0
MPIFL, BY_HAND = ROW = "mpifl", "by hand"


def by_hand(problem: Any, seed: int) -> tuple[float, int, np.ndarray]:
    """CPU time (s), number and model of the same updates in the fewest statements: no rows, checks or checkpoints."""
    from mpifl.rng import stream

    n, total = problem.clients, int(problem.samples.sum())
    shards = [problem.shard(i)[:2] for i in range(n)]
    features, classes = problem.layout[0][1]
    x = problem.initial(seed)
    l2 = x.dtype.type(1e-3)
    hot = [np.eye(classes, dtype=x.dtype)[y] for _, y in shards]
    begin = time.process_time()
    y, u, version_x, rounds = [x] * n, np.zeros_like(x), [x] * n, [0] * n
    draws = [stream(seed, "delay", i, 0).exponential(1 / RATE, 64).tolist() for i in range(n)]
    due = [(draws[i][0], i) for i in range(n)]
    heapq.heapify(due)
    updates = 0
    while due[0][0] <= STOP:
        now, i = due[0]
        rows, r = shards[i][0], rounds[i]
        x_s = version_x[i]
        new = x_s.copy()
        if r:
            if len(rows) > BATCH:
                chosen = stream(seed, "batch", i, r).choice(len(rows), BATCH, replace=False, shuffle=False)
                batch, label = rows[chosen], hot[i][chosen]
            else:
                batch, label = rows, hot[i]
            p = batch.dot(x_s.reshape(features, classes))
            p -= p.max(1, keepdims=True)
            np.exp(p, p)
            p /= p.sum(1, keepdims=True)
            p -= label
            p *= x.dtype.type(1 / len(batch))
            gradient = np.empty_like(x)
            batch.T.dot(p, gradient.reshape(features, classes))
            gradient += l2 * x_s
            gradient *= ALPHA * (len(rows) / total)
            new -= gradient
        u += new - y[i]
        y[i] = new
        updates += 1
        rounds[i] = r = r + 1
        if r % 64 == 0:
            draws[i] = stream(seed, "delay", i, r // 64).exponential(1 / RATE, 64).tolist()
        version_x[i] = x
        heapq.heapreplace(due, (now + draws[i][r % 64], i))
        if updates % EVERY == 0:
            x = x + u / n
            u = np.zeros_like(x)
    return time.process_time() - begin, updates, x


def unevaluated(problem: Any) -> Any:
    """The problem, with evaluations that take no time; even a job without any evaluates its first and last model."""
    plain = copy.copy(problem)
    metrics = dict.fromkeys(problem.evaluate(problem.initial(0)), float("nan"))
    plain.evaluate_with_clients = lambda x, training=True: (dict(metrics), np.full(problem.clients, np.nan))
    return plain


def _loaded(problem: Any, job: Any) -> Any:
    return problem


def table_3_job(folder: str) -> Any:
    """The row's job without evaluations; its run file is in `folder`."""
    import mpifl

    return mpifl.load_job(
        ROOT / "jobs" / "area" / "mnist-virtual.yaml", f"stop.time={STOP}", "evaluate={updates: 1000000000}",
        f"algorithm={{name: area, step_weights: samples, step_size: {ALPHA}, trigger: {{every: {EVERY}}},"
        "reply: before, first_contact: zero}", "log_interval=null", "overwrite=true",
        output=f"{folder}/row.h5", memory={"check": False},
    )  # fmt: skip


def table_3_row(program: str) -> dict[str, Any]:
    """CPU time of the row in mpifl or in the loop by hand, which ends with the same model, after one run of mpifl."""
    import mpifl
    from mpifl.execution import _one_thread
    from mpifl.server.loop import ServerLoop
    from mpifl.server.start import run_server

    job = table_3_job(tempfile.mkdtemp())
    problem = mpifl.load_problem(job)
    load = partial(_loaded, unevaluated(problem))
    with _one_thread():
        run_server(job, load=load)
        with mpifl.open_run(job.output) as file:
            updates, model = len(file.updates), file.model
        if program == BY_HAND:
            cpu, count, x = by_hand(problem, job.seed)
            assert count == updates, (count, updates)
            return {"cpu": cpu, "updates": updates, "gap": float(np.abs(model - x).max() / np.abs(x).max())}
        found: dict[str, float] = {}
        run = ServerLoop.run

        def timed(self: ServerLoop, *args: Any) -> bool:
            begin = time.process_time()
            result = run(self, *args)
            found["cpu"] = time.process_time() - begin
            return result

        ServerLoop.run = timed  # type: ignore[method-assign]
        run_server(job, load=load)
    return found


def compare(repeats: int) -> dict[str, Any]:
    """Medians of the CPU times of the row's programs, and the ratios of the pairs."""
    pairs = [[child(name) for name in ROW] for _ in range(repeats)]
    ratios = [ours["cpu"] / hand["cpu"] for ours, hand in pairs]
    hand = pairs[0][1]
    return {
        "mpifl": statistics.median(ours["cpu"] for ours, _ in pairs),
        "hand": statistics.median(hand["cpu"] for _, hand in pairs),
        "ratio": statistics.median(ratios), "low": min(ratios), "high": max(ratios),
        "updates": hand["updates"], "gap": hand["gap"], "repeats": repeats,
    }  # fmt: skip


def sentence(rows: list[dict[str, Any]]) -> str:
    few, many = rows[0], rows[-1]
    ratios = [b / a for a, b in zip(few["times"], many["times"], strict=True)]
    factor = statistics.median(ratios)
    return (
        f"An update takes {few['update_us']:.0f} us with {few['clients']:,} clients and {many['update_us']:.0f} us "
        f"with {many['clients']:,}, a factor of {factor:.2f} ({min(ratios):.2f} to {max(ratios):.2f}), "
        f"{_reached(factor, TARGET_TIME)} the target of {TARGET_TIME}."
    )


def _reached(ratio: float, target: float) -> str:
    return "within" if ratio <= target else "above"


def hand_text(found: dict[str, Any] | None) -> str:
    if found is None:
        return "Not measured: MNIST is missing."
    return (
        f"AREA's row of Table 3 (MNIST, 128 clients, batches of 32, {found['updates']:,} updates, without evaluations) "
        f"takes {found['mpifl']:.2f} s of CPU in one process of mpifl, and {found['hand']:.2f} s in a loop by hand "
        f"with the same draws and arithmetic: {found['ratio']:.2f} times as much (median of {found['repeats']} pairs, "
        f"{found['low']:.2f} to {found['high']:.2f}), {_reached(found['ratio'], TARGET_HAND)} the target of "
        f"{TARGET_HAND}. The largest relative difference of the two models is {found['gap']:.1g}."
    )


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
    n = [r["clients"] for r in rows]
    left.plot(n, [r["update_us"] for r in rows], "o-")
    right.plot(n, [r["peak"] / 1e6 for r in rows], "o-")
    left.set(xscale="log", xlabel="clients", ylabel="CPU time of an update (us)")
    left.set_ylim(bottom=0)
    right.set(xscale="log", yscale="log", xlabel="clients", ylabel="peak memory of the run (MB)")
    for axes in (left, right):
        axes.grid(alpha=0.3, which="both")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=1_000_000, help="clients")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each measurement")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if name := args.child:
        print(json.dumps(table_3_row(name) if name in ROW else measure(int(name))))
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    facts = machine()
    touch_memory(TOUCHED)
    sizes = [n for n in SIZES if n <= args.most]
    found = [[child(n) for n in sizes] for _ in range(args.repeats)]
    rows = [medians(runs) for runs in zip(*found, strict=True)]
    cells = [
        (f"{r['clients']:,}", f"{r['setup_s']:.1f}", f"{r['update_us']:.0f}", f"{r['low']:.0f} to {r['high']:.0f}",
         f"{r['peak'] / 1e6:,.0f}",
         f"{(r['peak'] - rows[0]['peak']) / r['clients']:,.0f}" if r["clients"] >= 10_000 else "")
        for r in rows
    ]  # fmt: skip
    table = "\n".join([f"| {' | '.join(c)} |" for c in [COLUMNS, ["--:"] * 6, *cells]])
    try:
        hand = hand_text(compare(args.repeats))
    except subprocess.CalledProcessError:
        hand = hand_text(None)
    page = PAGE.format(
        machine=facts, table=table, sentence=sentence(rows), hand=hand, updates=UPDATES,
        warm=WARM, repeats=args.repeats, touched=TOUCHED >> 30,
    )  # fmt: skip
    (args.out / "scale.md").write_text(page)
    draw(rows, args.out / "scale.png")
    print(page)
    return 0


def medians(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The medians of the numbers of several runs, and the lowest and highest time of an update."""
    times = [run["update_us"] for run in runs]
    middle = {key: statistics.median(run[key] for run in runs) for key in ("update_us", "setup_s", "peak")}
    return {"clients": runs[0]["clients"], **middle, "times": times, "low": min(times), "high": max(times)}


def child(name: object) -> Any:
    """What a process measures: this number of clients, or a program of the row. Raises CalledProcessError."""
    words = [sys.executable, __file__, "--child", str(name)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=one_thread_environment(*PATHS), check=True)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
