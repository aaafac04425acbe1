"""What becomes of clients that fail: the policy, and what is refused of them."""

from __future__ import annotations

from dataclasses import dataclass

from mpifl.errors import at_least, choice


@dataclass(frozen=True)
class Faults:
    """What becomes of clients that fail."""

    lost: str = "freeze"
    """a client that is lost: freeze, the run goes on without it; rehost, another rank hosts it; stop, the run fails"""
    norm: float | None = None
    """an update with a larger Euclidean norm is refused; null: only those that are not finite, or of another shape"""
    refusals: int = 3
    """updates refused in a row after which a client is set aside; moves in a row after which one is moved no more"""
    patience: float | None = None
    """seconds of wall time that a client may take for an answer, its emulated delay not counted; null: any time"""

    def __post_init__(self) -> None:
        choice("lost", self.lost, ("freeze", "rehost", "stop"))
        at_least("norm", self.norm, 0, strict=True)
        at_least("refusals", self.refusals, 1)
        at_least("patience", self.patience, 0, strict=True)
