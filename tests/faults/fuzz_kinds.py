"""The kinds of malformed input."""

from __future__ import annotations

from tests.faults import fuzz_files as files
from tests.faults import fuzz_jobs as jobs
from tests.faults import fuzz_runs as runs
from tests.faults.fuzz import Kind

CHECK, RUN = [["check"]], [["run", "job.yaml"]]
READ = [["show", "run.h5"], ["report", "run.h5"], ["report", "run.h5", "--out", "out"], ["replay", "run.h5"]]
RESUME = [["resume", "run.h5"]]
RESULT, READ_MAY = ("results/*.h5",), ("out/*", "run-replay.h5")
RESUME_MAY = ("run.h5", "run.h5.damaged*", "run.ckpt/*")
JOB = ("job0.yaml",)
LSTM = {"model": {"name": "char-lstm", "hidden": 4, "embedding": 2}}
SHAKESPEARE = files.leaf("leaf-shakespeare", files.speech, list("abcd"), **LSTM)

KINDS = {
    "job file: text": Kind(jobs.prepare, jobs.text, CHECK, 300, words=JOB),
    "job file: values": Kind(jobs.prepare, jobs.values, CHECK, 500, words=JOB),
    "job file: run": Kind(jobs.prepare, jobs.runnable, [["run"]], 250, RESULT, (*JOB, *jobs.BOUNDED)),
    "job file: vast sizes": Kind(jobs.prepare, jobs.vast, [["run"]], 20, RESULT, (*JOB, *jobs.BOUNDED)),
    "job file: overrides": Kind(jobs.prepare, jobs.overrides, CHECK, 200, words=JOB),
    "run file: bytes": Kind(runs.completed, runs.any_bytes, READ, 300, READ_MAY),
    "run file: content": Kind(runs.completed, runs.content, READ, 250, READ_MAY),
    "run file of a killed run: bytes": Kind(runs.killed, runs.any_bytes, READ, 200, READ_MAY),
    "run file of a killed run: content": Kind(runs.killed, runs.content, RESUME, 120, RESUME_MAY),
    "run file of a killed run: bytes, resumed": Kind(runs.killed, runs.any_bytes, RESUME, 150, RESUME_MAY),
    "checkpoints": Kind(runs.killed, runs.checkpoints, RESUME, 250, RESUME_MAY),
    "idx": Kind(files.idx(False), files.any_bytes("*ubyte"), RUN, 80, RESULT),
    "idx, gzipped": Kind(files.idx(True), files.inside_gzip, RUN, 60, RESULT),
    "CIFAR, binary": Kind(files.cifar("bin"), files.any_bytes("*"), RUN, 40, RESULT),
    "CIFAR, pickled": Kind(files.cifar("py"), files.any_bytes("*"), RUN, 80, RESULT),
    "own data: npz": Kind(files.arrays(".npz"), files.any_arrays, RUN, 100, RESULT),
    "own data: HDF5": Kind(files.arrays(".h5"), files.any_arrays, RUN, 100, RESULT),
    "LEAF JSON: vectors": Kind(files.leaf("leaf", files.vectors, [0, 1, 2, 0]), files.any_json, RUN, 100, RESULT),
    "LEAF JSON: Shakespeare": Kind(SHAKESPEARE, files.any_json, RUN, 40, RESULT, torch=True),
    "Shakespeare's roles": Kind(files.roles, files.any_bytes("*.jsonl"), RUN, 60, RESULT, torch=True),
    "token cache": Kind(files.cached_roles, files.any_bytes("*", "cache"), RUN, 60, RESULT, torch=True),
    "trace of delays": Kind(files.trace, files.any_bytes("*.csv", "."), RUN, 80, RESULT),
}
