"""Durations and counts as text, and how a sentence begins."""

from __future__ import annotations


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
    """A number of things: 1 pair, 2 pairs."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def capitalised(text: str) -> str:
    """The text with a capital as its first letter; the others stay as they are."""
    return f"{text[:1].upper()}{text[1:]}"
