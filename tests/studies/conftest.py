"""A small study: two methods on the handwritten digits, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

BASE = """
name: base
seed: 0
problem:   {data: digits, clients: 6, partition: {name: dirichlet, alpha: 0.5, min_samples: 2}, model: {name: logistic}}
algorithm: {name: area, step_size: 10}
clock:     {mode: virtual, delay: {name: exponential, rate: 10}}
stop:      {time: 1}
evaluate:  {every: 0.5}
"""
STUDY = """
name: small
job: base.yaml
axes:
  method:
    AREA:   {algorithm: {name: area, trigger: {every: 2}}, algorithm.step_size: [10, 100]}
    FedAvg: {algorithm: {name: fedavg, cohort: 3}, algorithm.step_size: [0.1, 1]}
  clock.delay.spread: [0, 5]
trials: 2
"""


def written(folder: Path, more: str = "", *changes: tuple[str, str], base: str = BASE, study: str = STUDY) -> Path:
    """Writes base.yaml and study.yaml, with changes and further lines; returns the study's path."""
    text = f"{study}output: {folder}/out/${{name}}\n{more}"
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "base.yaml").write_text(base)
    (folder / "study.yaml").write_text(text)
    return folder / "study.yaml"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    return partial(written, tmp_path)
