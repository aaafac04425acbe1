"""Claims of papers about which of two methods does better, tested on the arena's results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from mpifl.config import read
from mpifl.config.schema import Reader
from mpifl.config.types import Config
from mpifl.errors import inside
from mpifl.tools.arena import statistics, suite
from mpifl.tools.arena.table import Row


@dataclass(frozen=True)
class Claim(Config):
    """A claim of the file claims.yaml."""

    paper: str
    where: str
    """section, figure or table"""
    says: str
    """the title or a sentence, quoted; else the compared numbers, with the step size of each in parentheses"""
    better: str
    worse: str
    """the method that is claimed to be better, and the other one, as the suite names them"""
    measure: Literal["loss", "time", "accuracy"]
    scenarios: list[str] = field(default_factory=list)
    """those of the suite with delays and a partition of the claim's kind"""
    lacks: str = ""
    """what the suite lacks to test it, where it has no such scenario"""


class ClaimTest(NamedTuple):
    """The test of a claim in a scenario."""

    claim: Claim
    scenario: str
    """empty: the results have none of the claim's scenarios"""
    ahead: np.ndarray
    """(seeds,) by how much the better method is ahead"""
    verdict: str


def load_claims() -> list[Claim]:
    """The claims of the suite. Raises ConfigError."""
    claims = []
    for name, section in read.read_yaml(suite.FOLDER / "claims.yaml", "claims").items():
        with inside(f"claims.{name}"):
            claims.append(Reader(Claim, section, {}).read())
    return claims


def judge(rows: Sequence[Row], claims: Sequence[Claim]) -> Iterator[ClaimTest]:
    """The tests of the claims, one in each scenario that has reporting runs of both methods."""
    have = {(row.scenario, row.method) for row in rows if row.role == "reporting"}
    for claim in claims:
        tested = [name for name in claim.scenarios if {(name, claim.better), (name, claim.worse)} <= have]
        for name in tested:
            ahead = statistics.ahead(*statistics.scores(rows, claim.measure, [name], [claim.better, claim.worse])[0])
            yield ClaimTest(claim, name, ahead, statistics.verdict(ahead))
        if not tested:
            yield ClaimTest(claim, "", np.empty(0), "not tested")
