"""Wall time and peak memory of `mpifl report` on a thousand run files, against 60 s and 2 GB.

python benchmarks/report_scale.py [--trials 10] [--folder DIR]

One run is computed: 128 clients, 15 s of virtual time, 19,000 updates. The run files of a study (5 methods, 5 step
sizes, 4 delay spreads, 10 trials: 1,000 runs) are copies of it with the job of their run and evaluations of their own.
Beside them lie a damaged file, one of a newer schema, one of an older version, and one that is being written; each must
have its line in the report. Measured are `mpifl report FOLDER`, and `mpifl report STUDY.yaml` with figures. A folder
that is there already is measured as it is.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np

from mpifl import run
from mpifl.config.read import to_yaml
from mpifl.runfile import RunWriter
from mpifl.runfile.tables import EvaluationRow
from mpifl.tools.studies.index import Index
from mpifl.tools.studies.study import load_study

STUDY = """name: scale
job: base.yaml
axes:
  method:
    AREA:      {{algorithm: {{name: area, trigger: {{every: 4}}}}}}
    FedBuff:   {{algorithm: {{name: fedbuff, trigger: {{every: 4}}}}}}
    FedAvg:    {{algorithm: {{name: fedavg}}}}
    FedProx:   {{algorithm: {{name: fedprox}}}}
    SCAFFOLD:  {{algorithm: {{name: scaffold}}}}
  algorithm.step_size: {{from: 0.01, to: 100, log: 5}}
  clock.delay.spread: [0, 1, 5, 10]
trials: {trials}
select: {{over: algorithm.step_size, by: train_loss}}
output: {output}
"""
BASE = """name: base
seed: 0
problem:   {data: digits, clients: 128, partition: {name: dirichlet, alpha: 0.5, min_samples: 2},
            model: {name: logistic, init: zero}, l2: 1.0e-3, batch_size: 8}
algorithm: {name: area, step_size: 100, step_weights: samples, trigger: {every: 4}}
clock:     {mode: virtual, delay: {name: exponential, rate: 10}}
stop:      {time: 15}
evaluate:  {every: 0.25}
"""
OTHERS = ("damaged.h5", "newer.h5", "older.h5", "live.h5")


def make(folder: Path, trials: int) -> None:
    """Writes the study, the run files of its runs, and the damaged, newer and older files."""
    (folder / "runs").mkdir(parents=True)
    (folder / "base.yaml").write_text(BASE)
    (folder / "study.yaml").write_text(STUDY.format(trials=trials, output=folder / "runs"))
    template = folder / "template.h5"
    run(folder / "base.yaml", output=str(template))
    random = np.random.default_rng(0)
    study = load_study(folder / "study.yaml")
    for each in study.runs:
        shutil.copyfile(template, each.path)
        with h5py.File(each.path, "r+", libver="latest") as file:
            file.attrs["config"], file.attrs["seed"], file.attrs["name"] = to_yaml(each.job), each.seed, each.job.name
            for column in ("train_loss", "test_accuracy"):
                values = file["evaluations"][column][()]
                file["evaluations"][column][...] = values * random.uniform(0.8, 1.0, len(values))
    Index(study).write()  # a sweep leaves this file
    (folder / "runs" / "damaged.h5").write_bytes(template.read_bytes()[: template.stat().st_size // 2])
    for name in ("newer.h5", "older.h5"):
        shutil.copyfile(template, folder / "runs" / name)
        with h5py.File(folder / "runs" / name, "r+", libver="latest") as file:
            if name == "newer.h5":
                file.attrs["schema"] = 2
            else:
                del file["updates/bytes_down"], file["evaluations/gradient_norm"], file["checksums"]


def measure(name: str, *arguments: str) -> str:
    """Runs `mpifl report` with these arguments, and prints what it took; its output."""
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "mpifl", "report", *arguments], stdout=subprocess.PIPE, text=True)
    text, _ = process.communicate()
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6  # the largest process so far
    print(f"{name}: exit code {process.returncode}, {seconds:.1f} s, peak {peak:.2f} GB", flush=True)
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10, help="of each combination: 100 run files each")
    parser.add_argument("--folder", type=Path, help="where the files are, or are made and kept")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or Path(temporary) / "scale").resolve()
        if not folder.exists():
            begin = time.perf_counter()
            make(folder, args.trials)
            count = len(os.listdir(folder / "runs"))
            print(f"{count} run files made in {time.perf_counter() - begin:.0f} s", flush=True)
        runs = folder / "runs"
        (runs / "live.h5").unlink(missing_ok=True)
        live = RunWriter(runs / "live.h5", attrs={"name": "live", "config": BASE, "clock": "virtual"}, x0=np.zeros(2),
                         clients={"samples": [1], "rank": [0], "rate": None}, layout=[("w", (2,))])  # fmt: skip
        live.append(EvaluationRow(0.0, 0, 0, train_loss=1.0, test_accuracy=0.1))
        live.flush()
        text = measure("FOLDER", str(runs), "--reach", "0.8", "--reach-in", "time,bytes")
        lines = [line for line in text.splitlines() if any(f"/{name}" in line for name in OTHERS)]
        print("\n".join(lines))
        live.close("completed", np.zeros(2))
        options = ["--spread", "ci95", "--reach", "0.8", "--reach-in", "time,updates,bytes"]
        measure("STUDY.yaml", str(folder / "study.yaml"), *options)
        options += ["--panels", "clock.delay.spread", "--width", "3.3", "--out", str(folder / "report")]
        text = measure("STUDY.yaml with figures", str(folder / "study.yaml"), *options)
        print(f"{text.count('wrote ')} files written")
    return 0 if all(any(f"/{name}" in line for line in lines) for name in OTHERS) else 1


if __name__ == "__main__":
    raise SystemExit(main())
