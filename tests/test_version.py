"""The version from the tag, in a checkout, an archive that git made, a copy without git, and a built package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mpifl
from mpifl.version import UNTAGGED

FILE = Path(mpifl.__file__).with_name("version.py")
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git")


def git(folder: Path, *words: str) -> str:
    names = {f"GIT_{who}_{what}": "nobody@none" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    config = ["-c", "core.hooksPath=/dev/null", "-c", "init.defaultBranch=main"]
    command = ["git", *config, *words]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **names}, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with two commits of a package that is the file version.py alone."""
    folder = tmp_path / "checkout"
    (folder / "mpifl").mkdir(parents=True)
    shutil.copy(FILE, folder / "mpifl")
    (folder / ".gitattributes").write_bytes((FILE.parents[1] / ".gitattributes").read_bytes())
    git(folder, "init", "-q")
    git(folder, "add", ".")
    for text in ("one", "two"):
        git(folder, "commit", "-q", "--allow-empty", "-m", text)
    return folder


def source(folder: Path, cwd: Path = Path("/")) -> tuple[str, str]:
    code = "import sys, runpy; print(*runpy.run_path(sys.argv[1])['source'](), sep='|')"
    command = [sys.executable, "-c", code, str(folder / "mpifl" / "version.py")]
    version, commit = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout.split("|")
    assert re.fullmatch(r"\d+\.\d+\.\d+(rc\d+)?(\.dev\d+)?(\+g[0-9a-f]{12}(\.dirty)?)?", version)  # as PEP 440 has it
    return version, commit.strip()


def test_the_tag_is_the_version(checkout: Path) -> None:
    first, second = git(checkout, "rev-list", "HEAD", "--reverse").split()
    assert source(checkout) == (f"{UNTAGGED}.dev2+g{second[:12]}", second)
    git(checkout, "tag", "v2.3.4", first)
    git(checkout, "tag", "visual", second)  # no version
    assert source(checkout) == (f"2.3.5.dev1+g{second[:12]}", second)
    git(checkout, "tag", "v2.4.0rc1")
    assert source(checkout) == ("2.4.0rc1", second)
    git(checkout, "tag", "-d", "v2.4.0rc1")
    git(checkout, "tag", "-a", "-m", "annotated", "v2.4.0")
    assert source(checkout) == ("2.4.0", second)
    (checkout / "mpifl" / "version.py").open("a").write("\n")
    assert source(checkout) == (f"2.4.1.dev0+g{second[:12]}.dirty", f"{second}-dirty")


def test_an_archive_made_by_git_has_the_version(checkout: Path, tmp_path: Path) -> None:
    first, second = git(checkout, "rev-list", "HEAD", "--reverse").split()
    versions = {"": "0-0", "v2.3.4": first, "v2.4.0": second}
    expected = [f"{UNTAGGED}.dev0+g{second[:12]}", f"2.3.5.dev1+g{second[:12]}", "2.4.0"]
    for k, (tag, commit) in enumerate(versions.items()):
        if tag:
            git(checkout, "tag", tag, commit)
        git(checkout, "archive", "--output", str(tmp_path / f"{k}.tar"), "HEAD")
        shutil.unpack_archive(tmp_path / f"{k}.tar", tmp_path / str(k))
        assert source(tmp_path / str(k)) == (expected[k], second)


def test_a_package_inside_another_repository_is_not_of_its_commit(checkout: Path) -> None:
    """As in a virtual environment that lies in the folder of a user's own project."""
    inside = checkout / ".venv" / "site-packages"
    shutil.copytree(checkout / "mpifl", inside / "mpifl")
    assert source(inside, cwd=checkout) == (UNTAGGED, "")
    (inside / "mpifl" / "BUILD").write_text(f"2.3.4\n{'a' * 40}\n")
    assert source(inside, cwd=checkout) == ("2.3.4", "a" * 40)
