"""Ranks that share cores: how many there are for a core, and their address space layout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mpifl.transport import cores

LAUNCHED = "OMPI_COMM_WORLD_LOCAL_SIZE"
PROGRAM = """
import os, sys
{call}
setting = os.environ.get("MPIFL_ASLR")
print(open("/proc/self/personality").read().strip(), setting, os.getpid(), sys.argv[1:], sys.flags.utf8_mode)
"""
SHARE = "from mpifl.transport.cores import share_address_layout; share_address_layout()"
CLI = "import mpifl.__main__; mpifl.__main__.main()"
LAID_OUT, RANDOM = "00040000", "00000000"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in cores.LOCAL_SIZE:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("variable", "ranks", "own", "of_parent", "expected"),
    [
        (LAUNCHED, 5, {0, 1}, {0, 1}, 2.5),
        (LAUNCHED, 32, {7}, set(range(32)), 1.0),  # each bound to a core of its own
        ("MPI_LOCALNRANKS", 32, {7}, {7}, 32.0),
        ("MPI_LOCALNRANKS", 4, set(range(8)), {0}, 0.5),  # a parent that is bound, a rank that is not
        (None, 0, {0, 1}, {0, 1}, 0.5),
    ],
)
def test_ranks_per_core(
    host: pytest.MonkeyPatch, variable: str | None, ranks: int, own: set[int], of_parent: set[int], expected: float
) -> None:
    if variable:
        host.setenv(variable, str(ranks))
    host.setattr(cores.os, "sched_getaffinity", {0: own, os.getppid(): of_parent}.__getitem__)
    assert cores.ranks_per_core() == expected


def test_a_parent_that_has_ended(host: pytest.MonkeyPatch) -> None:
    def affinity(process: int) -> set[int]:
        if process:
            raise ProcessLookupError(process)
        return {0, 1, 2, 3}

    host.setenv(LAUNCHED, "2")
    host.setattr(cores.os, "sched_getaffinity", affinity)
    assert cores.ranks_per_core() == 0.5


def started(call: str, *words: str, ranks: int, before: tuple[str, ...] = (), **variables: str) -> list[str]:
    """The words that the program prints, started as one of so many ranks of this host."""
    env = {**os.environ, LAUNCHED: str(ranks), **variables}
    env = {name: value for name, value in env.items() if name != "MPIFL_ASLR" or name in variables}
    command = [*before, sys.executable, "-X", "utf8=1", "-c", PROGRAM.format(call=call), *words]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    line = out.splitlines()[-1].split(" ", 3)
    assert int(line[2]) == process.pid  # the launcher knows it by that
    return [*line[:2], line[3]]


@pytest.fixture
def permitted() -> None:
    setarch = shutil.which("setarch")
    if not setarch or subprocess.run([setarch, "-R", "true"], capture_output=True).returncode:
        pytest.skip("this system does not let a process switch off address space layout randomisation")


MANY = 100 * (os.cpu_count() or 1)


@pytest.mark.usefixtures("permitted")
def test_ranks_that_share_cores_are_restarted() -> None:
    """With the same arguments and options of Python, as the same process."""
    assert started(SHARE, "a=1", "b c", ranks=MANY) == [LAID_OUT, "0", "['a=1', 'b c'] 1"]
    assert started(SHARE, ranks=1) == [RANDOM, "None", "[] 1"]


@pytest.mark.usefixtures("permitted")
def test_ranks_that_keep_their_layout() -> None:
    assert started(SHARE, ranks=MANY, MPIFL_ASLR="1") == [RANDOM, "1", "[] 1"]
    assert started(SHARE, ranks=MANY, before=("setarch", "-R")) == [LAID_OUT, "None", "[] 1"]  # there is nothing to do


@pytest.mark.usefixtures("permitted")
def test_programs_are_restarted_and_calls_of_main_are_not() -> None:
    """A call with arguments of its own may be from a program that has done other work before."""
    assert started(CLI, "--version", ranks=MANY) == [LAID_OUT, "0", "['--version'] 1"]
    assert started(CLI.replace("()", "(['--version'])"), ranks=MANY) == [RANDOM, "None", "[] 1"]


def test_a_system_that_does_not_allow_it(host: pytest.MonkeyPatch) -> None:
    """The process goes on as it is."""
    import ctypes
    from types import SimpleNamespace

    host.delenv(cores.ASLR, raising=False)
    host.setenv(LAUNCHED, str(MANY))
    host.setattr(cores.os, "execv", lambda *_: pytest.fail("restarted"))
    for answers in ([-1], [0, -1]):  # of a system without the call; of a container that allows none but its own values
        host.setattr(ctypes, "CDLL", lambda _, a=answers: SimpleNamespace(personality=lambda _: a.pop(0)))
        cores.share_address_layout()
        assert not answers and cores.ASLR not in os.environ


def test_a_program_that_cannot_be_started_again(host: pytest.MonkeyPatch) -> None:
    import ctypes
    from types import SimpleNamespace

    called = []

    def execv(path: str, words: list[str]) -> None:
        called.append(words[0])
        raise PermissionError(path)

    host.setenv(LAUNCHED, str(MANY))
    host.setenv(cores.ASLR, "")
    host.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(personality=lambda _: 0))
    host.setattr(cores.os, "execv", execv)
    for executable in "", "/nowhere/python":
        host.setattr(sys, "executable", executable)
        cores.share_address_layout()
    assert called == ["/nowhere/python"]
