"""Ranks that share cores: how many there are for a core, and their address space layout."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpifl.transport import cores

PARENT = 4_242
LAUNCHED = "OMPI_COMM_WORLD_LOCAL_SIZE"
PROGRAM = """
import os, sys
{call}
restarted = os.environ.get("MPIFL_RESTARTED") == str(os.getpid())
layout, option = open("/proc/self/personality").read().strip(), sys.flags.dont_write_bytecode
print(layout, restarted, os.getpid(), sys.argv[1:], option)
"""
SHARE = "from mpifl.transport.cores import restart_without_aslr; restart_without_aslr()"
CLI = "import mpifl.__main__; mpifl.__main__.main()"
FIXED, RANDOM = "00040000", "00000000"  # address space layouts


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in *cores.LOCAL_SIZE, cores.ASLR, cores.RESTARTED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cores.os, "getppid", lambda: PARENT)
    monkeypatch.setattr(sys, "orig_argv", ["python", "program.py"])
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("variable", "ranks", "own", "of_parent", "expected"),
    [
        (LAUNCHED, 5, {0, 1}, {0, 1}, 2.5),
        (LAUNCHED, 32, {7}, set(range(32)), 1.0),  # each bound to a core of its own
        ("MPI_LOCALNRANKS", 32, {7}, {7}, 32.0),
        ("MPI_LOCALNRANKS", 4, set(range(8)), {0}, 0.5),  # a parent that is bound, a rank that is not
        (None, "", {0, 1}, {0, 1}, 0.5),
        (LAUNCHED, "many", {0, 1}, {0, 1}, 0.5),
    ],
)
def test_ranks_per_core(
    host: pytest.MonkeyPatch,
    variable: str | None,
    ranks: int | str,
    own: set[int],
    of_parent: set[int],
    expected: float,
) -> None:
    if variable:
        host.setenv(variable, str(ranks))
    host.setattr(cores.os, "sched_getaffinity", {0: own, PARENT: of_parent}.__getitem__)
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
    env = {**os.environ, cores.ASLR: "", cores.RESTARTED: "", LAUNCHED: str(ranks), **variables}
    command = [*before, sys.executable, "-B", "-c", PROGRAM.format(call=call), *words]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    line = out.splitlines()[-1].split(" ", 3)
    assert int(line[2]) == process.pid  # the launcher knows it by that
    return [*line[:2], line[3]]


MANY = 100 * (os.cpu_count() or 1)


@pytest.mark.usefixtures("aslr")
def test_ranks_that_share_cores_are_restarted() -> None:
    """With the same arguments and options of Python, as the same process."""
    assert started(SHARE, "a=1", "b c", ranks=MANY) == [FIXED, "True", "['a=1', 'b c'] 1"]
    assert started(SHARE, ranks=MANY, MPIFL_RESTARTED="1") == [FIXED, "True", "[] 1"]  # a child of one that was
    assert started(SHARE, ranks=1) == [RANDOM, "False", "[] 1"]


@pytest.mark.usefixtures("aslr")
def test_ranks_that_keep_their_layout() -> None:
    assert started(SHARE, ranks=MANY, MPIFL_ASLR="1") == [RANDOM, "False", "[] 1"]
    assert started(SHARE, ranks=MANY, before=("setarch", "-R")) == [FIXED, "False", "[] 1"]  # there is nothing to do
    loaded = "import sys; sys.modules['mpi4py.MPI'] = None; " + SHARE  # MPI cannot be started twice in a process
    assert started(loaded, ranks=MANY) == [RANDOM, "False", "[] 1"]


@pytest.mark.usefixtures("aslr")
def test_a_program_from_stdin_is_not_restarted() -> None:
    """It could not be read again."""
    program, env = PROGRAM.format(call=SHARE), {**os.environ, cores.ASLR: "", LAUNCHED: str(MANY)}
    for words in [], ["-"]:
        done = subprocess.run(
            [sys.executable, *words], input=program, env=env, capture_output=True, text=True, timeout=60
        )
        assert done.stdout.startswith(f"{RANDOM} False"), done.stderr


@pytest.mark.usefixtures("aslr")
def test_programs_are_restarted_and_calls_of_main_are_not() -> None:
    """A call with arguments of its own may be from a program that has done other work before."""
    assert started(CLI, "--version", ranks=MANY) == [FIXED, "True", "['--version'] 1"]
    assert started(CLI.replace("()", "(['--version'])"), ranks=MANY) == [RANDOM, "False", "[] 1"]


class Personality:
    """The system call, with these answers."""

    def __init__(self, *answers: int) -> None:
        self.answers, self.asked = list(answers), list[int]()

    def __call__(self, value: ctypes.c_ulong) -> int:
        self.asked.append(value.value)
        return self.answers.pop(0)


@pytest.mark.parametrize("answers", [[-1], [0, -1]])
def test_a_system_that_does_not_allow_it(host: pytest.MonkeyPatch, answers: list[int]) -> None:
    """One without the system call, and a container that allows few values: the process goes on as it is."""
    call = Personality(*answers)
    host.setenv(LAUNCHED, str(MANY))
    host.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(personality=call))
    host.setattr(cores.os, "execv", lambda *_: pytest.fail("restarted"))
    cores.restart_without_aslr()
    assert call.asked == [cores.QUERY, cores.NO_RANDOMIZE][: len(answers)] and cores.RESTARTED not in os.environ


def test_a_program_that_cannot_be_started_again(host: pytest.MonkeyPatch) -> None:
    """It goes on as it was."""
    called, call = [], Personality(0x8, 0x8, 0x8 | cores.NO_RANDOMIZE)

    def execv(path: str, words: list[str]) -> None:
        called.append(words[0])
        raise PermissionError(path)

    host.setenv(LAUNCHED, str(MANY))
    host.setenv(cores.RESTARTED, "")
    host.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(personality=call))
    host.setattr(cores.os, "execv", execv)
    for executable in "", "/nowhere/python":
        host.setattr(sys, "executable", executable)
        cores.restart_without_aslr()
    assert called == ["/nowhere/python"] and call.asked[1:] == [0x8 | cores.NO_RANDOMIZE, 0x8]
