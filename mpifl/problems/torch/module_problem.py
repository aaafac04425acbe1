"""Rows of data and a torch module: what rank 0 measures, and what other ranks compute."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from mpifl.errors import ConfigError, host_name
from mpifl.objective import ModuleState, to_numpy
from mpifl.problems.generators import torch_seed
from mpifl.problems.problem import ComputeResources, HostedClients, Layout, Rows, Shard
from mpifl.problems.rows import RowProblem
from mpifl.problems.settings import ProblemSettings
from mpifl.problems.torch.batched import host_clients
from mpifl.problems.torch.device import prepare, prepare_evaluation
from mpifl.problems.torch.examples import CPU, Examples, Windows
from mpifl.problems.torch.flat import Flat
from mpifl.problems.torch.module_objective import Shared, TorchObjective, class_scores, measure
from mpifl.problems.torch.predictions import CLASS_SCORES
from mpifl.rng import stream


def seeded(seed: int, build: Any) -> Any:
    """Calls `build` with torch's generator seeded from the run's seed; restores the generator afterwards."""
    with torch.random.fork_rng([]):
        torch.manual_seed(torch_seed(seed))
        return build()


class TorchProblem(RowProblem):
    """Rows partitioned over n clients, and a torch module with cross entropy."""

    model: Any  # a `models.network.Network`

    def _layout(self, rows: Rows) -> Layout:
        self._shape, self._text, self._vocabulary = form_of_rows(rows.shape or rows.x.shape[1:], rows.tokens)
        self._classes = rows.classes
        self._shared = Shared(self._flat(0), cross_entropy, CPU, self._settings, CLASS_SCORES)
        return self._shared.flat.layout

    def prepare(self, resources: ComputeResources) -> Mapping[str, Any]:
        assert self._settings.torch is not None
        device, facts = prepare_evaluation(self._settings.torch, resources)
        self._shared.move(device)
        return facts

    def _flat(self, seed: int) -> Flat:
        try:
            module = seeded(seed, lambda: self.model.build(self._shape, self._classes, self._vocabulary))
        except (RuntimeError, TypeError, MemoryError, OverflowError) as error:
            wrong = f"torch cannot make it: {str(error).splitlines()[0][:200]}"
            expected = "a network that fits the data and the memory"
            raise ConfigError("problem.model", getattr(self.model, "name", ""), wrong, expected) from error
        assert self._settings.torch is not None
        return Flat(module, CPU, getattr(torch, self.dtype.name), self._settings.torch.buffers == "averaged")

    def initial(self, seed: int) -> np.ndarray:
        """(d,) the module's own initial values, or all parameters from the distribution `init`."""
        flat = self._flat(seed)
        x: np.ndarray = flat.values().numpy()
        if self.model.init is not None:
            x[: flat.trained] = self.model.init.draw(stream(seed, "init"), flat.trained)
        return x

    def module_state(self) -> ModuleState:
        return self._shared.flat.state()

    def _measure(self, x: np.ndarray, rows: np.ndarray, y: np.ndarray) -> tuple[float, int]:
        self._shared.load_for_evaluation(x)
        found = measure(self._shared, examples(rows, y, self._shape, self._text, CPU))
        return found.loss, found.right

    def _outputs(self, x: np.ndarray, rows: np.ndarray, y: np.ndarray) -> np.ndarray:
        self._shared.load_for_evaluation(x)
        found = class_scores(self._shared, examples(rows, y, self._shape, self._text, CPU))
        assert found is not None
        return found[1]

    def check_batches(self, passes: bool) -> None:
        def row(i: int) -> tuple[torch.Tensor, torch.Tensor]:
            rows = slice(self._bounds[i], self._bounds[i] + 1)
            return examples(self._x[rows], self._y[rows], self._shape, self._text, CPU).take(slice(None))

        check_one_row(self._shared, self._settings, self.samples, passes, row)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        meta = {**self.meta, "samples": [len(self._y)], "clients": 1}
        rows = examples(self._x, self._y, self._shape, self._text, CPU)
        whole = TorchObjective(self._shared, self._settings, meta, 0, 0, rows, None)
        return to_numpy(whole.measured_gradient(x))


def check_one_row(
    shared: Shared, settings: ProblemSettings, samples: np.ndarray, passes: bool,
    row: Callable[[int], tuple[torch.Tensor, torch.Tensor]],
) -> None:  # fmt: skip
    """Raises ConfigError where a client has batches of one row, and the module in training does not take one.

    samples: (n,) the clients' numbers of rows. passes: whether clients pass over their rows. row: a client's first row.
    """
    batch = np.minimum(samples, settings.batch_size or samples)
    last = samples % batch if passes and not settings.drop_last else 0 * samples
    single = np.flatnonzero((batch == 1) | (last == 1))
    if not len(single):
        return
    i = int(single[0])
    shared.flat.train()
    try:
        with torch.no_grad():
            seeded(0, lambda: shared.value(*row(i)))
    except Exception as error:  # whatever a user's module raises
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        where = "batches" if batch[i] == 1 else "last batch of each pass"
        remedy = "set problem.drop_last=true, or another batch size" if batch[i] > 1 else "choose another batch size"
        if samples[i] == 1:
            remedy = "leave out such clients, or use a norm that takes one row, such as GroupNorm or LayerNorm"
        wrong = f"client {i} has {samples[i]} rows, and its {where} one row, for which the module fails ({reason})"
        raise ConfigError("problem.batch_size", settings.batch_size, wrong, "two rows or more", remedy) from error


def form_of_rows(
    shape: tuple[int, ...], tokens: Sequence[Any] | None
) -> tuple[tuple[int, ...], np.ndarray | None, int]:
    """The shape of a row, and of text its tokens and their vocabulary; tokens: the fields of `Tokens`.

    The file of the tokens, which rank 0 made, is in memory only as far as it is read. Raises ConfigError.
    """
    if not tokens:
        return shape, None, 0
    file, window, vocabulary = tokens
    try:
        return (window,), np.load(file, mmap_mode="r", allow_pickle=False), vocabulary
    except (OSError, ValueError) as error:
        wrong, expected = f"{host_name()} cannot read {file}", "a folder that all hosts see"
        raise ConfigError("MPIFL_CACHE", os.environ.get("MPIFL_CACHE", "null"), wrong, expected) from error


def examples(
    x: np.ndarray, y: np.ndarray, shape: tuple[int, ...], text: np.ndarray | None, device: torch.device
) -> Examples:
    """Rows x (rows, features), or of text (rows, 1) where each begins, with labels y (rows,), on the device."""
    targets = torch.from_numpy(y).to(device)
    if text is not None:
        return Examples(Windows(text, x, shape[0], device), targets)
    return Examples(torch.from_numpy(x).reshape(len(x), *shape).to(device), targets)


def host_rows(
    model: Any,
    settings: ProblemSettings,
    meta: dict[str, Any],
    shards: Mapping[int, Shard],
    seed: int,
    resources: ComputeResources,
) -> HostedClients:
    """The clients of a rank, which share one module of `model`, a `Network`. Raises ConfigError."""
    assert settings.torch is not None
    device, facts = prepare(settings.torch, resources)
    shape, text, vocabulary = form_of_rows(tuple(meta["shape"]), meta["tokens"])
    module = seeded(seed, lambda: model.build(shape, meta["classes"], vocabulary))
    flat = Flat(module, device, getattr(torch, meta["dtype"]), settings.torch.buffers == "averaged")
    shared = Shared(flat, cross_entropy, device, settings, CLASS_SCORES)

    def client(i: int, shard: Shard) -> TorchObjective:
        parts = [examples(shard[k], shard[k + 1], shape, text, device) for k in range(0, len(shard), 2)]
        return TorchObjective(shared, settings, meta, i, seed, parts[0], parts[1] if len(parts) > 1 else None)

    return host_clients(shared, {i: client(i, shard) for i, shard in shards.items()}, settings.torch, facts)
