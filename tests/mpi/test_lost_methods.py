"""Every method, under every name, loses a client in the middle of a run: it goes on, alike on any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifl import open_run
from tests.mpi.cases import CASES, SMALL
from tests.mpi.conftest import in_one_job, write
from tests.mpi.files import differing
from tests.mpi.lossy import CONTACTS, VICTIM
from tests.mpi.test_virtual import METHODS

pytestmark = [pytest.mark.mpi, pytest.mark.long, pytest.mark.timeout(400)]
DEADLINE = 350.0
LOSSY = {**SMALL, "dtype": "float64", "model": {"name": "tests.mpi.lossy:Lossy", "dim": 12, "sigma": 0.3}}
UPDATES = 90


def lossy(name: str) -> dict[str, Any]:
    """The case, with its method, options and clock, on quadratics that lose a client."""
    algorithm = dict(CASES[name]["algorithm"])
    if "cohort" in algorithm:
        algorithm["cohort"] = min(algorithm["cohort"], 5)
    more = {"stop": {"updates": UPDATES}, "evaluate": {"updates": 30}, "faults": {"lost": "freeze"}}
    return {**CASES[name], "problem": LOSSY, "algorithm": algorithm, **more}


def test_a_lost_client(tmp_path: Path) -> None:
    """All updates come, those of the lost client before its loss; on 3 ranks and in a replay the bits are the same."""
    files = {name: str(write(tmp_path, name, lossy(name))) for name in METHODS}
    alone = [["run", file, f"output=alone/{name}.h5"] for name, file in files.items()]
    ranks = [["run", file, f"output=ranks/{name}.h5"] for name, file in files.items()]
    again = [["replay", f"alone/{name}.h5", f"output=again/{name}.h5", "--trust"] for name in files]
    for reply in in_one_job(tmp_path, 0, alone, DEADLINE) + in_one_job(tmp_path, 3, [*ranks, *again], DEADLINE):
        assert set(reply.codes) == {0}, reply
    for name in METHODS:
        path = tmp_path / "alone" / f"{name}.h5"
        with open_run(path) as run:
            (lost,) = run.events[run.events.kind == "lost"].itertuples()
            assert lost.client == VICTIM and "the disk is gone" in lost.text, name
            assert run.status == "completed" and len(run.updates) == UPDATES and np.isfinite(run.model).all(), name
            own = run.updates.index[run.updates.client == VICTIM]
            assert len(own) == CONTACTS and own.max() < lost.updates, name
            assert len(run.aggregations) > lost.version + 3, name
        assert not differing(path, tmp_path / "ranks" / f"{name}.h5", but=("events",)), name
        assert not differing(path, tmp_path / "again" / f"{name}.h5", but=("events",)), name
