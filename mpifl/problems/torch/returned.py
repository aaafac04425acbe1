"""What the function of a user's own problem returns, checked: every mistake is one line, before any work."""

from __future__ import annotations

import difflib
import importlib
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from mpifl.errors import ConfigError
from mpifl.problems.torch.flat import running
from mpifl.problems.torch.objective import CHUNK, Examples
from mpifl.problems.torch.problem import seeded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpifl.problems.settings import ProblemConfig


class Returned(NamedTuple):
    """What the function returns."""

    module: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> the mean over the rows
    datasets: Sequence[Any]  # one for each client: len(), and [k] a row (x, y)
    test: Any = None  # likewise


def wrong(config: ProblemConfig, expected: str) -> ConfigError:
    """What the function should return."""
    return ConfigError("problem.entry", config.entry, expected)


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


def call(config: ProblemConfig, seed: int) -> Returned:
    """Calls the function, with torch's generator at the seed's place. Raises ConfigError."""
    assert config.entry is not None
    function, options = find(config.entry), config.options or {}
    try:
        signature = inspect.signature(function)
    except ValueError as error:
        raise wrong(config, f"a function that is written in Python ({error})") from error
    try:
        signature.bind(**options)
    except TypeError as error:
        takes = f"{config.entry}({', '.join(signature.parameters)})"
        raise ConfigError("problem.options", options, f"what {takes} takes ({error})") from error
    made = seeded(seed, lambda: function(**options))
    if not (isinstance(made, tuple | list) and len(made) in (3, 4)):
        raise wrong(config, f"a function that returns (module, loss, datasets[, test]); it returns {_kind(made)}")
    made = Returned(*made)
    if not isinstance(made.module, nn.Module):
        raise wrong(config, f"a torch.nn.Module as the first of what is returned; it is {_kind(made.module)}")
    if not callable(made.loss):
        raise wrong(config, f"a loss, called with outputs and targets, as the second; it is {_kind(made.loss)}")
    _check_module(config, made.module)
    if getattr(made.module, "_mpifl_seen", False):  # clients and measuring would hold it at two vectors at once
        raise wrong(config, "a new module at each call; this one was returned before")
    made.module._mpifl_seen = True  # type: ignore[assignment]
    if not _indexed(made.datasets) or isinstance(made.datasets, Mapping):
        raise wrong(config, f"a list of the clients' data sets as the third; it is {_kind(made.datasets)}")
    if not len(made.datasets):
        raise wrong(config, "at least one client's data set")
    return made


def _check_module(config: ProblemConfig, module: nn.Module) -> None:
    for name, part in (*module.named_parameters(), *module.named_buffers()):
        if torch.nn.parameter.is_lazy(part) or part.is_meta:
            raise wrong(config, f"a module whose shapes and values are known; those of {name} are not")
    for name, p in module.named_parameters():
        if (p.is_floating_point() or p.is_complex()) and p.dtype != getattr(torch, config.dtype):
            raise _mismatch(config, p.dtype, f"the module's parameter {name} is", "module.to")
    if not any(p.requires_grad for p in module.parameters()):
        raise wrong(config, "a module with parameters that need a gradient")
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.track_running_stats and part.momentum is None:
            where = name or "batch norm"
            raise wrong(config, f"a momentum for {where}: without one it counts the batches of all clients of a rank")


def examples(config: ProblemConfig, dataset: Any, whose: str) -> Examples:
    """The rows of a data set: x (s, ...), y (s, ...), whole-number targets as int64. Raises ConfigError."""
    if not _indexed(dataset):
        raise wrong(config, f"a data set with len() and [k] for {whose}; it is {_kind(dataset)}")
    if not len(dataset):
        raise wrong(config, f"at least one row for {whose}")
    dtype = getattr(torch, config.dtype)
    columns: Sequence[Any] = dataset.tensors if type(dataset) is TensorDataset else _columns(config, dataset, whose)
    if len(columns) != 2:
        raise wrong(config, f"rows (x, y) for {whose}; they have {len(columns)} parts")
    parts = []
    for name, part in zip(("inputs", "targets"), columns, strict=True):
        stacked = part.detach() if isinstance(part, Tensor) else _stacked(config, part, f"the {name} of {whose}")
        if (stacked.is_floating_point() or stacked.is_complex()) and stacked.dtype != dtype:
            raise _mismatch(config, stacked.dtype, f"the {name} of {whose} are", f"{name}.to")
        if not torch.isfinite(stacked).all():
            raise wrong(config, f"finite numbers; among the {name} of {whose} is nan or infinity")
        parts.append(stacked.cpu())
    x, y = parts
    return Examples(x, y if y.is_floating_point() else y.long())


def _columns(config: ProblemConfig, dataset: Any, whose: str) -> list[tuple[Any, ...]]:
    with _told(config, f"a data set with a row [k] for each k below len() for {whose}"):
        rows = [dataset[k] for k in range(len(dataset))]
    for k, row in enumerate(rows):
        if not (isinstance(row, tuple | list) and len(row) == 2):
            raise wrong(config, f"rows (x, y) for {whose}, as TensorDataset(x, y) has; row {k} is {_kind(row)}")
    return list(zip(*rows, strict=True))


def _stacked(config: ProblemConfig, values: Sequence[Any], what: str) -> Tensor:
    """Tensors, arrays, or numbers and lists of them; those of Python, which have no precision, in problem.dtype."""

    def tensor(value: Any) -> Tensor:
        found = torch.as_tensor(value).detach()
        typed = isinstance(value, Tensor | np.ndarray | np.generic) or not found.is_floating_point()
        return found if typed else torch.as_tensor(value, dtype=getattr(torch, config.dtype))

    with _told(config, f"{what} that make one tensor"):
        return torch.stack([tensor(value) for value in values])


def try_out(config: ProblemConfig, made: Returned, parts: Sequence[tuple[int | str, Examples]]) -> None:
    """Tries the module on the first rows of those that look alike, and the loss on all targets."""
    assert config.torch is not None
    local = config.torch.buffers == "local"  # then norms take the statistics of test rows, too
    tried: dict[Any, Tensor] = {}
    norms = running(made.module)
    constant = {k: b.clone() for k, b in made.module.named_buffers() if b.is_floating_point() and k not in norms}
    for i, rows in parts:
        whose = f"client {i}" if isinstance(i, int) else i
        few = min(2, len(rows), config.batch_size or 2)
        x, y = rows.take(slice(0, few))
        looks = few, rows.looks
        made.module.train(isinstance(i, int) or local)
        if looks not in tried:
            with _told(config, f"a module that takes rows of shape {[*x.shape]} ({whose})"):
                tried[looks] = made.module(x)
            _try_loss(config, made, tried[looks], y, whose)
        outputs = tried[looks].detach()
        for k in range(0, len(rows) if outputs.shape[:1] == (few,) else 0, CHUNK):  # a label too large, say
            some = rows.y[k : k + CHUNK].clone()
            with _told(config, f"a loss of the module's outputs and the targets of {whose}"):
                made.loss(outputs[:1].expand(len(some), *outputs.shape[1:]), some)
    for name, before in constant.items():
        if not torch.equal(made.module.get_buffer(name).nan_to_num(), before.nan_to_num()):
            raise wrong(config, f"buffers that training leaves alone, running statistics apart: {name} changes")


def _try_loss(config: ProblemConfig, made: Returned, outputs: Any, y: Tensor, whose: str) -> None:
    if not isinstance(outputs, Tensor):
        raise wrong(config, f"a module that returns a tensor; it returns {_kind(outputs)}")
    with _told(config, f"a loss of outputs {[*outputs.shape]} and targets {[*y.shape]} ({whose})"):
        value = made.loss(outputs, y)
    if not isinstance(value, Tensor):
        raise wrong(config, f"a loss that is a tensor; it is {_kind(value)}")
    if value.ndim:
        raise wrong(config, f"a loss that is one number, the mean over the rows; its shape is {[*value.shape]}")
    if not value.requires_grad:
        raise wrong(config, "a loss that can be differentiated with respect to the module's parameters")
    if not torch.isfinite(value):
        raise wrong(config, f"a finite loss at the initial model; that of the first rows of {whose} is {value.item()}")
    with _told(config, "a loss that can be differentiated"):
        value.backward()
    if outputs.shape[:1] == y.shape[:1]:  # the first row twice, and four times
        row = outputs.detach()[:1], y[:1]
        with _told(config, f"a loss of the module's outputs and the targets of {whose}"):
            two, four = (float(made.loss(*(part.repeat_interleave(m, 0) for part in row))) for m in (2, 4))
        if abs(two) > 1e-6 and abs(four - 2 * two) < 1e-3 * abs(two):
            raise wrong(config, "a loss that is the mean over the rows; this is their sum")


@contextmanager
def _told(config: ProblemConfig, expected: str) -> Iterator[None]:
    """What torch has against rows, outputs or targets, as one line."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Using a target size")  # (s, 1) less (s,) would be (s, s)
            yield
    except Exception as error:  # whatever a user's code raises
        first = next(iter(str(error).strip().splitlines()), "")
        torchs = isinstance(error, RuntimeError | TypeError | ValueError | IndexError | UserWarning)
        raise wrong(config, f"{expected} ({first if torchs else f'{type(error).__name__}: {first}'})") from error


def _indexed(thing: Any) -> bool:
    return hasattr(thing, "__len__") and hasattr(thing, "__getitem__")


def _kind(thing: Any) -> str:
    """Its type, and its length where it has parts."""
    return type(thing).__name__ + (f" of {len(thing)}" if isinstance(thing, tuple | list) else "")


def _mismatch(config: ProblemConfig, dtype: torch.dtype, what: str, to: str) -> ConfigError:
    found = str(dtype).removeprefix("torch.")
    as_found = f"{found}, as {what}" if found in ("float32", "float64") else f"not {found}, which {what}"
    return ConfigError("problem.dtype", config.dtype, f"{as_found}, or {to}(torch.{config.dtype}) in {config.entry}")
