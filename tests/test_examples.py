"""The examples do what their README says, as it says it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from mpifl import open_run
from mpifl.cli import main
from tests.mpi.conftest import MPIFL, Start, start
from tests.mpi.files import differing

__all__ = ["start"]  # the fixture
pytest.importorskip("torch")

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
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "examples/own.yaml"]) == 0
    learns(tmp_path / "results/own.h5")


@pytest.mark.long
@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_command_shown(start: Start, tmp_path: Path) -> None:
    """As written, one after the other: those of the root, then those of a folder with copies of the two files."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in ("own.py", "own.yaml"):
        shutil.copy(ROOT / "examples" / name, mine)
    assert len(COMMANDS) == 6
    for command in COMMANDS:
        ranks, words = re.fullmatch(r"(?:mpirun --map-by :oversubscribe -n (\d+) )?mpifl (.*)", command).groups()
        folder = mine if " own.yaml " in command else tmp_path
        done = start(int(ranks or 0), *MPIFL, *shlex.split(words), cwd=folder).end(120)
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
