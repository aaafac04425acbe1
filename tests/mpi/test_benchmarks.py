"""The benchmarks that call parts of the package run; each is asked for little work."""

from __future__ import annotations

import pytest

from tests.mpi.conftest import ROOT, Start

BENCHMARKS = [  # ranks (0: without a launcher), and the command
    (3, "server_rate.py --sizes 100 20000 --repeats 1 --updates 60"),
    (3, "client_cost.py --parts waiting --seconds 0.2"),
    (0, "client_cost.py --parts numpy contact simulation --repeats 3"),
    (0, "faults_cost.py --only validation --repeats 1"),
    (3, "scatter.py --gigabytes 0.01 --clients 4 --repeats 1"),
    (2, "group_step.py --hidden 64 --batch 32 --repeats 1"),
]


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "command"), BENCHMARKS, ids=lambda value: str(value).partition(" ")[0])
def test_a_benchmark_runs(run: Start, ranks: int, command: str) -> None:
    assert run(ranks, *f"{ROOT}/benchmarks/{command}".split(), code=0).out
