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
from collections.abc import Callable, Sequence
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
TARGET_TIME, TARGET_HAND = 1.2, 1.3

PAGE = """# Simulated clients

What an update costs under the virtual clock by the number of clients, and how much memory a client takes.
`python benchmarks/scale.py` measures and writes this page.

{machine}

![Time and memory by number of clients](scale.png)

{table}

{sentence}
{loop}

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


def plain_loop(clients: int) -> float:
    """CPU us of an update of the quadratics in the fewest statements, over as many updates as a run has.

    A heap of due times, and of each client its data, its last model and the model that it was sent; contact times are
    drawn beforehand. No rows, checks or checkpoints.
    """
    rng, d = np.random.default_rng(0), PROBLEMS["quadratics, d = 10"]["model"]["dim"]
    c = rng.standard_normal((clients, d), np.float32)
    a = np.exp(rng.uniform(0, np.log(10), (clients, d))).astype(np.float32)
    y, x = np.zeros((clients, d), np.float32), np.zeros(d, np.float32)
    sent, rounds, u = [x] * clients, [0] * clients, np.zeros_like(x)
    due = list(zip(rng.exponential(1.0, clients).tolist(), range(clients), strict=True))
    heapq.heapify(due)
    begin = 0.0
    for k, wait in enumerate(rng.exponential(1.0, UPDATES).tolist()):
        if k == WARM:
            await_turn()
            begin = time.process_time()
        now, i = due[0]
        gradient = sent[i] - c[i]
        gradient *= a[i]
        gradient *= 0.1
        new = sent[i] - gradient
        u += new - y[i]
        y[i] = new
        rounds[i] += 1
        sent[i] = x
        heapq.heapreplace(due, (now + wait, i))
        x = x + u / clients
        u = np.zeros_like(x)
    return 1e6 * (time.process_time() - begin) / (UPDATES - WARM)


# -- AREA's row of Table 3 ---------------------------------------------------------------------------------------------
STOP, RATE, EVERY, BATCH, ALPHA = 15.0, 10.0, 4, 32, 100.0
EVALUATIONS = 31  # of the job
ROW_TURN = 0.6  # s; a process that continues has its threads on one core for a moment, and cold caches
PLAIN, EVALUATED, BESIDE, BY_HAND = ROW = "plain", "evaluated", "beside", "by hand"


class Watch:
    """Times a process from its turn on, by the clocks whose times `times` returns."""

    _clocks = time.perf_counter, time.process_time, time.thread_time

    def __init__(self) -> None:
        await_turn()
        self._begin = self._end = [clock() for clock in self._clocks]

    def stop(self) -> None:
        self._end = [clock() for clock in self._clocks]

    def times(self) -> dict[str, float]:
        """From when to when (perf_counter), and CPU seconds of the process and of this thread."""
        _, cpu, thread = (end - begin for begin, end in zip(self._begin, self._end, strict=True))
        return {"begin": self._begin[0], "end": self._end[0], "cpu": cpu, "thread": thread}


def by_hand(problem: Any, seed: int) -> tuple[Watch, int, np.ndarray]:
    """Times, number and model of the same updates in the fewest statements: no rows, checks or checkpoints."""
    from mpifl.rng import stream

    n, total = problem.clients, int(problem.samples.sum())
    shards = [problem.shard(i)[:2] for i in range(n)]
    features, classes = problem.layout[0][1]
    x = problem.initial(seed)
    l2 = x.dtype.type(1e-3)
    hot = [np.eye(classes, dtype=x.dtype)[y] for _, y in shards]
    watch = Watch()
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
    watch.stop()
    return watch, updates, x


def unevaluated(problem: Any) -> Any:
    """The problem, with evaluations that take no time; even a job without any evaluates its first and last model."""
    plain = copy.copy(problem)
    metrics = dict.fromkeys(problem.evaluate(problem.initial(0)), float("nan"))
    plain.evaluate_with_clients = lambda x: (dict(metrics), np.full(problem.clients, np.nan))
    return plain


def _loaded(problem: Any, job: Any) -> Any:
    return problem


def table_3_jobs(folder: str) -> tuple[Any, Any]:
    """The row's job without evaluations, and with them; their run file is in `folder`."""
    import mpifl

    return tuple(
        mpifl.load_job(
            ROOT / "jobs" / "area" / "mnist-virtual.yaml", f"stop.time={STOP}", *changes,
            f"algorithm={{name: area, step_weights: samples, step_size: {ALPHA}, trigger: {{every: {EVERY}}},"
            "reply: before, first_contact: zero}", "log_interval=null", "overwrite=true",
            output=f"{folder}/row.h5", memory={"check": False},
        ) for changes in (["evaluate={updates: 1000000000}"], [])
    )  # fmt: skip


def evaluate_on_request(times: int) -> float:
    """Evaluates the row's first model so many times for each line of input; a process of its own, until input ends."""
    import mpifl
    from mpifl.execution import _one_thread

    job = table_3_jobs("unused")[1]
    problem = mpifl.load_problem(job)
    x = problem.initial(job.seed)
    with _one_thread():
        problem.evaluate_with_clients(x)
        print("ready", flush=True)
        for _ in sys.stdin:
            for _ in range(times):
                problem.evaluate_with_clients(x)
    return 0.0


class OtherProcess:
    """A process that evaluates on the second core: as often as a run does, one evaluation after the other."""

    def __init__(self, evaluations: int) -> None:
        self._process = child("evaluations", evaluations, own_group=False)
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line.strip() == "ready", line

    def begin(self) -> None:
        assert self._process.stdin
        print("evaluate", file=self._process.stdin, flush=True)

    def end(self) -> None:
        self._process.communicate()


def table_3_row(program: str, _: int) -> dict[str, Any]:
    """What one of the programs takes for the row, after mpifl has run it once: mpifl without evaluations, with them, or
    without them while another process makes as many; or the loop by hand, which ends with the same model.
    """
    import mpifl
    from mpifl.execution import _one_thread
    from mpifl.server.loop import ServerLoop
    from mpifl.server.start import run_server

    plain, evaluated = table_3_jobs(tempfile.mkdtemp())
    job = evaluated if program == EVALUATED else plain
    problem = mpifl.load_problem(job)
    load = partial(_loaded, problem if program == EVALUATED else unevaluated(problem))
    with _one_thread():
        run_server(job, load=load)
        with mpifl.open_run(job.output) as file:
            updates, evaluations, model = len(file.updates), len(file.evaluations), file.model
        if program == BY_HAND:
            watch, count, x = by_hand(problem, job.seed)
            assert count == updates, (count, updates)
            return {**watch.times(), "updates": updates, "gap": float(np.abs(model - x).max() / np.abs(x).max())}
        assert program != EVALUATED or evaluations == EVALUATIONS, evaluations
        found: dict[str, float] = {}
        other = OtherProcess(EVALUATIONS) if program == BESIDE else None
        run = ServerLoop.run

        def timed(self: ServerLoop, *args: Any) -> bool:
            watch = Watch()
            if other:
                other.begin()
            result = run(self, *args)
            watch.stop()
            found.update(watch.times())
            return result

        ServerLoop.run = timed  # type: ignore[method-assign]
        run_server(job, load=load)
        if other:
            other.end()
    return found


def compare(repeats: int) -> dict[str, Any]:
    """The row's programs, which take turns: medians of their times and ratios, and how far these spread."""
    taken: dict[str, list[float]] = defaultdict(list)
    hand: dict[str, Any] = {}
    for _ in range(repeats):
        found = dict(zip(ROW, take_turns([(name, 0) for name in ROW], ROW_TURN), strict=True))
        hand = found[BY_HAND]
        for name, each in found.items():
            each["off"] = 100 * (each["wall"] - each["thread"]) / each["wall"]  # % of the time off its core
            for kind in ("cpu", "wall", "thread", "off"):
                taken[f"{name}_{kind}"].append(each[kind])
    spread: dict[str, float] = {}
    for key, name, base, kind in (
        ("ratio", PLAIN, BY_HAND, "cpu"), ("slower", EVALUATED, PLAIN, "wall"), ("shared", BESIDE, PLAIN, "wall"),
        ("slower_thread", EVALUATED, PLAIN, "thread"), ("shared_thread", BESIDE, PLAIN, "thread"),
    ):  # fmt: skip
        ratios = [a / b for a, b in zip(taken[f"{name}_{kind}"], taken[f"{base}_{kind}"], strict=True)]
        spread |= {key: statistics.median(ratios), f"{key}_low": min(ratios), f"{key}_high": max(ratios)}
    medians = {name: statistics.median(each) for name, each in taken.items()}
    return {**medians, **spread, "updates": hand["updates"], "gap": hand["gap"], "repeats": repeats}


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


def loop_text(rows: list[dict[str, Any]], loop: dict[int, list[float]]) -> str:
    """What the loop by hand takes with the fewest and with the most clients, beside what the target allows mpifl."""
    few, many = (statistics.median(loop[n]) for n in (min(loop), max(loop)))
    ours = [r["update_us"] for r in rows if r["problem"].startswith("quadratics")]
    allowed = (TARGET_TIME - 1) * min(ours)
    return (
        f"- For comparison, an update of the quadratics in a loop by hand, with the same vectors, contact times drawn "
        f"beforehand, and nothing else: {few:.1f} us with {min(loop):,} clients and {many:.1f} us with "
        f"{max(loop):,}, a factor of {many / few:.2f}. The loop's statements are the same for any number of clients; "
        f"what grows is the heap, and the memory that they touch. That loop becomes {many - few:.1f} us slower; the "
        f"target of {TARGET_TIME} allows mpifl {allowed:.1f} us."
    )


def hand_text(found: dict[str, Any] | None) -> str:
    if found is None:
        return "Not measured: MNIST is missing."
    return (
        f"AREA's row of Table 3 (MNIST, 128 clients, batches of 32, {found['updates']:,} updates, without evaluations) "
        f"takes {found['plain_cpu']:.2f} s of CPU in one process of mpifl, and {found['by hand_cpu']:.2f} s in a loop "
        f"by hand with the same draws and arithmetic: {found['ratio']:.2f} times as much (median of {found['repeats']} "
        f"pairs, {found['ratio_low']:.2f} to {found['ratio_high']:.2f}), {_reached(found['ratio'], TARGET_HAND)} the "
        f"target of {TARGET_HAND}."
        f" The largest relative difference of the two models is {found['gap']:.1g}. The loop by hand gathers the "
        "rows of a batch by indexing, mpifl with `take`.\n\n"
        f"With the job's {EVALUATIONS} evaluations of all 70,000 rows the server loop takes "
        f"{found['evaluated_wall']:.2f} s of wall time instead of {found['plain_wall']:.2f}, "
        f"{found['slower']:.2f} times as much ({found['slower_low']:.2f} to {found['slower_high']:.2f}); the programs "
        f"take turns of {ROW_TURN:g} s. A thread "
        f"evaluates on the second core, and takes {found['evaluated_cpu'] - found['plain_cpu']:.2f} s of CPU. "
        "Without evaluations, but while another process makes as many, one after the other, the loop takes "
        f"{found['shared']:.2f} times as much ({found['shared_low']:.2f} to {found['shared_high']:.2f}): "
        f"{_shared(found)}\n\n"
        f"The loop's thread is off its core for {found['evaluated_off']:.1f} % of its wall time with evaluations, for "
        f"{found['plain_off']:.1f} % without, and for {found['beside_off']:.1f} % beside the other process. The first "
        "includes the waits for the global interpreter lock. The CPU time of the thread itself is "
        f"{found['slower_thread']:.2f} times as much with evaluations ({found['slower_thread_low']:.2f} to "
        f"{found['slower_thread_high']:.2f}), and {found['shared_thread']:.2f} times beside the other process "
        f"({found['shared_thread_low']:.2f} to {found['shared_thread_high']:.2f})."
    )


def _shared(found: dict[str, Any]) -> str:
    """What a process without the interpreter lock costs the loop, by sharing its memory and caches."""
    if found["shared_low"] <= 1 <= found["shared_high"]:
        return "sharing the memory and its caches has no effect that was measured."
    return "that is what sharing the memory and its caches costs."


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
        kinds: dict[str, Callable[[int], Any]] = {
            "loop": plain_loop, "evaluations": evaluate_on_request,
            **{name: partial(table_3_row, name) for name in ROW},
        }  # fmt: skip
        name, count = args.child
        print(json.dumps(kinds[name](int(count)) if name in kinds else measure(name, int(count))))
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    facts = machine()
    touch_memory(TOUCHED)
    sizes = [n for n in (100, 1000, 10_000, 100_000, 1_000_000) if n <= args.most]
    first, *others = ([(problem, n) for n in sizes] for problem in PROBLEMS)
    loops = [("loop", sizes[0]), ("loop", sizes[-1])]
    found: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for _ in range(args.repeats):
        for group in ([*first, *loops], *others):
            for run, value in zip(group, take_turns(group), strict=True):
                found[run].append(value)
    rows = [medians(found[run]) for run in found if run not in loops]
    loop = {n: found[name, n] for name, n in loops}
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
        machine=facts, table=table, sentence=sentence(rows), loop=loop_text(rows, loop), hand=hand, updates=UPDATES,
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


def child(name: str, count: int, own_group: bool = True) -> subprocess.Popen[str]:
    """Starts a process that measures a problem with so many clients, `loop` with as many, a program of the row, or
    makes so many `evaluations` for each line that it is sent.
    """
    words = [sys.executable, __file__, "--child", name, str(count)]
    return subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=one_thread_environment(*PATHS),
        start_new_session=own_group,
    )  # fmt: skip


def result(process: subprocess.Popen[str]) -> Any:
    """What a child has printed. Raises CalledProcessError where it failed."""
    out, _ = process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return json.loads(out.splitlines()[-1])


def take_turns(runs: Sequence[tuple[str, int]], turn: float = TURN) -> list[Any]:
    """The results of these children, which are set up one after the other, and then run in turn for `turn` seconds.

    Results that have `begin` and `end` (perf_counter) get `wall`: how many of the seconds between them the child ran.
    """
    processes: list[subprocess.Popen[str]] = []
    turns: dict[int, list[tuple[float, float]]] = defaultdict(list)  # of each process: from when to when
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
                begin = time.perf_counter()
                os.killpg(process.pid, signal.SIGCONT)
                time.sleep(turn)
                os.killpg(process.pid, signal.SIGSTOP)
                turns[process.pid].append((begin, time.perf_counter()))
        results = [result(process) for process in processes]
        for process, each in zip(processes, results, strict=True):
            if isinstance(each, dict) and "begin" in each:
                overlaps = (min(b, each["end"]) - max(a, each["begin"]) for a, b in turns[process.pid])
                each["wall"] = sum(max(0.0, overlap) for overlap in overlaps)
        return results
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
