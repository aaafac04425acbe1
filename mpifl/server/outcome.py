"""How a run ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """How a run ended, on rank 0."""

    output: str
    """the run file"""
    status: str
    """completed, failed or interrupted, as in the run file"""
    code: int
    """the exit code: 0, 3, or 130 or 143 after a signal"""
    summary: str
    """the run in one line"""
    error: str = ""
    """why it failed, or why an interrupted run was not saved"""
    stuck: frozenset[int] = frozenset()
    """ranks that did not end"""
    wall_seconds: float | None = None
    """wall time of the run, its earlier sessions included; None where it did not begin"""
