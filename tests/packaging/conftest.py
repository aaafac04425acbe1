"""Builds the package from a copy of the checkout: a build leaves files in its folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = "9.8.7"  # of the copy's tag


def build(what: str, source: Path, folder: Path) -> Path:
    """A `wheel` or an `sdist` of the source, made by the build backend that pip calls."""
    code = f"from setuptools import build_meta; build_meta.build_{what}({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, timeout=120, stdout=subprocess.DEVNULL)
    (built,) = folder.glob("*.whl" if what == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout's files, as a repository of its own with the tag of a version."""
    folder = tmp_path_factory.mktemp("source")
    list_files = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(list_files, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no checkout: git does not know which files belong to it")
    for name in filter(lambda name: os.path.lexists(ROOT / name), listed.stdout.split("\n")[:-1]):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    for words in ("init -q", "add .", "commit -q -m all", f"tag v{VERSION}"):
        settings = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "core.hooksPath=/dev/null"]
        subprocess.run(["git", *settings, *words.split()], cwd=folder, check=True, timeout=60)
    return folder
