"""An installed wheel has the papers' studies and published numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_reproduce_works_from_an_installed_wheel(tmp_path: Path) -> None:
    """Built from a clean copy, installed without dependencies, run in an empty folder."""
    pytest.importorskip("setuptools", "77")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("mpifl", "jobs", "pyproject.toml", "README.md", "LICENSE"):
        subprocess.run(["cp", "-r", str(ROOT / name), str(source)], check=True)
    wheel = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    subprocess.run([sys.executable, "-c", wheel], cwd=source, check=True, timeout=120, stdout=subprocess.DEVNULL)
    (built,) = (source / "dist").glob("*.whl")
    target, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*install, str(built)], check=True, timeout=120)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    code = "import mpifl; from mpifl.cli import main; print(mpifl.__file__); raise SystemExit(main(['reproduce']))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=empty, env=environment, timeout=120, capture_output=True, text=True
    )
    assert run.returncode == 0 and run.stdout.startswith(str(target)) and "area/table3" in run.stdout, run.stderr
