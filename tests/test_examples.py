"""The examples do what their README says, as it says it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from mpifl import open_run
from mpifl.cli import main
from tests.mpi.conftest import MPIFL, Start, start
from tests.mpi.files import attribute, differing
from tests.peers.environments import folder as peer_folder
from tests.peers.environments import missing

__all__ = ["start"]  # the fixture
ROOT = Path(__file__).parents[1]
README = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", README, re.S) for line in block.splitlines()]


def learns(path: Path) -> None:
    """Ten classes: from about 1 in 10 to what the README states."""
    run = open_run(path)
    accuracy = run.evaluations["test_accuracy"].to_numpy()
    assert run.attrs["status"] == "completed" and run.attrs["clients"] == 8
    assert accuracy[0] < 0.2 and accuracy[-1] > 0.9
    losses = run.evaluations["train_loss"].to_numpy()
    assert losses[0] == pytest.approx(2.3, abs=0.05) and losses[-1] < 0.2  # log 10


def test_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "examples/own.yaml"]) == 0
    learns(tmp_path / "results/own.h5")


@pytest.mark.long
@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_shown(start: Start, tmp_path: Path) -> None:
    """As written, one after the other: those of the root, then those of a folder with copies of the two files."""
    pytest.importorskip("torch")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in ("own.py", "own.yaml"):
        shutil.copy(ROOT / "examples" / name, mine)
    assert len(COMMANDS) == 6
    for command in COMMANDS:
        ranks, words = re.fullmatch(r"(?:mpirun --map-by :oversubscribe -n (\d+) )?mpifl (.*)", command).groups()
        folder = mine if " own.yaml " in command else tmp_path
        done = start(int(ranks or 0), *MPIFL, *shlex.split(words), cwd=folder).end(300)
        assert done.code == 0 and not done.err, str(done)
    learns(tmp_path / "results/own.h5")
    learns(mine / "results/own.h5")
    learns(tmp_path / "results/own-32.h5")
    assert not differing(tmp_path / "results/own.h5", mine / "results/own.h5")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_a_study_becomes_a_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command as written: a page with two figures, a table and two sentences, no box of which is overfull."""
    shutil.copytree(ROOT / "examples" / "paper", tmp_path / "paper")
    monkeypatch.chdir(tmp_path / "paper")
    block = README.partition("## From a study to a paper")[2].partition("```text\n")[2].partition("```")[0]
    for command in block.splitlines():
        program, *words = shlex.split(command)
        if program == "mpifl":
            assert main(words) == 0, command
        else:
            done = subprocess.run(
                [program, "-interaction=nonstopmode", *words], capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, done.stdout
    assert "Overfull" not in done.stdout and "undefined" not in done.stdout, done.stdout
    assert len((tmp_path / "paper/comparison/sentences.tex").read_text().splitlines()) == 2


PACKAGES = {"sklearn": ["sklearn"], "jax": ["jax"], "lora": ["peft", "transformers", "accelerate"]}


def prepare(name: str, here: Path) -> None:
    """Copies the examples, and lets Flower be found where `make peers` has put it. Skips where packages are missing."""
    if lacking := [package for package in PACKAGES.get(name, []) if find_spec(package) is None]:
        pytest.skip(f"{', '.join(lacking)} not installed: pip install -e '.[{name}]'")
    shutil.copytree(ROOT / "examples", here / "examples")
    if name == "flower":
        if reason := missing("flower"):
            pytest.skip(reason)
        for package in peer_folder("flower").iterdir():
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
    for file in (ROOT / "examples" / "own_training").glob("*.py"):
        assert len(file.read_text("utf-8").splitlines()) < 60, file
