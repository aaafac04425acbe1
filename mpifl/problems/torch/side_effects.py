"""What a forward pass leaves behind: state that belongs to no client, and draws from random generators.

The clients of a rank share one module. What it keeps from one pass to the next, other than running statistics, would be
that of whichever clients the rank has, so results would depend on the number of ranks.
"""

from __future__ import annotations

import copy
import inspect
import random
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from math import isclose, isnan
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mpifl.problems.torch.module_problem import seeded
from mpifl.problems.torch.state_dict import to_bytes

Loss = Callable[[Tensor, Tensor], Tensor]
OF_TORCH = {*vars(nn.Module()), "_mpifl_seen"}  # attributes of a module that are not the user's
MAX_DEPTH = 5  # levels of objects in an attribute
COMPILED = "_torchdynamo_orig_callable"  # an attribute of functions that torch.compile has made


class SideEffects(NamedTuple):
    """What passes have changed."""

    constants: list[str]  # names of parameters and buffers that have changed
    attributes: list[str]  # names of attributes whose values depend on earlier passes
    remembers: bool  # whether the loss of the same rows depends on earlier passes
    draws: bool  # whether evaluations draw from torch's generator
    other_draws: str  # whose generator passes draw from, if not torch's; "": none


def constants(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, running statistics and their counts apart."""
    norms = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._NormBase)]
    kept = {id(b) for norm in norms for b in (norm.running_mean, norm.running_var, norm.num_batches_tracked)}
    return {name: p for name, p in (*module.named_parameters(), *module.named_buffers()) if id(p) not in kept}


def _same(now: Tensor, before: Tensor | None) -> bool:
    """Whether a tensor is as before, NaN included."""
    if before is None or now.dtype != before.dtype:
        return False
    if now.layout != torch.strided:
        return now.shape == before.shape
    return torch.equal(now.detach().nan_to_num(), before.detach().nan_to_num())


class Fresh(NamedTuple):
    """Module and loss as they were before the first pass."""

    module: nn.Module
    loss: Loss
    constants: dict[str, Tensor]


def copied(module: nn.Module, loss: Loss) -> Fresh:
    """Copies of a module and its loss; these themselves, with copies of the constants, where they cannot be copied."""
    try:
        copies = copy.deepcopy((module, loss))
    except Exception:  # whatever a user's attributes raise
        return Fresh(module, loss, {name: part.detach().clone() for name, part in constants(module).items()})
    return Fresh(*copies, constants(copies[0]))


def find_side_effects(
    module: nn.Module, loss: Loss, fresh: Fresh, rows: Callable[[], tuple[Tensor, Tensor]],
    for_evaluation: Callable[[nn.Module], None],
) -> SideEffects:  # fmt: skip
    """Compares what a pass leaves in a module that has computed others before with what it leaves in a fresh copy.

    Args:
        module: The module.
        loss: Its loss.
        fresh: Both, before the first pass.
        rows: Returns new tensors of inputs and targets each time.
        for_evaluation: Puts a module into the mode in which models are evaluated.
    """

    def passed(mode: Callable[[nn.Module], Any], module: nn.Module, loss: Loss) -> tuple[bool, float]:
        """One pass; whether it draws from torch's generator, and the loss."""
        mode(module)
        before = torch.random.get_rng_state()
        x, y = rows()
        value = float(loss(module(x), y).detach())
        return not torch.equal(before, torch.random.get_rng_state()), value

    def left(module: nn.Module, loss: Loss) -> tuple[bool, float, dict[str, Any]]:
        """Whether evaluations draw, the loss in training, and the attributes after a pass in either mode."""
        with torch.no_grad():
            draws, _ = seeded(0, lambda: passed(for_evaluation, module, loss))
        _, value = seeded(0, lambda: passed(nn.Module.train, module, loss))
        return draws, value, dict(_attributes(module, loss))

    others = _other_generators()
    draws, first, mine = left(module, loss)
    changed = [name for name, part in constants(module).items() if not _same(part, fresh.constants.get(name))]
    _, second, theirs = left(fresh.module, fresh.loss)
    after = _other_generators()
    names = [name for name in mine | theirs if mine.get(name) != theirs.get(name)]
    remembers = not (isclose(first, second, rel_tol=1e-5, abs_tol=1e-7) or isnan(first))
    whose = next((whose for whose in others if others[whose] != after[whose]), "")
    return SideEffects(changed, names, remembers, draws, whose)


def _other_generators() -> dict[str, Any]:
    return {"NumPy": _value(np.random.get_state()), "Python": random.getstate()}


def _attributes(module: nn.Module, loss: Loss) -> Iterator[tuple[str, Any]]:
    """Names and values of all attributes of a module, its parts, their classes and the loss, and of what these use."""
    for name, part in module.named_modules():
        yield from _members(f"{name}." if name else "", part, OF_TORCH)
    yield from _names_outside(module, loss)
    owner = getattr(loss, "__self__", loss)
    if isinstance(owner, nn.Module):
        if owner in module.modules():
            return
        for name, part in (*owner.named_parameters(), *owner.named_buffers()):
            yield f"loss.{name}", _value(part)
        for name, part in owner.named_modules():
            yield from _members(f"loss.{name}." if name else "loss.", part, OF_TORCH)
    elif hasattr(owner, "__dict__"):
        yield from _members("loss.", owner, set())


def _members(prefix: str, thing: Any, left_out: set[str]) -> Iterator[tuple[str, Any]]:
    for cls in type(thing).__mro__[::-1]:
        if not _is_torchs(cls.__module__):
            for name, value in vars(cls).items():
                if not (name.startswith("__") or callable(value) or hasattr(value, "__get__")):
                    yield prefix + name, _value(value)
    for name, value in vars(thing).items():
        if name not in left_out and not _is_function(value):  # TorchScript keeps some, which its copies lack
            yield prefix + name, _value(value)


def _functions(module: nn.Module, loss: Loss) -> Iterator[tuple[str, FunctionType]]:
    """The functions of the loss, of a module and of its parts, and those that they use; with a name of each."""
    owner = getattr(loss, "__self__", loss)
    found: list[tuple[str, Any]] = [("loss", loss)]
    for thing in (*module.modules(), owner):
        for members in (*map(vars, type(thing).__mro__), getattr(thing, "__dict__", {})):
            found += members.items()
    seen = set()
    for name, function in found:
        function = getattr(function, "__func__", function)  # a method has its function here
        if isinstance(function, FunctionType) and function not in seen:
            seen.add(function)
            yield name, function
            found += _used(function).items()


def compiled_function(module: nn.Module, loss: Loss) -> str:
    """The name of a function of `torch.compile` among those that the module or the loss uses; "": none is."""
    return next((name for name, function in _functions(module, loss) if hasattr(function, COMPILED)), "")


def _names_outside(module: nn.Module, loss: Loss) -> Iterator[tuple[str, Any]]:
    """What functions use of enclosing functions and their files; but for objects with attributes, such as loggers."""
    for _, function in _functions(module, loss):
        for name, value in _used(function).items():
            if isinstance(value, Tensor) or not (callable(value) or hasattr(value, "__dict__")):
                yield name, _value(value)


def _used(function: FunctionType) -> dict[str, Any]:
    """Names of enclosing functions and of its file that a function uses, with their values; none for torch's own."""
    if _is_torchs(function.__module__):
        return {}
    try:
        used = inspect.getclosurevars(function)
    except ValueError:  # a name of an enclosing function that was deleted
        return {}
    return {**used.globals, **used.nonlocals}


def _is_torchs(package: str | None) -> bool:
    return (package or "").partition(".")[0] in ("torch", "builtins", "functools")


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, nn.Module)


def _value(value: Any, depth: int = 0) -> Any:
    """What can be compared in place of a value: its type and its content."""
    kind = type(value).__name__
    if depth > MAX_DEPTH or _is_function(value):
        return kind
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_quantized or value.is_meta:
            return kind
        return str(value.dtype), tuple(value.shape), zlib.crc32(to_bytes(value))
    if isinstance(value, torch.Generator):
        return kind, zlib.crc32(to_bytes(value.get_state()))
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.dtype.str, value.shape, zlib.crc32(value.tobytes())
    if isinstance(value, np.random.Generator):
        return kind, _value(value.bit_generator.state, depth + 1)
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, Mapping):
        return kind, [(_value(k, depth + 1), _value(v, depth + 1)) for k, v in value.items()]
    if isinstance(value, list | tuple) or kind == "deque":
        return kind, [_value(each, depth + 1) for each in value]
    if isinstance(value, set | frozenset):
        return kind, sorted(map(repr, value))
    if hasattr(value, "__dict__"):
        return kind, _value(vars(value), depth + 1)
    return kind, re.sub(r"0x[0-9a-fA-F]+", "", repr(value))  # a copy is at another address
