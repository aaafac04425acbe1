"""The wheel and the sdist: complete, equal however they are built, and enough for a user who has no checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import mpifl
from tests.mpi.conftest import environment, mpiexec
from tests.packaging.conftest import VERSION, build

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
pytest.importorskip("setuptools", "77")


@pytest.fixture(scope="module")
def unpacked(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the sdist."""
    folder = tmp_path_factory.mktemp("unpacked")
    sdist = build("sdist", source, tmp_path_factory.mktemp("sdist"))
    subprocess.run(["tar", "-xzf", sdist, "-C", folder], check=True)
    return folder / sdist.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", unpacked, tmp_path_factory.mktemp("wheel"))


def test_the_sdist_has_every_file_of_the_checkout(source: Path, unpacked: Path) -> None:
    kept = subprocess.run(["git", "ls-files"], cwd=source, capture_output=True, text=True, check=True).stdout.split()
    assert {"constraints.txt", "environment.yml", "docs/index.md", "examples/own.yaml", "jobs/quickstart.yaml"} < {
        *kept
    }
    assert not [name for name in kept if not (unpacked / name).exists() and not name.startswith(".ci/")]
    assert f"\nVersion: {VERSION}\n" in (unpacked / "PKG-INFO").read_text(encoding="utf-8")


def test_the_sdist_builds_the_same_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    """The same files with the same bytes, the version and the commit among them."""
    (source / "build" / "lib" / "mpifl").mkdir(parents=True, exist_ok=True)
    (source / "build" / "lib" / "mpifl" / "old.py").touch()  # of an earlier build
    other = build("wheel", source, tmp_path)
    assert wheel.name == other.name == f"mpifl-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(other) as second:
        names = set(first.namelist())
        assert names == set(second.namelist()) and all(first.read(name) == second.read(name) for name in names)
    package = {str(p.relative_to(source)) for p in (source / "mpifl").rglob("*") if p.is_file()}
    package |= {f"mpifl/{p.relative_to(source)}" for p in (source / "jobs").rglob("*") if p.is_file()}
    assert package | {"mpifl/BUILD"} == {name for name in names if name.startswith("mpifl/")}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder bin of a new virtual environment with the wheel, which finds its dependencies in this environment."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True, timeout=120)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    return folder / "bin"


def call(installed: Path, cwd: Path, line: str, ranks: int = 0) -> str:
    """What a command prints to stdout, in a folder outside the checkout, under mpirun where it has ranks."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "MPIFL_LOG_LEVEL")}
    kept["PATH"] = f"{installed}{os.pathsep}{kept['PATH']}"
    words = [str(installed / "mpifl"), *line.split()]
    if ranks:
        kept, words = {**kept, **environment("x")}, [str(mpiexec()), "-n", str(ranks), *words]
        kept.pop("PYTHONPATH", None)
    run = subprocess.run(words, cwd=cwd, env=kept, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, f"{words}\n{run.stdout}\n{run.stderr}"
    return run.stdout


def test_commands_work_without_a_checkout(installed: Path, tmp_path: Path) -> None:
    first, commit = call(installed, tmp_path, "--version").splitlines()
    assert first.startswith(f"mpifl {VERSION}; Python ") and re.search(r"mpi4py \d.*h5py \d.*HDF5 \d", first)
    assert re.fullmatch("commit [0-9a-f]{40}", commit)

    checks = call(installed, tmp_path, "selftest")
    assert "FAILED" not in checks and f"mpifl {VERSION}" in checks

    jobs = call(installed, tmp_path, "list jobs")
    assert "jobs/quickstart.yaml " in jobs and "jobs/area/mnist-virtual.yaml " in jobs
    assert "area/table3" in call(installed, tmp_path, "reproduce")
    call(installed, tmp_path, "check jobs/area/mnist-virtual.yaml")

    assert "completed" in call(installed, tmp_path, "run jobs/quickstart.yaml stop.time=0.5")
    with mpifl.open_run(tmp_path / "results" / "quickstart.h5") as run:
        assert (run.attrs["mpifl_version"], f"commit {run.attrs['git_commit']}") == (VERSION, commit)

    script = call(installed, tmp_path, "submit --dry-run jobs/quickstart.yaml --seeds 0-19")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    (job,) = set(re.findall(r"run (\S+quickstart\.yaml)", script))
    assert Path(job).is_file() and str(ROOT) not in script.replace(str(tmp_path), "")


@pytest.mark.mpi
@pytest.mark.skipif(mpiexec() is None, reason="no MPI launcher")
def test_ranks_work_without_a_checkout(installed: Path, tmp_path: Path) -> None:
    call(installed, tmp_path, "run jobs/quickstart.yaml stop.time=0.5 problem.clients=4 name=ranks", ranks=3)
    with mpifl.open_run(tmp_path / "results" / "ranks.h5") as run:
        assert run.attrs["ranks"] == 3 and run.attrs["git_commit"]
