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
    "rehost": "What lost clients mean to AREA",
    "availability": "Clients that go on and off, in runs that are killed",
    "reader": "A reader beside the writer",
    "inputs": "Malformed inputs",
    "network": "A network that delays, reorders, loses, and is cut",
    "history": "Real time under stress",
    "slurm": "A two-node SLURM",
    "soak": "Soak",
    "cost": "Cost",
}
WORDS = {
    "kills": """\
9 ranks (`mpirun --with-ft ulfm`), real clock, runs of 2 s; 1 to 7 of the 8 client ranks get SIGKILL before the first
message, together, or one after the other until shortly before the end. Each run must end with exit code 0, status
`completed`, the clients of dead ranks `lost` with their events, and no process left; a replay of it must give all
tables and the model, bit for bit.""",
    "resume": """\
SIGKILL to every process of a job, its launcher included; then `mpifl resume` under another number of ranks (1, 2, 3, 5
or 9), half of them killed and resumed again. Virtual clock: the file must be that of the run that nobody killed, bit
for bit, events excepted. Real clock: a replay must give all tables and the model bit for bit, and AREA's x_s + u/n must
be the mean of the y_i to 1e-12, in float64.""",
    "rehost": """\
AREA on quadratics with known optima, float64, constant step; 1 to 7 of 8 client ranks die. `rehost`: the model must be
within 1e-9 of the optimum of all clients' objective; in the last checkpoint the sums must add up to 1e-13. `freeze`: it
must be within 1e-9 of the point to which the frozen y_i lead, (alpha sum A_i c_i over the living + sum y_i over the
lost) / (alpha sum A_i over the living + how many are lost), which is another point.""",
    "availability": """\
Real clock, 14 methods on quadratics with known optima, float64; each client is on for 0.25 s and off for 0.25 s in
turn. One or two of 4 client ranks get SIGKILL, with `rehost` or `freeze`, or every process of the job does, and it is
resumed under another number of ranks. Each run must be completed; its updates must be consumed while their clients are
on; every live client must go on; methods that correct for unequal rates must end at the optimum of all clients, where
none is lost; a replay must give all tables and the model, bit for bit.""",
    "reader": """\
Another process opens a run file again and again while it is written, and after its run has ended by a signal or a
kill. Every time all tables are read: no error, no torn row, nothing that refers to what is not there, nothing changed
that was there before.""",
    "inputs": """\
Files damaged by bytes, by structure and by values. Exit code 0: the damage does not matter, or cannot be told from what
is meant; 2: one line says what is wrong; 3: the run that it describes began, and failed. No traceback, no hang, and no
file changed but what the command is there to write.""",
    "network": """\
Two network namespaces with host names of their own, 3 ranks each, MPI over TCP, joined by a wire that delays and drops
frames. Runs of 12 s: frames 10 to 40 ms late, out of order, 2 % lost; no frame at all for 0.5 to 3 s, after which TCP
may take as long again to notice. Runs of 5 s: no frame any more, with `faults.patience: 1`, and with checkpoints.""",
    "slurm": """\
A real slurmctld and two slurmd on one host (`tests/slurm/cluster.sh`), a job of `mpifl submit` over two nodes, 8 ranks,
virtual clock. The file at the end must be that of the run that nobody disturbed, bit for bit, events excepted.""",
    "history": """\
Real clock, runs of 0.7 to 1.5 s, each drawn by a seed: contacts and evaluations that are slow, an evaluation every
millisecond or less, aggregations by period and at random, up to every third update refused, client ranks killed, rank 0
stopped by SIGSTOP for up to 1.2 s. Clients write down each contact before they send its update. Each run must end with
exit code 0, within a contact and the pause after its `stop.time`; at most one update may be consumed later; what each
client has sent must be consumed in order, refused with an event, or be under way at the end and counted as dropped; no
row may be earlier than one that it reflects; `mpifl verify` must find the file right; a replay must give all tables and
the model, bit for bit.""",
    "soak": "Real clock, `lost: rehost`; client ranks are killed at a steady rate. Rank 0 is watched from outside.",
    "cost": "With and without, in turn; the median of the ratios of wall times (`benchmarks/faults_cost.py`).",
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
    lines = ["# Faults", "", "What `make faults` counted. A run that does not do what it must is `failed`.", ""]
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
        lines += [f"{runs:,} runs, {runs - bad:,} of them as they should be.", ""] if runs else []
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
