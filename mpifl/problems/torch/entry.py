"""A problem of a user's own: a function that returns a torch module, a loss and each client's data set.

Every rank calls the function twice: for the module and the loss with torch's generator at the place that the run's seed
gives, and for the data sets at a fixed one. So the data are the same on all ranks and for all seeds.
"""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import nn

from mpifl.errors import ConfigError
from mpifl.objective import to_numpy
from mpifl.problems.base import Hosted, Place, Problem
from mpifl.problems.models.rows import drawn
from mpifl.problems.torch.batched import hosted
from mpifl.problems.torch.device import prepare, prepare_evaluation
from mpifl.problems.torch.flat import Flat
from mpifl.problems.torch.objective import Examples, Shared, TorchObjective, measure
from mpifl.problems.torch.problem import CPU
from mpifl.problems.torch.returned import Returned, call, examples, try_out, wrong

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpifl.problems.settings import ProblemConfig

DATA_SEED = 0
_here: WeakValueDictionary[int, EntryProblem] = WeakValueDictionary()  # by id(meta): one process holds the data once


class EntryProblem(Problem):
    """The rows of all clients. `train_loss` is their mean loss plus the regulariser, `test_loss` the test rows' mean;
    `test_accuracy` is nan unless outputs are (rows, classes) and targets (rows,) whole numbers."""

    def __init__(self, config: ProblemConfig) -> None:
        made = call(config, DATA_SEED)
        self._config, self.dtype, self.clients = config, np.dtype(config.dtype), len(made.datasets)
        if config.clients not in (None, self.clients):
            text = f"{self.clients}, the number of data sets that {config.entry} returns, or null"
            raise ConfigError("problem.clients", config.clients, text)
        self.rows = [examples(config, made.datasets[i], f"client {i}") for i in range(self.clients)]
        test = [] if made.test is None else [examples(config, made.test, "the test set")]
        self._shared = _shared(config, made, CPU)
        try_out(config, made, [*enumerate(self.rows), *(("the test set", rows) for rows in test)])
        self._seen = _few(config.evaluation_rows, self.rows), _few(config.evaluation_rows, test)
        self.layout, self.d = self._shared.flat.layout, self._shared.flat.d
        self.samples = np.array([len(rows) for rows in self.rows], np.int64)
        self.meta = {"clients": self.clients, "samples": self.samples.tolist(), "sums": [_sums(r) for r in self.rows]}
        _here[id(self.meta)] = self

    def prepare(self, place: Place) -> Mapping[str, Any]:
        assert self._config.torch is not None
        device, facts = prepare_evaluation(self._config.torch, place)
        self._shared.move(device)
        return facts

    def initial(self, seed: int) -> np.ndarray:
        """(d,) the values that the module has when it is made under the run's seed."""
        self._shared = _shared(self._config, call(self._config, seed), CPU)  # what is not trained may be random too
        x: np.ndarray = self._shared.flat.values().numpy()
        return x

    def shard(self, i: int) -> list[np.ndarray]:
        """[]: a rank gets its rows from the user's function."""
        return []

    def evaluate(self, x: np.ndarray) -> dict[str, float]:
        self._shared.look(x)
        (train, _), (test, accuracy) = map(self._mean, self._seen)
        return {
            "train_loss": train + self._shared.regulariser(),
            "test_loss": test,
            "test_accuracy": accuracy,
            "client_accuracy_mean": nan,  # no client has test rows of its own
        }

    def _mean(self, parts: list[Examples]) -> tuple[float, float]:
        """The mean loss of the rows and the fraction classified rightly."""
        sums = np.array([measure(self._shared, rows) for rows in parts])
        loss, right = sums.sum(0) / sum(map(len, parts)) if parts else (nan, nan)
        return float(loss), float(right)

    def gradient_norm(self, x: np.ndarray) -> float:
        total = np.zeros(self.d)
        for i, rows in enumerate(self.rows):
            client = TorchObjective(self._shared, self._config, self.meta, i, 0, rows, None)
            total += client.share * to_numpy(client.measured_gradient(x))
        return float(np.linalg.norm(total))


def host_entry(config: ProblemConfig, meta: dict[str, Any], clients: list[int], seed: int, place: Place) -> Hosted:
    """A rank's clients, which share one module. Raises ConfigError."""
    assert config.torch is not None
    device, facts = prepare(config.torch, place)
    shared = _shared(config, call(config, seed), device)
    here = _here.get(id(meta))
    rows = {i: here.rows[i] for i in clients} if here else _loaded(config, meta, clients)
    on_device = {i: each.on(device) for i, each in rows.items()}
    objectives = {i: TorchObjective(shared, config, meta, i, seed, on_device[i], None) for i in clients}
    return hosted(shared, objectives, config.torch, facts)


def _shared(config: ProblemConfig, made: Returned, device: torch.device) -> Shared:
    assert config.torch is not None
    if isinstance(made.loss, nn.Module):  # class weights
        made.loss.to(device)
    flat = Flat(made.module, device, getattr(torch, config.dtype), config.torch.buffers == "averaged")
    return Shared(flat, made.loss, device, config)


def _loaded(config: ProblemConfig, meta: dict[str, Any], clients: list[int]) -> dict[int, Examples]:
    """The clients' rows, which must be those that rank 0 has seen."""
    datasets, n = call(config, DATA_SEED).datasets, meta["clients"]
    if len(datasets) != n:
        raise wrong(config, f"the same data on every rank: rank 0 has {n} clients, here are {len(datasets)}")
    rows = {i: examples(config, datasets[i], f"client {i}") for i in clients}
    for i, each in rows.items():
        # not to the last bit: the same sum may be rounded differently on another processor
        if len(each) != meta["samples"][i] or not _agree(_sums(each), meta["sums"][i]):
            raise wrong(config, f"the same data on every rank: client {i} has other rows on rank 0; seed what is drawn")
    return rows


def _sums(rows: Examples) -> list[float]:
    """Of inputs and of targets: the sum with a weight for each entry, which tells order and sign, and how large."""
    flat = [part.double().flatten() for part in rows.take(slice(None))]
    return [float(of) for v in flat for of in (v @ torch.linspace(1, 2, len(v), dtype=v.dtype), v.abs().sum())]


def _agree(here: list[float], there: list[float]) -> bool:
    """Up to rounding, as large as the sums of absolute values make it."""
    (x, x_size, y, y_size), (x0, _, y0, _) = here, there
    return abs(x - x0) <= 1e-5 * x_size and abs(y - y0) <= 1e-5 * y_size


def _few(most: int | None, parts: list[Examples]) -> list[Examples]:
    """At most so many of all rows, the same ones for all runs; those that look alike in one piece."""
    sizes = [len(rows) for rows in parts]
    if most is None or sum(sizes) <= most:
        return parts
    rows_drawn = drawn(most, sum(sizes))
    begins = np.cumsum([0, *sizes[:-1]])
    alike: dict[Any, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for rows, mine, begin in zip(
        parts, np.split(rows_drawn, np.searchsorted(rows_drawn, begins[1:])), begins, strict=True
    ):
        if len(mine):
            alike.setdefault(rows.looks, []).append(rows.take(mine - begin))
    return [Examples(*map(torch.cat, zip(*some, strict=True))) for some in alike.values()]
