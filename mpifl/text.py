"""Durations, counts and numbers as text, how a sentence begins, and a bar for what takes long."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeVar

Item = TypeVar("Item")


def format_duration(seconds: float) -> str:
    """A duration in its two largest units: 45 s, 3 min 20 s, 2 h 5 min, 3 days 4 h."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} days {hours % 24} h"


def format_count(number: int, noun: str) -> str:
    """A number of things: 1 pair, 2,000 pairs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def list_numbers(noun: str, numbers: Collection[int]) -> str:
    """Things by their numbers: rank 1; ranks 1, 2, 5."""
    return f"{noun}{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def neighbours(number: int, found: Iterable[int]) -> str:
    """Of some numbers in rising order the last one below `number` and the first one above it, as text: 2 or 4."""
    numbers = [*found]
    lower, upper = [k for k in numbers if k < number], [k for k in numbers if k > number]
    return " or ".join(map(str, [*lower[-1:], *upper[:1]]))


def divisors(number: int) -> list[int]:
    """The divisors of a number, in rising order."""
    return [k for k in range(1, number + 1) if number % k == 0]


def capitalised(text: str) -> str:
    """The text with a capital as its first letter; the others stay as they are."""
    return f"{text[:1].upper()}{text[1:]}"


def progress(items: Iterable[Item], what: str, total: int | None = None) -> Iterable[Item]:
    """Yields the items; on a terminal it shows after 2 s how many of them are done.

    total: their number, where they have no length.
    """
    from tqdm import tqdm

    shown: Iterable[Item] = tqdm(items, what, total, disable=None, delay=2.0, leave=False)
    return shown
