"""A small job, and a user's own algorithm whose client 1 fails."""

from __future__ import annotations

from typing import Any

JOB: dict[str, Any] = {
    "name": "small",
    "seed": 3,
    "problem": {"clients": 6, "model": {"name": "quadratic", "dim": 20, "sigma": 0.1}},
    "algorithm": {"name": "area", "step_size": 0.05, "trigger": {"every": 3}},
    "clock": {"mode": "virtual", "delay": {"name": "exponential", "rate": 10}},
    "stop": {"updates": 60},
    "evaluate": {"updates": 20},
}
REAL = {"mode": "real", "delay": {"name": "exponential", "rate": 50}}
FAILING = '''
from dataclasses import dataclass
from mpifl.algorithms.area import Area

@dataclass(frozen=True)
class Failing(Area):
    """AREA whose clients raise in their round 3, or leave before the run."""

    leaves: bool = False
    """by sys.exit"""

    def init_client(self, x0, i):
        if self.leaves:
            raise SystemExit(7)
        return super().init_client(x0, i)

    def train(self, client, message, objective):
        if message.round == 3:
            raise RuntimeError("the rule broke")
        return super().train(client, message, objective)
'''
