"""The examples of the README and the first pages do what the pages say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from mpifl.algorithms.participation import Trigger
from tests.docs.pages import ROOT, Block, blocks
from tests.quadratic_runs import quadratics, run

DOCS = ROOT / "docs"


def only(page: Path, text: str) -> Block:
    """The one block of a page that contains the text."""
    (block,) = (block for block in blocks(page) if text in block.text)
    return block


def test_the_algorithm_in_one_file_finds_the_optimum_of_equal_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's class is a complete file: nothing else is defined for it."""
    module = ModuleType("mean")
    monkeypatch.setitem(sys.modules, "mean", module)  # where the types of its fields are looked up
    exec(only(ROOT / "README.md", "class Mean").text, vars(module))
    algorithm = module.Mean(step_size=0.5, trigger=Trigger(every=2))
    log = run(algorithm, quadratics((1, 1), (3, 3)), [0, 1] * 200)
    np.testing.assert_allclose(log.server.x, 3, atol=1e-12)


def test_the_tutorial_on_data_ends_as_it_says(tmp_path: Path) -> None:
    page = DOCS / "tutorials" / "own-problem.md"
    for name in ("make_data.py", "hospitals.yaml"):
        (block,) = (b for b in blocks(page) if (b.action, b.argument) == ("file", name))
        (tmp_path / name).write_text(block.text)
    ends = r"([\d,]+) updates, and ends with a test accuracy of ([\d.]+\d)"
    ((updates, accuracy),) = re.findall(ends, page.read_text())
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "make_data.py"], cwd=tmp_path, check=True)
    command = [sys.executable, "-m", "mpifl", "run", "hospitals.yaml"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"{updates} updates" in done.stdout
    assert f"test accuracy {100 * float(accuracy):.1f}" in done.stdout
