"""The model of a run file as safetensors and as a state_dict of PyTorch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import BinaryIO

import numpy as np

from mpifl.errors import ConfigError
from mpifl.runfile import Run

HAVE_MODEL = ("completed", "interrupted")  # statuses of runs whose files have a final model
RESERVED = "__metadata__"  # the key of the header that safetensors keeps for metadata


def safetensors_file(run: Run) -> Iterator[tuple[str, Callable[[BinaryIO], None]]]:
    """The arrays of the model; the header's metadata have, under `mpifl`, JSON with facts of the run.

    `layout` is names and shapes in the order of the vector.
    """
    arrays = model_arrays(run)
    facts = {
        "id": run.id, "name": run.attrs.get("name", ""), "version": run.model_version,
        "layout": [[name, list(shape)] for name, shape in run.layout],
    }  # fmt: skip
    metadata = {"mpifl": json.dumps(facts)}  # one entry, since the package writes several in random order

    def write(file: BinaryIO) -> None:
        from safetensors.numpy import save

        file.write(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata))

    yield "model", write


def torch_file(run: Run) -> Iterator[tuple[str, Callable[[BinaryIO], None]]]:
    """A dict of plain tensors, which `torch.load(weights_only=True)` reads."""
    arrays = model_arrays(run)

    def write(file: BinaryIO) -> None:
        from mpifl.problems.torch.state_dict import save_arrays

        save_arrays(arrays, file)

    yield "model", write


def model_arrays(run: Run) -> dict[str, np.ndarray]:
    """The final model: of a torch module its parameters by name; of others `x` (d,) and its parts by name.

    Raises ConfigError for a run whose file does not have the final model, or a layout that does not fit it.
    """
    if run.status not in HAVE_MODEL:
        text = f"a completed or interrupted run; this one has the status {run.status}, and no final model in its file"
        raise ConfigError("run file", run.path, text)
    x = run.model
    if x.dtype.itemsize not in (2, 4, 8):
        raise ConfigError("run file", run.path, f"a model of float16, float32 or float64; this one is {x.dtype}")
    x = x.astype(x.dtype.newbyteorder("="), copy=False)
    layout = run.layout
    names = [name for name, _ in layout]
    sizes = [prod(shape) if all(size >= 0 for size in shape) else -1 for _, shape in layout]
    if min(sizes, default=0) < 0 or sum(sizes) != x.size or len(set(names)) < len(names) or RESERVED in names:
        raise ConfigError("run file", run.path, f"a layout of names and shapes that fits its model of {x.size} numbers")
    parts: dict[str, np.ndarray] = {}
    for (name, shape), last in zip(layout, np.cumsum(sizes).tolist(), strict=True):
        parts[name] = x[last - prod(shape) : last].reshape(shape)
    if is_torch(run):
        return parts
    if len(parts) > 1 and "x" in parts:
        raise ConfigError("run file", run.path, "a layout in which x is the name of the whole model alone")
    return {"x": x} if list(parts) == ["x"] else {"x": x, **parts}


def is_torch(run: Run) -> bool:
    """Whether the run's model is a torch module, by its configuration."""
    problem = run.config.get("problem")
    return isinstance(problem, Mapping) and isinstance(problem.get("torch"), Mapping)
