"""Measures the server's rate and what clients cost; writes docs/results/performance.md and its figure.

    python benchmarks/performance.py [--parts 1 4 16 client waiting] [--launches 5] [--repeats 5] [--seconds 0.5]
                                     [--out docs/results]

Starts `mpirun` of server_rate.py for 1, 4 and 16 clients, and client_cost.py; all parts in turn, as often as
`--launches` says, since a virtual machine may be moved to other cores. What a part measures is kept in
build/performance.json, and the page is made of what is there, so that parts can be measured one at a time, with the
same arguments. `make bench` runs all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from common import ROOT, core_round_trip, launcher, one_thread_environment, without_aslr

SIZES = {1: [7850], 4: [7850, 100_000, 1_000_000, 10_000_000], 16: [7850]}  # by number of clients
WAITING = 129  # ranks
PARTS = [*map(str, SIZES), "client", "waiting"]
KEPT = ROOT / "build" / "performance.json"
NAMES = {"": "mpifl", "by_hand_": "by hand", "echo_": "echo"}
TARGETS = {7850: 0.5, 100_000: 0.85, 1_000_000: 0.9, 10_000_000: 0.9}  # of the rate by hand

COLUMNS = (
    "clients", "d (float32)", "mpifl, updates/s", "by hand, updates/s", "echo, updates/s", "mpifl / by hand",
    "lowest to highest", "mpifl / (by hand, huge pages)", "by hand / echo", "server CPU, mpifl and by hand",
)  # fmt: skip

PAGE = """# Performance

The rate of the server beside the same work written by hand, and beside a bare echo; what a client's contact (one
message to it and its update) costs. `make bench` measures and writes this page.

{machine}

![Rates by dimension and by number of clients](performance.png)

Clients do no work: they answer every message at once with a vector that they keep. All ranks share the machine's cores.
Where there are more ranks than cores they have identical address space layouts
([`setarch -R`](../guides/file-systems.md#settings-of-the-process)).

{table}

{sentence}

All figures but those under [distance of the cores](#distance-of-the-cores) are medians of {launches} launches, which
are made in turn for all parts, since a virtual machine may be moved to other cores. The figure of a launch is the
median of its repeats, here {repeats}. In a repeat the four programs take turns within one run; a turn is
{turns}. A ratio is of the rates of one repeat; the lowest and the highest are of all repeats. CPU is user and system
time of the server's process for an update, polling included.

*mpifl* is the server loop with both ends of the MPI transport and AREA, which aggregates every 4 updates: messages,
versions, staleness, a row for the run file (kept in memory) for each update. *By hand* is what one would write for that
rule alone: nonblocking requests, answers in any order, the same waits with two tests before each pause, a new array for
each model, which is sent without a copy, and the arithmetic in the fewest passes over memory, without rows, checks or
checkpoints. Its messages below 4 MiB are in pages of 4 KiB, as arrays of NumPy are by default where Linux gives huge
pages to programs that ask; larger ones are in huge pages, for which NumPy asks. *By hand, huge
pages* is the same loop with all messages in
huge pages. *Echo* answers every message at once with a fixed one, on both sides, in huge pages.
[server_rate.py](../../benchmarks/server_rate.py) has all of these.

## Distance of the cores

Cores that share a cache send each other messages faster, and one writes faster to a vector that the other has just
read. A virtual machine may be moved to cores at another distance, so the time in which a byte goes from the first core
to the second and back is measured before each launch (in Python loops). Each cell has that time, then the launch's
ratio mpifl / by hand. Launches are in the order of that time. The ranks themselves are not bound to cores.

{distances}

## Clients

{clients}

{client_sentence}

*Bare* is the same arithmetic in a plain loop that ends with the same bits: rows drawn and gathered, gradient, step. The
NumPy loop gathers rows by indexing, mpifl with `take`, which is faster; so its ratio may be below 1. A
contact's cost is what the worker adds to a client's rule at d = 7,850: the snapshot that a refused update is rolled
back to, the check of the update and its norm. The 129 ranks wait for a message that does not come; the figure is the
CPU time of all of them as a share of the cores. A launch makes {client_repeats} repeats
of the steps and the contact. [client_cost.py](../../benchmarks/client_cost.py) has all of these.
"""


def measure(part: str, repeats: int, seconds: float) -> list[dict[str, Any]]:
    """Rows of server_rate.py with so many clients, or of client_cost.py."""
    here = ROOT / "benchmarks"
    if part == "client":
        return launch([sys.executable, str(here / "client_cost.py"), "--repeats", str(3 * repeats)])
    ranks = WAITING + 1 if part == "waiting" else int(part) + 1
    start = [*without_aslr(ranks), *launcher(ranks)]
    if part == "waiting":
        return launch([*start, str(here / "client_cost.py"), "--parts", "waiting"])
    rows = []
    for d in SIZES[int(part)]:
        trip = core_round_trip()
        program = [str(here / "server_rate.py"), "--sizes", str(d)]
        (row,) = launch([*start, *program, "--repeats", str(repeats), "--seconds", str(seconds)])
        rows.append({**row, "round_trip_ns": trip and round(1e9 * trip)})
    return rows


def launch(words: list[str]) -> list[dict[str, Any]]:
    """The rows that a program prints, with the load after it."""
    out = subprocess.run(words, capture_output=True, text=True, timeout=1800, env=one_thread_environment(ROOT))
    if out.returncode:
        sys.exit(f"performance: {' '.join(words)} failed\n{out.stderr}")
    load = round(os.getloadavg()[0], 1)
    return [{**json.loads(line), "load": load} for line in out.stdout.splitlines() if line.startswith("{")]


def combine(launches: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The medians of the rows of several launches; of the ends of a spread the lowest and the highest.

    A row of the server has the (round trip between two cores in ns, ratio) of each launch too, in ascending order.
    """
    combined = []
    for same in zip(*launches, strict=True):
        row = dict(same[0])
        if "round_trip_ns" in row:
            row["launches"] = sorted((each["round_trip_ns"], each["ratio"]) for each in same)
        for key in row:
            if isinstance(row[key], float):
                choose = min if key.endswith("low") else max if key.endswith("high") else statistics.median
                row[key] = choose(each[key] for each in same)
        combined.append(row)
    return combined


def machine() -> str:
    """What was measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), platform.processor())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    cores = len(os.sched_getaffinity(0))
    library = subprocess.run(
        [*launcher(1), "-c", "from mpi4py import MPI; print(MPI.Get_library_version().split(',')[0])"],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout.strip()  # fmt: skip
    return (
        f"Measured on {cores} cores of {model} with {memory:.0f} GB; "
        f"Python {platform.python_version()}, NumPy {version('numpy')}, mpi4py {version('mpi4py')}, {library}."
    )


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'--:|' * len(COLUMNS)}"]
    for r in rows:
        rates = [f"{r[f'{key}updates_per_s']:,.0f}" for key in NAMES]
        spread, cpu = (r["ratio_low"], r["ratio_high"]), (r["server_us"], r["by_hand_server_us"])
        cells = [
            str(r["clients"]), f"{r['d']:,}", *rates, f"{r['ratio']:.2f}", "{:.2f} to {:.2f}".format(*spread),
            f"{r['huge_ratio']:.2f}", f"{r['by_hand_to_echo']:.2f}", "{:,.0f} and {:,.0f} us".format(*cpu),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def turns(rows: list[dict[str, Any]]) -> str:
    """How many updates a turn has, by dimension."""
    lengths = {row["d"]: row["turn"] for row in rows}
    return ", ".join(f"{length:,} updates at d = {d:,}" for d, length in sorted(lengths.items()))


def distances(rows: list[dict[str, Any]]) -> str:
    """The ratio of each launch, by the round trip between two cores, and how it changes with that."""
    if any(row["round_trip_ns"] is None for row in rows):
        return "Not measured: there is one core."
    most = max(len(row["launches"]) for row in rows)
    lines = [f"| clients | d | launches{' |' * most}", f"|{'--:|' * (2 + most)}"]
    for row in rows:
        cells = [f"{ns} ns: {ratio:.2f}" for ns, ratio in row["launches"]]
        lines.append(f"| {' | '.join([str(row['clients']), format(row['d'], ','), *cells])} |")
    changes = [row["launches"][-1][1] / row["launches"][0][1] for row in rows]
    higher = sum(change > 1 for change in changes)
    sentence = (
        f"With the longest round trip the ratio is higher than with the shortest in {higher} of {len(rows)} rows; over "
        f"all rows it is {min(changes):.2f} to {max(changes):.2f} times that with the shortest."
    )
    return "\n".join([*lines, "", sentence])


def sentence(rows: list[dict[str, Any]]) -> str:
    """Where the ratio to the loop by hand is at least its target, and where it is not."""
    missed = [r for r in rows if r["ratio"] < TARGETS[r["d"]]]
    if not missed:
        targets = ", ".join(f"{target} at d = {d:,}" for d, target in TARGETS.items())
        return f"The median ratio to the loop by hand reaches its target in every row: {targets}."
    where = "; ".join(
        f"{r['clients']} client{'s' if r['clients'] > 1 else ''}, d = {r['d']:,}: {r['ratio']:.2f}, "
        f"target {TARGETS[r['d']]}"
        for r in missed
    )
    return f"The median ratio to the loop by hand is below its target in {len(missed)} of {len(rows)} rows: {where}."


def client_row(row: dict[str, Any]) -> tuple[str, str, str, str]:
    """What was measured, the figure, its spread and its target."""
    spread = f"{row['low']:.2f} to {row['high']:.2f}" if "low" in row else ""
    steps = f"contacts of {row['steps']} step{'s' if row['steps'] > 1 else ''}" if "steps" in row else ""
    match row["part"]:
        case "numpy":
            what = f"NumPy logistic step, 32 x 784 x 10, {steps}: {row['us']:.0f} us, bare {row['bare_us']:.0f} us"
        case "torch":
            what = f"torch linear step, 32 x 784 x 10, {steps}: {row['us']:.0f} us, bare {row['bare_us']:.0f} us"
        case "contact":
            return "contact's cost", f"{row['figure']:.1f} us", f"{spread} us", f"{row['target']:.0f} us"
        case _:
            return f"{row['ranks']} ranks that wait", f"{row['figure']:.1%}", "", f"{row['target']:.0%}"
    return what, f"{row['figure']:.2f}", spread, str(row["target"])


def client_table(rows: list[dict[str, Any]]) -> str:
    lines = ["| | figure | lowest to highest | target |", "|---|--:|--:|--:|"]
    return "\n".join([*lines, *(f"| {' | '.join(client_row(row))} |" for row in rows)])


def client_sentence(rows: list[dict[str, Any]]) -> str:
    """Which figures reach their targets."""
    beyond = [client_row(row) for row in rows if row["figure"] > row["target"]]
    if not beyond:
        return "All figures reach their targets."
    return (
        "Above the target: "
        + "; ".join(f"{what}: {figure}, target {target}" for what, figure, _, target in beyond)
        + "."
    )


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (by_d, by_clients) = plt.subplots(1, 2, figsize=(9, 3.6), sharey=False)
    panels = (
        (by_d, "d", [r for r in rows if r["clients"] == 4], "dimension d (float32), 4 clients"),
        (by_clients, "clients", [r for r in rows if r["d"] == 7850], "clients, d = 7,850"),
    )
    for axes, key, chosen, label in panels:
        for (prefix, name), style in zip(NAMES.items(), ("o-", "s--", "^:"), strict=True):
            axes.plot([r[key] for r in chosen], [r[f"{prefix}updates_per_s"] for r in chosen], style, label=name)
        axes.set(xscale="log", yscale="log" if key == "d" else "linear", xlabel=label, ylabel="updates/s")
        axes.grid(alpha=0.3, which="both")
    ticks = [r["clients"] for r in panels[1][2]]
    by_clients.set_xticks(ticks, map(str, ticks))
    by_clients.xaxis.minorticks_off()
    by_clients.set_ylim(bottom=0)
    by_d.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5, help="of a launch")
    parser.add_argument("--seconds", type=float, default=0.5, help="about how long each program runs each time")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    found = [{part: measure(part, args.repeats, args.seconds) for part in args.parts} for _ in range(args.launches)]
    kept |= {part: combine([each[part] for each in found]) for part in args.parts}
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text(json.dumps(kept))
    if absent := [part for part in PARTS if part not in kept]:
        print(f"performance: no page yet, not measured: {', '.join(absent)}", file=sys.stderr)
        return 0
    rows = [row for part in map(str, SIZES) for row in kept[part]]
    clients = [*kept["client"], *kept["waiting"]]
    loads = [row["load"] for row in [*rows, *clients]]
    facts = (
        f"{machine()} Load average (1 minute) after a launch, the ranks of the benchmark included: {min(loads)} to "
        f"{max(loads)}."
    )
    page = PAGE.format(
        machine=facts, table=table(rows), turns=turns(rows), sentence=sentence(rows), distances=distances(rows),
        launches=args.launches, repeats=args.repeats, client_repeats=3 * args.repeats,
        clients=client_table(clients), client_sentence=client_sentence(clients),
    )  # fmt: skip
    (args.out / "performance.md").write_text(page)
    draw(rows, args.out / "performance.png")
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
