"""Devices under MPI without a GPU: what is refused, what MPI is asked, how vectors are staged."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from mpifl import open_run
from tests.mpi.cases import DIGITS, job
from tests.mpi.conftest import MPIFL, RUN, Start, write
from tests.mpi.files import attribute, differing
from tests.tiers import parameters

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(200)]
SCRIPT = Path(__file__).with_name("devices.py")
SMALL = {**DIGITS, "model": {"name": "torch-mlp", "hidden": [12]}}
LARGE = {**DIGITS, "model": {"name": "torch-mlp", "hidden": [300]}}  # 90,040 bytes: not in a frame
SOON = {"mode": "real", "delay": {"name": "exponential", "rate": 50}}
FEW = {"stop": {"updates": 40}, "evaluate": {"updates": 20}}
CASES = {
    "large": job({"name": "scaffold", "cohort": 6, "local_steps": 2}, LARGE, **FEW),  # two vectors each way
    "personal": job({"name": "apfl", "local_steps": 2}, {**LARGE, "test_split": 0.2}, **FEW),
    "small": job({"name": "feddr", "eta": 0.5, "local_steps": 2}, SMALL, **FEW),
}
REAL = job({"name": "area", "trigger": {"every": 3}}, {**LARGE, "torch": {"batched": False}}, clock=SOON, **FEW)
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a GPU here")


@no_gpu
@pytest.mark.parametrize(
    ("device", "ranks"), parameters([("cuda", 0), ("cuda", 3), ("cuda:1", 0), ("cuda:1", 3)], [("cuda", 0)])
)
def test_a_gpu_where_there_is_none(run: Start, tmp_path: Path, device: str, ranks: int) -> None:
    """One line, before any work."""
    case = write(tmp_path, "none", job({"name": "fedavg"}, {**SMALL, "torch": {"device": device}}))
    done = run(ranks, *RUN, case, "output=none.h5", code=2)
    who = "rank [12]: " if ranks else ""
    assert not (tmp_path / "none.h5").exists()
    (line,) = [text for text in done.err.splitlines() if text.startswith("mpifl: ")]
    says = rf"mpifl: problem\.torch\.device={device}: {who}torch finds no GPU on \S+; expected cpu"
    assert re.fullmatch(says, line), str(done)


ASK = """
import os, sys
from mpifl.transport.launcher import communicator
from mpifl.cuda_mpi import cuda_aware, _loaded
communicator()
os.write(1, f"{len(_loaded('libmpi')) > 0} {cuda_aware()} {'torch' in sys.modules}\\n".encode())
"""


@pytest.mark.smoke
@pytest.mark.long
def test_this_mpi_takes_no_gpu_memory(run: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The MPIs that pip installs do not accept it, and say so when asked."""
    for name in ("MPIFL_CUDA_AWARE", "MPICH_GPU_SUPPORT_ENABLED", "MV2_USE_CUDA"):
        monkeypatch.delenv(name, raising=False)
    done = run(2, "-c", ASK, code=0)
    assert not done.err and done.out.splitlines() == ["True False False"] * 2
    monkeypatch.setenv("MPIFL_CUDA_AWARE", "1")
    assert run(2, "-c", ASK).out.splitlines() == ["True True False"] * 2


@pytest.mark.long
def test_staged_vectors_arrive_whole(run: Start, tmp_path: Path) -> None:
    """On two client ranks, with copies that end late and in any order, and with MPI reading and writing tensors: the
    bits of the run without staging. In real time, where updates are held back by their delays, and messages arrive
    while other clients compute, those of the replay on host memory in one process."""
    files = {name: str(write(tmp_path, name, case)) for name, case in (CASES | {"real": REAL}).items()}
    commands = [
        (kind, ["run", files[name], f"output={name}-{kind}.h5"])
        for name in CASES for kind in ("host", "pinned", "direct")
    ]  # fmt: skip
    words = json.dumps([*commands, ("pinned", ["run", files["real"], "output=real.h5"])])
    done = run(3, SCRIPT, words, deadline=150, code=0)
    assert not done.err, str(done)
    found = re.findall(r"^copies (\w+) (\d+) (\d+)$", done.out, re.M)
    copies = [(kind, int(to), int(back)) for kind, to, back in found]
    assert {kind for kind, to, back in copies if to + back} == {"pinned"} and len(copies) == 3 * 10
    to, back = (sum(each[k] for each in copies) for k in (1, 2))
    assert back >= 2 * 40 + 40 + 40 and to >= back  # scaffold's two vectors, apfl's and area's one; others in frames
    run(0, *MPIFL, "replay", "real.h5", "output=again.h5", code=0)
    assert not differing(tmp_path / "real.h5", tmp_path / "again.h5", but=("updates/norm", "events"))
    with open_run(tmp_path / "real.h5") as file:
        assert file.status == "completed" and len(file.updates) == 40
    for name in CASES:
        for kind in ("pinned", "direct"):
            assert not differing(tmp_path / f"{name}-host.h5", tmp_path / f"{name}-{kind}.h5", but=("updates/norm",))
            facts = json.loads(attribute(tmp_path / f"{name}-{kind}.h5", "compute"))
            assert [fact["transfers"] for fact in facts] == ["host", kind, kind]
