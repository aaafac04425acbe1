"""A small job."""

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
