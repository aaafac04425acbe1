"""Tests compute as ranks do: on one thread, since the last bits of a sum depend on their number."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

from mpifl.execution import THREAD_VARIABLES

for name in THREAD_VARIABLES:  # before NumPy is imported
    os.environ.setdefault(name, "1")
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")  # before torch computes: MKL reads it once
os.environ["MPIFL_LOG_LEVEL"] = "warning"  # else each command logs how its run begins

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402
from xdist.scheduler import LoadScopeScheduling  # noqa: E402

import tests.tiers  # noqa: E402
from tests.verified import FOLDERS, verify_files  # noqa: E402

settings.load_profile("short")  # --hypothesis-profile=full replaces it
assert tests.tiers


@pytest.fixture(autouse=True)
def verified(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test `mpifl verify` finds nothing wrong with the run files in its `tmp_path`.

    Except in tests that damage them on purpose, which carry the mark `damaged`. Without --hypothesis-profile=full every
    third test is looked after, by its name.
    """
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    wanted = folder in FOLDERS and "tmp_path" in request.fixturenames and not request.node.get_closest_marker("damaged")
    wanted = wanted and (tests.tiers.full() or crc32(request.node.nodeid.encode()) % 3 == 0)
    path: Path | None = request.getfixturevalue("tmp_path") if wanted else None
    yield
    if path:
        verify_files(path)


@pytest.fixture(autouse=True, scope="session")
def refusals_are_complete() -> Iterator[None]:
    """Every ConfigError that a test provokes in its process says what is wrong, and what is right or what to do."""
    from mpifl.errors import ConfigError

    make = ConfigError.__init__

    def checked(
        self: ConfigError, key: str, value: object, wrong: str, expected: str = "", remedy: str = ""
    ) -> None:  # fmt: skip
        assert wrong and (expected or remedy), f"{key}={value}: {wrong!r} alone"
        make(self, key, value, wrong, expected, remedy)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConfigError, "__init__", checked)
        yield


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """printed(*words, code=0): what a command that ends with this exit code writes to stdout and stderr."""

    def end(*words: object, code: int = 0) -> Any:
        from mpifl.cli import main

        capsys.readouterr()
        assert main([*map(str, words)]) == code
        return capsys.readouterr()

    return end


@pytest.fixture
def refused(printed: Callable[..., Any]) -> Callable[..., str]:
    """refused(*words): the line with which a command is refused; it ends with exit code 2 and prints nothing else."""

    def refuse(*words: object) -> str:
        out, err = printed(*words, code=2)
        assert not out and err.count("\n") == 1 and err.startswith("mpifl: "), err
        return err

    return refuse


class Files(LoadScopeScheduling):  # type: ignore[misc]
    """A file's tests run in one process of pytest-xdist, as they share fixtures; those that start MPI all in one."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "mpi" if path.startswith(("tests/mpi/", "tests/faults/", "tests/slurm/")) else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    return Files(config, log)
