"""The two tiers of the tests: `make test` leaves out what carries the mark `long`, `make test-all` nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("short", max_examples=20)
settings.register_profile("full", max_examples=100)


def long(*values: Any) -> Any:
    """A set of values for `parametrize` that is of the long tier."""
    return pytest.param(*values, marks=pytest.mark.long)


def parameters(values: Iterable[Any], short: Callable[[Any], object] | Iterable[Any]) -> list[Any]:
    """The values for `parametrize`; those that are not in `short` (or for which it is false) are of the long tier."""
    keep = short if callable(short) else [*short].__contains__
    return [v if keep(v) else long(*(v if isinstance(v, tuple) else [v])) for v in values]


def examples(full: int) -> int:
    """The number of a test's trials: `full` with --hypothesis-profile=full, a fifth of that without."""
    return max(10, full * settings.default.max_examples // 100)


def full() -> bool:
    """Whether all examples are tried."""
    return examples(100) == 100


def selected(request: pytest.FixtureRequest, name: str) -> list[Any]:
    """The values of a parameter in those tests of the fixture's module that run: what the fixture must prepare."""
    items = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    return [*dict.fromkeys(item.callspec.params[name] for item in items if name in item.callspec.params)]
