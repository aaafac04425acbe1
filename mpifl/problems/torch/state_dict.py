"""Tensors as bytes and back, and as a file of PyTorch's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import BinaryIO

import torch
from torch import Tensor

from mpifl.errors import ConfigError


def dtype_name(part: Tensor) -> str:
    """The name of its type in torch."""
    return str(part.dtype).removeprefix("torch.")


def to_bytes(part: Tensor) -> memoryview:
    """The values of a dense tensor."""
    dense = part.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return dense.reshape(-1).view(torch.uint8).numpy().data


def tensors(arrays: Mapping[str, tuple[str, list[int], bytes]]) -> dict[str, Tensor]:
    """Tensors, each with a memory of its own, from name of the type, shape and values. Raises ConfigError."""
    return {key: _tensor(key, *values) for key, values in arrays.items()}


def _tensor(key: str, dtype: str, shape: list[int], data: bytes) -> Tensor:
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype) or len(data) != kind.itemsize * torch.Size(shape).numel():
        raise ConfigError("run file", key, f"{len(data)} bytes are no {dtype} {shape}", "values of a type of torch")
    return torch.frombuffer(bytearray(data), dtype=kind).reshape(shape) if data else torch.empty(shape, dtype=kind)


def save(arrays: Mapping[str, tuple[str, list[int], bytes]], file: BinaryIO) -> None:
    """Writes them as a dict of tensors, which `torch.load(weights_only=True)` reads."""
    torch.save(tensors(arrays), file)
