"""What starting costs: a client rank's file calls, the time to the first update, memory.

    python benchmarks/startup.py calls
    python benchmarks/startup.py time [--ranks 33 129 257] [--repeats 3] [--job jobs/area/mnist-realtime.yaml]
    python benchmarks/startup.py memory [--ranks 129] [--repeats 3]

Each figure is beside that of a bare program, which imports NumPy and mpi4py and does one barrier. The package's
bytecode is compiled first, as pip does. `calls` counts with strace the system calls that take a file name
(`-e trace=%file`), of rank 1 of 3, from its start to its end. `time` is from the launch to the end of the barrier, and
to the first update that the server consumed; the two programs run in turn. `memory` is the sum of PSS over all ranks,
once all are connected. Prints tables in Markdown.
"""

from __future__ import annotations

import argparse
import compileall
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from common import ROOT, launcher

from mpifl import open_run

IMPORTS = "import time, numpy; from mpi4py import MPI; c = MPI.COMM_WORLD; c.Barrier()"
BARE = f"{IMPORTS}; c.rank or print(time.time(), flush=True)"
WAITING = f"{BARE}; time.sleep({{seconds}})"
TRACE = 'test "$OMPI_COMM_WORLD_RANK$PMI_RANK" = 1 && exec strace -f -qq -e trace=%file -o "$0" "$@"; exec "$@"'
READY_TIME = 5.0  # s after which a program that has started is measured


def arguments(job: str, ranks: int, folder: str, *more: str) -> list[str]:
    """Of `mpifl run`, with one client a rank."""
    rows = ["problem.partition=iid", f"problem.clients={ranks - 1}"]
    return [job, *rows, f"output={folder}/run.h5", "overwrite=true", *more]


def table(columns: list[str], rows: list[list[object]]) -> None:
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |", flush=True)


def start(ranks: int, words: list[str]) -> subprocess.Popen[str]:
    command = [*launcher(ranks), *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


# -- file calls --------------------------------------------------------------------------------------------------------
def file_calls(words: list[str]) -> tuple[int, int]:
    """The calls of rank 1 of 3, and how many of them opened a file."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "calls")
        *mpirun, python = launcher(3)
        subprocess.run([*mpirun, "sh", "-c", TRACE, out, python, *words], cwd=ROOT, capture_output=True, check=True)
        lines = out.read_text().splitlines()
        return len(lines), sum("open" in line and ") = -1" not in line for line in lines)


def calls(job: str) -> None:
    bare = file_calls(["-c", BARE])
    with tempfile.TemporaryDirectory() as folder:
        ours = file_calls(["run_mpi.py", *arguments(job, 3, folder, "stop={updates: 20}")])
    rows: list[list[object]] = [["bare program", *bare, ""], ["rank with clients", *ours, f"{ours[0] / bare[0]:.2f}"]]
    table(["program", "file calls", "files opened", "ratio of the calls"], rows)


# -- time --------------------------------------------------------------------------------------------------------------
def bare_time(ranks: int) -> float:
    """Seconds from the launch to the end of the barrier."""
    begin = time.time()
    out, _ = (process := start(ranks, ["-c", BARE])).communicate(timeout=600)
    assert process.returncode == 0
    return float(out.split()[0]) - begin


def first_update(job: str, ranks: int) -> float:
    """Seconds from the launch to the first update."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.time()
        process = start(ranks, ["run_mpi.py", "-q", *arguments(job, ranks, folder, "stop={updates: 1}")])
        process.communicate(timeout=600)
        assert process.returncode == 0
        run = open_run(f"{folder}/run.h5")
        return float(run.attrs["began"] + run.updates["time"][0] - begin)


def times(job: str, ranks: list[int], repeats: int) -> None:
    rows: list[list[object]] = []
    for count in ranks:
        pairs = []
        for _ in range(repeats):
            pairs.append((bare_time(count), first_update(job, count)))
            print(f"{count} ranks: bare {pairs[-1][0]:.2f} s, first update {pairs[-1][1]:.2f} s", file=sys.stderr)
        ratios = [ours / bare for bare, ours in pairs]
        medians = [f"{statistics.median(column):.1f} s" for column in zip(*pairs, strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        rows.append([count, *medians, f"{statistics.median(ratios):.2f}", spread])
    table(["ranks", "bare program", "first update", "ratio", "lowest to highest"], rows)


# -- memory ------------------------------------------------------------------------------------------------------------
def pss(process: subprocess.Popen[str]) -> list[float]:
    """GB of each rank, in order of rank."""
    found = {}
    for each in psutil.Process(process.pid).children(recursive=True):
        environment = each.environ()
        rank = environment.get("OMPI_COMM_WORLD_RANK", environment.get("PMI_RANK"))
        if rank is not None and each.exe().startswith(os.path.realpath(sys.executable)):
            found[int(rank)] = each.memory_full_info().pss / 1e9
    return [found[rank] for rank in sorted(found)]


def measure_bare(job: str, ranks: int) -> list[float]:
    process = start(ranks, ["-c", WAITING.format(seconds=600)])
    assert process.stdout and process.stdout.readline()
    try:
        return pss(process)
    finally:
        process.terminate()
        process.wait()


def measure_job(job: str, ranks: int) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        process = start(ranks, ["run_mpi.py", "-q", *arguments(job, ranks, folder, "stop={time: 60}")])
        try:
            path = Path(folder, "run.h5")
            while not (path.exists() and len(open_run(path).updates)):
                time.sleep(0.5)
                assert process.poll() is None
            time.sleep(READY_TIME)
            return pss(process)
        finally:
            process.terminate()
            process.wait()


def memory(job: str, ranks: list[int], repeats: int) -> None:
    rows: list[list[object]] = []
    for count in ranks:
        for name, measure in (("bare program", measure_bare), ("run", measure_job)):
            found = sorted((measure(job, count) for _ in range(repeats)), key=sum)[repeats // 2]
            rank = statistics.median(found[1:])
            rows.append([count, name, f"{sum(found):.2f} GB", f"{1e3 * found[0]:.0f} MB", f"{1e3 * rank:.1f} MB"])
    table(["ranks", "program", "all ranks", "rank 0", "another rank, median"], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=["calls", "time", "memory"])
    parser.add_argument("--ranks", type=int, nargs="+")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--job", default="jobs/area/mnist-realtime.yaml")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    compileall.compile_dir(ROOT / "mpifl", quiet=1)
    compileall.compile_file(ROOT / "run_mpi.py", quiet=1)
    if args.figure == "calls":
        calls(args.job)
    elif args.figure == "time":
        times(args.job, args.ranks or [33, 129, 257], args.repeats)
    else:
        memory(args.job, args.ranks or [129], args.repeats)
    return 0


if __name__ == "__main__":
    sys.exit(main())
