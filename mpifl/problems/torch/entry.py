"""A problem of a user's own: a function that returns a torch module, a loss and each client's data set.

Every rank calls the function twice: for the module and the loss with the generators of torch, NumPy and Python seeded
from the run's seed, and for the data sets with a fixed seed. So the data are the same on all ranks and for all seeds.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from math import nan
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import nn

from mpifl.errors import ConfigError
from mpifl.objective import ModuleState, to_numpy
from mpifl.problems.entry_function import DATA_SEED, call, entry_error, indexed, trains_itself
from mpifl.problems.metrics import softmax
from mpifl.problems.problem import ComputeResources, HostedClients, Layout, Problem, metric_values
from mpifl.problems.rows import held_out, subsample
from mpifl.problems.settings import ProblemSettings
from mpifl.problems.torch.batched import host_clients
from mpifl.problems.torch.device import prepare, prepare_evaluation
from mpifl.problems.torch.entry_check import (
    EntryResult,
    Tried,
    call_entry,
    check_module_and_loss,
    checked_entry,
    examples,
)
from mpifl.problems.torch.examples import CPU, Examples, merged, tensors
from mpifl.problems.torch.flat import Flat
from mpifl.problems.torch.module_objective import (
    Measured,
    Shared,
    TorchObjective,
    class_scores,
    measure,
    seed_draws,
)
from mpifl.problems.torch.module_problem import check_one_row, seeded
from mpifl.problems.torch.predictions import Prediction, find_prediction
from mpifl.rng import stream

log = logging.getLogger(__package__)

# id(meta) -> problem, so that one process holds the data once.
_local_problems: WeakValueDictionary[int, EntryProblem] = WeakValueDictionary()


class EntryProblem(Problem):
    """The rows of all clients. `train_loss` is their mean loss plus the regulariser, `test_loss` the test rows' mean;
    `test_accuracy` is nan where outputs predict no labels (`find_prediction`)."""

    def __init__(self, settings: ProblemSettings, returned: Any) -> None:
        """returned: what the function returned under DATA_SEED."""
        made = checked_entry(settings, returned)
        self._settings, self.dtype, self.clients = settings, np.dtype(settings.dtype), len(made.datasets)
        if settings.clients not in (None, self.clients):
            wrong = f"{settings.entry} returns {self.clients} data sets"
            raise ConfigError("problem.clients", settings.clients, wrong, f"{self.clients}, or null")
        parts = [_client_rows(settings, made, i) for i in range(self.clients)]
        if any(part.train.drawn for part in parts):
            log.info("problem.entry=%s: rows are drawn anew in each contact of a client", settings.entry)
        self.rows = [part.train for part in parts]
        self.own = {i: part.own for i, part in enumerate(parts) if part.own}  # test rows of clients that have some
        tests = own = {f"the test rows of client {i}": rows for i, rows in self.own.items()}
        if made.test is not None and made.client_tests() is None:
            tests = {
                "the test set": examples(settings, made, made.test, "the test set", stream(DATA_SEED, "test rows"))
            }
        validation = {f"the validation rows of client {i}": p.validation for i, p in enumerate(parts) if p.validation}
        self.validation_rows = sum(map(len, validation.values()))
        self._shared = _shared(settings, made, CPU)
        every: list[tuple[int | str, Examples]] = [*enumerate(self.rows), *{**tests, **own, **validation}.items()]
        tried = seeded(DATA_SEED, lambda: check_module_and_loss(settings, made, every))
        self.draws, self._seed = tried.draws, 0
        self._prediction, why_none = _prediction(made, tried, [rows.labels() for _, rows in every])
        self._shared.prediction = self._prediction
        if why_none and (tests or validation):
            text = "problem.entry=%s: accuracies are NaN: %s; expected a class loss, or predict after the test rows"
            log.warning(text, settings.entry, why_none)
        few = settings.evaluation_rows
        self._evaluated = [_subsample(few, [*rows]) for rows in (self.rows, tests.values(), validation.values())]
        self._own = {i: rows for i, rows in zip(self.own, _few(few, [*self.own.values()])) if rows}
        self.layout, self.d = self._shared.flat.layout, self._shared.flat.d
        self.samples = np.array([len(rows) for rows in self.rows], np.int64)
        self.meta = {
            "clients": self.clients,
            "samples": self.samples.tolist(),
            "fingerprints": [_fingerprints(rows, self.own.get(i)) for i, rows in enumerate(self.rows)],
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

    def check_batches(self, passes: bool) -> None:
        check_one_row(self._shared, self._settings, self.samples, passes, lambda i: self.rows[i].take(slice(0, 1)))

    def begin_evaluation(self, version: int) -> None:
        if self.draws:
            seed_draws(f"{self._seed} evaluation {version}", self._shared.device)

    def evaluate_with_clients(self, x: np.ndarray, training: bool = True) -> tuple[dict[str, float], np.ndarray]:
        own = self.client_accuracies(x)
        measured = self._evaluated if training else [[], *self._evaluated[1:]]
        found = [Measured.sum(measure(self._shared, rows) for rows in parts) for parts in measured]
        train, test, validation = ((part.mean_loss, part.accuracy) for part in found)
        held = validation if self.validation_rows else None
        return metric_values(train[0] + self._shared.regulariser(), test, own, held), own

    def client_accuracies(self, x: np.ndarray) -> np.ndarray:
        self._shared.load_for_evaluation(x)
        found = np.full(self.clients, nan)
        if self._prediction:
            for i, rows in self._own.items():
                found[i] = measure(self._shared, rows).accuracy
        return found

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

    def gradient(self, x: np.ndarray) -> np.ndarray:
        total = np.zeros(self.d)
        for i, rows in enumerate(self.rows):
            client = TorchObjective(self._shared, self._settings, self.meta, i, 0, rows, None)
            total += client.share * to_numpy(client.measured_gradient(x))
        return total


def host_entry(
    settings: ProblemSettings, meta: dict[str, Any], clients: list[int], seed: int, resources: ComputeResources
) -> HostedClients:
    """A rank's clients, which share one module. Raises ConfigError."""
    assert settings.torch is not None
    device, facts = prepare(settings.torch, resources)
    shared = _shared(settings, call_entry(settings, seed), device)
    here = _local_problems.get(id(meta))
    rows = {i: (here.rows[i], here.own.get(i)) for i in clients} if here else _load_rows(settings, meta, clients)
    on_device = {i: (train.on(device), own and own.on(device)) for i, (train, own) in rows.items()}
    objectives = {i: TorchObjective(shared, settings, meta, i, seed, *on_device[i]) for i in clients}
    return host_clients(shared, objectives, settings.torch, facts)


def state_dict(settings: ProblemSettings, seed: int, x: np.ndarray, layout: Layout) -> dict[str, torch.Tensor]:
    """The `state_dict` of the module that the function makes under the run's seed, with the parameters x (d,).

    Raises ConfigError where the module has another layout, or its `state_dict` other things than dense tensors.
    """
    if trains_itself(returned := call(settings, seed)):
        wrong, remedy = "the clients have custom training loops", "leave out --full: the file has the whole model"
        raise entry_error(settings, wrong, remedy=remedy)
    flat = _shared(settings, checked_entry(settings, returned), CPU).flat
    if flat.layout != layout:
        raise entry_error(settings, "the module that it makes now has other parameters", "the module of the run")
    flat.bind(x, flat.own_statistics())
    entries = flat.state_dict()
    for key, part in entries.items():
        if not isinstance(part, torch.Tensor) or part.layout != torch.strided:
            raise entry_error(settings, f"{key} in the module's state_dict is not a dense tensor", "only dense tensors")
    return entries


def _prediction(made: EntryResult, tried: Tried, labels: list[torch.Tensor | None]) -> tuple[Prediction | None, str]:
    """How outputs predict labels; or None, and why (`find_prediction`)."""
    known = [values for values in labels if values is not None]
    if len(known) < len(labels):
        return None, "the targets are not one tensor"
    return find_prediction(made.loss, tried.outputs, tried.targets, torch.cat(known), made.predict)


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


class ClientRows(NamedTuple):
    """One client's rows; None: it has none of these."""

    train: Examples
    own: Examples | None  # test rows of its own
    validation: Examples | None


def _client_rows(settings: ProblemSettings, made: EntryResult, i: int) -> ClientRows:
    """Client i's rows, which are the same on all ranks also where they are drawn. Raises ConfigError."""
    rows = examples(settings, made, made.datasets[i], f"client {i}", stream(DATA_SEED, "rows", i))
    tests = made.client_tests()
    whose, every = np.full(len(rows), i), np.ones(len(rows), bool)
    own = held_out(settings.test_split, whose, every, "test split")
    validation = held_out(settings.validation_split, whose, ~own, "validation split")
    if tests is not None and settings.test_split is not None:
        wrong = f"{settings.entry} returns test rows for each client"
        raise ConfigError("problem.test_split", settings.test_split, wrong, "null")
    train, held, validated = (
        rows if part.all() else rows.subset(np.flatnonzero(part)) if part.any() else None
        for part in (~own & ~validation, own, validation)
    )
    assert train is not None  # fractions are below 1, and rounded down
    test = None if tests is None else tests[i]
    if test is not None and (not indexed(test) or len(test)):
        seeds = stream(DATA_SEED, "test rows", i)
        held = examples(settings, made, test, f"the test rows of client {i}", seeds)
    return ClientRows(train, held, validated)


def _load_rows(
    settings: ProblemSettings, meta: dict[str, Any], clients: list[int]
) -> dict[int, tuple[Examples, Examples | None]]:
    """The clients' training rows and their own test rows, which must be those that rank 0 has seen."""
    made, n = call_entry(settings, DATA_SEED), meta["clients"]
    if len(made.datasets) != n:
        wrong = f"this rank got {len(made.datasets)} clients, rank 0 got {n}"
        raise entry_error(settings, wrong, "the same data on every rank")
    found = {}
    for i in clients:
        rows = found[i] = _client_rows(settings, made, i)[:2]
        # They are not compared to the last bit: the same sum may be rounded differently on another processor.
        if not _same_fingerprints(_fingerprints(*rows), meta["fingerprints"][i]):
            wrong = f"client {i} has other rows on rank 0"
            raise entry_error(settings, wrong, "the same data on every rank", "seed what is drawn")
    return found


def _fingerprint(rows: Examples) -> list[float]:
    """The number of rows; a weighted sum, which depends on order and signs, and the sum of absolute values: of inputs,
    then of targets."""
    flat = [torch.cat([v.double().flatten() for v in tensors(part)]) for part in rows.take(slice(None))]
    sums = (float(of) for v in flat for of in (v @ torch.linspace(1, 2, len(v), dtype=v.dtype), v.abs().sum()))
    return [len(rows), *sums]


def _fingerprints(*parts: Examples | None) -> list[list[float]]:
    return [_fingerprint(rows) for rows in parts if rows]


def _same_fingerprints(here: list[list[float]], there: list[list[float]]) -> bool:
    """Up to rounding, as large as the sums of absolute values make it."""
    return len(here) == len(there) and all(
        n == n0 and abs(x - x0) <= 1e-5 * x_size and abs(y - y0) <= 1e-5 * y_size
        for (n, x, x_size, y, y_size), (n0, x0, _, y0, _) in zip(here, there)
    )


def _few(most: int | None, parts: list[Examples]) -> list[Examples | None]:
    """At most so many of all rows, the same ones for all runs, by part."""
    ends = np.cumsum([len(rows) for rows in parts])
    if not parts or most is None or ends[-1] <= most:
        return [*parts]
    mine = np.split(subsample(most, int(ends[-1])), np.searchsorted(subsample(most, int(ends[-1])), ends[:-1]))
    return [
        rows.subset(some - (end - len(rows))) if len(some) else None
        for rows, some, end in zip(parts, mine, ends, strict=True)
    ]


def _subsample(most: int | None, parts: list[Examples]) -> list[Examples]:
    """At most so many of all rows; those of one signature in one piece."""
    few = [rows for rows in _few(most, parts) if rows]
    return few if sum(map(len, few)) == sum(map(len, parts)) else merged(few)
