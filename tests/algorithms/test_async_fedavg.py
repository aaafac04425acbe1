"""AS-FedAvg: its reading of the buffer, its variants, and its bias to fast clients."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.async_fedavg import AsyncFedAvg
from mpifl.algorithms.participation import Trigger
from tests.quadratic_runs import close, quadratics, random_quadratics, run


def plain(rule: str = "replace", every: int = 1, reply: str = "before", step: float = 0.1, **more: int) -> AsyncFedAvg:
    trigger = Trigger(every=every)
    return AsyncFedAvg(step_size=step, step_weights="one", rule=rule, trigger=trigger, reply=reply, **more)  # type: ignore[arg-type]


RULES = ("replace", "delta-over-n", "delta-over-buffer", "mix-over-n", "server-memory")


@pytest.mark.parametrize("reply", ["before", "after"])
@pytest.mark.parametrize("rule", RULES)
def test_variants_follow_their_formulas(rule: str, reply: str) -> None:
    """By hand, in a stale order: of three updates; of one, where each client gets its own model back (ASFEDAVG.3)."""
    clients, every, n = random_quadratics(4, 4), 3 if reply == "before" else 1, 4
    order = [0, 1, 0, 0, 3, 2, 1, 1, 0, 2, 3, 3, 0, 1, 2]
    log = run(plain(rule, every, reply, local_steps=2), clients, order, x0=1.0)
    x = np.ones(3)
    bases, buffer, last = [x] * n, [], [x] * n
    models = []
    for i in order:
        w = clients[i].steps(bases[i], 0.1, 2)
        buffer.append((w, bases[i]))
        last[i] = w
        if reply == "before":
            bases[i] = x
        if len(buffer) == every:
            x = {
                "replace": np.mean([w for w, _ in buffer], axis=0),
                "delta-over-n": x + sum(w - b for w, b in buffer) / n,
                "delta-over-buffer": x + sum(w - b for w, b in buffer) / every,
                "mix-over-n": x + sum(w - x for w, _ in buffer) / n,
                "server-memory": np.mean(last, axis=0),
            }[rule]
            buffer = []
            models.append(x)
        if reply == "after":
            bases[i] = x
    close(log.models, models)


@pytest.mark.parametrize("rule", RULES)
def test_an_empty_buffer_changes_nothing(rule: str) -> None:
    """A timed aggregation that finds no update leaves the model as it is."""
    algorithm = AsyncFedAvg(step_size=0.5, step_weights="one", rule=rule, trigger=Trigger(period=0.25))
    log = run(algorithm, quadratics([1], [1]), [0, 0, 0, 0])
    assert len(log.models) == 15  # at 0.25 .. 3.75; updates at 1, 2, 3
    close(log.models[4], log.models[6])
    assert log.models[10] != log.models[11]
