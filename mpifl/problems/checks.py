"""Checks that configuration fields share."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from mpifl.errors import ConfigError


def number(field: str, value: Any, low: float | None = None, strict: bool = False) -> None:
    """Raises ConfigError unless `value` is a finite number >= low (> low if strict)."""
    bound = "" if low is None else f" {'above' if strict else 'of at least'} {low:g}"
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < float("inf"):
        raise ConfigError(field, value, f"a number{bound}")
    if low is not None and not (value > low if strict else value >= low):
        raise ConfigError(field, value, f"a number{bound}")


def whole(field: str, value: Any, low: int, optional: bool = False) -> None:
    """Raises ConfigError unless `value` is a whole number >= low, or None where that is allowed."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigError(field, value, f"a whole number of at least {low}{' or null' if optional else ''}")


def one_of(field: str, value: Any, allowed: Collection[str]) -> None:
    """Raises ConfigError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ConfigError(field, value, f"one of {', '.join(allowed)}")
