"""A small suite of one scenario, in place of the package's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mpifl.tools.arena import suite

SUITE = """\
name: arena-1
configurations: 2
tuning_seeds: [1000]
reporting_seeds: [0, 1]
step_size: {from: 0.01, to: 0.3}
scenarios:
  small: {tier: quick, task: quadratic, partition: drift, delay: rates spread 4x, target: 3.6}
  large: {tier: standard, task: quadratic, partition: drift, delay: rates spread 4x, target: 3.6}
"""
METHODS = """\
FedAvg: {algorithm: {name: fedavg}, space: {local_steps: [2]}}
ASGD: {algorithm: {name: async-sgd}}
FedBuff: {algorithm: {name: fedbuff, trigger: {every: 2}}}
"""
CLAIMS = """\
steps: {paper: A, where: Table 1, says: "1 and 2", better: ASGD, worse: FedAvg, measure: loss, scenarios: [small]}
"""
JOB = """\
# A small scenario
name: small
seed: 0
problem:   {clients: 4, model: {name: quadratic, dim: 3, condition: 4, sigma: 0.1}}
algorithm: fedavg
clock:     {mode: virtual, delay: {name: speed, compute: 1, exchange: 1, spread: 4, noise: exponential}}
stop:      {time: 20}
evaluate:  {every: 0.4}
"""
MINE = """\
from dataclasses import dataclass, field

from mpifl.algorithms import LocalTraining, Message, State, Trigger, Update

ARENA = {"space": {"local_steps": [1, 2]}}


@dataclass(frozen=True)
class Mine(LocalTraining):
    trigger: Trigger = field(default_factory=lambda: Trigger(every=1))

    def init_server(self, x0, clients):
        return State(x=x0.copy())

    def message(self, server, i):
        return Message((server.x,))

    def receive(self, server, i, update, staleness):
        server.x = server.x + 0.5 * (update.vectors[0] - server.x)

    def aggregate(self, server):
        pass

    def train(self, client, message, objective):
        y, steps, _ = self.solve(objective, message.vectors[0], message.round)
        return Update((y,), steps)
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the small suite, below the working directory, which has `arena_method.py`."""
    here = tmp_path_factory.mktemp("arena")
    folder = here / "suite"
    folder.mkdir()
    files = {"suite.yaml": SUITE, "methods.yaml": METHODS, "claims.yaml": CLAIMS, "small.yaml": JOB}
    for name, text in (files | {"large.yaml": JOB.replace("small", "large")}).items():
        (folder / name).write_text(text)
    (here / "arena_method.py").write_text(MINE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suite, "FOLDER", folder)
        patch.chdir(here)
        patch.syspath_prepend(here)
        yield folder
