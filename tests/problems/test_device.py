"""Which GPU a rank gets, and the order of the CUDA calls for the memory of GPUs.

CUDA itself is simulated here; tests/gpu has a real one.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from mpifl.problems.problem import ComputeResources
from mpifl.problems.settings import Torch
from mpifl.problems.torch import device
from mpifl.problems.torch.device import Direct, Gpu, choose_device, memory, prepare, prepare_evaluation, transfers
from mpifl.vector_memory import HOST, Staged
from tests.problems.conftest import refusal

CPU = torch.device("cpu")


# -- which GPU ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """gpus(count) makes torch find this number of GPUs."""

    def found(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"the GPU {device.index}")

    return found


def test_ranks_of_a_host_share_its_gpus(gpus: Any) -> None:
    gpus(4)
    assert [choose_device("cuda", local).index for local in range(9)] == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert [choose_device("cuda:2", local).index for local in range(3)] == [2, 2, 2]
    assert choose_device("cpu", 3) == CPU
    gpus(2)
    text = f"problem.torch.device=cuda:2: {socket.gethostname()} has no such GPU; expected cuda:0 to cuda:1"
    with refusal(f"^{text}$"):
        choose_device("cuda:2", 0)
    gpus(0)
    for name in ("cuda", "cuda:0"):
        with refusal(f"={name}: torch finds no GPU on {socket.gethostname()}; expected cpu$"):
            choose_device(name, 0)


def test_the_run_file_is_told(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It records the device, how vectors get there, and where rank 0 evaluates: on the job's GPU, if its host has
    it."""
    gpus(2)
    settings, place = Torch(device="cuda", threads=1), ComputeResources(local_rank=3)
    cpu = {"device": "cpu", "threads": 1, "transfers": "host"}
    gpu = {"device": "cuda:1", "threads": 1, "transfers": "copied", "gpu": "the GPU 1"}
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    assert prepare(Torch(threads=1), place) == (CPU, cpu)
    assert prepare(settings, place) == prepare_evaluation(settings, place) == (torch.device("cuda", 1), gpu)
    assert prepare_evaluation(Torch(device="cuda:2", threads=1), place) == (CPU, cpu)
    gpus(0)
    assert prepare_evaluation(settings, place) == prepare_evaluation(Torch(threads=1), place) == (CPU, cpu)


@pytest.mark.parametrize(
    ("ranks", "aware", "expected"), [(1, True, "copied"), (2, True, "direct"), (2, False, "pinned")]
)
def test_how_vectors_travel(monkeypatch: pytest.MonkeyPatch, ranks: int, aware: bool, expected: str) -> None:
    class Mpi:
        class COMM_WORLD:
            size = ranks

    monkeypatch.setitem(sys.modules, "mpi4py.MPI", Mpi)  # type: ignore[arg-type]
    monkeypatch.setattr(device, "cuda_aware", lambda: aware)
    assert transfers(torch.device("cuda", 0)) == expected and transfers(CPU) == "host"
    assert memory(CPU, "host") is HOST


# -- what CUDA is asked for --------------------------------------------------------------------------------------------
class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        self.enable_timing, self.over = enable_timing, False

    def record(self) -> None:
        Cuda.current.log.append(("record", self))

    def query(self) -> bool:
        return self.over

    def elapsed_time(self, end: Event) -> float:
        assert self.enable_timing and end.enable_timing and end.over
        return 3.0  # ms


class Stream:
    def __init__(self, device: torch.device) -> None:
        self.log: list[tuple[str, Any]] = []

    def record_event(self) -> Event:
        event = Event()
        self.log.append(("record", event))
        return event

    def wait_event(self, event: Event) -> None:
        self.log.append(("wait", event))


class Cuda:
    """What belongs to a process: the stream of what is computed, and the one that is asked at present."""

    computing = Stream(CPU)
    current = computing

    @staticmethod
    @contextmanager
    def stream(stream: Stream) -> Iterator[None]:
        Cuda.current = stream
        yield
        Cuda.current = Cuda.computing


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.Tensor, Stream]]:
    """Replaces torch's functions by the above; returns which tensors were lent to which streams."""
    lent: list[tuple[torch.Tensor, Stream]] = []
    empty, copy = torch.empty, torch.Tensor.copy_

    def copied(to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        assert non_blocking and Cuda.current is not Cuda.computing
        Cuda.current.log.append(("copy", to))
        return copy(to, source)

    Cuda.computing.log.clear()
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", Cuda.stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Cuda.computing)
    monkeypatch.setattr(torch, "empty", lambda *args, pin_memory=False, **named: empty(*args, **named))
    monkeypatch.setattr(torch.Tensor, "copy_", copied)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda v, stream: lent.append((v, stream)))
    return lent


X, FLOAT = np.arange(3, dtype=np.float32), np.dtype(np.float32)


def kinds(stream: Stream) -> list[str]:
    return [kind for kind, _ in stream.log]


def test_a_message_through_pinned_memory(cuda: list[tuple[torch.Tensor, Stream]]) -> None:
    """It is copied during computation, which waits for the end of the copy; so does the next user of the buffer."""
    staged = memory(CPU, "pinned")
    assert isinstance(staged, Staged) and isinstance(staged.device, Gpu) and staged.transfers == "pinned"
    gpu = staged.device
    incoming = staged.incoming(1, 3, FLOAT)
    (buffer,) = incoming.buffers
    buffer[:] = X
    incoming.load()
    assert kinds(gpu.stream) == ["record", "copy", "record"] and not Cuda.computing.log
    (v,) = incoming.get()
    end = gpu.stream.log[2][1]
    assert Cuda.computing.log == [("wait", end)] and cuda == [(v, Cuda.computing)]
    assert v.tolist() == X.tolist() and v.dtype == torch.float32
    (other,) = staged.incoming(1, 3, FLOAT).buffers
    assert other is not buffer and gpu.seconds == 0
    end.over = True
    assert staged.incoming(1, 3, FLOAT).buffers[0] is buffer and gpu.seconds == 3e-3


def test_an_update_through_pinned_memory(cuda: list[tuple[torch.Tensor, Stream]]) -> None:
    """It is copied once it is computed, and ready once it is copied."""
    staged = memory(CPU, "pinned")
    assert isinstance(staged, Staged) and isinstance(staged.device, Gpu)
    gpu = staged.device
    outgoing = staged.outgoing([torch.from_numpy(X)], 3, FLOAT)
    ((_, computed),) = Cuda.computing.log
    assert gpu.stream.log[0] == ("wait", computed) and kinds(gpu.stream) == ["wait", "record", "copy", "record"]
    assert not outgoing.ready() and not outgoing.ready()
    gpu.stream.log[3][1].over = True
    assert outgoing.ready() and outgoing.ready() and gpu.seconds == 3e-3
    assert outgoing.buffers[0].tolist() == X.tolist()
    outgoing.release()
    assert staged.incoming(1, 3, FLOAT).buffers[0] is outgoing.buffers[0]


def test_direct_transfers_give_mpi_the_tensors_themselves(cuda: list[tuple[torch.Tensor, Stream]]) -> None:
    """Those to fill belong to the other stream, those to send are computed."""
    direct = memory(CPU, "direct")
    assert isinstance(direct, Direct) and direct.transfers == "direct"
    incoming = direct.incoming(2, 3, FLOAT)
    assert all(b.shape == (3,) and b.dtype == torch.float32 for b in incoming.buffers) and not cuda
    incoming.load()
    assert all(a is b for a, b in zip(incoming.get(), incoming.buffers))
    assert [s for _, s in cuda] == 2 * [Cuda.computing]
    v = torch.from_numpy(X)
    outgoing = direct.outgoing([v], 3, FLOAT)
    ((kind, computed),) = Cuda.computing.log
    assert kind == "record" and outgoing.buffers[0] is v and not outgoing.ready()
    computed.over = True
    assert outgoing.ready()


@pytest.mark.parametrize("kind", ["copied", "direct", "pinned"])
def test_waiting_for_what_is_computed(cuda: list[tuple[torch.Tensor, Stream]], kind: str) -> None:
    """Messages move on meanwhile; small vectors are copied by themselves."""
    held, looks = memory(CPU, kind), []

    def on_wait() -> None:
        looks.append(1)
        Cuda.computing.log[0][1].over = len(looks) == 3

    held.wait(on_wait)
    assert len(looks) == 3
    v = held.from_host(X)
    assert type(v) is torch.Tensor and held.to_host(v).tobytes() == X.tobytes()
