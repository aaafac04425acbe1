"""Studies from Python: what `mpifl.load_study` and `mpifl.sweep` do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mpifl.errors import ConfigError, RunFailed
from mpifl.signals import Interrupted, SignalRecorder
from mpifl.studies import study as study_files
from mpifl.studies import sweep as sweeps
from mpifl.studies.index import Index
from mpifl.studies.parts import Part
from mpifl.studies.study import Study


def load_study(path: str | Path, *overrides: str) -> Study:
    """Reads and checks a study file; returns the study with the jobs of all its runs.

    Args:
        path: The YAML file.
        overrides: `key=value` as on the command line: `"trials=3"`, `"set.stop.time=1"`, `"output=elsewhere"`.

    Raises:
        ConfigError: The study, its base job or one of its runs is wrong: the error has the key, its value and what
            would be right.
    """
    return study_files.load_study(path, overrides)


def sweep(
    study: Study | str | Path, processes: int | None = None, *, part: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Index:  # fmt: skip
    """Runs the missing runs of a study, several at a time, as `mpifl sweep` does; returns the study's index.

    Completed runs are kept, interrupted ones continue from their checkpoints where they have any, and failed ones are
    tried again as often as `retries` says. Under `mpirun` every rank calls it, and the runs are computed by all ranks
    but 0.

    Args:
        study: The study, or the path of its file.
        processes: Runs at a time on this machine; None: as many as there are cores for their ranks. Not under
            `mpirun`.
        part: "K/N": only every N-th run from run K (0, 1, ...) on, as one of N batch tasks.
        progress: Called on rank 0 with a line on the state of the study, whenever a run begins or ends and every few
            seconds; with an empty line before a message is logged, and at the end.

    Returns:
        The index: `index.entries` has the runs by identity, each with `file`, `labels`, `seed`, `status`
            ("completed", "failed", ...), `seconds`, `attempts` and `error`; `index.counts()` counts them by status.
            Runs that have failed do not raise an error.

    Raises:
        ConfigError: The study is wrong, or another process is running it.
        RunFailed: The index could not be written.
        KeyboardInterrupt: Ctrl-C or another signal ended the sweep, after its runs have saved their checkpoints.
    """
    from mpifl.transport.launcher import broadcast_number, communicator, run_or_abort

    loaded = study if isinstance(study, Study) else load_study(study)
    mine = Part.parse(part) if part else None
    comm = communicator()
    if comm is None:
        with SignalRecorder():
            return sweeps.sweep(loaded, processes, progress, part=mine)
    if processes is not None:
        text = "None under mpirun, where each rank but 0, or group of `ranks`, computes one run at a time"
        raise ConfigError("processes", processes, text)
    index: Index | None = None
    error: ConfigError | RunFailed | Interrupted | None = None
    try:
        write = progress or (lambda line: None)
        index = run_or_abort(comm, lambda: sweeps.sweep_on_ranks(comm, lambda: loaded, write, mine))
    except (ConfigError, RunFailed, Interrupted) as raised:
        error = raised
    code = broadcast_number(comm, error.code if isinstance(error, Interrupted) else 3 if error else 0)
    if error:
        raise error
    if code:
        raise Interrupted(code) if code >= 128 else RunFailed("rank 0 could not run the study")
    return index or Index(loaded)
