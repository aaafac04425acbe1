"""All that a GPU is to show, in order of value, in one command that may be cut off at any time: `make gpu`.

    python benchmarks/gpu_session.py FOLDER [--minutes 8] [--device cuda]

FOLDER/session.jsonl gets a line when each step ends: its name, exit code and seconds; FOLDER/session.log what the steps
print. The steps are the tests marked `gpu`, one process each (repeatability first, then agreement with the CPU, two
ranks on one GPU, a replay, streams, memory); then which operations repeat (gpu_repeat.py), the benchmark in its short
form (gpu.py), and a profile of a local step of a small convolutional network. A step is left out where fewer than 20
seconds are left. With --device cpu all steps run on a host without a GPU, to show that they start; the
tests are then skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TESTS = (  # names of tests/gpu/test_gpu.py, in order of value
    "test_cpu_and_gpu_agree", "test_two_ranks_on_one_gpu", "test_real_time_and_its_replay",
    "test_vectors_stay_whole_while_others_compute", "test_a_thousand_clients_share_one_model",
    "test_models_are_measured_on_the_gpu_as_on_the_cpu", "test_clients_computed_together", "test_a_recurrent_network",
    "test_autocast_gives_another_model_near_that_without_it", "test_a_gpu_that_is_not_there",
)  # fmt: skip


class Step(NamedTuple):
    name: str
    seconds: float  # at most
    command: list[str]


def steps(device: str, folder: Path) -> list[Step]:
    test = [sys.executable, "-m", "pytest", "-q", "-rA", "-m", "", "-n", "0", "-p", "no:cacheprovider", "tests/gpu"]
    found = [Step(name, 90, [*test, "-k", name]) for name in TESTS]
    sizes = ["10000"] if device == "cpu" else ["10000", "1000000", "10000000"]
    short = ["--device", device, "--seconds", "1", "--repeats", "1", "--sizes", *sizes]
    repeat = [sys.executable, "benchmarks/gpu_repeat.py", "--device", device]
    found.insert(1, Step("gpu_repeat", 60, [*repeat, *(["--repeats", "1", "--models", "mlp"] * (device == "cpu"))]))
    found.append(Step("benchmark", 200, [sys.executable, "benchmarks/gpu.py", *short]))
    found.append(Step("profile", 60, [sys.executable, __file__, str(folder), "--profile", device]))
    return found


def run_all(folder: Path, device: str, minutes: float) -> int:
    """Runs the steps; returns 1 if one failed, was cut off or was left out."""
    folder.mkdir(parents=True, exist_ok=True)
    end, bad = time.monotonic() + 60 * minutes, 0
    with (folder / "session.jsonl").open("a") as lines, (folder / "session.log").open("a") as log:
        for step in steps(device, folder):
            begin = time.monotonic()
            row: dict[str, object] = {"step": step.name}
            if (left := end - begin) < min(step.seconds, 20):
                row["code"] = "left out"
            else:
                print(f"== {step.name}", file=log, flush=True)
                try:
                    row["code"] = subprocess.run(
                        step.command, cwd=ROOT, stdout=log, stderr=log, timeout=min(step.seconds, left), check=False,
                        env={**os.environ, "PYTHONPATH": str(ROOT)},
                    ).returncode  # fmt: skip
                except subprocess.TimeoutExpired:
                    row["code"] = "cut off"
                row["seconds"] = round(time.monotonic() - begin, 1)
            bad += row["code"] not in (0, 5)  # 5: pytest has skipped or deselected everything
            print(json.dumps(row), file=lines, flush=True)
            print(json.dumps(row), flush=True)
    return int(bad > 0)


def profile(device: str) -> int:
    """Prints the operations of a local step of a small convolutional network, by time."""
    import torch
    from gpu_repeat import ROWS, modules

    module, shape = modules()["cnn"]
    module = module.to(device)
    x, y = torch.randn(ROWS, *shape, device=device), torch.randint(10, (ROWS,), device=device)
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if device != "cpu":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds) as found:
        for _ in range(5):
            torch.nn.functional.cross_entropy(module(x), y).backward()
    print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=30))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--profile", help=argparse.SUPPRESS)
    args = parser.parse_args()
    return profile(args.profile) if args.profile else run_all(args.folder, args.device, args.minutes)


if __name__ == "__main__":
    sys.exit(main())
