"""Arrays as a file of PyTorch's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import BinaryIO

import numpy as np
import torch


def save_arrays(arrays: Mapping[str, np.ndarray], file: BinaryIO) -> None:
    """Writes arrays as a dict of tensors, each with a memory of its own; `torch.load(weights_only=True)` reads it."""
    torch.save({name: torch.from_numpy(array.copy()) for name, array in arrays.items()}, file)
