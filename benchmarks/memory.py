"""Peak memory of the one rank that hosts 1,000 clients of a torch model with 100,000 parameters, against its bound.

python benchmarks/memory.py [--clients 1000] [--mode virtual|real]

The bound is 1 GB, and for each client 0.4 MB (one vector) for every vector that the method's client state holds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from common import ROOT, launcher

METHODS = {  # state vectors of a client, and the method's section
    "fedavg": (0, "{name: fedavg, step_size: 0.1}"),
    "area": (1, "{name: area, step_size: 1, trigger: {every: 100}}"),
    "scaffold": (1, "{name: scaffold, step_size: 0.1}"),
    "feddr": (3, "{name: feddr, step_size: 0.1, eta: 1}"),
}
JOB = """# memory
name: memory
seed: 0
problem: {{data: digits, clients: {clients}, batch_size: 1, model: {{name: torch-mlp, hidden: [1333]}}}}
algorithm: {algorithm}
clock: {{mode: {mode}, delay: {{name: exponential, rate: 1}}}}
stop: {{updates: {updates}}}
evaluate: {{updates: {updates}}}
output: {output}
"""


def peak(command: list[str]) -> dict[str, float]:
    """Runs mpirun with two ranks; the most memory (GB) that either held, resident at once, by rank."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    most: dict[str, float] = {}
    while process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            try:
                rank = child.environ().get("OMPI_COMM_WORLD_RANK") or child.environ().get("PMI_RANK")
                if rank is not None:
                    most[rank] = max(most.get(rank, 0.0), child.memory_info().rss / 1e9)
            except psutil.Error:
                continue
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(process.returncode)
    return most


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--mode", default="virtual", choices=["virtual", "real"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, (vectors, section) in METHODS.items():
            job = Path(folder) / "job.yaml"
            options = {"clients": args.clients, "mode": args.mode, "updates": 2 * args.clients}
            job.write_text(JOB.format(algorithm=section, output=Path(folder) / f"{name}.h5", **options))
            most = peak([*launcher(2), "run_mpi.py", str(job)])
            bound = args.clients * 0.4e-3 * vectors + 1
            row = {"method": name, "clients": args.clients, "state_vectors": vectors, "bound_gb": bound}
            print(json.dumps({**row, "rank_gb": round(most["1"], 3), "server_gb": round(most["0"], 3)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
