"""Where torch computes, and the memory of GPUs."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpifl.cuda_mpi import cuda_aware
from mpifl.errors import ConfigError, host_name
from mpifl.problems.problem import ComputeResources
from mpifl.problems.settings import Torch
from mpifl.problems.torch.flat import tensor
from mpifl.vector_memory import HOST, IncomingVectors, OutgoingVectors, Staged, VectorMemory

PAUSE = 1e-4  # s, the longest sleep while a GPU computes


def prepare(section: Torch, resources: ComputeResources) -> tuple[torch.device, dict[str, Any]]:
    """Configures torch in this process; its device, and facts for the run file. Raises ConfigError."""
    device = choose_device(section.device, resources.local_rank)
    torch.set_num_threads(section.threads or resources.cores)
    torch.use_deterministic_algorithms(bool(section.deterministic))
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    facts = {"device": str(device), "threads": torch.get_num_threads(), "transfers": transfers(device)}
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.allow_tf32 = False  # convolutions in float32 where the job says so, as products are
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")  # Flat's views
        facts["gpu"] = torch.cuda.get_device_name(device)
    return device, facts


def prepare_evaluation(settings: Torch, resources: ComputeResources) -> tuple[torch.device, dict[str, Any]]:
    """Likewise for rank 0, which measures models: on the job's GPU where its host has that one, else on the CPU."""
    try:
        choose_device(settings.device, resources.local_rank)
    except ConfigError:
        settings = replace(settings, device="cpu")
    device, facts = prepare(settings, resources)
    return device, {**facts, "transfers": "host" if device.type == "cpu" else "copied"}


def settings() -> dict[str, Any]:
    """The settings of torch in this process that `prepare` changes."""
    return {
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        "tf32": torch.backends.cudnn.allow_tf32,
    }


SETTINGS_AT_IMPORT = settings()


def restore_settings(before: Mapping[str, Any]) -> None:
    """Restores what `settings` returned."""
    torch.set_num_threads(before["threads"])
    torch.use_deterministic_algorithms(before["deterministic"])
    torch.utils.deterministic.fill_uninitialized_memory = before["fill"]  # type: ignore[attr-defined]
    torch.backends.cudnn.allow_tf32 = before["tf32"]


def choose_device(name: str, local: int) -> torch.device:
    """cpu; cuda: the GPU that falls to this rank, number `local` of those on its host; cuda:K. Raises ConfigError."""
    kind, _, number = name.partition(":")
    if kind == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise ConfigError("problem.torch.device", name, f"torch finds no GPU on {host_name()}", "cpu")
    if number and int(number) >= count:
        raise ConfigError("problem.torch.device", name, f"{host_name()} has no such GPU", f"cuda:0 to cuda:{count - 1}")
    return torch.device("cuda", int(number) if number else local % count)


# -- memory ------------------------------------------------------------------------------------------------------------
def transfers(device: torch.device) -> str:
    """How vectors get to the device's clients and back: host, nothing to do; copied, in one process without MPI; direct
    or pinned, with an MPI that can read and write the device's memory and with one that cannot."""
    if device.type == "cpu":
        return "host"
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or mpi.COMM_WORLD.size == 1:
        return "copied"
    return "direct" if cuda_aware() else "pinned"


def memory(device: torch.device, transfers: str) -> VectorMemory:
    """Where the vectors of the clients on this device live."""
    if transfers == "pinned":
        return Staged(Gpu(device))
    return {"host": lambda device: HOST, "copied": Gpu, "direct": Direct}[transfers](device)


class Copy:
    """A copy between GPU and host on a stream beside the computing; called, it says whether it is over."""

    def __init__(self, gpu: Gpu, to: Tensor, source: Tensor) -> None:
        self._gpu, self._begin = gpu, torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)
        self._over = False
        with torch.cuda.stream(gpu.stream):
            self._begin.record()
            to.copy_(source, non_blocking=True)
            self.end.record()

    def __call__(self) -> bool:
        if not self._over and self.end.query():
            self._over = True
            self._gpu.seconds += self._begin.elapsed_time(self.end) / 1e3
        return self._over


class Gpu(VectorMemory):
    """A GPU's memory. Clients compute on the current stream; `seconds` were spent in `Copy`s."""

    transfers, on_host = "copied", False

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream, self.seconds = device, torch.cuda.Stream(device), 0.0

    def from_host(self, v: np.ndarray) -> Tensor:
        return tensor(v).to(self.device)

    def to_host(self, v: Tensor) -> np.ndarray:
        found: np.ndarray = v.cpu().numpy()
        return found

    def wait(self, on_wait: Callable[[], None]) -> None:
        computed, pause = self._mark(), 1e-6
        while not computed.query():
            on_wait()
            time.sleep(pause)
            pause = min(2 * pause, PAUSE)

    def _mark(self) -> torch.cuda.Event:
        """An event that completes once all that was queued so far is computed."""
        return torch.cuda.current_stream(self.device).record_event()

    def allocate(self, d: int, dtype: np.dtype) -> Tensor:
        """(d,) on the GPU, with what is there by chance. Nothing that is still to be computed reads or writes it: what
        belongs to `stream` is given out again only when all streams that used it are done with it (`use`)."""
        with torch.cuda.stream(self.stream):
            return torch.empty(d, dtype=getattr(torch, dtype.name), device=self.device)

    # -- as `Staged` requires ------------------------------------------------------------------------------------------
    def buffer(self, d: int, dtype: np.dtype, pinned: bool) -> np.ndarray:
        found: np.ndarray = torch.empty(d, dtype=getattr(torch, dtype.name), pin_memory=pinned).numpy()
        return found

    def load(self, buffer: np.ndarray) -> tuple[Tensor, Copy]:
        v = self.allocate(buffer.size, buffer.dtype)
        return v, Copy(self, v, torch.from_numpy(buffer))

    def use(self, v: Tensor, loaded: Copy | None = None) -> None:
        computing = torch.cuda.current_stream(self.device)
        if loaded:
            computing.wait_event(loaded.end)
        v.record_stream(computing)

    def store(self, v: Tensor, buffer: np.ndarray) -> Copy:
        self.stream.wait_event(self._mark())
        return Copy(self, torch.from_numpy(buffer), v)


class DirectIncoming(IncomingVectors):
    def __init__(self, gpu: Gpu, buffers: Sequence[Tensor]) -> None:
        super().__init__(buffers)
        self._gpu = gpu

    def get(self) -> tuple[Tensor, ...]:
        for v in self.buffers:
            self._gpu.use(v)
        return super().get()


class Direct(Gpu):
    """A GPU's memory that MPI reads and writes itself."""

    transfers = "direct"

    def incoming(self, count: int, d: int, dtype: np.dtype) -> IncomingVectors:
        return DirectIncoming(self, [self.allocate(d, dtype) for _ in range(count)])

    def outgoing(self, vectors: Sequence[Tensor], d: int, dtype: np.dtype) -> OutgoingVectors:
        buffers = [v.contiguous() for v in vectors]
        return OutgoingVectors(buffers, self._mark().query)
