"""What each method sends: the (d,) vectors of a round as its paper counts them, against the recorded bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mpifl
from mpifl import open_run
from mpifl.algorithms import names
from tests.algorithms.table import CLAIMS

HEAD, D, N = 128, 50, 4  # bytes of a frame's head; numbers of a vector, float64; clients, all at work in a round


def run(folder: Path, section: dict[str, Any], updates: int) -> Any:
    """The updates of a short run."""
    job = {
        "name": "wire", "seed": 3, "output": str(folder / "run.h5"), "algorithm": {"step_size": 0.01, **section},
        "problem": {"clients": N, "model": {"name": "quadratic", "dim": D}, "dtype": "float64"},
        "clock": {"mode": "virtual", "delay": "fixed"}, "stop": {"updates": updates}, "evaluate": {"updates": updates},
    }  # fmt: skip
    mpifl.run(job).close()
    with open_run(folder / "run.h5") as file:
        return file.updates


@pytest.mark.parametrize(("name", "options", "contacts", "up", "down"), CLAIMS, ids=lambda v: str(v))
def test_vectors_a_round(tmp_path: Path, name: str, options: dict[str, Any], contacts: int, up: int, down: int) -> None:
    """Bytes are those of the claimed vectors and of one head a message, in every round."""
    rounds = 3
    updates = run(tmp_path, {"name": name, **options}, rounds * contacts * N)
    for client, rows in updates.groupby("client"):
        assert rows.bytes.sum() == rounds * (contacts * HEAD + up * 8 * D), client
        assert rows.bytes_down.sum() == rounds * (contacts * HEAD + down * 8 * D), client


def test_every_algorithm_makes_a_claim() -> None:
    assert {claim[0] for claim in CLAIMS} | {"ringleader"} == set(names())


def test_ringleader_sends_a_model_once_a_round(tmp_path: Path) -> None:
    """A message that tells a client to go on is a head alone; each client gets one model for n steps."""
    updates = run(tmp_path, {"name": "ringleader"}, 31 * N)
    assert (updates.bytes == HEAD + 8 * D).all()
    assert set(updates.bytes_down) == {HEAD, HEAD + 8 * D}
    models = updates[updates.bytes_down > HEAD].groupby("client").size()
    assert models.max() - models.min() <= 1 and abs(models.mean() - updates.version.max() / N) <= 1


def test_a_skipped_round_sends_nothing(tmp_path: Path) -> None:
    """FedPD with p = 0.75: the updates' local steps are those of all rounds, a geometric number of them an update, and
    bytes are of one vector each way whatever that number is; expected (1 - p) of each a round."""
    updates = run(tmp_path, {"name": "fedpd", "skip": 0.75, "eta": 0.1}, 100 * N)
    assert (updates.bytes == HEAD + 8 * D).all() and (updates.bytes_down == HEAD + 8 * D).all()
    rounds = updates[updates.client == 0].local_steps  # one local step a round
    assert (updates.groupby("version").local_steps.nunique() == 1).all()  # one coin for all
    assert rounds.max() > 5 and abs(rounds.mean() - 4) < 5 * (12 / 100) ** 0.5  # variance p/(1-p)^2 = 12


def test_feddane_does_not_send_twice(tmp_path: Path) -> None:
    """A device in both sets has w already; one in the second alone is sent w and g_t: with few devices both happen."""
    updates = run(tmp_path, {"name": "feddane", "cohort": 2}, 200)
    second = updates[updates.version % 2 == 1]
    assert set((second.bytes_down - HEAD) // (8 * D)) == {1, 2}
    assert (updates[updates.version % 2 == 0].bytes_down == HEAD + 8 * D).all()
