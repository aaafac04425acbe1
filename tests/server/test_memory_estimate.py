"""The memory that a run needs is estimated before it, and a run that its hosts have no room for is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpifl
from mpifl import ConfigError
from mpifl.config.job import Job
from mpifl.config.read import job_to_dict
from mpifl.server.memory_estimate import (
    OBJECT_BYTES,
    array_bytes,
    check_memory,
    estimate,
    problem_size,
    small_kept_vectors,
)
from mpifl.server.start import run_server
from mpifl.transport.handshake import Hello

GB = 10**9
AREA, TRACE = {"name": "area", "step_size": 0.1}, {"name": "trace", "path": "none.csv"}


def job(tmp_path: Path, clients: int, dim: int, algorithm: dict[str, Any] = AREA, **keys: Any) -> Job:
    return mpifl.load_job(
        {
            "name": "memory", "seed": 0,
            "problem": {"model": {"name": "quadratic", "dim": dim}, "clients": clients},
            "algorithm": algorithm, "clock": {"mode": "virtual", "delay": {"name": "exponential", "rate": 1.0}},
            "stop": {"updates": 4 * clients}, "evaluate": {"updates": 10**9}, "output": str(tmp_path / "memory.h5"),
            "checkpoint": {"wall": None}, **keys,
        }
    )  # fmt: skip


def hello(host: str, *limits: tuple[str, float, float]) -> Hello:
    return Hello(host, 1, 1, 1.0, limits=limits)


def test_every_part_grows_as_its_formula(tmp_path: Path) -> None:
    n, d = 20_000, 500
    small, large = (estimate(each, found).server for each in (job(tmp_path, n, d), job(tmp_path, n, 3 * d))
                    if (found := problem_size(each)))  # fmt: skip
    assert small["data"] == 2 * 4 * n * d
    assert large["data"] - small["data"] == 2 * 4 * n * 2 * d
    assert large["messages in flight"] - small["messages in flight"] == pytest.approx(4 * n * 2 * d, rel=0.2)  # x_s


def test_loading_counts_beyond_the_vectors_that_are_allocated_after_it(tmp_path: Path) -> None:
    """A block of 2^22 float64 is evaluated at once, and two are drawn at once."""
    block, d = 8 << 22, 3_000_000
    each = job(tmp_path, 4, d, {"name": "fedavg"})
    found = problem_size(each)
    assert found and (found.evaluating, found.loading) == (block, 2 * block)
    server = estimate(each, found).server
    assert server["evaluation"] == block + 4 * d * (1 + 1)  # the last model, and one that waits
    assert server["loading"] == 0, "the vectors are larger"
    server = estimate(job(tmp_path, 4_000_000, 3, {"name": "fedavg"}), found._replace(d=3)).server
    after = sum(server.values()) - server["data"] - server["clients' table"] - server["loading"]
    assert after + server["loading"] == 2 * block


def test_checkpoints_by_wall_time_count_the_updates_that_answer_all_messages(tmp_path: Path) -> None:
    """A round of FedAvg has one message for all 40 clients, and an update of each."""
    d, flight = 500, {}
    for wall in (None, 600.0):
        each = job(tmp_path, 40, d, {"name": "fedavg"}, checkpoint={"wall": wall})
        found = problem_size(each)
        assert found
        flight[wall] = estimate(each, found).server["messages in flight"]
    assert flight[600.0] - flight[None] == (40 - 1) * (4 * d + OBJECT_BYTES)


def test_a_host_is_asked_for_the_sum_of_its_ranks(tmp_path: Path) -> None:
    each = job(tmp_path, 100_000, 10_000)  # 8 GB of data, as much of states on the ranks with clients
    size = problem_size(each)
    one, two = ("this host", 64 * GB, 11 * GB), ("this host", 64 * GB, 30 * GB)
    check_memory(each, size, [hello("a", two), hello("b", two)])
    with pytest.raises(ConfigError, match=r"at most 11 GB for 2 ranks \(free on a, of 64 GB\)"):
        check_memory(each, size, [hello("a", one), hello("a", one)])
    with pytest.raises(ConfigError, match=r"at most 3 GB for a rank \(free in control group /job on b, of 12 GB\)"):
        check_memory(each, size, [hello("a", two), hello("b", two, ("control group /job", 12 * GB, 3 * GB))])

    all_the_same = job(tmp_path, 100_000, 10_000, memory={"check": False})
    check_memory(all_the_same, size, [hello("a", one), hello("a", one)])


def test_a_run_without_room_is_refused_in_one_line(tmp_path: Path, refused: Callable[..., str]) -> None:
    output, vast = tmp_path / "refused.h5", "problem={model: {name: quadratic, dim: 1000000}, clients: 100000000}"
    line = refused("run", "jobs/quickstart.yaml", f"output={output}", vast, "algorithm={name: fedavg, cohort: 10}")
    assert "memory=" in line and "memory.check=false" in line
    assert not output.exists()


def test_check_prints_the_estimate(printed: Callable[..., Any]) -> None:
    last = printed("check", "jobs/quickstart.yaml").out.splitlines()[-1]
    assert last.startswith("# memory: ") and "in one process" in last and "free here: " in last


CHILD = """
import json, sys
from mpifl.cli import main
from mpifl.api import load_job
from mpifl.host_memory import resident_bytes
from mpifl.server.memory_estimate import estimate, problem_size, small_kept_vectors
job = load_job(json.loads(sys.argv[1]))
size = problem_size(job)
need = estimate(job, size, kept=small_kept_vectors(job, size.clients)).needs()[0]
base = resident_bytes()
from mpifl.server.start import run_server
run_server(job)
status = open("/proc/self/status").read()  # ru_maxrss has that of the process that started this one
peak = 1024 * int(status.partition("VmHWM:")[2].split()[0])
print(json.dumps([base, need, peak]))
"""


def measured(each: Job) -> tuple[int, int, int]:
    """Bytes of the process before the run, the estimate, and the peak of the process."""
    out = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(job_to_dict(each))], capture_output=True, text=True, timeout=600
    )
    assert out.returncode == 0, out.stderr
    base, need, peak = json.loads(out.stdout.splitlines()[-1])
    return base, need, peak


# The method, the vectors that the server has at its peak with n clients, and those of a client, from the method's page.
KEPT: dict[str, tuple[dict[str, Any], str, int]] = {
    "area": ({}, "3", 1), "scaffold": ({"cohort": 5}, "4", 1), "feddyn": ({"cohort": 5}, "5", 1),
    "feddr": ({"cohort": 5}, "2", 3), "fedadmm": ({}, "2", 3), "fedpd": ({}, "2", 2), "proxskip": ({}, "2", 2),
    "vrl-sgd": ({}, "2", 2), "apfl": ({}, "2", 2), "ace": ({}, "2 + n", 0), "mifa": ({}, "2 + n", 0),
    "fedamp": ({}, "2 + 4 * n", 1), "async-fedavg": ({"rule": "server-memory"}, "3 + n", 0), "f-svrg": ({}, "4", 1),
    "mime": ({"momentum": 0.5}, "5", 1), "feddane": ({}, "4", 2), "quafl": ({}, "2", 2), "fedgate": ({}, "2", 3),
    "fedavg": ({"cohort": 5}, "2", 0), "ringleader": ({}, "2 + 2 * n", 1),
}  # fmt: skip


def of_method(tmp_path: Path, name: str, n: int, d: int, **keys: Any) -> Job:
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


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("clients", "d"), [(5_000, 6_000), (30_000, 660)])
@pytest.mark.parametrize("name", ["area", "scaffold", "ace"])
def test_the_estimate_is_a_lower_bound_for_many_clients(tmp_path: Path, name: str, clients: int, d: int) -> None:
    """The libraries are loaded after the data, so what loading takes beyond the vectors may be counted too many."""
    each = of_method(tmp_path, name, clients, d, stop={"updates": 3 * clients})
    base, need, peak = measured(each)
    loading = estimate(each, problem_size(each)).server["loading"]
    assert need - loading <= 1.1 * (peak - base)


def test_the_memory_of_arrays_is_that_of_values_not_of_classes() -> None:
    """A module of TorchScript refers to classes, among them that of tensors."""
    torch = pytest.importorskip("torch")
    shared = np.zeros(3)
    holder = type("Holder", (), {})()
    holder.parts = [shared, shared[1:], torch.Tensor, {"t": torch.zeros(5)}]
    assert array_bytes([holder]) == 3 * 8 + 5 * 4


# -- refused before the data are loaded --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({}, "output"),
        ({"clock": {"mode": "virtual", "delay": TRACE}}, "clock.delay.path"),
        ({"clock": {"mode": "virtual", "delay": {"name": "fixed", "seconds": [1, 2]}}}, "clock.delay.seconds"),
        ({"clock": {"mode": "virtual", "availability": {**TRACE, "after": "off"}}}, "clock.availability.path"),
        ({"evaluate": {"updates": 4, "metrics": ["nowhere:metric"]}, "problem": {"clients": 4}}, "evaluate.metrics"),
    ],
)
def test_no_data_are_loaded(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    loaded: list[object] = []
    if key == "output":
        (tmp_path / "memory.h5").write_text("precious")
    with pytest.raises(ConfigError) as refused:
        run_server(job(tmp_path, 4, 3, **changes), load=loaded.append)  # type: ignore[arg-type]
    assert refused.value.key == key and not loaded
