"""Makes the page docs/results/faults.md of what the full pass has counted.

python -m tests.faults.table [FOLDER] [PAGE]
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TITLES = {
    "kills": "Client ranks killed at random instants",
    "resume": "Whole jobs killed at random instants, and resumed",
    "rehost": "AREA with lost clients",
    "availability": "Clients that go on and off, in runs that are killed",
    "reader": "A reader beside the writer",
    "inputs": "Malformed inputs",
    "network": "A network that delays, reorders, loses, and is cut",
    "history": "Real time under stress",
    "slurm": "A two-node SLURM",
    "soak": """\
Soak""",
    "cost": """\
Cost""",
}
INTRO = """\
This page has the counts of `make faults`. Each section says what its runs must do; a run that does not do it counts
as `failed`."""
WORDS = {
    "kills": """\
Runs of 2 s on 9 ranks under the real clock (`mpirun --with-ft ulfm`). 1 to 7 of the 8 client ranks get SIGKILL:
before the first message, together, or one after the other until shortly before the end. Each run must end with exit
code 0 and the status `completed`, have the clients of dead ranks as `lost` with their events, and leave no process. A
replay of it must give all tables and the model, bit for bit.""",
    "resume": """\
Every process of a job, its launcher included, gets SIGKILL; then `mpifl resume` continues the run on another number
of ranks (1, 2, 3, 5 or 9). Half of the runs are killed and resumed again. Under the virtual clock the file must equal
that of an uninterrupted run, bit for bit, except for events. Under the real clock a replay must give all tables and
the model bit for bit, and AREA's x_s + u/n must be the mean of the y_i to 1e-12, in float64.""",
    "rehost": """\
AREA runs on quadratics with known optima, in float64 and with a constant step, and 1 to 7 of 8 client ranks die. With
`rehost` the model must be within 1e-9 of the optimum of all clients' objective, and in the last checkpoint the sums
must agree to 1e-13. With `freeze` it must be within 1e-9 of the point to which the frozen y_i lead, which is not the
optimum: (alpha sum A_i c_i over the live clients + sum y_i over the lost ones) / (alpha sum A_i over the live clients
+ the number of lost ones).""",
    "availability": """\
14 methods run under the real clock on quadratics with known optima, in float64; each client is on for 0.25 s and off
for 0.25 s in turn. One or two of 4 client ranks get SIGKILL, with `rehost` or `freeze`; or every process of the job
gets it, and the job is resumed on another number of ranks. Each run must complete. Its updates must be consumed while
their clients are on, and every live client must continue. If no client is lost, methods that correct for unequal
rates must end at the optimum of all clients. A replay must give all tables and the model, bit for bit.""",
    "reader": """\
Another process opens a run file again and again while it is written, and after a signal or a kill has ended its run.
It reads all tables every time. There must be no error, no incomplete row, no row that refers to one that is missing,
and no change of rows that were there before.""",
    "inputs": """\
Commands read files with damaged bytes, structure or values. Exit code 0 means that the damage does not matter or that
the file is still valid; 2 that one line says what is wrong; 3 that the run which the file describes began and failed.
There must be no traceback, no hang, and no change of any file that the command does not have to write.""",
    "network": """\
Two network namespaces with host names of their own have 3 ranks each and use MPI over TCP, over a link that delays
and drops frames. In runs of 12 s frames are 10 to 40 ms late, out of order, and 2 % are lost; or all frames are
dropped for 0.5 to 3 s, after which TCP may take as long again to recover. In runs of 5 s, with `faults.patience: 1`
or with checkpoints, all frames are dropped from some instant on.""",
    "slurm": """\
A real slurmctld and two slurmd on one host (`tests/slurm/cluster.sh`) run a job of `mpifl submit` on two nodes and 8
ranks, under the virtual clock. The file at the end must equal that of an undisturbed run, bit for bit, except for
events.""",
    "history": """\
Runs of 0.7 to 1.5 s under the real clock, each drawn by a seed: slow contacts and evaluations, an evaluation every
millisecond or less, aggregations by period and at random, up to every third update refused, client ranks killed, rank
0 stopped by SIGSTOP for up to 1.2 s. Clients write down each contact before they send its update. Each run must end
with exit code 0, at most a contact and the pause after its `stop.time`, and at most one update may be consumed later.
What each client has sent must be consumed in order, refused with an event, or be in flight at the end and counted as
dropped. No row may be earlier than one that it reflects. `mpifl verify` must find no contradiction, and a replay must
give all tables and the model, bit for bit.""",
    "soak": """\
A run under the real clock with `lost: rehost`, whose client ranks are killed at a steady rate. Rank 0 is watched from
outside.""",
    "cost": """\
Runs with and without each feature take turns. The table has the ratios of their wall times
(`benchmarks/faults_cost.py`).""",
}


def cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count} {outcome}" for outcome, count in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def table(rows: list[dict[str, Any]]) -> list[str]:
    columns = [name for name in rows[0] if name != "item"]
    lines = [columns, ["---"] * len(columns), *([cell(row.get(name, "")) for name in columns] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def page(folder: Path) -> str:
    """The page, of the JSON files in the folder; what has none is named at the end."""
    lines = ["# Faults", "", INTRO, ""]
    without = []
    for name, title in TITLES.items():
        path = folder / f"{name}.json"
        if not path.exists():
            without.append(title)
            continue
        rows = json.loads(path.read_text())
        lines += [f"## {title}", ""]
        lines += [WORDS[name], ""] if name in WORDS else []
        runs = sum(row["runs"] for row in rows if "runs" in row)
        bad = sum(row["outcomes"].get("failed", 0) for row in rows if "outcomes" in row)
        lines += [f"{runs - bad:,} of {runs:,} runs passed.", ""] if runs else []
        lines += [*table(rows), ""]
    if without:
        lines += [f"Not run here: {', '.join(title[0].lower() + title[1:] for title in without)}.", ""]
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    folder = Path(argv[0] if argv else os.environ.get("MPIFL_FAULTS_OUT", ROOT / "results" / "faults"))
    place = Path(argv[1]) if len(argv) > 1 else ROOT / "docs" / "results" / "faults.md"
    place.write_text(page(folder))
    print(place)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
