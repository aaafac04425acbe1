"""Measures what a user can expect from server, client and simulation; writes docs/results/performance.md.

    python benchmarks/performance.py [--parts 1 4 16 client waiting] [--launches 3] [--repeats 5] [--seconds 0.5]
                                     [--out docs/results]

Starts `mpirun` of server_rate.py for 1, 4 and 16 clients, and client_cost.py; all parts in turn, as often as
`--launches` says. What a part measures is kept in build/performance.json, and the page is made of what is there, so
that parts can be measured one at a time, with the same arguments. `make bench` runs all of them.
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

from common import ROOT, launcher, one_thread_environment

SIZES = {1: [7850], 4: [7850, 100_000, 1_000_000, 10_000_000], 16: [7850]}  # by number of clients
WAITING_RANKS = 32
PARTS = [*map(str, SIZES), "client", "waiting"]
KEPT = ROOT / "build" / "performance.json"

PAGE = """# Performance

What a user can expect from the server, a client and a simulation. `make bench` measures and writes this page.

{machine}

| | figure | beside the same by hand | lowest to highest |
|---|--:|--:|--:|
{rows}

Figures are medians of {launches} launches, and a launch's figure is the median of its repeats, here {repeats}. The
programs that are compared take turns within one repeat, of which their ratio is taken. All ranks share the machine's
cores.

*Server*: the rate of the server loop with both ends of the MPI transport and AREA, which aggregates every 4 updates,
with clients that do no work: they answer every message at once with a vector that they keep. The CPU time is that of
the server's process for an update, polling included. *By hand* is what one would write for that rule alone: nonblocking
requests, answers in any order, the same waits, a new array for each model, which is sent without a copy, and the
arithmetic in the fewest passes over memory, without rows, checks or checkpoints.
[server_rate.py](../../benchmarks/server_rate.py) has both.

*Client*: a step of local training beside a plain loop that ends with the same bits, with contacts of one step and of
200. A contact's cost is what the worker adds to a client's rule at d = 7,850: the snapshot to which a refused update is
rolled back, the check of the update and its norm. *Simulation*: CPU time of an update of AREA on scikit-learn's digits
under the virtual clock, with 128 clients in one process. *Waiting*: CPU time of all ranks while they wait for a
message, as a share of the cores. [client_cost.py](../../benchmarks/client_cost.py) has these; [simulated
clients](scale.md) has more of them.
"""


def measure(part: str, repeats: int, seconds: float) -> list[dict[str, Any]]:
    """Rows of server_rate.py with so many clients, or of client_cost.py."""
    here = ROOT / "benchmarks"
    if part == "client":
        return launch([sys.executable, str(here / "client_cost.py"), "--repeats", str(3 * repeats)])
    if part == "waiting":
        return launch([*launcher(WAITING_RANKS + 1), str(here / "client_cost.py"), "--parts", "waiting"])
    sizes = map(str, SIZES[int(part)])
    program = [*launcher(int(part) + 1), str(here / "server_rate.py"), "--repeats", str(repeats)]
    return launch([*program, "--seconds", str(seconds), "--sizes", *sizes])


def launch(words: list[str]) -> list[dict[str, Any]]:
    """The rows that a program prints, with the load after it."""
    out = subprocess.run(words, capture_output=True, text=True, timeout=1800, env=one_thread_environment(ROOT))
    if out.returncode:
        sys.exit(f"performance: {' '.join(words)} failed\n{out.stderr}")
    load = round(os.getloadavg()[0], 1)
    return [{**json.loads(line), "load": load} for line in out.stdout.splitlines() if line.startswith("{")]


def combine(launches: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The medians of the rows of several launches; of the ends of a spread the lowest and the highest."""
    combined = []
    for same in zip(*launches, strict=True):
        row = dict(same[0])
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


def server_row(row: dict[str, Any]) -> list[str]:
    many = f"{row['clients']} client{'s' if row['clients'] > 1 else ''}"
    return [
        f"server, {many}, d = {row['d']:,} (float32)",
        f"{row['updates_per_s']:,.0f} updates/s, {row['server_us']:,.0f} us of CPU an update",
        f"{row['ratio']:.2f} of the rate",
        f"{row['ratio_low']:.2f} to {row['ratio_high']:.2f}",
    ]


def client_row(row: dict[str, Any]) -> list[str]:
    spread = f"{row['low']:.2f} to {row['high']:.2f}" if "low" in row else ""
    match row["part"]:
        case "numpy" | "torch" as kind:
            model = "NumPy logistic" if kind == "numpy" else "torch linear"
            steps = f"{row['steps']} step{'s' if row['steps'] > 1 else ''}"
            what = f"client, {model} step, 32 x 784 x 10, contacts of {steps}"
            return [what, f"{row['us']:.0f} us a step", f"{row['figure']:.2f} times the time", spread]
        case "contact":
            return ["client, what a contact adds to its rule", f"{row['figure']:.1f} us", "", spread]
        case "simulation":
            return ["simulation, 128 clients, d = 640", f"{row['figure']:.0f} us of CPU an update", "", spread]
        case _:
            return [f"waiting, {row['ranks']} ranks", f"{row['figure']:.1%} of the cores", "", ""]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--launches", type=int, default=3)
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
    cells = [server_row(row) for part in map(str, SIZES) for row in kept[part]]
    cells += [client_row(row) for part in ("client", "waiting") for row in kept[part]]
    rows = "\n".join(f"| {' | '.join(row)} |" for row in cells)
    loads = [row["load"] for part in PARTS for row in kept[part]]
    facts = f"{machine()} Load average (1 minute) after a launch: {min(loads)} to {max(loads)}."
    page = PAGE.format(machine=facts, rows=rows, launches=args.launches, repeats=args.repeats)
    (args.out / "performance.md").write_text(page)
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
