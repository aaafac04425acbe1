"""Types of configuration fields: the bounds and the allowed values of a field are part of its type.

    step_size: PositiveFloat = 0.1
    reply: Literal["before", "after"] = "before"
    share: Annotated[float, Bounds(above=0, at_most=1)] = 1.0

`check_fields` checks them wherever a value comes from: the reader calls it for a job, and the constructor of every
`Config` for values given in Python. `describe` writes a type as text, for errors and for `mpifl list`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Annotated, Any, Literal

from mpifl.errors import ConfigError

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
LARGEST = 1_000_000_000  # largest number of clients, or of entries of a vector; products of two fit into 64 bits

NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "text", type(None): "null"}
PLURALS = {"a number": "numbers", "an integer": "integers", "text": "texts"}


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The interval of a number, for `Annotated`; at most one lower and one upper end."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def contain(self, value: Any) -> bool:
        """Whether the value lies in the interval; nan lies in none."""
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        if self.at_least is not None and self.at_most is not None:
            return f"from {_number(self.at_least)} to {_number(self.at_most)}"
        ends = (("of at least", self.at_least), ("above", self.above), ("up to", self.at_most), ("below", self.below))
        return " and ".join(f"{word} {_number(end)}" for word, end in ends if end is not None)


PositiveInt = Annotated[int, Bounds(at_least=1)]
NonNegativeInt = Annotated[int, Bounds(at_least=0)]
Size = Annotated[int, Bounds(at_least=1, at_most=LARGEST)]
PositiveFloat = Annotated[float, Bounds(above=0)]
NonNegativeFloat = Annotated[float, Bounds(at_least=0)]
Seconds = Annotated[float, Bounds(at_least=0, at_most=1e9)]  # 30 years: sums of times stay finite
PositiveSeconds = Annotated[float, Bounds(above=0, at_most=1e9)]
Fraction = Annotated[float, Bounds(at_least=0, at_most=1)]
PositiveFraction = Annotated[float, Bounds(above=0, at_most=1)]


class Config:
    """Base of the configuration's dataclasses: whoever constructs one, its fields are within their types' bounds.

    A `__post_init__` of a subclass begins with `super().__post_init__()`.
    """

    def __post_init__(self) -> None:
        check_fields(type(self), vars(self))


def check_fields(cls: type, values: Mapping[str, Any]) -> None:
    """Raises ConfigError, with the field as its key, for the first of `values` that is not what its type allows.

    Only types with bounds or allowed values are checked: the others say nothing about the value.
    """
    for name, hint in _constrained(cls).items():
        if name in values:
            _check(name, hint, values[name])


def _check(key: str, hint: Any, value: Any) -> None:
    if any(_admits(member, value) for member in members(hint)):
        if isinstance(value, int) and abs(value) > INT64_MAX:
            raise ConfigError(key, value, "too large", f"an integer of at most {INT64_MAX}")
        return
    lists = [m for m in members(hint) if typing.get_origin(m) in (list, tuple)]
    if lists and isinstance(value, list | tuple):
        item = typing.get_args(lists[0])[0]
        for k, each in enumerate(value):
            _check(f"{key}[{k}]", item, each)
    raise wrong_value(key, value, value, describe(hint))


def check_length(key: str, value: object, clients: int, expected: str = "one number, or one for each client") -> None:
    """Raises ConfigError for a list that has not one entry for each client."""
    if isinstance(value, list | tuple) and len(value) != clients:
        raise ConfigError(key, f"{len(value)} values", f"there are {clients} clients", expected)


def wrong_value(key: str, value: object, shown: object, expected: str) -> ConfigError:
    """The error for a value of another type; a number in quotes, as from the environment, is shown as text."""
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d{1,30}(\.\d*)?", value):
        return ConfigError(key, repr(value), "this is text", expected)
    return ConfigError(key, shown, "not valid", expected)


def _admits(hint: Any, value: Any) -> bool:
    """Whether the value is one of a type that is no union."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return any(type(value) is type(allowed) and value == allowed for allowed in arguments)
    if origin is Annotated:
        return _admits(arguments[0], value) and all(b.contain(value) for b in arguments[1:] if isinstance(b, Bounds))
    if origin in (list, tuple):
        return isinstance(value, list | tuple) and all(_admits(m, v) for v in value for m in members(arguments[0]))
    if hint is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if hint is float:  # infinity is allowed in Python; no job file can have it
        return isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)
    return hint is Any or isinstance(value, hint)


# -- what a type says --------------------------------------------------------------------------------------------------
def describe(hint: Any) -> str:
    """What values a type allows: `a number above 0 or null`, `one of a, b`, `a only`; empty for no plain value."""
    if typing.get_origin(hint) is Literal and len(typing.get_args(hint)) == 1:
        return f"{_describe(hint)} only"
    said = [_describe(member) for member in members(hint)]
    return (", or " if any(" and " in text for text in said) else " or ").join(filter(None, said))


def _describe(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}" if len(arguments) > 1 else str(arguments[0])
    if origin is Annotated:
        return " ".join([_describe(arguments[0]), *(str(b) for b in arguments[1:] if isinstance(b, Bounds))])
    if origin in (list, tuple):
        item = describe(arguments[0])
        for one, many in PLURALS.items():
            item = item.replace(one, many, 1)
        return f"a list of {item}" if item else "a list"
    return NAMES.get(hint, "")


def members(hint: Any) -> list[Any]:
    """The types of a union, or the one type."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return list(typing.get_args(hint))
    return [hint]


def plain_type(hint: Any) -> Any:
    """The type without its bounds or allowed values."""
    if typing.get_origin(hint) is Literal:
        return type(typing.get_args(hint)[0])
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


@functools.cache
def hints(cls: type) -> dict[str, Any]:
    """The types of a class' fields, as objects, bounds included."""
    return typing.get_type_hints(cls, include_extras=True)


@functools.cache
def _constrained(cls: Any) -> dict[str, Any]:
    """The fields whose types have bounds or allowed values."""
    return {f.name: hints(cls)[f.name] for f in dataclasses.fields(cls) if f.init and has_bounds(hints(cls)[f.name])}


def has_bounds(hint: Any) -> bool:
    """Whether a type has bounds or allowed values."""
    if typing.get_origin(hint) in (Literal, Annotated):
        return True
    return any(has_bounds(argument) for argument in typing.get_args(hint))


def _number(value: float) -> str:
    return "2**63 - 1" if value == INT64_MAX else f"{value:.10g}"
