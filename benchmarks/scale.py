"""Time and memory of simulated clients against their number, and AREA's Table 3 row beside a loop by hand.

    python benchmarks/scale.py [--most 1000000] [--repeats 5] [--pairs 9] [--out docs/results]

Writes scale.md and scale.png. Each number of clients is a process of its own; those of a problem take turns of
`TURN` seconds, so that a machine that is faster at one time than at another is so for all of them; likewise the
programs of the row. `make bench` runs it.
"""

from __future__ import annotations

import argparse
import copy
import heapq
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
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
TURN = 0.05  # s
PROBLEMS: dict[str, dict[str, Any]] = {
    "quadratics, d = 10": {"model": {"name": "quadratic", "dim": 10}},
    "logistic regression, d = 8": {
        "model": {"name": "logistic"}, "data": {"name": "fedpd-synthetic", "dim": 4, "samples": 2}, "batch_size": 1,
    },
}  # fmt: skip
COLUMNS = ("problem", "clients", "set-up, s", "us an update", "lowest to highest", "memory, MB", "bytes a client")
TARGET_TIME, TARGET_HAND = 2.0, 1.5

PAGE = """# Simulated clients

What an update costs under the virtual clock by the number of clients, and how much memory a client takes.
`python benchmarks/scale.py` measures and writes this page.

{machine}

![Time and memory by number of clients](scale.png)

{table}

{sentence}

AREA, exponential contact times, {updates:,} updates in one process, of which the first {warm:,} are not timed; no
evaluations between the first and the last. Times are CPU time of the process, medians of {repeats} runs. While they
are timed the processes of a problem take turns of {turn:.0f} ms; a factor is the median of those of the runs. Memory is
the peak of the run minus what the process had before it. Bytes a client are that memory minus that of the smallest run,
divided by the number of clients: data, states, messages in flight and bookkeeping. Before the runs another process
writes to {touched} GB, so that a virtual machine has the memory.
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
            if not self.marks:
                await_turn()
            self.marks.append(time.process_time())


def await_turn() -> None:
    """Tells `take_turns` that this process is about to be timed, and waits until all are."""
    print("ready", flush=True)
    sys.stdin.readline()


def measure(problem: str, clients: int) -> dict[str, Any]:
    """Runs one job in this process."""
    from mpifl import load_job
    from mpifl.server.start import run_server

    base = resident_bytes()
    with tempfile.TemporaryDirectory() as folder:
        job = load_job(
            {
                "name": "scale", "seed": 0, "problem": {**PROBLEMS[problem], "clients": clients},
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
        "problem": problem, "clients": clients, "update_us": 1e6 * each, "peak": peak - base,
        "setup_s": max(0.0, first - begin - WARM * each),
    }  # fmt: skip


# -- AREA's row of Table 3 ---------------------------------------------------------------------------------------------
STOP, RATE, EVERY, BATCH, ALPHA = 15.0, 10.0, 4, 32, 100.0
ROW_TURN = 0.6  # s; a process that continues has cold caches at first
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
    await_turn()
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


def table_3_row(program: str, _: int) -> dict[str, Any]:
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
            await_turn()
            begin = time.process_time()
            result = run(self, *args)
            found["cpu"] = time.process_time() - begin
            return result

        ServerLoop.run = timed  # type: ignore[method-assign]
        run_server(job, load=load)
    return found


def compare(repeats: int) -> dict[str, Any]:
    """The row's programs, which take turns: medians of their CPU times, and the ratios of the pairs."""
    pairs = [take_turns([(name, 0) for name in ROW], ROW_TURN) for _ in range(repeats)]
    ratios = [ours["cpu"] / hand["cpu"] for ours, hand in pairs]
    hand = pairs[0][1]
    return {
        "mpifl": statistics.median(ours["cpu"] for ours, _ in pairs),
        "hand": statistics.median(hand["cpu"] for _, hand in pairs),
        "ratio": statistics.median(ratios), "low": min(ratios), "high": max(ratios),
        "updates": hand["updates"], "gap": hand["gap"], "repeats": repeats,
    }  # fmt: skip


def sentence(rows: list[dict[str, Any]]) -> str:
    parts = []
    for problem in PROBLEMS:
        own = {r["clients"]: r for r in rows if r["problem"] == problem}
        times = {n: r["update_us"] for n, r in own.items()}
        few, many = min(times), max(times)
        ratios = [b / a for a, b in zip(own[few]["times"], own[many]["times"], strict=True)]
        ends, extremes = statistics.median(ratios), max(times.values()) / min(times.values())
        parts.append(
            f"{problem}: an update takes {times[few]:.0f} us with {few:,} clients and {times[many]:.0f} us with "
            f"{many:,}, a factor of {ends:.2f} ({min(ratios):.2f} to {max(ratios):.2f}), "
            f"{_reached(ends, TARGET_TIME)} the target of {TARGET_TIME}. Over all numbers of clients the largest "
            f"median is {extremes:.2f} times the smallest, {_reached(extremes, TARGET_TIME)} {TARGET_TIME}."
        )
    return "\n".join(f"- {part}" for part in parts)


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
    for problem, style in zip(PROBLEMS, ("o-", "s--"), strict=True):
        own = [r for r in rows if r["problem"] == problem]
        n = [r["clients"] for r in own]
        left.plot(n, [r["update_us"] for r in own], style, label=problem)
        right.plot(n, [r["peak"] / 1e6 for r in own], style, label=problem)
    left.set(xscale="log", xlabel="clients", ylabel="CPU time of an update (us)")
    left.set_ylim(bottom=0)
    right.set(xscale="log", yscale="log", xlabel="clients", ylabel="peak memory of the run (MB)")
    for axes in (left, right):
        axes.grid(alpha=0.3, which="both")
    left.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=1_000_000, help="clients")
    parser.add_argument("--repeats", type=int, default=7, help="runs of each number of clients")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        name, count = args.child
        print(json.dumps((table_3_row if name in ROW else measure)(name, int(count))))
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    facts = machine()
    touch_memory(TOUCHED)
    sizes = [n for n in (100, 1000, 10_000, 100_000, 1_000_000) if n <= args.most]
    found: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for _ in range(args.repeats):
        for group in [[(problem, n) for n in sizes] for problem in PROBLEMS]:
            for run, value in zip(group, take_turns(group), strict=True):
                found[run].append(value)
    rows = [medians(each) for each in found.values()]
    least = {p: min(r["peak"] for r in rows if r["problem"] == p) for p in PROBLEMS}
    cells = [
        (r["problem"], f"{r['clients']:,}", f"{r['setup_s']:.1f}", f"{r['update_us']:.0f}",
         f"{r['low']:.0f} to {r['high']:.0f}", f"{r['peak'] / 1e6:,.0f}",
         f"{(r['peak'] - least[r['problem']]) / r['clients']:,.0f}" if r["clients"] >= 10_000 else "")
        for r in rows
    ]  # fmt: skip
    table = "\n".join([f"| {' | '.join(c)} |" for c in [COLUMNS, ("---", *["--:"] * 6), *cells]])
    try:
        hand = hand_text(compare(args.pairs))
    except subprocess.CalledProcessError:
        hand = hand_text(None)
    page = PAGE.format(
        machine=facts, table=table, sentence=sentence(rows), hand=hand, updates=UPDATES,
        warm=WARM, repeats=args.repeats, touched=TOUCHED >> 30, turn=1000 * TURN,
    )  # fmt: skip
    (args.out / "scale.md").write_text(page)
    draw(rows, args.out / "scale.png")
    print(page)
    return 0


def medians(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The medians of the numbers of several runs, and the lowest and highest time of an update."""
    times = [run["update_us"] for run in runs]
    middle = {key: statistics.median(run[key] for run in runs) for key in ("update_us", "setup_s", "peak")}
    return {
        "problem": runs[0]["problem"],
        "clients": runs[0]["clients"],
        **middle,
        "times": times,
        "low": min(times),
        "high": max(times),
    }


def child(name: str, count: int) -> subprocess.Popen[str]:
    """Starts a process that measures a problem with so many clients, or a program of the row."""
    words = [sys.executable, __file__, "--child", name, str(count)]
    return subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=one_thread_environment(*PATHS),
        start_new_session=True,
    )  # fmt: skip


def result(process: subprocess.Popen[str]) -> Any:
    """What a child has printed. Raises CalledProcessError where it failed."""
    out, _ = process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return json.loads(out.splitlines()[-1])


def take_turns(runs: Sequence[tuple[str, int]], turn: float = TURN) -> list[Any]:
    """The results of these children, which are set up one after the other, and then run in turn for `turn` seconds."""
    processes: list[subprocess.Popen[str]] = []
    try:
        for name, count in runs:
            processes.append(process := child(name, count))
            assert process.stdin and process.stdout
            if not process.stdout.readline():  # it is not ready: it has failed
                result(process)
            os.killpg(process.pid, signal.SIGSTOP)
            print(file=process.stdin, flush=True)
        while running := [process for process in processes if process.poll() is None]:
            for process in running:
                os.killpg(process.pid, signal.SIGCONT)
                time.sleep(turn)
                os.killpg(process.pid, signal.SIGSTOP)
        return [result(process) for process in processes]
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
