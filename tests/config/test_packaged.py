"""The package's jobs where there is no checkout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpifl.config import read
from mpifl.config.packaged import JOBS, find_file


def test_jobs_of_the_package_are_found_unless_there_is_one_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_file("jobs/area/mnist-virtual.yaml") == JOBS / "area" / "mnist-virtual.yaml"
    for name in ("quickstart.yaml", "jobs", "jobs/area", "jobs/none.yaml", "jobs/../mpifl/py.typed", "/jobs/x.yaml"):
        assert find_file(name) == Path(name)
    assert read.load("jobs/quickstart.yaml").name == "quickstart"
    assert printed("list", "jobs", "quickstart").out.startswith("jobs/quickstart.yaml  Asynchronous AREA")

    (tmp_path / "jobs").mkdir()
    text = (JOBS / "quickstart.yaml").read_text()
    (tmp_path / "jobs" / "quickstart.yaml").write_text(f"# mine\n{text.replace('name: quickstart', 'name: mine', 1)}")
    assert find_file("jobs/quickstart.yaml") == Path("jobs/quickstart.yaml")
    assert read.load("jobs/quickstart.yaml").name == "mine"
    assert printed("list", "jobs", "quickstart").out == "jobs/quickstart.yaml  mine\n"
