"""The examples of `examples/own_training`, as written, under mpirun; each is skipped where its packages are missing."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from mpifl import open_run
from tests.mpi.conftest import MPIFL, Start, start
from tests.mpi.files import attribute, differing
from tests.peers.environments import folder, missing

__all__ = ["start"]  # the fixture

EXAMPLES = Path(__file__).parents[1] / "examples"
PACKAGES = {"sklearn": ["sklearn"], "jax": ["jax"], "lora": ["peft", "transformers", "accelerate"]}


def prepare(name: str, here: Path) -> None:
    """Copies the examples, and lets Flower be found where `make peers` has put it. Skips where packages are missing."""
    if lacking := [package for package in PACKAGES.get(name, []) if find_spec(package) is None]:
        pytest.skip(f"{', '.join(lacking)} not installed: pip install -e '.[{name}]'")
    shutil.copytree(EXAMPLES, here / "examples")
    if name == "flower":
        if reason := missing("flower"):
            pytest.skip(reason)
        for package in folder("flower").iterdir():
            (here / package.name).symlink_to(package)


@pytest.mark.long
@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "ranks", "metric", "chance", "learnt"),
    [
        ("sklearn", 5, "test_accuracy", 0.1, 0.85),  # ten digits
        ("jax", 3, "test_accuracy", 0.1, 0.8),
        ("flower", 3, "test_accuracy", 0.1, 0.7),
        ("lora", 4, "train_loss", 3.47, 2.6),  # log 32: 32 words
    ],
)
def test_an_example_learns_on_several_ranks(
    start: Start, tmp_path: Path, name: str, ranks: int, metric: str, chance: float, learnt: float
) -> None:
    """From chance on; a contact repeats bit for bit, and one process has the same run."""
    prepare(name, tmp_path)
    job = f"examples/own_training/{name}.yaml"
    done = start(ranks, *MPIFL, "run", job).end(280)
    assert done.code == 0, str(done)
    facts = json.loads(attribute(tmp_path / f"results/{name}.h5", "compute"))
    assert facts[1]["repeats"] is True, facts
    values = open_run(tmp_path / f"results/{name}.h5").evaluations[metric].to_numpy()
    assert values[0] == pytest.approx(chance, rel=0.6) and (values[-1] - learnt) * (learnt - chance) > 0, values
    done = start(0, *MPIFL, "run", job, "output=alone.h5").end(280)
    assert done.code == 0, str(done)
    assert not differing(tmp_path / f"results/{name}.h5", tmp_path / "alone.h5")


def test_an_example_has_fewer_than_60_lines() -> None:
    for file in (EXAMPLES / "own_training").glob("*.py"):
        assert len(file.read_text("utf-8").splitlines()) < 60, file
