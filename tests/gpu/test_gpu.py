"""On a real GPU: runs come to what they come to on the CPU, however vectors get there, and memory stays what it is."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mpifl
from mpifl import open_run
from mpifl.problems import load
from mpifl.problems.problem import ComputeResources
from mpifl.problems.torch.device import Direct, Gpu
from mpifl.vector_memory import Staged
from tests.mpi.cases import DIGITS, job
from tests.mpi.conftest import RUN, Start, write
from tests.mpi.files import attribute, differing
from tests.mpi.test_devices import ASK
from tests.mpi.test_torch import ADAM, text_case
from tests.quadratic_runs import close

pytestmark = pytest.mark.timeout(300)
GPU = "cuda:0"
MLP = {**DIGITS, "model": {"name": "torch-mlp", "hidden": [12]}}
LARGE = {**DIGITS, "model": {"name": "torch-mlp", "hidden": [300]}}  # 90,040 bytes: not in a frame
CNN = {**DIGITS, "model": {"name": "cnn", "channels": [4], "hidden": 100}}
FEW = {"stop": {"updates": 40}, "evaluate": {"updates": 20, "gradient": True}}
CASES = {
    "area": job({"name": "area", "step_size": 1, "trigger": {"every": 3}}, {**MLP, "dtype": "float64"}, **FEW),
    "scaffold": job({"name": "scaffold", "cohort": 4, "local_steps": 3}, {**LARGE, "dtype": "float64"}, **FEW),
    "personal": job({"name": "apfl", "local_steps": 2}, {**MLP, "test_split": 0.2, "dtype": "float64"}, **FEW),
    "quantised": job({"name": "fedgate", "levels": 4, "local_steps": 2}, {**MLP, "dtype": "float64"}, **FEW),
    "optimizer": job(
        {"name": "fedbuff", "step_size": 0.01, "local_steps": 2, "solver": ADAM}, {**MLP, "dtype": "float64"}, **FEW
    ),
    "float32": job({"name": "fedavg", "local_steps": 2}, CNN, **FEW),
    "norm": job({"name": "fedavg"}, {**DIGITS, "model": {"name": "resnet", "norm": "batch"}, "clients": 3}, **FEW),
}


def on(device: str, case: dict[str, Any], **torch_: Any) -> dict[str, Any]:
    return {**case, "problem": {**case["problem"], "torch": {"device": device, **torch_}}}


def ran(folder: Path, name: str, case: dict[str, Any]) -> Path:
    """The results of a case that this process has run."""
    path = folder / f"{name}.h5"
    mpifl.run({"name": name, "output": str(path), **case}).close()
    return path


@pytest.mark.parametrize("name", CASES)
def test_cpu_and_gpu_agree(name: str, tmp_path: Path) -> None:
    """Float64 to 1e-9 of the largest entry, float32 to 1e-3; and a GPU agrees with itself to the bit."""
    cpu, gpu = ran(tmp_path, "cpu", on("cpu", CASES[name])), ran(tmp_path, "gpu", on(GPU, CASES[name]))
    assert not differing(gpu, ran(tmp_path, "again", on(GPU, CASES[name])))
    tolerance = 1e-9 if CASES[name]["problem"].get("dtype") == "float64" else 1e-3
    with open_run(cpu) as one, open_run(gpu) as two:
        close(two.model, one.model, tolerance)
        columns = ["train_loss", "test_loss", "test_accuracy", "gradient_norm"]
        close(two.evaluations[columns].to_numpy(), one.evaluations[columns].to_numpy(), max(tolerance, 1e-6))
    (facts,) = json.loads(attribute(gpu, "compute"))
    assert facts["device"] == GPU and facts["transfers"] == "copied" and facts["gpu"]


def test_models_are_measured_on_the_gpu_as_on_the_cpu() -> None:
    found = []
    for device in ("cpu", GPU):
        case = {"name": "measured", "output": "none.h5", **on(device, CASES["area"])}
        problem = load(mpifl.load_job(case).problem)
        facts = problem.prepare(ComputeResources())
        assert facts["device"] == device
        x = problem.initial(0)
        found.append([*problem.evaluate(x).values(), *problem.gradient(x)])
    close(np.nan_to_num(found[1]), np.nan_to_num(found[0]), 1e-9)


def test_autocast_gives_another_model_near_that_without_it(tmp_path: Path) -> None:
    """bfloat16 has 8 bits: the run is another one, and somewhere near."""
    plain = ran(tmp_path, "plain", on(GPU, CASES["float32"]))
    rough = ran(tmp_path, "rough", on(GPU, CASES["float32"], autocast="bfloat16"))
    with open_run(plain) as one, open_run(rough) as two:
        apart = np.linalg.norm(one.model - two.model) / np.linalg.norm(one.model)
        assert 1e-7 < apart < 0.1 and two.model.dtype == np.float32


def test_a_recurrent_network(tmp_path: Path, run: Start) -> None:
    """Its weights are views of the flat vector, which cuDNN does not like, and need not tell."""
    case = text_case(tmp_path)
    done = run(0, *RUN, write(tmp_path, "text", on(GPU, case)), "output=text.h5")
    assert done.code == 0 and not done.err, str(done)
    with open_run(tmp_path / "text.h5") as one, open_run(ran(tmp_path, "cpu", on("cpu", case))) as two:
        close(one.model, two.model, 1e-3)


def test_clients_computed_together(tmp_path: Path) -> None:
    one = ran(tmp_path, "one", on(GPU, CASES["area"], batched=False))
    all_ = ran(tmp_path, "all", on(GPU, CASES["area"], batched=True))
    assert json.loads(attribute(all_, "compute"))[0]["batched"] is True
    with open_run(one) as a, open_run(all_) as b:
        close(b.model, a.model, 1e-9)


def test_a_gpu_that_is_not_there(tmp_path: Path, run: Start) -> None:
    count = torch.cuda.device_count()
    done = run(0, *RUN, write(tmp_path, "none", on(f"cuda:{count}", CASES["area"])), "output=none.h5")
    assert done.code == 2 and done.err.count("\n") == 1, str(done)
    assert f"mpifl: problem.torch.device=cuda:{count}: " in done.err
    assert f"expected cuda:0 to cuda:{count - 1}" in done.err


# -- under MPI ---------------------------------------------------------------------------------------------------------
@pytest.mark.mpi
@pytest.mark.parametrize("name", ["area", "scaffold", "personal", "quantised"])
def test_two_ranks_on_one_gpu(name: str, tmp_path: Path, run: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Staged, and direct where MPI takes GPU memory: the bits of one process."""
    alone = ran(tmp_path, "alone", on(GPU, CASES[name]))
    monkeypatch.delenv("MPIFL_CUDA_AWARE", raising=False)
    aware = "True True" in run(2, "-c", ASK).out
    case = write(tmp_path, name, on(GPU, CASES[name]))
    for kind, forced in [("pinned", "0"), *([("direct", "1")] if aware else [])]:
        monkeypatch.setenv("MPIFL_CUDA_AWARE", forced)
        done = run(3, *RUN, case, f"output={kind}.h5")
        assert done.code == 0 and not done.err, str(done)
        assert not differing(alone, tmp_path / f"{kind}.h5")
        facts = json.loads(attribute(tmp_path / f"{kind}.h5", "compute"))
        assert [fact["device"] for fact in facts] == [GPU] * 3
        assert [fact["transfers"] for fact in facts] == ["copied", kind, kind]


@pytest.mark.mpi
def test_real_time_and_its_replay(tmp_path: Path, run: Start) -> None:
    clock = {"mode": "real", "delay": {"name": "exponential", "rate": 50}}
    case = {**on(GPU, CASES["scaffold"], batched=False, deterministic=True), "clock": clock}
    done = run(3, *RUN, write(tmp_path, "real", case), "output=real.h5")
    assert done.code == 0, str(done)
    again = run(0, "-m", "mpifl", "replay", "real.h5", "output=again.h5")
    assert again.code == 0 and not differing(tmp_path / "real.h5", tmp_path / "again.h5", but=("events",)), str(again)


# -- memory ------------------------------------------------------------------------------------------------------------
def test_a_thousand_clients_share_one_model(tmp_path: Path) -> None:
    """A client takes one vector (AREA's y_i) or none (FedAvg) beside its rows: 400 kB of the former."""
    problem = {"data": "digits", "clients": 1000, "batch_size": 1, "model": {"name": "torch-mlp", "hidden": [1333]}}
    peaks = {}
    for name in ("fedavg", "area"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        twice = {"stop": {"updates": 2000}, "evaluate": {"updates": 2000}}
        case = job({"name": name}, problem, clock={"mode": "virtual", "delay": "fixed"}, **twice)
        ran(tmp_path, name, on(GPU, case))
        peaks[name] = (torch.cuda.max_memory_allocated() - before) / 1e6
    vectors = 1000 * 4 * (64 * 1333 + 1333 + 1333 * 10 + 10) / 1e6  # MB
    assert peaks["fedavg"] < 200
    assert peaks["area"] - peaks["fedavg"] == pytest.approx(vectors, rel=0.1)


@pytest.mark.parametrize("kind", ["pinned", "direct"])
def test_vectors_stay_whole_while_others_compute(kind: str) -> None:
    """Messages, updates and computations of unlike length that nobody waits for, with few buffers and much to do."""
    device, d = torch.device(GPU), 1 << 20
    memory: Any = Staged(Gpu(device)) if kind == "pinned" else Direct(device)
    busy, draw, dtype = torch.randn(2048, 2048, device=device), random.Random(0), np.dtype(np.float32)
    sending: list[tuple[Any, float]] = []
    for k in range(1, 300):
        incoming = memory.incoming(1, d, dtype)
        (buffer,) = incoming.buffers
        if kind == "pinned":
            buffer[:] = k
        else:  # as MPI does it, on a stream that torch knows nothing of
            with torch.cuda.stream(torch.cuda.Stream(device)):
                buffer.fill_(k)
                torch.cuda.current_stream(device).synchronize()
        incoming.load()
        for _ in range(draw.randrange(4)):
            busy = (busy @ busy).clamp(-1, 1)
        (x,) = incoming.get()
        y = x.clone()
        for _ in range(5):
            y = y + 1
        del incoming, buffer, x
        sending.append((memory.outgoing([y], d, dtype), k + 5.0))
        del y
        while len(sending) > draw.randrange(8):
            outgoing, value = sending.pop(0)
            while not outgoing.ready():
                pass
            (out,) = outgoing.buffers
            assert bool((out == value).all()), k
            outgoing.release()
    if kind == "pinned":
        assert memory.device.seconds > 0
