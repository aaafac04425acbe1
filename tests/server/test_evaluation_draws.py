"""Modules that draw in evaluation too: draws belong to the seed and the model's version, and training has its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpifl
from mpifl import problems
from mpifl.problems import ProblemConfig
from mpifl.runfile import Run

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.functional import mse_loss  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

ENTRY = f"{__name__}:entry"


class Noisy(nn.Module):
    """Adds noise to w x, in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))

    def forward(self, x: Any) -> Any:
        return self.w * x + torch.randn_like(x)


def entry(rows: int = 40) -> Any:
    data = [TensorDataset(torch.zeros(rows, 2), torch.full((rows, 2), 0.5)) for _ in range(3)]
    return Noisy(), mse_loss, data, data[0]


def run(path: Path, **more: Any) -> Run:
    given: dict[str, Any] = {
        "name": "draws", "seed": 1, "problem": {"entry": ENTRY, "batch_size": 4}, "stop": {"updates": 24},
        "algorithm": {"name": "fedavg", "local_steps": 3, "step_size": 0.1}, "evaluate": {"updates": 6},
        "clock": {"mode": "virtual", "delay": {"name": "exponential", "rate": 10}}, "output": str(path),
    }  # fmt: skip
    mpifl.run({**given, **more}).close()
    return mpifl.open_run(path)


def test_an_evaluation_has_the_draws_of_its_seed_and_version() -> None:
    """With rows that are 0 the outputs are the noise: the mean of (noise - 1/2)^2 is 5/4."""
    problem = problems.load(ProblemConfig(entry=ENTRY, options={"rows": 4000}))
    losses = {}
    for seed, version in ((1, 0), (1, 1), (2, 0), (1, 0)):
        x = problem.initial(seed)
        torch.manual_seed(len(losses))  # whatever was drawn before
        problem.begin_evaluation(version)
        losses.setdefault((seed, version), []).append(problem.evaluate(x)["test_loss"])
    assert losses[1, 0][0] == losses[1, 0][1]
    assert len({found[0] for found in losses.values()}) == 3
    # 8,000 draws: var (noise - 1/2)^2 = 2 + 4/4 = 3, so that the standard deviation of the mean is 0.019
    assert [found[0] for found in losses.values()] == pytest.approx([5 / 4] * 3, abs=0.08)


def test_neither_evaluations_nor_training_change_the_others_draws(tmp_path: Path) -> None:
    often, rarely = run(tmp_path / "often.h5", evaluate={"updates": 3}), run(tmp_path / "rarely.h5")
    again = run(tmp_path / "again.h5", evaluate={"updates": 3})
    for other in (rarely, again):
        np.testing.assert_array_equal(often.updates.norm, other.updates.norm)
        np.testing.assert_array_equal(often.model, other.model)
    columns = ["train_loss", "test_loss"]
    np.testing.assert_array_equal(often.evaluations[columns], again.evaluations[columns])
    few = rarely.evaluations.set_index("version")[columns]
    np.testing.assert_array_equal(often.evaluations.set_index("version").loc[few.index, columns], few)
    assert often.evaluations.test_loss.nunique() == 9  # of nine versions


def test_a_replay_and_the_real_clock(tmp_path: Path) -> None:
    clock = {"mode": "real"}
    torch_options = {"batched": False, "deterministic": True, "threads": 1}
    first = run(tmp_path / "real.h5", clock=clock, problem={"entry": ENTRY, "batch_size": 4, "torch": torch_options})
    mpifl.replay(tmp_path / "real.h5", output=str(tmp_path / "again.h5"), trust=True).close()
    with mpifl.open_run(tmp_path / "again.h5") as again:
        np.testing.assert_array_equal(first.model, again.model)
        np.testing.assert_array_equal(first.evaluations.test_loss, again.evaluations.test_loss)
