"""Calls a user's `problem.entry` function and checks what it returns: every mistake is one line, before any work."""

from __future__ import annotations

import difflib
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from mpifl.errors import ConfigError
from mpifl.problems.settings import ProblemSettings
from mpifl.problems.torch.flat import running_statistics
from mpifl.problems.torch.module_objective import EVALUATION_ROWS, Examples, set_evaluation_mode
from mpifl.problems.torch.module_problem import seeded
from mpifl.problems.torch.row_draws import read_all, read_seeded
from mpifl.problems.torch.side_effects import copied, find_side_effects


class EntryResult(NamedTuple):
    """What the function returns."""

    module: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> the mean over the rows
    datasets: Sequence[Any]  # one for each client: len(), and [k] a row (x, y)
    test: Any = None  # test rows: len(), and [k] a row (x, y)
    predict: Callable[[Tensor], Tensor] | None = None  # outputs -> predicted labels, in the targets' shape


def entry_error(settings: ProblemSettings, expected: str) -> ConfigError:
    """A ConfigError that says what the function should return."""
    return ConfigError("problem.entry", settings.entry, expected)


def find(entry: str) -> Callable[..., Any]:
    """The function of "package.module:function". Raises ConfigError."""
    name, _, attribute = entry.partition(":")
    try:
        module = importlib.import_module(name)
    except (ImportError, SyntaxError) as error:
        raise ConfigError("problem.entry", entry, f"an importable package.module:function ({error})") from error
    try:
        found = attrgetter(attribute)(module)
    except AttributeError as error:
        near = difflib.get_close_matches(attribute, [k for k, v in vars(module).items() if callable(v)], 1)
        hint = f"did you mean {near[0]}?" if near else f"an importable package.module:function ({error})"
        raise ConfigError("problem.entry", entry, hint) from error
    if not callable(found):
        raise ConfigError("problem.entry", entry, f"a function; this is {_kind(found)}")
    return found


def call_entry(settings: ProblemSettings, seed: int) -> EntryResult:
    """Calls the function, with torch's generator at the seed's resources. Raises ConfigError."""
    assert settings.entry is not None
    function, options = find(settings.entry), settings.options or {}
    try:
        signature = inspect.signature(function)
    except ValueError as error:
        raise entry_error(settings, f"a function that is written in Python ({error})") from error
    try:
        signature.bind(**options)
    except TypeError as error:
        takes = f"{settings.entry}({', '.join(signature.parameters)})"
        raise ConfigError("problem.options", options, f"what {takes} takes ({error})") from error
    made = seeded(seed, lambda: function(**options))
    if not (isinstance(made, tuple | list) and len(made) in (3, 4, 5)):
        raise entry_error(
            settings, f"a function that returns (module, loss, datasets[, test[, predict]]); it returns {_kind(made)}"
        )
    made = EntryResult(*made)
    if not isinstance(made.module, nn.Module):
        raise entry_error(settings, f"a torch.nn.Module as the first of what is returned; it is {_kind(made.module)}")
    if not callable(made.loss):
        raise entry_error(settings, f"a loss, called with outputs and targets, as the second; it is {_kind(made.loss)}")
    if made.predict is not None and not callable(made.predict):
        text = f"None or a function from outputs to predicted labels as the fifth; it is {_kind(made.predict)}"
        raise entry_error(settings, text)
    _check_module(settings, made.module)
    if getattr(made.module, "_mpifl_seen", False):  # clients and measuring would hold it at two vectors at once
        raise entry_error(settings, "a new module at each call; this one was returned before")
    made.module._mpifl_seen = True  # type: ignore[assignment]
    if not _indexed(made.datasets) or isinstance(made.datasets, Mapping):
        raise entry_error(settings, f"a list of the clients' data sets as the third; it is {_kind(made.datasets)}")
    if not len(made.datasets):
        raise entry_error(settings, "at least one client's data set")
    return made


def _check_module(settings: ProblemSettings, module: nn.Module) -> None:
    for name, part in (*module.named_parameters(), *module.named_buffers()):
        if torch.nn.parameter.is_lazy(part) or part.is_meta:
            raise entry_error(settings, f"a module whose shapes and values are known; those of {name} are not")
    places: dict[int, str] = {}  # of trained parameters, by address
    for name, p in module.named_parameters():
        if p.requires_grad and p.dtype != getattr(torch, settings.dtype):
            raise _mismatch(settings, p.dtype, f"the module's parameter {name} is", "module.to")
        if p.requires_grad and p.numel() and (other := places.setdefault(p.data_ptr(), name)) != name:
            text = f"tied weights that are one parameter (b.weight = a.weight); {other} and {name} share their memory"
            raise entry_error(settings, f"{text} alone")
    for name, part in running_statistics(module).items():
        if part.dtype != getattr(torch, settings.dtype):
            raise _mismatch(settings, part.dtype, f"the module's buffer {name} is", "module.to")
    if not any(p.requires_grad for p in module.parameters()):
        raise entry_error(settings, "a module with parameters that need a gradient")
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.track_running_stats and part.momentum is None:
            where = name or "batch norm"
            raise entry_error(
                settings, f"a momentum for {where}: without one it counts the batches of all clients of a rank"
            )


def examples(settings: ProblemSettings, dataset: Any, whose: str, seeds: np.random.Generator) -> Examples:
    """The rows of a data set: x (s, ...), y (s, ...), whole-number targets as int64. Raises ConfigError.

    seeds: of what the data set draws when it is asked for a row
    """
    if not _indexed(dataset):
        raise entry_error(settings, f"a data set with len() and [k] for {whose}; it is {_kind(dataset)}")
    if not len(dataset):
        raise entry_error(settings, f"at least one row for {whose}")
    if type(dataset) is TensorDataset:
        return Examples(*_tensors(settings, dataset.tensors, whose))

    def drawn(numbers: np.ndarray, seeds: np.ndarray) -> tuple[Tensor, Tensor]:
        """Rows by number as they are under a seed for each."""
        with _as_config_error(settings, readable):
            rows = read_seeded(dataset, numbers.tolist(), seeds.tolist())
        return _tensors(settings, _columns(settings, rows, whose), whose)

    readable = f"a data set with a row [k] for each k below len() for {whose}"
    with _as_config_error(settings, readable):
        rows, draws = read_all(dataset)
    numbers, seed_of = np.arange(len(rows)), seeds.integers(2**63, size=len(rows))
    x, y = drawn(numbers, seed_of) if draws else _tensors(settings, _columns(settings, rows, whose), whose)
    again = drawn(numbers[:1], seed_of[:1])
    if not (torch.equal(again[0], x[:1]) and torch.equal(again[1], y[:1])):
        text = "rows that draw from torch's, NumPy's or Python's generators alone"
        raise entry_error(settings, f"{text}: row 0 of {whose} is another each time")
    return Examples(x, y, drawn if draws else None)


def _tensors(settings: ProblemSettings, columns: Sequence[Any], whose: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets of rows. Raises ConfigError."""
    dtype = getattr(torch, settings.dtype)
    if len(columns) != 2:
        raise entry_error(settings, f"rows (x, y) for {whose}; they have {len(columns)} parts")
    parts = []
    for name, part in zip(("inputs", "targets"), columns, strict=True):
        stacked = part.detach() if isinstance(part, Tensor) else _stacked(settings, part, f"the {name} of {whose}")
        if (stacked.is_floating_point() or stacked.is_complex()) and stacked.dtype != dtype:
            raise _mismatch(settings, stacked.dtype, f"the {name} of {whose} are", f"{name}.to")
        if not torch.isfinite(stacked).all():
            raise entry_error(settings, f"finite numbers; among the {name} of {whose} is nan or infinity")
        parts.append(stacked.cpu())
    x, y = parts
    return x, y if y.is_floating_point() else y.long()


def _columns(settings: ProblemSettings, rows: Sequence[Any], whose: str) -> list[tuple[Any, ...]]:
    for k, row in enumerate(rows):
        if not (isinstance(row, tuple | list) and len(row) == 2):
            raise entry_error(settings, f"rows (x, y) for {whose}, as TensorDataset(x, y) has; row {k} is {_kind(row)}")
    return list(zip(*rows, strict=True))


def _stacked(settings: ProblemSettings, values: Sequence[Any], what: str) -> Tensor:
    """Tensors, arrays, or numbers and lists of them; those of Python, which have no precision, in problem.dtype."""

    def tensor(value: Any) -> Tensor:
        found = torch.as_tensor(value).detach()
        typed = isinstance(value, Tensor | np.ndarray | np.generic) or not found.is_floating_point()
        return found if typed else torch.as_tensor(value, dtype=getattr(torch, settings.dtype))

    with _as_config_error(settings, f"{what} that make one tensor"):
        return torch.stack([tensor(value) for value in values])


class Tried(NamedTuple):
    """What the module has shown."""

    outputs: list[Tensor]  # some for each part of the data
    draws: bool  # whether evaluations draw from torch's generator


def check_module_and_loss(
    settings: ProblemSettings, made: EntryResult, parts: Sequence[tuple[int | str, Examples]]
) -> Tried:
    """Runs the module on the first rows of each signature, and the loss on all targets."""
    assert settings.torch is not None
    local = settings.torch.buffers == "local"  # then norms take the statistics of test rows, too
    tried: dict[Any, Tensor] = {}
    found = []
    fresh = copied(made.module, made.loss)
    for i, rows in parts:
        whose = f"client {i}" if isinstance(i, int) else i
        few = min(2, len(rows), settings.batch_size or 2)
        x, y = rows.take(slice(0, few))
        signature = few, rows.signature
        made.module.train(isinstance(i, int) or local)
        if signature not in tried:
            with _as_config_error(settings, f"a module that takes rows of shape {[*x.shape]} ({whose})"):
                tried[signature] = made.module(x)
            _try_loss(settings, made, tried[signature], y, whose)
            if made.predict:
                _try_predict(settings, made.predict, tried[signature].detach(), y, whose)
        outputs = tried[signature].detach()
        found.append(outputs)
        for k in range(0, len(rows) if outputs.shape[:1] == (few,) else 0, EVALUATION_ROWS):  # a label may be too large
            some = rows.y[k : k + EVALUATION_ROWS].clone()
            with _as_config_error(settings, f"a loss of the module's outputs and the targets of {whose}"):
                made.loss(outputs[:1].expand(len(some), *outputs.shape[1:]), some)
    clients = [rows for i, rows in reversed(parts) if isinstance(i, int)]
    largest = max(clients, key=lambda rows: rows.x[0].numel())
    last = slice(-min(2, len(largest), settings.batch_size or 2), None)
    with _as_config_error(settings, "a module that takes the rows of clients in evaluation"):
        effects = find_side_effects(
            made.module,
            made.loss,
            fresh,
            lambda: largest.take(last),
            lambda module: set_evaluation_mode(module, local),
        )
    for name in effects.constants:
        kind = "parameters" if name in dict(made.module.named_parameters()) else "buffers"
        text = f"{kind} that a forward pass leaves alone, running statistics apart: {name} changes"
        raise entry_error(settings, text)
    if effects.attributes:
        text = "attributes that a forward pass leaves alone, as clients share the module"
        raise entry_error(settings, f"{text}: {effects.attributes[0]} changes")
    if effects.other_draws:
        text = f"a module and a loss that draw from torch's generator alone: they draw from {effects.other_draws}'s"
        raise entry_error(settings, text)
    return Tried(found, effects.draws)


def _try_loss(settings: ProblemSettings, made: EntryResult, outputs: Any, y: Tensor, whose: str) -> None:
    if not isinstance(outputs, Tensor):
        raise entry_error(settings, f"a module that returns a tensor; it returns {_kind(outputs)}")
    with _as_config_error(settings, f"a loss of outputs {[*outputs.shape]} and targets {[*y.shape]} ({whose})"):
        value = made.loss(outputs, y)
    if not isinstance(value, Tensor):
        raise entry_error(settings, f"a loss that is a tensor; it is {_kind(value)}")
    if value.ndim:
        raise entry_error(settings, f"a loss that is one number, the mean over the rows; its shape is {[*value.shape]}")
    if not value.requires_grad:
        raise entry_error(settings, "a loss that can be differentiated with respect to the module's parameters")
    if not torch.isfinite(value):
        raise entry_error(
            settings, f"a finite loss at the initial model; that of the first rows of {whose} is {value.item()}"
        )
    with _as_config_error(settings, "a loss that can be differentiated"):
        value.backward()
    if outputs.shape[:1] == y.shape[:1]:  # the first row twice, and four times
        row = outputs.detach()[:1], y[:1]
        with _as_config_error(settings, f"a loss of the module's outputs and the targets of {whose}"):
            two, four = (float(made.loss(*(part.repeat_interleave(m, 0) for part in row))) for m in (2, 4))
        if abs(two) > 1e-6 and abs(four - 2 * two) < 1e-3 * abs(two):
            raise entry_error(settings, "a loss that is the mean over the rows; this is their sum")


def _try_predict(
    settings: ProblemSettings, predict: Callable[[Tensor], Tensor], outputs: Tensor, y: Tensor, whose: str
) -> None:
    expected = f"predicted labels of shape {[*y.shape]}, as the targets of {whose} have, from predict"
    with _as_config_error(settings, expected):
        labels = predict(outputs.clone())
    if not isinstance(labels, Tensor) or labels.shape != y.shape:
        shape = f" of shape {[*labels.shape]}" if isinstance(labels, Tensor) else ""
        raise entry_error(settings, f"{expected}; it returns {_kind(labels)}{shape}")


@contextmanager
def _as_config_error(settings: ProblemSettings, expected: str) -> Iterator[None]:
    """Raises what torch raises about rows, outputs or targets as a ConfigError of one line."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Using a target size")  # (s, 1) less (s,) would be (s, s)
            yield
    except Exception as error:  # whatever a user's code raises
        first = next(iter(str(error).strip().splitlines()), "")
        torchs = isinstance(error, RuntimeError | TypeError | ValueError | IndexError | UserWarning)
        raise entry_error(
            settings, f"{expected} ({first if torchs else f'{type(error).__name__}: {first}'})"
        ) from error


def _indexed(thing: Any) -> bool:
    return hasattr(thing, "__len__") and hasattr(thing, "__getitem__")


def _kind(thing: Any) -> str:
    """The type of a value, and its length where it has parts."""
    return type(thing).__name__ + (f" of {len(thing)}" if isinstance(thing, tuple | list) else "")


def _mismatch(settings: ProblemSettings, dtype: torch.dtype, what: str, to: str) -> ConfigError:
    found = str(dtype).removeprefix("torch.")
    as_found = f"{found}, as {what}" if found in ("float32", "float64") else f"not {found}, which {what}"
    return ConfigError(
        "problem.dtype", settings.dtype, f"{as_found}, or {to}(torch.{settings.dtype}) in {settings.entry}"
    )
