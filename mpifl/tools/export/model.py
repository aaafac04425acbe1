"""The model of a run file as safetensors and as a state_dict of PyTorch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import BinaryIO, NamedTuple

import numpy as np

from mpifl.config.read import job_from_dict
from mpifl.config.trust import check_trusted
from mpifl.errors import ConfigError
from mpifl.objective import ModuleState
from mpifl.runfile.reader import Run

RESERVED = "__metadata__"  # the key of the header that safetensors keeps for metadata


class Values(NamedTuple):
    """A tensor as bytes, of any type that torch has."""

    dtype: str  # torch's name of it
    shape: list[int]
    data: bytes


def safetensors_file(run: Run, full: bool, trust: bool, best: bool) -> Iterator[tuple[str, Callable[[BinaryIO], None]]]:
    """The arrays of the model; the header's metadata have, under `mpifl`, JSON with facts of the run.

    `layout` is names and shapes in the order of the vector.
    """
    arrays = model_arrays(run, full, trust, best)
    version = int(run.evaluations.version.iloc[run.best_evaluation]) if best else run.model_version
    facts = {
        "id": run.id, "name": run.attrs.get("name", ""), "version": version,
        "layout": [[name, list(shape)] for name, shape in run.layout],
    }  # fmt: skip
    metadata = {"mpifl": json.dumps(facts)}  # one entry, since the package writes several in random order

    def write(file: BinaryIO) -> None:
        if full or run.module_state.entries:  # NumPy does not have all types
            import safetensors.torch

            from mpifl.problems.torch.state_dict import tensors

            file.write(safetensors.torch.save(tensors(arrays), metadata))
        else:
            import safetensors.numpy

            parts = {key: np.frombuffer(v.data, v.dtype).reshape(v.shape) for key, v in arrays.items()}
            file.write(safetensors.numpy.save(parts, metadata))

    yield "model", write


def torch_file(run: Run, full: bool, trust: bool, best: bool) -> Iterator[tuple[str, Callable[[BinaryIO], None]]]:
    """A dict of plain tensors, which `torch.load(weights_only=True)` reads."""
    arrays = model_arrays(run, full, trust, best)

    def write(file: BinaryIO) -> None:
        from mpifl.problems.torch.state_dict import save

        save(arrays, file)

    yield "model", write


def model_arrays(run: Run, full: bool = False, trust: bool = False, best: bool = False) -> dict[str, Values]:
    """The final model, or with `best` that of `keep.best`: of a torch module its state_dict; of others `x` (d,) and its
    parts by name.

    Of a module whose state_dict the file does not have, it is the parts by name; or, with `full`, what the module has
    that the run's `problem.entry` makes, if `trust` says that it may run.

    Raises ConfigError for a run whose file does not have the final model, or a layout that does not fit it.
    """
    if not (best or run.has_final_model):
        wrong = f"the status is {run.status}, and the file has no final model"
        raise ConfigError("run file", run.path, wrong, "a completed or interrupted run")
    x = run.best_model if best else run.model
    if x.dtype.itemsize not in (2, 4, 8):
        raise ConfigError("run file", run.path, f"the model is {x.dtype}", "float16, float32 or float64")
    x = x.astype(x.dtype.newbyteorder("="), copy=False)
    layout = run.layout
    names = [name for name, _ in layout]
    sizes = [prod(shape) if all(size >= 0 for size in shape) else -1 for _, shape in layout]
    if min(sizes, default=0) < 0 or sum(sizes) != x.size or len(set(names)) < len(names) or RESERVED in names:
        raise ConfigError(
            "run file", run.path, f"its layout does not fit its model of {x.size} numbers", "an undamaged run file"
        )
    parts: dict[str, Values] = {}
    for (name, shape), last in zip(layout, np.cumsum(sizes).tolist(), strict=True):
        parts[name] = Values(x.dtype.name, list(shape), x[last - prod(shape) : last].tobytes())
    if is_torch(run):
        state = run.module_state
        if state.entries:
            return dict(_state_dict(run, state, parts))
        return _of_entry(run, x, trust) if full else parts
    if len(parts) > 1 and "x" in parts:
        raise ConfigError(
            "run file", run.path, "x is the name of a part of the model", "another name, as x is the whole model"
        )
    whole = Values(x.dtype.name, [x.size], x.tobytes())
    return {"x": whole} if list(parts) == ["x"] else {"x": whole, **parts}


def _state_dict(run: Run, state: ModuleState, parts: Mapping[str, Values]) -> Iterator[tuple[str, Values]]:
    """The entries of a module's state_dict, which the run file has."""
    data, first = state.constants.tobytes(), 0
    for key, dtype, shape, part, size in state.entries:
        if part is not None and (part not in parts or parts[part][:2] != (dtype, shape)):
            raise ConfigError(
                "run file", run.path, f"{key} in its state_dict does not fit its layout", "an undamaged run file"
            )
        yield key, Values(dtype, shape, data[first : first + size]) if part is None else parts[part]
        first += size


def _of_entry(run: Run, x: np.ndarray, trust: bool) -> dict[str, Values]:
    """The state_dict of the module that the run's `problem.entry` makes, with the parameters x (d,)."""
    check_trusted(run.config, run.path, "export", (), trust)
    job = job_from_dict(run.config)
    if job.problem.entry is None:
        raise ConfigError(
            "full", run.path, "it is of an older version, without the module's state", "a run file of this version"
        )
    from mpifl.problems.torch.entry import state_dict
    from mpifl.problems.torch.state_dict import dtype_name, to_bytes

    made = state_dict(job.problem.settings, job.seed, x, run.layout)
    return {key: Values(dtype_name(part), [*part.shape], to_bytes(part).tobytes()) for key, part in made.items()}


def is_torch(run: Run) -> bool:
    """Whether the run's model is a torch module, by its configuration."""
    problem = run.config.get("problem")
    return isinstance(problem, Mapping) and isinstance(problem.get("torch"), Mapping)
