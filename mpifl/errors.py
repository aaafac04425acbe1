"""The one error a user causes: a key, its value, and what would be right; and the checks that raise it."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

LARGEST = 1_000_000_000  # clients, or entries of a vector: two such sizes multiplied are still a number of bytes


class ConfigError(ValueError):
    """Bad input: command line, job, data or file. Printed as one line; the exit code is 2.

    `key` is the configuration key (or the kind of file), `value` what was given, `expected` what would be right.
    A part of the configuration that does not know where it stands raises with its own field's name; whoever read it
    adds the section with `under`.
    """

    def __init__(self, key: str, value: object, expected: str) -> None:
        self.key, self.value, self.expected = key, value, expected
        super().__init__(key, value, expected)

    def __str__(self) -> str:
        text = f"{self.key}={self.value}: {self.expected}"
        return " ".join(text.split())

    def under(self, section: str) -> ConfigError:
        """The same error with its key placed inside `section`."""
        return ConfigError(f"{section}.{self.key}" if self.key else section, self.value, self.expected)


@contextmanager
def inside(section: str) -> Iterator[None]:
    """Places the keys of the ConfigErrors of a block inside `section`."""
    try:
        yield
    except ConfigError as error:
        raise error.under(section) from None


class RunFailed(RuntimeError):
    """The run could not go on (a client raised, a rank was lost); the exit code is 3."""


def choice(field: str, value: Any, allowed: Collection[str]) -> None:
    """Raises ConfigError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ConfigError(field, value, f"one of {', '.join(allowed)}")


def at_least(field: str, value: float | None, low: float, strict: bool = False) -> None:
    """Raises ConfigError unless `value` is None or a number >= low (> low if strict)."""
    if value is not None and not (value > low if strict else value >= low):
        raise ConfigError(field, value, f"a number {_bound(low, strict)}")


def number(field: str, value: Any, low: float, strict: bool = False) -> None:
    """Raises ConfigError unless `value` is a finite number >= low (> low if strict)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < float("inf"):
        raise ConfigError(field, value, f"a number {_bound(low, strict)}")
    at_least(field, value, low, strict)


def whole(field: str, value: Any, low: int, optional: bool = False, high: int = 2**63 - 1) -> None:
    """Raises ConfigError unless `value` is a whole number from low to high, or None where that is allowed."""
    if optional and value is None:
        return
    null = " or null" if optional else ""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigError(field, value, f"a whole number of at least {low}{null}")
    if value > high:
        raise ConfigError(field, value, f"a whole number of at most {high}{null}")


def _bound(low: float, strict: bool) -> str:
    return f"{'above' if strict else 'of at least'} {low:g}"


def described(rank: int, error: BaseException) -> str:
    """What a client raised, where: several lines."""
    where = f"raised on rank {rank} on {socket.gethostname()} (process {os.getpid()}):\n"
    return where + "".join(traceback.format_exception(error)).rstrip()


def brief(text: str) -> str:
    """Of several lines, as `described` writes them, the first and the last in one."""
    lines = text.splitlines() or [""]
    return " ".join(dict.fromkeys([lines[0], lines[-1]]))
