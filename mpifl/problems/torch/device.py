"""Where torch computes."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import torch

from mpifl.errors import ConfigError

if TYPE_CHECKING:
    from mpifl.problems.base import Place
    from mpifl.problems.config import Torch


def prepare(settings: Torch, place: Place) -> tuple[torch.device, dict[str, Any]]:
    """Sets this process up as the job says; its device, and what the run file is told. Raises ConfigError."""
    device = choose(settings.device, place.local)
    torch.set_num_threads(settings.threads or place.cores)
    torch.use_deterministic_algorithms(bool(settings.deterministic))
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return device, {"device": str(device), "threads": torch.get_num_threads()}


def choose(name: str, local: int) -> torch.device:
    """cpu; cuda: the GPU that falls to this rank, number `local` of those on its host; cuda:K. Raises ConfigError."""
    kind, _, number = name.partition(":")
    if kind == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise ConfigError("problem.torch.device", name, f"cpu: torch finds no GPU on {socket.gethostname()}")
    if number and int(number) >= count:
        raise ConfigError("problem.torch.device", name, f"cuda:0 to cuda:{count - 1} on {socket.gethostname()}")
    return torch.device("cuda", int(number) if number else local % count)
