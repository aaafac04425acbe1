"""Runs mpifl commands, one after the other on all ranks of this MPI job, with clients as if on a device of some kind.

    python devices.py '[["pinned", ["run", "job.yaml"]], ["direct", [...]], ["host", [...]]]'

pinned   CPU tensors behind host buffers; copies are made by threads, later, and end in any order
direct   CPU tensors that MPI reads and writes itself
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from mpifl import vector_memory as memory
from mpifl.cli import main
from mpifl.problems.torch import batched, device
from mpifl.vector_memory import IncomingVectors, OutgoingVectors, Staged, VectorMemory

copies = {"load": 0, "store": 0}


class Tensors(VectorMemory):
    on_host = False

    def from_host(self, v: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(v.copy())

    def to_host(self, v: torch.Tensor) -> np.ndarray:
        return v.numpy().copy()

    def wait(self, on_wait: Callable[[], None]) -> None:
        for _ in range(4):  # a computation that leaves the time
            on_wait()
            time.sleep(random.random() * 1e-3)


class Direct(Tensors):
    def incoming(self, count: int, d: int, dtype: np.dtype) -> IncomingVectors:
        return IncomingVectors([torch.full((d,), torch.nan, dtype=getattr(torch, dtype.name)) for _ in range(count)])

    def outgoing(self, vectors: Sequence[torch.Tensor], d: int, dtype: np.dtype) -> OutgoingVectors:
        return OutgoingVectors(vectors)


class Later(Tensors):
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(3)

    def buffer(self, d: int, dtype: np.dtype, pinned: bool) -> np.ndarray:
        return np.full(d, np.nan, dtype)

    def _copy(self, kind: str, to: Any, source: Any) -> Callable[[], bool]:
        def later() -> None:
            time.sleep(random.random() * 4e-3)
            to[:] = source
            copies[kind] += 1

        return self._threads.submit(later).done

    def load(self, buffer: np.ndarray) -> tuple[torch.Tensor, Callable[[], bool]]:
        v = torch.full((buffer.size,), torch.nan, dtype=getattr(torch, buffer.dtype.name))
        return v, self._copy("load", v.numpy(), buffer)

    def use(self, v: torch.Tensor, loaded: Any) -> None:
        loaded.__self__.result()

    def store(self, v: torch.Tensor, buffer: np.ndarray) -> Callable[[], bool]:
        return self._copy("store", buffer, v.numpy())


def run(kind: str, words: list[str]) -> int:
    kept = device.transfers, batched.memory
    if kind != "host":
        device.transfers = lambda where: kind
        batched.memory = lambda where, transfers: {"pinned": lambda: Staged(Later()), "direct": Direct}[transfers]()
    copies.update(load=0, store=0)
    code = main(words)
    device.transfers, batched.memory = kept
    os.write(1, f"copies {kind} {copies['load']} {copies['store']}\n".encode())  # in one piece: ranks share the output
    return code


if __name__ == "__main__":
    memory.PINNED_BYTES = 400_000  # for a rank's clients too few, so that some vectors go the other way
    sys.exit(max(run(kind, words) for kind, words in json.loads(sys.argv[1])))
