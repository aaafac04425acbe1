"""A problem of a user's own: a function that returns a torch module, a loss and each client's data set.

Every rank calls the function twice: for the module and the loss with torch's generator seeded from the run's seed, and
for the data sets with a fixed seed. So the data are the same on all ranks and for all seeds.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from math import nan
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import nn

from mpifl.errors import ConfigError
from mpifl.objective import ModuleState, to_numpy
from mpifl.problems.metrics import softmax
from mpifl.problems.problem import ComputeResources, HostedClients, Layout, Problem
from mpifl.problems.rows import VALIDATION, held_out, subsample
from mpifl.problems.settings import ProblemSettings
from mpifl.problems.torch.batched import host_clients
from mpifl.problems.torch.device import prepare, prepare_evaluation
from mpifl.problems.torch.entry_check import EntryResult, call_entry, check_module_and_loss, entry_error, examples
from mpifl.problems.torch.flat import Flat
from mpifl.problems.torch.module_objective import (
    Examples,
    Measured,
    RowDraws,
    Shared,
    TorchObjective,
    class_scores,
    measure,
    seed_draws,
)
from mpifl.problems.torch.module_problem import CPU, seeded
from mpifl.problems.torch.predictions import Prediction, find_prediction
from mpifl.rng import stream

log = logging.getLogger(__package__)

DATA_SEED = 0
# id(meta) -> problem, so that one process holds the data once.
_local_problems: WeakValueDictionary[int, EntryProblem] = WeakValueDictionary()


class EntryProblem(Problem):
    """The rows of all clients. `train_loss` is their mean loss plus the regulariser, `test_loss` the test rows' mean;
    `test_accuracy` is nan where outputs predict no labels (`find_prediction`)."""

    def __init__(self, settings: ProblemSettings) -> None:
        made = call_entry(settings, DATA_SEED)
        self._settings, self.dtype, self.clients = settings, np.dtype(settings.dtype), len(made.datasets)
        if settings.clients not in (None, self.clients):
            text = f"{self.clients}, the number of data sets that {settings.entry} returns, or null"
            raise ConfigError("problem.clients", settings.clients, text)
        whole = [_client_rows(settings, made, i) for i in range(self.clients)]
        if any(rows.drawn for rows in whole):
            log.info("problem.entry=%s: rows are drawn anew in each contact of a client", settings.entry)
        split = [_split(settings, rows, i) for i, rows in enumerate(whole)]
        self.rows = [train for train, _ in split]
        validation = [held for _, held in split if held]
        self.validation_rows = sum(map(len, validation))
        test = []
        if made.test is not None:
            test = [examples(settings, made.test, "the test set", stream(DATA_SEED, "test rows"))]
        self._shared = _shared(settings, made, CPU)
        parts: list[tuple[int | str, Examples]] = [*enumerate(whole), *(("the test set", rows) for rows in test)]
        tried = seeded(DATA_SEED, lambda: check_module_and_loss(settings, made, parts))
        self.draws, self._seed = tried.draws, 0
        self._prediction, why_none = find_prediction(
            made.loss, tried.outputs, [rows.y for _, rows in parts], made.predict
        )
        self._shared.prediction = self._prediction
        if why_none and (test or validation):
            text = "problem.entry=%s: accuracies are NaN: %s; expected: a class loss, or predict after the test rows"
            log.warning(text, settings.entry, why_none)
        self._evaluated = [_subsample(settings.evaluation_rows, rows) for rows in (self.rows, test, validation)]
        self.layout, self.d = self._shared.flat.layout, self._shared.flat.d
        self.samples = np.array([len(rows) for rows in self.rows], np.int64)
        self.meta = {
            "clients": self.clients,
            "samples": self.samples.tolist(),
            "fingerprints": [_fingerprint(r) for r in self.rows],
        }
        _local_problems[id(self.meta)] = self

    def prepare(self, resources: ComputeResources) -> Mapping[str, Any]:
        assert self._settings.torch is not None
        device, facts = prepare_evaluation(self._settings.torch, resources)
        self._shared.move(device)
        return facts

    def initial(self, seed: int) -> np.ndarray:
        """(d,) the values that the module has when it is made under the run's seed."""
        self._seed = seed
        made = call_entry(self._settings, seed)  # what is not trained may be random too
        self._shared = _shared(self._settings, made, CPU, self._prediction)
        x: np.ndarray = self._shared.flat.values().numpy()
        return x

    def module_state(self) -> ModuleState:
        return self._shared.flat.state()

    def shard(self, i: int) -> list[np.ndarray]:
        """[]: a rank gets its rows from the user's function."""
        return []

    def begin_evaluation(self, version: int) -> None:
        if self.draws:
            seed_draws(f"{self._seed} evaluation {version}", self._shared.device)

    def evaluate(self, x: np.ndarray) -> dict[str, float]:
        self._shared.load_for_evaluation(x)
        train, test, validation = (
            Measured.sum(measure(self._shared, rows) for rows in parts) for parts in self._evaluated
        )
        held = (validation.mean_loss, validation.accuracy)
        return {
            "train_loss": train.mean_loss + self._shared.regulariser(),
            "test_loss": test.mean_loss,
            "test_accuracy": test.accuracy,
            "client_accuracy_mean": nan,  # no client has test rows of its own
            **(dict(zip(VALIDATION, held, strict=True)) if self.validation_rows else {}),
        }

    def test_scores(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        self._shared.load_for_evaluation(x)
        if not self._evaluated[1]:
            return np.empty(0, np.int64), np.empty((0, 1))
        found = [class_scores(self._shared, rows) for rows in self._evaluated[1]]
        known = [each for each in found if each is not None]
        if len(known) < len(found):
            return None
        classes, scores = map(np.concatenate, zip(*known, strict=True))
        return classes, softmax(scores)

    def gradient_norm(self, x: np.ndarray) -> float:
        total = np.zeros(self.d)
        for i, rows in enumerate(self.rows):
            client = TorchObjective(self._shared, self._settings, self.meta, i, 0, rows, None)
            total += client.share * to_numpy(client.measured_gradient(x))
        return float(np.linalg.norm(total))


def host_entry(
    settings: ProblemSettings, meta: dict[str, Any], clients: list[int], seed: int, resources: ComputeResources
) -> HostedClients:
    """A rank's clients, which share one module. Raises ConfigError."""
    assert settings.torch is not None
    device, facts = prepare(settings.torch, resources)
    shared = _shared(settings, call_entry(settings, seed), device)
    here = _local_problems.get(id(meta))
    rows = {i: here.rows[i] for i in clients} if here else _load_rows(settings, meta, clients)
    on_device = {i: each.on(device) for i, each in rows.items()}
    objectives = {i: TorchObjective(shared, settings, meta, i, seed, on_device[i], None) for i in clients}
    return host_clients(shared, objectives, settings.torch, facts)


def state_dict(settings: ProblemSettings, seed: int, x: np.ndarray, layout: Layout) -> dict[str, torch.Tensor]:
    """The `state_dict` of the module that the function makes under the run's seed, with the parameters x (d,).

    Raises ConfigError where the module has another layout, or its `state_dict` other things than dense tensors.
    """
    flat = _shared(settings, call_entry(settings, seed), CPU).flat
    if flat.layout != layout:
        raise entry_error(settings, "the module of the run; the one that it makes now has other parameters")
    flat.bind(x, flat.own_statistics())
    entries = flat.state_dict()
    for key, part in entries.items():
        if not isinstance(part, torch.Tensor) or part.layout != torch.strided:
            raise entry_error(settings, f"a module whose state_dict has dense tensors; {key} is none")
    return entries


def _shared(
    settings: ProblemSettings, made: EntryResult, device: torch.device, prediction: Prediction | None = None
) -> Shared:
    assert settings.torch is not None
    if isinstance(made.loss, nn.Module):  # class weights
        made.loss.to(device)
    flat = Flat(made.module, device, getattr(torch, settings.dtype), settings.torch.buffers == "averaged")
    if prediction and made.predict:  # it may belong to the module
        prediction = replace(prediction, labels=made.predict)
    return Shared(flat, made.loss, device, settings, prediction)


def _load_rows(settings: ProblemSettings, meta: dict[str, Any], clients: list[int]) -> dict[int, Examples]:
    """The clients' rows, which must be those that rank 0 has seen."""
    made, n = call_entry(settings, DATA_SEED), meta["clients"]
    if len(made.datasets) != n:
        text = f"the same data on every rank: rank 0 has {n} clients, here are {len(made.datasets)}"
        raise entry_error(settings, text)
    rows = {i: _split(settings, _client_rows(settings, made, i), i)[0] for i in clients}
    for i, each in rows.items():
        # They are not compared to the last bit: the same sum may be rounded differently on another processor.
        if len(each) != meta["samples"][i] or not _same_fingerprint(_fingerprint(each), meta["fingerprints"][i]):
            raise entry_error(
                settings, f"the same data on every rank: client {i} has other rows on rank 0; seed what is drawn"
            )
    return rows


def _client_rows(settings: ProblemSettings, made: EntryResult, i: int) -> Examples:
    """Client i's rows, which are the same on all ranks also where they are drawn."""
    return examples(settings, made.datasets[i], f"client {i}", stream(DATA_SEED, "rows", i))


def _split(settings: ProblemSettings, rows: Examples, i: int) -> tuple[Examples, Examples | None]:
    """Client i's training rows, and its validation rows; None where it has none."""
    every = np.ones(len(rows), bool)
    held = held_out(settings.validation_split, np.full(len(rows), i), every, "validation split")
    if not held.any():
        return rows, None
    train, validation = np.flatnonzero(~held), np.flatnonzero(held)
    drawn = rows.drawn
    mine: RowDraws | None = drawn and (lambda numbers, seeds: drawn(train[numbers], seeds))
    x, y = rows.take(train)
    return Examples(x, y, mine), Examples(*rows.take(validation))


def _fingerprint(rows: Examples) -> list[float]:
    """A weighted sum, which depends on order and signs, and the sum of absolute values: of inputs, then of targets."""
    flat = [part.double().flatten() for part in rows.take(slice(None))]
    return [float(of) for v in flat for of in (v @ torch.linspace(1, 2, len(v), dtype=v.dtype), v.abs().sum())]


def _same_fingerprint(here: list[float], there: list[float]) -> bool:
    """Up to rounding, as large as the sums of absolute values make it."""
    (x, x_size, y, y_size), (x0, _, y0, _) = here, there
    return abs(x - x0) <= 1e-5 * x_size and abs(y - y0) <= 1e-5 * y_size


def _subsample(most: int | None, parts: list[Examples]) -> list[Examples]:
    """At most so many of all rows, the same ones for all runs; those of one signature in one piece."""
    sizes = [len(rows) for rows in parts]
    if most is None or sum(sizes) <= most:
        return parts
    rows_drawn = subsample(most, sum(sizes))
    begins = np.cumsum([0, *sizes[:-1]])
    alike: dict[Any, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for rows, mine, begin in zip(
        parts, np.split(rows_drawn, np.searchsorted(rows_drawn, begins[1:])), begins, strict=True
    ):
        if len(mine):
            alike.setdefault(rows.signature, []).append(rows.take(mine - begin))
    return [Examples(torch.cat(x), torch.cat(y)) for x, y in (zip(*some, strict=True) for some in alike.values())]
