"""Measures other frameworks and mpifl on the same work, in turn; writes docs/results/peers-speed.md.

    python benchmarks/peers/compare.py [--parts mpi large rounds virtual] [--repeats 5] [--out docs/results]

Installs the frameworks first (environments.py). A part's rates are kept in build/peers-speed/rates.json, and the page
is made of what is there, so that parts can be measured one at a time. `make peers-speed` runs all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from environments import PEERS, ROOT, install, missing, python

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from common import launcher, without_aslr  # noqa: E402
from performance import machine  # noqa: E402

RATES = ROOT / "build" / "peers-speed" / "rates.json"
STUBS = ROOT / "tests" / "peers" / "drivers"  # `exchange.leave_out`
RANKS, TIMEOUT = 5, 200.0
UNITS = {"updates_per_s": "updates/s", "ms_a_round": "ms a round"}


class Program(NamedTuple):
    """One program that is measured: mpifl's own (no peer), or a driver in a peer's environment."""

    label: str
    peer: str
    words: tuple[str, ...]
    ranks: int = 1

    def figure(self) -> tuple[str, float]:
        """Runs it; the unit's key and the figure. Raises RuntimeError where it fails."""
        own = [sys.executable] if not self.peer else [str(python(self.peer))]
        command = own
        if self.ranks > 1:
            mpirun = python(self.peer).with_name("mpirun") if self.peer else Path(launcher(1)[0])
            command = [*without_aslr(self.ranks), str(mpirun), "-n", str(self.ranks), *own]
        path = str(ROOT) if not self.peer else str(STUBS)
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                [*command, *self.words], cwd=HERE, env=environment, capture_output=True, text=True, timeout=TIMEOUT
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"not ready after {TIMEOUT:.0f} s") from None
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            lines = [line for line in done.stderr.splitlines() if "Error" in line]
            raise RuntimeError((lines or ["no output"])[-1])
        row: dict[str, Any] = json.loads(lines[-1])
        return next((key, row[key]) for key in UNITS if key in row)


def mpi(label: str, *words: str, peer: str = "") -> Program:
    return Program(label, peer, words, RANKS)


PLAIN = ("--no-memory-option",)
PARTS: dict[str, list[Program]] = {  # of each part the first two are mpifl's
    "mpi": [
        mpi("mpifl (NumPy)", "ours.py", "mpi", "--model", "logistic", "--updates", "8000"),
        mpi("mpifl (torch)", "ours.py", "mpi", "--model", "torch-logistic", "--updates", "6000"),
        mpi("APPFL as shipped", "appfl_mpi.py", "--updates", "8", peer="appfl"),
        mpi("APPFL without memory option", "appfl_mpi.py", "--updates", "30", *PLAIN, peer="appfl"),
        mpi("APPFL without memory option, without sleep", "appfl_mpi.py", "--updates", "600", *PLAIN, "--no-sleep",
            peer="appfl"),
    ],
    "large": [
        mpi("mpifl (NumPy)", "ours.py", "mpi", "--d", "1000000", "--updates", "600"),
        mpi("APPFL without memory option, without sleep", "appfl_mpi.py", "--d", "1000000", "--updates", "150", *PLAIN,
            "--no-sleep", peer="appfl"),
    ],
    "rounds": [
        Program(
            "mpifl (NumPy)", "", ("ours.py", "rounds", "--model", "logistic", "--batch", "8", "--updates", "20000")
        ),
        Program(
            "mpifl (torch)", "", ("ours.py", "rounds", "--model", "torch-logistic", "--batch", "8", "--updates", "8000")
        ),
        Program("pfl-research", "pfl", ("pfl_rounds.py",)),
        Program("Flower", "flower", ("flower_rounds.py", "--rounds", "15")),
        Program("FLSim", "flsim", ("flsim_sim.py", "rounds", "--updates", "60", "--batch", "8")),
    ],
    "virtual": [
        Program("mpifl (NumPy)", "", ("ours.py", "virtual", "--model", "logistic", "--updates", "6000")),
        Program("mpifl (torch)", "", ("ours.py", "virtual", "--model", "torch-logistic", "--updates", "4000")),
        Program("APPFL's simulator as shipped", "appfl", ("appfl_vsim.py", "--updates", "10")),
        Program("APPFL's simulator without memory option", "appfl", ("appfl_vsim.py", "--updates", "600", *PLAIN)),
        Program("FLSim", "flsim", ("flsim_sim.py", "virtual", "--updates", "600")),
    ],
}  # fmt: skip
TITLES = {
    "mpi": "FedAsync over MPI, 4 clients on 5 ranks, logistic regression of d = 7,850, one step of 32 rows a contact",
    "large": "FedAsync over MPI, 4 clients on 5 ranks, a quadratic of d = 1,000,000, one gradient step a contact",
    "rounds": "FedAvg with 10 clients on one machine, logistic regression of d = 7,850, one step of 8 rows a contact",
    "virtual": "FedAsync in virtual time, 10 clients in one process, logistic regression of d = 7,850, 32 rows a step",
}
TARGETS = (  # part, mpifl's program, the other one, how many times as fast mpifl is to be
    ("mpi", "mpifl (NumPy)", "APPFL without memory option, without sleep", 15),
    ("large", "mpifl (NumPy)", "APPFL without memory option, without sleep", 5),
    ("rounds", "mpifl (NumPy)", "pfl-research", 7),
    ("rounds", "mpifl (torch)", "pfl-research", 4),
    ("rounds", "mpifl (NumPy)", "Flower", 100),
)

PAGE = """# Speed beside other frameworks

mpifl and other frameworks do the same work on one machine, one program after the other. This command installs the
frameworks, each into an environment of its own under `build/peers-speed`, measures, and writes this page:

<!-- test: skip installs the frameworks -->
```sh
make peers-speed
```

{facts}

{tables}
{sentences}

A repeat measures the programs of a table one after the other. A speed-up compares two figures of one repeat; the table
has the median, the lowest and the highest. The first fifth of a run, with its start-up, is left out. All programs use
one thread a process. Where the ranks of a program share cores they have identical address space layouts
(`setarch -R`).

## What each does in these runs

- mpifl runs a job as `mpifl run` does, without checkpoints, and with evaluations at the start and the end only: checks
  of every update, a row for each in the HDF5 file, staleness, snapshots to roll back to.
- APPFL over MPI: its server agent, `AsyncScheduler`, `FedAsyncAggregator` and both ends of its MPI communicator. Its
  trainer, data loader and training log are left out: a client's step is a plain torch loop.
- *As shipped* APPFL collects garbage around every message (its memory option, `optimize_memory`), and its server sleeps
  0.1 s before each poll for a message. *Without memory option* this option is off; *without sleep*: the driver
  replaces the sleep.
- APPFL's simulator: its server agent and `AsyncSimDriver`, around the same plain loop.
- pfl-research: its `FederatedAveraging`, `SimulatedBackend` and local SGD, in one process, without evaluations.
- Flower: its message API, `FedAvg` strategy and simulation with ray, without evaluations. It moves the clients of a
  round to other processes, which pays with long local work and not with one step; mpifl computes them in the server's
  process.
- FLSim: its synchronous trainer with FedAvg, and its asynchronous one with FedAsync's rule, polynomial weights and
  clients that start at random times, ten at work on average; its local SGD, without metrics and progress bars. It makes
  a client object for each contact, from a validated configuration. Python 3.11 refuses its configuration classes as
  default values: the driver makes them hashable, and leaves out libraries that these runs do not use.
- The torch models are the same function. The NumPy model of mpifl is the same function without torch, which the other
  frameworks do not have.
- Plato is not in this comparison: there is no driver for it.{missing}{left}

The drivers are in [benchmarks/peers](../../benchmarks/peers/compare.py), with the versions in
[environments.py](../../benchmarks/peers/environments.py): {versions}.
"""


def measure(part: str, repeats: int) -> dict[str, Any]:
    """Figures of each program by repeat, or why it failed."""
    figures: dict[str, list[float]] = {program.label: [] for program in PARTS[part]}
    errors: dict[str, str] = {}
    unit = ""
    for _ in range(repeats):
        for program in PARTS[part]:
            if program.label in errors:
                continue
            try:
                unit, figure = program.figure()
                figures[program.label].append(figure)
                print(f"{part}: {program.label}: {figure:.4g} {UNITS[unit]}", flush=True)
            except RuntimeError as error:
                errors[program.label] = str(error)
                print(f"{part}: {program.label}: {error}", file=sys.stderr, flush=True)
    return {"unit": unit, "figures": figures, "errors": errors, "repeats": repeats, "load": os.getloadavg()[0]}


def factors(found: dict[str, Any], ours: str, other: str) -> list[float]:
    """How many times as fast mpifl's program is, for each repeat."""
    pairs = zip(found["figures"].get(ours, []), found["figures"].get(other, []))
    return [a / b if found["unit"] == "updates_per_s" else b / a for a, b in pairs]


def _digits(number: float) -> str:
    """A number with three digits."""
    rounded = float(f"{number:.3g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"


def _work(part: str) -> str:
    """The first words of a part's title, and its dimension."""
    dimension = re.search(r"d = [\d,]*\d", TITLES[part])
    return TITLES[part].partition(",")[0] + (f", {dimension[0]}" if dimension else "")


def table(part: str, found: dict[str, Any]) -> str:
    own = [label for label in ("mpifl (NumPy)", "mpifl (torch)") if found["figures"].get(label)]
    heads = ["program", UNITS[found["unit"]], *(f"speed-up of {label}" for label in own)]
    lines = [
        f"## {TITLES[part]}\n\nMedians of {found['repeats']} repeats.\n",
        f"| {' | '.join(heads)} |", "|---|--:|" + "--:|" * len(own),
    ]  # fmt: skip
    for program in PARTS[part]:
        label, values = program.label, found["figures"][program.label]
        if not values:
            lines.append(f"| {label} | failed: {found['errors'].get(label, '')} |" + " |" * len(own))
            continue
        figure = statistics.median(values)
        cells = [label, f"{figure:,.0f}" if figure >= 100 else _digits(figure)]
        for mine in own:
            ratios = factors(found, mine, label)
            spread = f"{_digits(statistics.median(ratios))} ({_digits(min(ratios))} to {_digits(max(ratios))})"
            cells.append("" if label in own else spread)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def sentences(rates: dict[str, Any]) -> str:
    """Which targets are reached."""
    said = []
    for part, ours, other, target in TARGETS:
        if part in rates and (ratios := factors(rates[part], ours, other)):
            factor = statistics.median(ratios)
            verdict = "reached" if factor >= target else "not reached"
            said.append(
                f"- {_work(part)}: {ours} is {_digits(factor)} times as fast as {other}; target {target}, {verdict}."
            )
    return "\n".join(said)


def page(rates: dict[str, Any]) -> str:
    absent = [f"{name}: {reason}" for name in PEERS if (reason := missing(name))]
    shown = {part: rates[part] for part in PARTS if part in rates}
    unmeasured = "; ".join(TITLES[part] for part in PARTS if part not in rates)
    left = f"\n- Not measured here: {unmeasured}." if unmeasured else ""
    loads = ", ".join(f"{found['load']:.1f}" for found in shown.values())
    return PAGE.format(
        facts=f"{rates['machine']} Load average at the end of each table: {loads}.",
        tables="\n".join(table(part, found) for part, found in shown.items()), sentences=sentences(rates),
        versions=", ".join(" ".join(PEERS[name]) for name in PEERS),
        left=left, missing=f" Not installed here: {'; '.join(absent)}." if absent else "",
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    args = parser.parse_args()
    for name in PEERS:
        if reason := install(name):
            print(f"{name}: {reason}", file=sys.stderr)
    rates = json.loads(RATES.read_text()) if RATES.exists() else {}
    for part in args.parts:
        rates |= {"machine": machine(), part: measure(part, args.repeats), "measured": time.strftime("%Y-%m-%d")}
        RATES.write_text(json.dumps(rates))
    (args.out / "peers-speed.md").write_text(page(rates))
    return 0


if __name__ == "__main__":
    sys.exit(main())
