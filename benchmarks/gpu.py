"""Updates a second on one GPU: by size of the model, by the way that vectors travel, and by clients computed together.

    python benchmarks/gpu.py [--sizes 10000 100000 1000000 10000000] [--ranks 3] [--seconds 5] [--repeats 3]

Clients do 5 local steps on 32 images of 64 pixels, by FedBuff in real time. `pinned` and `direct` are what
MPIFL_CUDA_AWARE=0 and 1 make of it; direct is left out where MPI does not take GPU memory. The share of copies is the
time of the copies between GPU and pinned memory, which run beside the computing, over wall time, mean over the ranks
with clients; vectors that are small enough for a frame (see transport/frames.py) are not counted. The last table is of
one rank with 64 clients, problem.torch.batched false and true. Prints Markdown tables of medians. --device cpu shows
without a GPU that the script works.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from common import ROOT, launcher

import mpifl
from mpifl.cuda_mpi import cuda_aware
from mpifl.transport.frames import INLINE_BYTES
from mpifl.vector_memory import VectorMemory

JOB = """# gpu
name: gpu
seed: 0
problem:
  data: digits
  clients: {clients}
  batch_size: 32
  evaluation_rows: 100
  model: {{name: torch-mlp, hidden: [{hidden}]}}
  torch: {{device: {device}, batched: {batched}}}
algorithm: {{name: fedbuff, step_size: 0.01, local_steps: 5, trigger: {{every: 8}}}}
clock: {{mode: real}}
stop: {{time: {seconds}}}
evaluate: {{every: 1000}}
output: {output}
"""


def rank(job: str) -> int:
    """On every rank: runs the job; rank 0 prints the seconds in copies and whether MPI takes GPU memory."""
    from mpifl.problems.torch import batched

    held: list[VectorMemory] = []
    make = batched.memory
    batched.memory = lambda *given: held.append(make(*given)) or held[-1]  # type: ignore[func-returns-value]
    mpifl.run(job)
    from mpi4py import MPI

    seconds = [getattr(getattr(m, "device", m), "seconds", 0.0) for m in held]
    if gathered := MPI.COMM_WORLD.gather(seconds):
        print(json.dumps({"copies": statistics.mean(s for each in gathered for s in each), "aware": cuda_aware()}))
    return 0


def measure(ranks: int, d: int, args: argparse.Namespace, aware: str = "", **more: object) -> tuple[float, float, bool]:
    """Updates a second, the share of copies, and whether MPI takes GPU memory."""
    with tempfile.TemporaryDirectory() as folder:
        job, output = Path(folder) / "job.yaml", Path(folder) / "run.h5"
        values = {"clients": 16, "device": args.device, "batched": "false", "seconds": args.seconds, **more}
        job.write_text(JOB.format(hidden=max(1, (d - 10) // 75), output=output, **values))
        environment = {**os.environ, **({"MPIFL_CUDA_AWARE": aware} if aware else {})}
        command = [*launcher(ranks), __file__, "--rank", str(job)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise SystemExit(done.stderr)
        (line,) = [text for text in done.stdout.splitlines() if text.startswith("{")]
        reply, run = json.loads(line), mpifl.open_run(output)
        return len(run.updates) / args.seconds, reply["copies"] / run.attrs["wall_seconds"], reply["aware"]


def median(ranks: int, d: int, args: argparse.Namespace, **more: object) -> tuple[float, float, bool]:
    found = [measure(ranks, d, args, **more) for _ in range(args.repeats)]  # type: ignore[arg-type]
    return statistics.median(f[0] for f in found), statistics.median(f[1] for f in found), found[0][2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 10_000_000])
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        return rank(args.rank)
    if args.device != "cpu" and not torch.cuda.is_available():
        print(f"gpu: torch finds no GPU on {socket.gethostname()}", file=sys.stderr)
        return 2
    print(f"{args.ranks - 1} ranks with 16 clients on one {args.device}; updates a second:\n")
    print("| d | CPU | GPU, pinned | share of copies | GPU, direct |\n|---|---|---|---|---|")
    for d in args.sizes:
        cpu, _, _ = median(args.ranks, d, args, device="cpu")
        _, _, aware = measure(args.ranks, d, args)
        pinned, share, _ = median(args.ranks, d, args, aware="0")
        copies = "in frames" if 4 * d <= INLINE_BYTES else f"{share:.1%}"
        direct = f"{median(args.ranks, d, args, aware='1')[0]:.0f}" if aware else "MPI takes no GPU memory"
        print(f"| {d:,} | {cpu:.0f} | {pinned:.0f} | {copies} | {direct} |", flush=True)
    print("\nOne rank with 64 clients; updates a second:\n")
    print("| d | one after another | together | ratio |\n|---|---|---|---|")
    for d in args.sizes:
        alone, together = (median(2, d, args, clients=64, batched=b)[0] for b in ("false", "true"))
        print(f"| {d:,} | {alone:.0f} | {together:.0f} | {together / alone:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
