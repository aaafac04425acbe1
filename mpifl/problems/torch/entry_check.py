"""Checks the torch module, the loss and the data sets of a user's `problem.entry`: every mistake is one line."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset, default_collate

from mpifl.errors import ConfigError
from mpifl.problems.entry_function import RETURNS, call, entry_error, indexed, kind
from mpifl.problems.settings import ProblemSettings
from mpifl.problems.torch.examples import CollatedExamples, Examples, tensors
from mpifl.problems.torch.flat import running_statistics
from mpifl.problems.torch.module_objective import set_evaluation_mode
from mpifl.problems.torch.row_draws import read_all, read_seeded
from mpifl.problems.torch.side_effects import compiled_function, copied, find_side_effects


class EntryResult(NamedTuple):
    """What the function returns."""

    module: nn.Module
    loss: Callable[[Tensor, Any], Tensor]  # (outputs, targets) -> the mean over the rows
    datasets: Sequence[Any]  # one for each client: len(), and [k] a row (x, y)
    test: Any = None  # test rows: len(), and [k] a row (x, y); or such a data set, or None, for each client
    predict: Callable[[Tensor], Tensor] | None = None  # outputs -> predicted labels, in the targets' shape
    collate: Callable[[list[Any]], Any] | None = None  # rows -> (inputs, targets), or a batch that is both

    def client_tests(self) -> list[Any] | None:
        """The test rows of each client; None where there are none of clients."""
        test = self.test
        return [*test] if isinstance(test, list | tuple) and any(map(_is_dataset, test)) else None


def _is_dataset(thing: Any) -> bool:
    """Whether it is a data set, and no row of one."""
    if isinstance(thing, list):
        return bool(thing) and isinstance(thing[0], tuple)
    return indexed(thing) and not isinstance(thing, tuple | Mapping | str | Tensor | np.ndarray)


def call_entry(settings: ProblemSettings, seed: int) -> EntryResult:
    """Calls the function, with the generators of torch, NumPy and Python seeded. Raises ConfigError."""
    return checked_entry(settings, call(settings, seed))


def checked_entry(settings: ProblemSettings, made: Any) -> EntryResult:
    """What the function has returned, as module, loss and data sets. Raises ConfigError."""
    try:
        made = EntryResult(**made) if isinstance(made, dict) else EntryResult(*made)
    except TypeError as error:
        raise entry_error(settings, f"it returns {kind(made)}", RETURNS) from error
    if not isinstance(made.module, nn.Module):
        raise entry_error(settings, f"the module that it returns is {kind(made.module)}", "a torch.nn.Module")
    if not callable(made.loss):
        raise entry_error(
            settings, f"the loss that it returns is {kind(made.loss)}", "a function of outputs and targets"
        )
    for name, place, maps in (("predict", "fifth", "outputs to labels"), ("collate", "sixth", "rows to a batch")):
        given = getattr(made, name)
        if given is not None and not callable(given):
            raise entry_error(settings, f"{name}, the {place}, is {kind(given)}", f"None or a function from {maps}")
    tests = made.client_tests()
    if tests is not None and indexed(made.datasets) and len(tests) != len(made.datasets):
        expected = f"None, or test rows for each of the {len(made.datasets)} clients"
        raise entry_error(settings, f"test, the fourth, is {kind(made.test)}", expected)
    _check_module(settings, made.module, made.loss)
    if getattr(made.module, "_mpifl_seen", False):  # clients and measuring would hold it at two vectors at once
        raise entry_error(settings, "the module was returned before", "a new module at each call")
    made.module._mpifl_seen = True  # type: ignore[assignment]
    if not indexed(made.datasets) or isinstance(made.datasets, Mapping):
        raise entry_error(
            settings, f"datasets, the third, is {kind(made.datasets)}", "a list of the clients' data sets"
        )
    if not len(made.datasets):
        raise entry_error(settings, "datasets is empty", "at least one client's data set")
    return made


def _check_module(settings: ProblemSettings, module: nn.Module, loss: Any) -> None:
    for name, part in (*module.named_parameters(), *module.named_buffers()):
        if torch.nn.parameter.is_lazy(part) or part.is_meta:
            raise entry_error(settings, f"shape and values of {name} are not known yet", "a module whose are")
    places: dict[int, str] = {}  # address -> name of a trained parameter
    for name, p in module.named_parameters():
        if p.requires_grad and p.dtype != getattr(torch, settings.dtype):
            raise _mismatch(settings, p.dtype, f"the module's parameter {name} is", "module.to")
        if p.requires_grad and p.numel() and (other := places.setdefault(p.data_ptr(), name)) != name:
            wrong = f"{other} and {name} share their memory, and are two parameters"
            raise entry_error(settings, wrong, "tied weights that are one parameter (b.weight = a.weight)")
    if any(type(part).__name__ == "OptimizedModule" or part._compiled_call_impl for part in module.modules()):
        wrong = "the module is one of torch.compile, whose arithmetic depends on the batches before"
        raise entry_error(settings, wrong, "a module that is not compiled")
    if name := compiled_function(module, loss):
        wrong = f"{name} is a function of torch.compile, whose arithmetic depends on the batches before"
        raise entry_error(settings, wrong, "functions that are not compiled")
    for name, part in running_statistics(module).items():
        if part.dtype != getattr(torch, settings.dtype):
            raise _mismatch(settings, part.dtype, f"the module's buffer {name} is", "module.to")
    if not any(p.requires_grad for p in module.parameters()):
        raise entry_error(settings, "no parameter of the module needs a gradient", "one that does")
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.track_running_stats and part.momentum is None:
            where = name or "batch norm"
            wrong = f"{where} has no momentum, so it counts the batches of all clients of a rank"
            raise entry_error(settings, wrong, "a momentum")


def examples(
    settings: ProblemSettings, made: EntryResult, dataset: Any, whose: str, seeds: np.random.Generator
) -> Examples:
    """The rows of a data set: x (s, ...), y (s, ...), whole-number targets as int64. Raises ConfigError.

    seeds: of what the data set draws when it is asked for a row
    """
    if not indexed(dataset):
        raise entry_error(settings, f"the data set of {whose} is {kind(dataset)}", "one with len() and [k]")
    if not len(dataset):
        raise entry_error(settings, f"{whose} has no rows", "at least one")
    if type(dataset) is TensorDataset and made.collate is None:
        return Examples(*_checked(settings, dataset.tensors, whose))

    def read(numbers: np.ndarray, seeds: np.ndarray) -> list[Any]:
        """Rows by number as they are under a seed for each."""
        with _as_config_error(settings, f"{whose}: ", readable):
            return read_seeded(dataset, numbers.tolist(), seeds.tolist())

    readable = "a data set with a row [k] for each k below len()"
    with _as_config_error(settings, f"{whose}: ", readable):
        rows, draws = read_all(dataset)
    numbers, seed_of = np.arange(len(rows)), seeds.integers(2**63, size=len(rows))
    if draws:
        rows = read(numbers, seed_of)
    collate = made.collate
    if isinstance(rows[0], Mapping) or (_is_pair(rows[0]) and isinstance(rows[0][0], Mapping)):
        collate = collate or default_collate
    batch = partial(_collated, settings, collate, whose) if collate else partial(_columns, settings, whose)
    found = CollatedExamples(rows, batch) if collate else Examples(*batch(rows))
    for piece in found.pieces() if collate else ():  # checks them
        found.take(piece)
    kept = found.take(slice(0, 1))  # before the data set is asked again, as it may return one buffer for all rows
    again = batch(read(numbers[:1], seed_of[:1]))
    if not all(map(torch.equal, tensors(kept), tensors(again))):
        wrong, generators = f"row 0 of {whose} is another each time", "torch's, NumPy's or Python's generators"
        raise entry_error(settings, wrong, f"rows that have memory of their own, and draw only from {generators}")
    found.drawn = (lambda numbers, seeds: batch(read(numbers, seeds))) if draws else None
    return found


def _is_pair(row: Any) -> bool:
    return isinstance(row, tuple | list) and len(row) == 2


def _collated(
    settings: ProblemSettings, collate: Callable[[list[Any]], Any], whose: str, rows: list[Any]
) -> tuple[Any, Any]:
    """Inputs and targets of the batch that `collate` makes of rows. Raises ConfigError."""
    with _as_config_error(settings, f"{whose}: ", "rows of which the collate function makes batches"):
        batch = collate(rows)
    x, y = batch if _is_pair(batch) else (batch, batch)
    for name, part in (("inputs", x), ("targets", y)):
        for values in tensors(part):
            _check_values(settings, values, f"the {name} of {whose}", name)
    return x, y.long() if isinstance(y, Tensor) and not y.is_floating_point() else y


def _columns(settings: ProblemSettings, whose: str, rows: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Inputs and targets of rows (x, y). Raises ConfigError."""
    for k, row in enumerate(rows):
        if not _is_pair(row):
            wrong = f"row {k} of {whose} is {kind(row)}"
            raise entry_error(settings, wrong, "rows (x, y), as TensorDataset(x, y) has")
    return _checked(settings, list(zip(*rows, strict=True)), whose)


def _checked(settings: ProblemSettings, columns: Sequence[Any], whose: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets as tensors, from the values of all rows. Raises ConfigError."""
    if len(columns) != 2:
        raise entry_error(settings, f"the rows of {whose} have {len(columns)} parts", "(x, y)")
    parts = []
    for name, part in zip(("inputs", "targets"), columns, strict=True):
        stacked = part.detach() if isinstance(part, Tensor) else _stacked(settings, part, f"the {name} of {whose}")
        if stacked.layout != torch.strided:
            expected = "dense tensors, or a collate function that makes sparse ones of rows"
            raise entry_error(settings, f"the {name} of {whose} are a sparse tensor", expected)
        _check_values(settings, stacked, f"the {name} of {whose}", name)
        parts.append(stacked.cpu())
    x, y = parts
    return x, y if y.is_floating_point() else y.long()


def _check_values(settings: ProblemSettings, values: Tensor, what: str, name: str) -> None:
    if (values.is_floating_point() or values.is_complex()) and values.dtype != getattr(torch, settings.dtype):
        raise _mismatch(settings, values.dtype, f"{what} are", f"{name}.to")
    if not torch.isfinite(values).all():
        raise entry_error(settings, f"among {what} is nan or infinity", "finite numbers")


def _stacked(settings: ProblemSettings, values: Sequence[Any], what: str) -> Tensor:
    """Tensors, arrays, or numbers and lists of them; those of Python, which have no precision, in problem.dtype."""

    def tensor(value: Any) -> Tensor:
        found = torch.as_tensor(value).detach()
        typed = isinstance(value, Tensor | np.ndarray | np.generic) or not found.is_floating_point()
        return found if typed else torch.as_tensor(value, dtype=getattr(torch, settings.dtype))

    with _as_config_error(settings, f"{what} make no tensor: ", "rows of one shape, or a collate function"):
        return torch.stack([tensor(value) for value in values])


class Tried(NamedTuple):
    """What the module has shown."""

    outputs: list[Tensor]  # some for each part of the data
    targets: list[Any]  # their targets
    draws: bool  # whether evaluations draw from torch's generator


def check_module_and_loss(
    settings: ProblemSettings, made: EntryResult, parts: Sequence[tuple[int | str, Examples]]
) -> Tried:
    """Runs the module on the first rows of each signature, and the loss on all targets."""
    assert settings.torch is not None
    local = settings.torch.buffers == "local"  # then norms take the statistics of test rows, too
    tried: dict[Any, Tensor] = {}
    found, targets = [], []
    fresh = copied(made.module, made.loss)
    for i, rows in parts:
        whose = f"client {i}" if isinstance(i, int) else i
        few = min(2, len(rows), settings.batch_size or 2)
        x, y = rows.take(slice(0, few))
        signature = few, rows.signature
        made.module.train(isinstance(i, int) or local)
        if signature not in tried:
            with _as_config_error(settings, f"{whose}: ", f"a module that takes rows {_described(x)}"):
                tried[signature] = made.module(x)
            _try_loss(settings, made, tried[signature], y, whose)
            if made.predict:
                _try_predict(settings, made.predict, tried[signature].detach(), y, whose)
        outputs = tried[signature].detach()
        found.append(outputs)
        targets.append(y)
        made.module.eval()
        for piece in rows.pieces():  # a label may be too large
            with torch.no_grad(), _as_config_error(settings, f"{whose}: ", partial(_loss_of, outputs, rows, piece)):
                if not isinstance(rows, CollatedExamples) and outputs.shape[:1] == (few,):
                    some = rows.y[piece].clone()
                    if torch.isfinite(made.loss(outputs[:1].expand(len(some), *outputs.shape[1:]), some)):
                        continue
                x, y = rows.take(piece)
                value = made.loss(made.module(x), y)
            if not torch.isfinite(value):
                wrong = (
                    f"the loss of rows {piece.start} to {min(piece.stop, len(rows)) - 1} of {whose} is {value.item()}"
                )
                raise entry_error(settings, wrong, "a finite loss at the initial model")
    clients = [rows for i, rows in reversed(parts) if isinstance(i, int)]
    largest = max(clients, key=lambda rows: sum(part.numel() for part in tensors(rows.take(slice(0, 1))[0])))
    last = slice(-min(2, len(largest), settings.batch_size or 2), None)
    with _as_config_error(settings, "in evaluation: ", "a module that takes the rows of clients"):
        effects = find_side_effects(
            made.module,
            made.loss,
            fresh,
            lambda: largest.take(last),
            lambda module: set_evaluation_mode(module, local),
        )
    for name in effects.constants:
        kind = "parameters" if name in dict(made.module.named_parameters()) else "buffers"
        wrong = f"a forward pass changes {name}"
        raise entry_error(settings, wrong, f"{kind} that stay as they are, running statistics apart")
    if effects.attributes:
        wrong = f"a forward pass changes {effects.attributes[0]}"
        raise entry_error(settings, wrong, "values that stay as they are, as clients share module and loss")
    if effects.other_draws:
        wrong = f"the module or the loss draws from {effects.other_draws}'s generator"
        raise entry_error(settings, wrong, "draws only from torch's generator")
    if effects.remembers:
        wrong = "the loss of the same rows depends on earlier passes"
        raise entry_error(settings, wrong, "the same value each time, as clients share the module and the loss")
    return Tried(found, targets, effects.draws)


def _shape(value: Any) -> str:
    """The shapes of a batch's tensors."""
    shapes = [[*part.shape] for part in tensors(value)]
    return str(shapes[0] if isinstance(value, Tensor) else shapes)


def _described(value: Any) -> str:
    """The shapes of a batch's tensors, and the dtype of one."""
    dtype = f" and dtype {str(value.dtype).removeprefix('torch.')}" if isinstance(value, Tensor) else ""
    return f"of shape {_shape(value)}{dtype}"


def _loss_of(outputs: Tensor, rows: Examples, piece: slice) -> str:
    """The loss that these rows need, with the smallest and the largest target where they are integers."""
    targets = "all targets"
    if not isinstance(rows, CollatedExamples) and not rows.y.is_floating_point() and rows.y[piece].numel():
        targets = f"targets from {rows.y[piece].min()} to {rows.y[piece].max()}"
    return f"a loss that takes outputs {_shape(outputs)} and {targets}"


def _try_loss(settings: ProblemSettings, made: EntryResult, outputs: Any, y: Any, whose: str) -> None:
    if not isinstance(outputs, Tensor):
        raise entry_error(settings, f"the module returns {kind(outputs)}", "a tensor")
    shapes = f"outputs {_shape(outputs)} and targets {_shape(y)}"
    with _as_config_error(settings, f"{whose}: ", f"a loss that takes {shapes}"):
        value = made.loss(outputs, y)
    if not isinstance(value, Tensor):
        raise entry_error(settings, f"the loss is {kind(value)}", "a tensor")
    if value.ndim:
        raise entry_error(settings, f"the shape of the loss is {[*value.shape]}", "one number, the mean over the rows")
    if not value.requires_grad:
        raise entry_error(
            settings, "the loss does not depend on the module's parameters", "one that can be differentiated"
        )
    if (stray := _parameter_outside(value, made.module)) is not None:
        wrong = f"the loss depends on a parameter of shape {[*stray.shape]} that is not in the module"
        raise entry_error(settings, wrong, "only parameters of the module, as no others are trained")
    if not torch.isfinite(value):
        wrong = f"the loss of the first rows of {whose} is {value.item()}"
        raise entry_error(settings, wrong, "a finite loss at the initial model")
    with _as_config_error(settings, "", "a loss that can be differentiated"):
        value.backward()
    if isinstance(y, Tensor) and outputs.shape[:1] == y.shape[:1]:  # the first row twice, and three times
        row = outputs.detach()[:1], y[:1]
        with _as_config_error(settings, f"{whose}: ", "a loss that takes the module's outputs and the targets"):
            two, three = (float(made.loss(*(part.repeat_interleave(m, 0) for part in row)).detach()) for m in (2, 3))
        if abs(two) > 1e-6 and abs(three - 1.5 * two) < 1e-3 * abs(two):
            raise entry_error(settings, "the loss is the sum over the rows", "their mean")


def _parameter_outside(value: Tensor, module: nn.Module) -> Tensor | None:
    """A parameter that the value depends on and that is none of the module's; None: there is none."""
    known, nodes, seen = {p.data_ptr() for p in module.parameters()}, [value.grad_fn], set()
    while nodes:
        if (node := nodes.pop()) is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, nn.Parameter) and leaf.data_ptr() not in known:
            return leaf
        nodes += [before for before, _ in node.next_functions]
    return None


def _try_predict(
    settings: ProblemSettings, predict: Callable[[Tensor], Tensor], outputs: Tensor, y: Any, whose: str
) -> None:
    if not isinstance(y, Tensor):
        raise entry_error(settings, f"the targets of {whose} are {kind(y)}", "one tensor, for predict")
    expected = f"labels of shape {[*y.shape]}, as the targets of {whose} have"
    with _as_config_error(settings, "predict: ", expected):
        labels = predict(outputs.clone())
    if not isinstance(labels, Tensor) or labels.shape != y.shape:
        shape = f" of shape {[*labels.shape]}" if isinstance(labels, Tensor) else ""
        raise entry_error(settings, f"predict returns {kind(labels)}{shape}", expected)


@contextmanager
def _as_config_error(settings: ProblemSettings, where: str, expected: str | Callable[[], str]) -> Iterator[None]:
    """Raises what torch raises about rows, outputs or targets as a ConfigError of one line that begins with `where`.

    expected: what was, or a function that returns it, where that takes a pass over the rows.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Using a target size")  # (s, 1) less (s,) would be (s, s)
            yield
    except (Exception, SystemExit) as error:  # whatever a user's code raises
        first = next(iter(str(error).strip().splitlines()), "")
        torchs = isinstance(error, RuntimeError | TypeError | ValueError | IndexError | UserWarning)
        reason = first.rstrip(".") if torchs and first else f"{type(error).__name__}: {first}"
        raise entry_error(settings, f"{where}{reason}", expected() if callable(expected) else expected) from error


def _mismatch(settings: ProblemSettings, dtype: torch.dtype, what: str, to: str) -> ConfigError:
    found = str(dtype).removeprefix("torch.")
    other = f"set problem.dtype={found}, or " if found in ("float32", "float64") else ""
    remedy = f"{other}call {to}(torch.{settings.dtype}) in {settings.entry}"
    return ConfigError("problem.dtype", settings.dtype, f"{what} {found}", remedy=remedy)
