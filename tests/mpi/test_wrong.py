"""A user's mistakes under mpirun: one line on stderr from one rank, exit code 2, and nothing written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.mpi.cases import AREA, SMALL, job
from tests.mpi.conftest import MPIFL, Start, all_refused, in_one_job, refused, write
from tests.mpi.files import folder_contents

pytestmark = [pytest.mark.mpi, pytest.mark.damaged, pytest.mark.timeout(120)]
IDX = "problem.data=mnist problem.model={name: logistic} problem.root="

# The command, and what its line holds; {job} is a good job, {run} its results. Of each kind of mistake one or two: what
# is wrong with single values is in tests/config.
WRONG = [
    ("run {job} algorithm.step_sise=1", "algorithm.step_sise=1: no such key; the nearest is algorithm.step_size"),
    ("resume {job}", "resume=good.yaml: no HDF5 file; there is no complete checkpoint in good.yaml.ckpt; expected"),
    ("run {job} clock.delay={name: fixed, seconds: [1, 2]}", "clock.delay.seconds=2 values"),
    ("run {job} clock.delay={name: trace, path: none.csv}", "clock.delay.path=none.csv"),
    ("run {job} algorithm=nowhere:Own", "algorithm.name=nowhere:Own"),
    ("run {job} algorithm={name: fedavg, cohort: 8}", "algorithm.cohort=8: there are 7 clients; expected at most 7"),
    (
        "run {job} algorithm.reply=deferred algorithm.trigger.every=9",
        "algorithm.trigger.every=9: replies are deferred, and there are 7 clients; expected at most 7",
    ),
    ("run {digits} problem.partition={name: dirichlet, alpha: 0.1, min_samples: 500}", "min_samples"),
    ("run {digits} " + IDX + "nowhere", "nowhere"),
    ("run {digits} " + IDX + "corrupt", "corrupt"),
    ("run {job} output=folder.h5", "output=folder.h5: this is a directory; expected the name of a file"),
    ("run {job} output=text.txt/x.h5", "output=text.txt/x.h5"),
    ("run {job} output={run}", "the file exists; choose another name, or overwrite=true"),
    ("run {run}", "this is HDF5"),
    ("run {job} {digits}", "key=value after the JOB.yaml"),
    ("resume {run}", "the run is completed"),
    ("replay text.txt", "no HDF5 file; expected a run file"),
    ("replay cut.h5", "cut.h5"),
    ("replay {run} output={run}", "the file exists; choose another name, or overwrite=true"),
    ("show text.txt", "text.txt"),
    ("", "command=''"),
]


def prepare(folder: Path) -> dict[str, str]:
    """Makes good jobs, the results of one, and wrong files."""
    good = job(AREA, SMALL)
    digits = {**good, "problem": {"data": "digits", "clients": 4}}
    names = {"{job}": write(folder, "good", good).name, "{digits}": write(folder, "digits", digits).name}
    (reply,) = in_one_job(folder, 0, [["run", "good.yaml"]])
    assert reply.codes == [0] and reply.changed == ["results/good.h5"]
    names["{run}"] = "results/good.h5"
    (folder / "cut.h5").write_bytes((folder / "results/good.h5").read_bytes()[:3000])
    (folder / "text.txt").write_text("no job, no run, no trace\n")
    (folder / "folder.h5").mkdir()
    image = bytes([0, 0, 8, 3, 0, 0, 0, 60]) + bytes([0, 0, 0, 28] * 2) + bytes(60 * 28 * 28)
    (folder / "corrupt/mnist").mkdir(parents=True)
    for file in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (folder / "corrupt/mnist" / f"{file}-ubyte").write_bytes(b"\1\2" + image[2:])
    return names


def filled(line: str, names: dict[str, str]) -> list[str]:
    """The words of a command; blanks that a colon or a comma precedes are inside a value."""
    for name, value in names.items():
        line = line.replace(name, value)
    return re.split(r"(?<![:,]) ", line) if line else []


def test_every_mistake_is_one_line(tmp_path: Path) -> None:
    """All mistakes in one MPI job of 3 ranks, and then a good run, which finds all ranks ready."""
    names = prepare(tmp_path)
    wrong = [(filled(line, names), says) for line, says in WRONG]
    good, again = all_refused(tmp_path, 3, wrong, ["run", "good.yaml", "output=g.h5"], ["list", "data"])
    assert good.codes == [0] * 3 and good.changed == ["g.h5"]
    assert again.codes == [0] * 3 and "mnist" in again.out and not again.changed


@pytest.mark.parametrize(
    ("ranks", "line", "says"),
    [
        pytest.param(3, "run {job} algorithm.step_sise=1", "nearest is algorithm.step_size", marks=pytest.mark.smoke),
        (0, "run {job} problem.clients=0", "problem.clients=0"),
    ],
)  # fmt: skip
def test_the_launcher_passes_the_exit_code_on(run: Start, tmp_path: Path, ranks: int, line: str, says: str) -> None:
    names = prepare(tmp_path)
    before = folder_contents(tmp_path)
    done = run(ranks, *MPIFL, *filled(line, names))
    refused(done, says)
    assert folder_contents(tmp_path) == before


# -- in a user's own problem -------------------------------------------------------------------------------------------
MINE = """
import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset


def make_problem(case=""):
    x = [torch.randn(s, 3) for s in (4, 9, 6, 5)]
    y = [(rows.sum(1) > 0).long() for rows in x]
    if case == "label":
        y[3][4] = 2
    elif case == "unseeded":
        x[3] += np.random.default_rng().random()
    elif case == "elsewhere" and MPI.COMM_WORLD.rank == 2:
        x.pop(), y.pop()
    elif case == "exits" or (case == "one-exits" and MPI.COMM_WORLD.rank == 2):
        raise SystemExit(0)
    elif case == "raises":
        raise KeyError("of the user's own")
    return nn.Linear(3, 2), cross_entropy, list(map(TensorDataset, x, y)), TensorDataset(x[0], y[0])
"""
GOOD = {
    "seed": 3, "problem": {"entry": "mine:make_problem", "options": {}, "batch_size": 4},
    "algorithm": {"name": "area", "step_size": 1, "trigger": {"every": 2}},
    "clock": {"mode": "virtual", "delay": {"name": "exponential", "rate": 10}},
    "stop": {"updates": 40}, "evaluate": {"updates": 10},
}  # fmt: skip
UNSEEDED = "rank 2: client 3 has other rows on rank 0; expected the same data on every rank; seed what is drawn"
TRAINING = "problem={entry: 'tests.own_clients:wrong', options: {case: '"
EXITS = "problem.entry=mine:make_problem: it exits with status 0; expected (module, loss"

# Overrides, and what the line says; `tests/problems/test_entry_wrong.py` has more of them in one process.
IN_THE_PROBLEM = [
    ("problem.entry=ours:make_problem", "cannot be imported: No module named 'ours'; expected package.module:function"),
    ("problem.clients=3", "problem.clients=3: mine:make_problem returns 4 data sets; expected 4, or null"),
    ("problem.options.case=label", "client 3: Target 2 is out of bounds; expected a loss that takes"),
    ("problem.options.case=unseeded", UNSEEDED),
    ("problem.options.case=elsewhere", "rank 2: this rank got 3 clients, rank 0 got 4"),
    ("algorithm={name: fedavg, cohort: 5}", "algorithm.cohort=5"),
    ("problem.options.case=exits", EXITS),
    ("problem.options.case=one-exits", EXITS.replace("it exits", "rank 2: it exits")),
    (
        f"{TRAINING}trial:length'}}}}",
        "rank 1: client 0: fit returned a y that is float32 of shape (2,), not",
    ),
    (f"{TRAINING}trial:raises'}}}}", "rank 1: client 0: KeyError:"),
    (
        f"{TRAINING}trial:hangs'}}}} faults.patience=2",
        "rank 1: fit of client 0 has not returned after faults.patience=2 s",
    ),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a user's own problem, which has mistakes that show under mpirun, and a job."""
    pytest.importorskip("torch")
    (tmp_path / "mine.py").write_text(MINE)
    write(tmp_path, "good", GOOD)
    return tmp_path


@pytest.mark.long
def test_every_mistake_in_a_problem_is_one_line(folder: Path) -> None:
    """All in one MPI job of 3 ranks, with an existing file that is to be replaced; then a good run, which replaces
    it."""
    kept = folder / "kept.h5"
    kept.write_bytes(b"kept")
    run = ["run", "good.yaml", "output=kept.h5", "overwrite=true"]
    (good,) = all_refused(
        folder, 3, [([*run, *filled(given, {})], says) for given, says in IN_THE_PROBLEM], run, deadline=120
    )
    assert good.codes == [0] * 3 and good.changed == ["kept.h5"] and kept.read_bytes() != b"kept"


@pytest.mark.long
def test_an_error_of_the_users_own_code_ends_all_ranks(run: Start, folder: Path) -> None:
    """With the place where it was raised."""
    done = run(3, *MPIFL, "run", "good.yaml", "problem.options.case=raises")
    assert done.code == 3 and 'KeyError: "of the user\'s own"' in done.err and "mine.py" in done.err, str(done)
    assert not list(folder.rglob("*.h5"))
