"""Starts commands under a real launcher, each with a deadline, and sees to it that no process is left behind.

The launcher is $MPIFL_MPIEXEC, else mpirun beside this Python, else the one on the PATH. What it needs in its
environment (more ranks than cores, root in a container) is set here, for the commands alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mpifl.cli import main

ROOT = Path(__file__).parents[2]
RUN = [str(ROOT / "run_mpi.py")]
MPIFL = ["-m", "mpifl"]
TOLERANT = ["--with-ft", "ulfm"]  # options of a launcher for fault tolerance
DEADLINE = 60.0  # s
RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")  # a process' rank, as the launchers say


def mpiexec() -> str | None:
    """The launcher, if there is one."""
    beside = Path(sys.executable).with_name("mpirun")
    return os.environ.get("MPIFL_MPIEXEC") or (str(beside) if beside.exists() else shutil.which("mpirun"))


def environment(mark: str) -> dict[str, str]:
    more = {
        "PRTE_MCA_rmaps_default_mapping_policy": ":OVERSUBSCRIBE",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "PYTHONPATH": str(ROOT),
    }
    if os.getuid() == 0:
        more |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**os.environ, **more, "MPIFL_TEST": mark}


@dataclass
class Command:
    """A command that was started. Its processes are known by a mark in their environment: a launcher puts ranks into
    process groups of their own, and they outlive it where it goes wrong."""

    words: list[str]
    cwd: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    code: int = -1
    out: str = ""
    err: str = ""
    seconds: float = 0.0
    sessions: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="mpifl-test-"))
    """where Open MPI's launchers have their folders: one that is killed leaves its own, and the next with its process
    id would not start"""

    def start(self) -> Command:
        self._begin = time.monotonic()
        env = environment(self.mark) | {"PRTE_MCA_prte_tmpdir_base": self.sessions}
        self.process = subprocess.Popen(
            self.words, cwd=self.cwd, env=env, start_new_session=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        return self

    def end(self, deadline: float = DEADLINE) -> Command:
        """Waits for the end; fails past the deadline, and where a process outlives the launcher by more than 5 s."""
        try:
            self.out, self.err = self.process.communicate(timeout=deadline)
        except subprocess.TimeoutExpired:
            self.kill()
            self.out, self.err = self.process.communicate()
            pytest.fail(f"no end after {deadline} s: {self}")
        self.seconds, self.code = time.monotonic() - self._begin, self.process.returncode
        patience = time.monotonic() + 5
        while self.processes() and time.monotonic() < patience:
            time.sleep(0.02)
        left = self.processes()
        self.kill()
        assert not left, f"processes left behind: {left}\n{self}"
        return self

    def ends_well(self, deadline: float = DEADLINE, code: int = 0) -> Command:
        """Likewise; fails unless this is the exit code, and where a traceback was printed."""
        self.end(deadline)
        assert self.code == code and "Traceback" not in self.err, str(self)
        return self

    def over(self) -> bool:
        """Whether the command has ended."""
        return self.process.poll() is not None

    def processes(self) -> dict[int, dict[str, str]]:
        """The environments of those of its processes that are alive, by process id."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    pairs = [pair.partition("=") for pair in (entry / "environ").read_bytes().decode().split("\0")]
                except (OSError, UnicodeDecodeError):
                    continue
                values = {key: value for key, _, value in pairs}
                if values.get("MPIFL_TEST") == self.mark:
                    found[int(entry.name)] = values
        return found

    def rank(self, number: int) -> int:
        """The process id of a rank."""
        (pid,) = (pid for pid, env in self.processes().items() if str(number) in [env.get(k) for k in RANKS])
        return pid

    def kill(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.sessions, ignore_errors=True)

    def __str__(self) -> str:
        return f"{' '.join(self.words)}\nexit code {self.code}\n-- stdout\n{self.out}\n-- stderr\n{self.err}"


def until(done: Callable[[], Any], command: Command, what: str) -> Any:
    """Waits until `done` returns something true, and returns that; fails if the command ends or hangs before."""
    end = time.monotonic() + DEADLINE
    while not (found := done()):
        if command.over() and not (found := done()):
            pytest.fail(f"ended before {what}: {command.end()}")
        if time.monotonic() > end:
            command.kill()
            pytest.fail(f"no {what} after {DEADLINE} s: {command.end()}")
        time.sleep(0.005)
    return found


Start = Callable[..., Command]


@contextlib.contextmanager
def python(ranks: int, *words: str | Path, cwd: Path, tolerant: bool = False) -> Iterator[Command]:
    """Runs Python with these words: under the launcher, or 0 ranks without; kills what outlives the block.

    tolerant: with fault tolerance, so that the job outlives its ranks.
    """
    command = Command([*launched(ranks, tolerant), sys.executable, *map(str, words)], cwd).start()
    try:
        yield command
    finally:
        command.kill()
        with contextlib.suppress(subprocess.TimeoutExpired, ValueError):
            command.process.communicate(timeout=10)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """start(ranks, *words): likewise, in tmp_path unless `cwd` says otherwise; killed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *words, **options: stack.enter_context(python(*words, **{"cwd": tmp_path, **options}))


@pytest.fixture
def run(start: Start) -> Start:
    """Likewise, to its end; with `code` it must have this exit code, and print no traceback."""

    def complete(*args: Any, deadline: float = DEADLINE, code: int | None = None, **options: Any) -> Command:
        command = start(*args, **options)
        return command.end(deadline) if code is None else command.ends_well(deadline, code)

    return complete


def launched(ranks: int, tolerant: bool = False) -> list[str]:
    """The words before the program; none for 0 ranks, without a launcher."""
    if not ranks:
        return []
    launcher = mpiexec()
    if launcher is None:
        pytest.skip("no mpirun")
    return [launcher, *(TOLERANT if tolerant else []), "-n", str(ranks)]


@dataclass(frozen=True)
class Reply:
    """The result of one of the commands that one MPI job ran one after the other."""

    codes: list[int]  # of each rank
    out: str  # of all ranks
    err: str
    changed: list[str]  # files in the folder that are there, gone, or different since the command before


def one_line(reply: Reply, says: str) -> bool:
    """Whether a command was refused on all ranks with one line that says this, and changed no file."""
    err, changed = reply.err, [name for name in reply.changed if "__pycache__" not in name]
    told = err.startswith("mpifl: ") and err.count("\n") == 1 and err.endswith("\n") and says in err
    return set(reply.codes) == {2} and told and not reply.out and not changed


def refused(done: Command, says: str) -> None:
    """Asserts that a command that a launcher started ended with exit code 2 and one line of ours that says this."""
    ours = [text for text in done.err.splitlines() if text.startswith("mpifl: ")]
    assert done.code == 2 and not done.out and len(ours) == 1 and says in ours[0], str(done)
    assert "Traceback" not in done.err, str(done)


def in_one_job(folder: Path, ranks: int, commands: list[list[str]], deadline: float = DEADLINE) -> list[Reply]:
    """Runs mpifl commands one after the other in one MPI job: starting a job takes most of a command's time."""
    told = folder / f"told-{uuid.uuid4().hex}"
    told.mkdir()
    (told / "commands.json").write_text(json.dumps(commands))
    words = [*launched(ranks), sys.executable, str(Path(__file__).with_name("driver.py")), str(told), str(deadline - 5)]
    done = Command(words, folder).start().end(deadline)
    assert done.code == 0, str(done)
    ranks_ = [json.loads((told / f"rank{r}.json").read_text()) for r in range(max(1, ranks))]
    assert all(len(r) == len(commands) for r in ranks_), str(done)
    shutil.rmtree(told)
    return [
        Reply([r["code"] for r in each], *("".join(r[k] for r in each) for k in ("out", "err")), each[0]["changed"])
        for each in zip(*ranks_, strict=True)
    ]


def all_refused(
    folder: Path, ranks: int, wrong: list[tuple[list[str], str]], *then: list[str], deadline: float = DEADLINE
) -> list[Reply]:
    """Likewise; each of `wrong` must be refused with one line that says this. The replies to the other commands."""
    replies = in_one_job(folder, ranks, [*(words for words, _ in wrong), *then], deadline)
    missed = [(words, reply) for (words, says), reply in zip(wrong, replies) if not one_line(reply, says)]
    assert not missed, "\n".join(map(str, missed))
    return replies[len(wrong) :]


def succeed(folder: Path, ranks: int, commands: list[list[str]], deadline: float = DEADLINE) -> list[Reply]:
    """Likewise; each must end with exit code 0 and print no error."""
    replies = in_one_job(folder, ranks, commands, deadline)
    for command, reply in zip(commands, replies, strict=True):
        assert set(reply.codes) == {0} and not reply.err, f"{command}: {reply}"
    return replies


def run_all(folder: Path, ranks: int, jobs: dict[str, dict[str, Any]], deadline: float, *words: str) -> Path:
    """Runs jobs, with these overrides, in one MPI job into FOLDER/NAME.h5."""
    folder.mkdir(exist_ok=True)
    commands = [["run", str(write(folder, name, job)), f"output={name}.h5", *words] for name, job in jobs.items()]
    for name, reply in zip(jobs, succeed(folder, ranks, commands, deadline), strict=True):
        assert [file for file in reply.changed if ".ckpt" not in file] == [f"{name}.h5"], reply
    return folder


def mpifl(*words: object) -> int:
    """The exit code of a command in this process."""
    return main([*map(str, words)])


def write(folder: Path, name: str, job: dict[str, Any]) -> Path:
    """Writes a job file; JSON is YAML."""
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps({"name": name, **job}))
    return path
