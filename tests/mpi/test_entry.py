"""A user's own problem under mpirun: the same run on any number of ranks, and one line for each mistake in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mpi.conftest import MPIFL, Start, in_one_job, one_line, refused, write
from tests.mpi.files import differing

pytest.importorskip("torch")
pytestmark = [pytest.mark.mpi, pytest.mark.timeout(180)]

# `case` says what is wrong; that of "elsewhere" on the ranks with clients alone
MINE = """
import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset


class Noisy(nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.randn(len(x), 2)


class Both(nn.Linear):
    def forward(self, x):
        return super().forward(x["x"] + x["more"])


def make_problem(case="", options=None):
    x = [torch.randn(s, 3) for s in (4, 9, 6, 5)]
    y = [(rows.sum(1) > 0).long() for rows in x]
    if case == "no rows":
        x[2], y[2] = x[2][:0], y[2][:0]
    elif case == "label":
        y[3][4] = 2
    elif case == "unseeded":
        x[3] += np.random.default_rng().random()
    elif case == "elsewhere" and MPI.COMM_WORLD.rank == 2:
        x.pop(), y.pop()
    elif case == "exits" or (case == "one exits" and MPI.COMM_WORLD.rank == 2):
        raise SystemExit(0)
    elif case == "raises":
        raise KeyError("of the user's own")
    if case == "dicts":  # of rows, with test rows for each client
        rows = [[({"x": x, "more": 2 * x}, y) for x, y in zip(*part)] for part in zip(x, y)]
        return Both(3, 2), cross_entropy, rows, [each[:3] for each in rows]
    module = Noisy(3, 2) if case == "draws" else nn.Linear(3, 2)
    return module, cross_entropy, list(map(TensorDataset, x, y)), TensorDataset(x[0], y[0])
"""
GOOD = {
    "seed": 3, "problem": {"entry": "mine:make_problem", "options": {}, "batch_size": 4},
    "algorithm": {"name": "area", "step_size": 1, "trigger": {"every": 2}},
    "clock": {"mode": "virtual", "delay": {"name": "exponential", "rate": 10}},
    "stop": {"updates": 40}, "evaluate": {"updates": 10},
}  # fmt: skip

# Overrides, and what the line says; `tests/problems/test_entry_wrong.py` has more of them in one process.
WRONG = [
    ("problem.entry=ours:make_problem", "cannot be imported: No module named 'ours'; expected package.module:function"),
    ("problem.options.rows=3", "got an unexpected keyword argument 'rows'"),
    ("problem.clients=3", "problem.clients=3: mine:make_problem returns 4 data sets; expected 4, or null"),
    ("problem.options.case=no rows", "client 2 has no rows; expected at least one"),
    ("problem.options.case=label", "client 3: Target 2 is out of bounds."),
    (
        "problem.options.case=unseeded",
        "rank 2: client 3 has other rows on rank 0; expected the same data on every rank; seed what is drawn",
    ),
    ("problem.options.case=elsewhere", "rank 2: this rank got 3 clients, rank 0 got 4"),
    ("algorithm={name: fedavg, cohort: 5}", "algorithm.cohort=5"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    write(tmp_path, "good", GOOD)
    return tmp_path


@pytest.mark.long
def test_every_mistake_is_one_line(folder: Path) -> None:
    """All in one MPI job of 3 ranks, with an existing file that is to be replaced; then a good run, which replaces
    it."""
    kept = folder / "kept.h5"
    kept.write_bytes(b"kept")
    run = ["run", "good.yaml", "output=kept.h5", "overwrite=true"]
    *replies, good = in_one_job(folder, 3, [*([*run, given] for given, _ in WRONG), run], deadline=120)
    missed = [(given, reply) for (given, says), reply in zip(WRONG, replies, strict=True) if not one_line(reply, says)]
    assert not missed, "\n".join(map(str, missed))
    assert good.codes == [0] * 3 and good.changed == ["kept.h5"] and kept.read_bytes() != b"kept"


@pytest.mark.long
@pytest.mark.parametrize("case", ["no rows", "unseeded"])
def test_the_launcher_passes_the_exit_code_on(run: Start, folder: Path, case: str) -> None:
    done = run(3, *MPIFL, "run", "good.yaml", f"problem.options.case={case}")
    refused(done, "client")
    assert not list(folder.rglob("*.h5"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "code", "says"),
    [
        ("raises", 3, 'KeyError: "of the user\'s own"'),
        ("exits", 2, "mpifl: problem.entry=mine:make_problem: it exits with status 0; expected (module, loss"),
        ("one exits", 2, "mpifl: problem.entry=mine:make_problem: rank 2: it exits with status 0; expected (module"),
    ],
)
def test_an_error_of_the_users_own_code_ends_all_ranks(
    run: Start, folder: Path, case: str, code: int, says: str
) -> None:
    """With the place where it was raised; an exit is one line."""
    done = run(3, *MPIFL, "run", "good.yaml", f"problem.options.case={case}")
    assert done.code == code and says in done.err, str(done)
    assert ("mine.py" in done.err) == (code == 3)
    assert not list(folder.rglob("*.h5"))


@pytest.mark.long
@pytest.mark.parametrize("case", ["", "draws", "dicts"])
def test_any_number_of_ranks_gives_the_same_bits(run: Start, folder: Path, case: str) -> None:
    options = [f"problem.options.case={case}", *(["evaluate.clients=true"] if case == "dicts" else [])]
    for ranks in (0, 6):  # more ranks than clients
        assert not run(ranks, *MPIFL, "run", "good.yaml", *options, f"output=r{ranks}.h5", deadline=120, code=0).err
    assert not differing(folder / "r0.h5", folder / "r6.h5")
