"""Computes one run of a study: in this process, on a group of MPI ranks, or under a launcher that is started for it."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from mpifl import execution
from mpifl.config.job import Job
from mpifl.config.read import job_to_dict, to_yaml
from mpifl.config.trust import outside_code
from mpifl.errors import ConfigError, RunResult, describe_unexpected
from mpifl.signals import Interrupted, SignalRecorder
from mpifl.tools.export import observers
from mpifl.tools.studies.index import keep_damaged
from mpifl.tools.studies.study import identify
from mpifl.transport.handshake import RANKS_BEFORE

if TYPE_CHECKING:
    from mpifl.transport.mpi import MPI

_problem: AbstractContextManager[None] | None = None  # keeps the data that this process loaded last
OVERSUBSCRIBE = {  # lets runs share cores under Open MPI 5 and 4; other MPIs need no setting
    "PRTE_MCA_rmaps_default_mapping_policy": ":OVERSUBSCRIBE",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}
PR_SET_PDEATHSIG = 1


class Finished(NamedTuple):
    """How a run ended in its process."""

    status: str
    error: str = ""
    seconds: float | None = None
    """wall time of a completed run (s); None: its file has it"""


def compute(job: Job, resume: bool, ranks: int = 1, extend: bool = False) -> Finished:
    """Runs or resumes one run; with ranks, on this process's group of them, or under a launcher.

    extend: its checkpoint may be of the same job with an earlier stop.
    """
    from mpifl.transport.groups import task_communicator

    global _problem
    comm = task_communicator()
    if ranks > 1 and comm is None:
        return _launched(job, resume, ranks, extend)
    if _problem is None:
        _problem = execution.keep_problem()
        _problem.__enter__()
    try:
        if resume:
            with suppress(ConfigError):  # the run begins anew where no checkpoint can be used
                return _finished(execution.execute(lambda: _resume_task(job, extend), comm=comm, observe=observers))
        keep_damaged(job, ranks)
        return _finished(
            execution.execute(lambda: execution.Task(replace(job, overwrite=True)), comm=comm, observe=observers)
        )
    except (ConfigError, OSError) as error:
        return Finished("failed", " ".join(str(error).split()))
    except KeyboardInterrupt:
        return Finished("interrupted")
    except BaseException as error:  # raised by the user's code: the other runs of the study go on
        return Finished("failed", describe_unexpected(error))


def _finished(result: RunResult) -> Finished:
    """How a run ended."""
    error = " ".join(str(result.error).split()) if result.status == "failed" else ""
    return Finished(result.status, error, result.wall_seconds)


def _stop(job: Job, extend: bool) -> list[str]:
    """The override that gives a resumed run the stop of a job, where it may have an earlier one."""
    return [f"stop={json.dumps(job_to_dict(job)['stop'])}"] if extend else []


def _resume_task(job: Job, extend: bool) -> execution.Task:
    """The task that resumes the run of a job. Raises ConfigError for a checkpoint of another job.

    Only the code that the study names is trusted, so the code of another job is never imported.
    """
    task = execution.resume_task(Path(job.output), _stop(job, extend), outside_code(job_to_dict(job)))
    if identify(task.job) != identify(job):
        raise ConfigError(
            "resume", job.output, "its checkpoint belongs to another job", "one of this job", "move the file away"
        )
    return task


# -- a group of the ranks of an MPI job --------------------------------------------------------------------------------
def serve_group(group: MPI.Intracomm) -> None:
    """Hosts clients of the runs of this rank's group, one run after the other, until `end_group`."""
    while True:
        with suppress(ConfigError):  # the group's rank 0 reports it
            if execution.execute(lambda: None, comm=group).code == NO_MORE_RUNS:
                return


def end_group(group: MPI.Intracomm) -> None:
    """Ends `serve_group` on the other ranks of a group; its rank 0 calls this."""
    from mpifl.transport.handshake import Handshake

    Handshake(group).release_ranks(RunResult(NO_MORE_RUNS))


NO_MORE_RUNS = -1  # the code with which the ranks of a group are released at the end


# -- a launcher --------------------------------------------------------------------------------------------------------
def find_launcher(ranks: int) -> str:
    """The path of `mpirun`: $MPIFL_MPIEXEC, else beside this Python, else on the PATH. Raises ConfigError.

    ranks: What it is to start, for the error.
    """
    if named := os.environ.get("MPIFL_MPIEXEC"):
        if found := shutil.which(named):
            return found
        raise ConfigError("MPIFL_MPIEXEC", named, "no such program", "one that starts MPI ranks, such as mpirun")
    beside = Path(sys.executable).with_name("mpirun")
    for name in (str(beside), "mpirun", "mpiexec"):
        if found := shutil.which(name):
            return found
    wrong = "no mpirun was found beside the Python interpreter or on the PATH"
    remedy = f"name one in MPIFL_MPIEXEC, set ranks=1, or start the sweep under mpirun on at least {ranks + 1} ranks"
    raise ConfigError("ranks", ranks, wrong, remedy=remedy)


def _launched(job: Job, resume: bool, ranks: int, extend: bool) -> Finished:
    """Runs or resumes one run under `mpirun -n ranks`, which ends with this process."""
    file = Path(job.output).with_name(f".{Path(job.output).stem}.yaml")
    command = ["run", str(file), "overwrite=true"]
    if resume:
        with suppress(ConfigError):  # the run begins anew where no checkpoint can be used
            _resume_task(job, extend)
            trusted = [f"{key}={name}" for key, name in outside_code(job_to_dict(job)).items()]
            command = ["resume", job.output, *_stop(job, extend), *trusted]
    if command[0] == "run":
        keep_damaged(job, ranks)
    words = [find_launcher(ranks), "-n", str(ranks), sys.executable, "-m", "mpifl", *command]
    interrupted = False
    with tempfile.TemporaryFile() as errors:
        try:
            file.write_text(to_yaml(job), encoding="utf-8")
            process = _start_launcher(words, ranks, errors)
            try:
                with SignalRecorder():
                    code = process.wait()
            except Interrupted:  # the launcher passes USR1 on; after TERM it would kill its ranks soon
                interrupted = True
                process.send_signal(signal.SIGUSR1)
                code = process.wait()
        except OSError as error:
            return Finished("failed", str(error))
        finally:
            file.unlink(missing_ok=True)
        errors.seek(0)
        text = errors.read().decode(errors="replace")
    if code == 0:
        return Finished("completed")
    if interrupted:
        return Finished("interrupted")
    return Finished("failed", _reason(text) or f"{Path(words[0]).name} ended with exit code {code}")


def _start_launcher(words: list[str], ranks: int, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None)
    before = int(os.environ.get(RANKS_BEFORE, "0")) * (ranks - 1)  # ranks with clients of the runs that started before
    environment: Mapping[str, str] = {**OVERSUBSCRIBE, **os.environ, RANKS_BEFORE: str(before)}
    return subprocess.Popen(
        words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
        process_group=0,  # Ctrl-C reaches this process alone, which passes it on
        preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
    )  # fmt: skip


def _reason(text: str) -> str:
    """Why a command failed, in one line: the last line of mpifl's own in what it printed on stderr, else the first
    paragraph of Open MPI's last message, which ends with a line of dashes, else the last line."""
    own = re.findall(r"^mpifl: (.*)", text, re.MULTILINE)
    messages = [
        message.strip().partition("\n\n")[0] for message in re.split(r"^-{20,}$", text, flags=re.MULTILINE)[:-1]
    ]
    return " ".join((own or messages or text.strip().splitlines() or [""])[-1].split())
