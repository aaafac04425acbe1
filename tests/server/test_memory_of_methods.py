"""The estimate of memory counts what each method keeps for its clients: it agrees with the peak of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mpifl.server.memory_estimate import small_kept_vectors
from tests.server.test_memory_estimate import job, measured

# The method, the vectors that the server has at its peak with n clients, and those of a client, from the method's page.
KEPT: dict[str, tuple[dict[str, Any], str, int]] = {
    "area": ({}, "3", 1), "scaffold": ({"cohort": 5}, "4", 1), "feddyn": ({"cohort": 5}, "5", 1),
    "feddr": ({"cohort": 5}, "2", 3), "fedadmm": ({}, "2", 3), "fedpd": ({}, "2", 2), "proxskip": ({}, "2", 2),
    "vrl-sgd": ({}, "2", 2), "apfl": ({}, "2", 2), "ace": ({}, "2 + n", 0), "mifa": ({}, "2 + n", 0),
    "fedamp": ({}, "2 + 4 * n", 1), "async-fedavg": ({"rule": "server-memory"}, "3 + n", 0), "f-svrg": ({}, "4", 1),
    "mime": ({}, "5", 1), "feddane": ({}, "4", 2), "quafl": ({}, "2", 2), "fedgate": ({}, "2", 3),
    "fedavg": ({"cohort": 5}, "2", 0),
    "ringleader": ({}, "2 + 2 * n", 1),
}  # fmt: skip


def of_method(tmp_path: Path, name: str, n: int, d: int, **keys: Any) -> Any:
    options = {**KEPT[name][0], **({"cohort": 3} if n == 4 and "cohort" in KEPT[name][0] else {})}
    return job(tmp_path, n, d, {"name": name, **options}, **keys)


@pytest.mark.parametrize("name", KEPT)
def test_vectors_of_server_and_clients_are_those_of_the_method(tmp_path: Path, name: str) -> None:
    _, server, client = KEPT[name]
    kept = small_kept_vectors(of_method(tmp_path, name, 12, 3), 12)
    assert (kept.server, kept.client) == (eval(server, {"n": 12}), client)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("n", [4, 400])
@pytest.mark.parametrize("name", KEPT)
def test_the_peak_of_a_run_is_the_estimate(tmp_path: Path, name: str, n: int) -> None:
    """Within a quarter: 50 MB for a vector of each client, and every client computes."""
    base, need, peak = measured(of_method(tmp_path, name, n, 12_500_000 // n, stop={"updates": 8 * n}))
    assert need == pytest.approx(peak - base, rel=0.25)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["fedpd", "mifa", "async-fedavg", "scaffold"])
def test_a_checkpoint_takes_the_updates_in_flight_and_no_copy_of_states(tmp_path: Path, name: str) -> None:
    """MIFA and the server memory of asynchronous FedAvg are dicts of a vector for each client."""
    n = 400
    keys = {"stop": {"updates": 8 * n}, "checkpoint": {"updates": 6 * n + 2}}
    base, need, peak = measured(of_method(tmp_path, name, n, 12_500_000 // n, **keys))
    assert need == pytest.approx(peak - base, rel=0.1)
