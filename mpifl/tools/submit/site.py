"""The settings of a computing centre: a small YAML file of the user or of the project."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mpifl.config import read
from mpifl.config.schema import Reader
from mpifl.config.types import Config, NonNegativeInt, PositiveInt
from mpifl.errors import ConfigError

PROJECT_FILE = "mpifl-site.yaml"
# Options of the batch systems that a setting of the site replaces, by that setting; "": the job or the study sets them.
OWN_OPTIONS = {
    "slurm": {
        "nodes": "--nodes -N", "ranks_per_node": "--ntasks -n --ntasks-per-node", "time": "--time -t",
        "partition": "--partition -p", "account": "--account -A", "gpus_per_node": "--gpus-per-node",
        "processes": "--cpus-per-task -c", "warning": "--signal",
        "": "--array -a --job-name -J --output -o --chdir -D --open-mode",
    },
    "pbs": {"partition": "-q", "account": "-A", "": "-N -J -j -o"},
    "lsf": {"nodes": "-n", "time": "-W", "partition": "-q", "account": "-P", "gpus_per_node": "-gpu", "": "-J -o -cwd"},
    "flux": {
        "nodes": "--nodes -N --nslots -n", "time": "--time-limit -t", "partition": "--queue -q", "account": "--bank -B",
        "gpus_per_node": "--gpus-per-slot -g", "warning": "--signal", "": "--job-name --output --cwd",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Site(Config):
    """What a batch script needs to know of a computing centre."""

    scheduler: Literal["slurm", "pbs", "flux", "lsf"] = "slurm"
    """the batch system: SLURM, PBS Professional (or OpenPBS), Flux or LSF"""
    partition: str | None = None
    """partition or queue; null: the default one"""
    account: str | None = None
    """account or project that is charged; null: the default one"""
    time: str = "01:00:00"
    """time limit of a task: [days-]hours:minutes:seconds, or seconds"""
    nodes: PositiveInt = 1
    """nodes of a job's run, or of one task of a study whose runs have several ranks; any other task has one node"""
    ranks_per_node: PositiveInt = 8
    """MPI ranks on each of these nodes"""
    gpus_per_node: NonNegativeInt = 0
    """GPUs on each node of a task; 0: none is asked for"""
    processes: PositiveInt = 1
    """runs of a study that a task computes at the same time, each on one core"""
    at_once: PositiveInt = 20
    """largest number of tasks of an array (a study, or --seeds) that run at the same time"""
    launcher: Literal["mpirun", "mpiexec", "srun", "flux"] | None = None
    """what starts the ranks; srun: where SLURM starts MPI itself; flux: flux run. null: flux under Flux, else mpirun"""
    mpi: str | None = None
    """option --mpi of srun, such as pmix or pmi2"""
    setup: list[str] = field(default_factory=list)
    """shell commands that set up the environment, such as module load openmpi/5.0"""
    options: list[str] = field(default_factory=list)
    """further options of the batch system, such as --mem-per-cpu=1G"""
    launcher_options: list[str] = field(default_factory=list)
    """further options of what starts the ranks, such as --cpu-bind=cores of srun"""
    python: str | None = None
    """Python on the nodes, with variables of the shell, such as $TMPDIR/env/bin/python; null: the one that submits"""
    container: str | None = None
    """image in which the commands run, by apptainer exec; it exists, or `setup` copies it to the node. null: none"""
    warning: PositiveInt = 120
    """seconds before the time limit at which a run is told to save a checkpoint"""
    requeues: NonNegativeInt = 20
    """how often a task is put back into the queue after its time limit or a preemption; LSF has a limit of its own"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"(\d+-)?\d{1,3}:\d{2}:\d{2}", self.time):
            raise ConfigError("time", self.time, "not a duration", "[days-]hours:minutes:seconds, as in 01:30:00")
        if self.warning >= self.seconds:
            raise ConfigError("warning", self.warning, f"the time limit is {self.seconds} s", "less")
        for key in ("partition", "account", "mpi", "python", "container", "options", "launcher_options"):
            values = getattr(self, key)
            for value in values if isinstance(values, list) else [values or ""]:
                if "\n" in value:
                    raise ConfigError(key, repr(value), "several lines", "one line")
        for key in ("partition", "account", "mpi"):
            if (value := getattr(self, key)) is not None and not re.fullmatch(r"\S+", value):
                raise ConfigError(key, repr(value), "blanks, or nothing", "a name without blanks")
        self._check_options()
        if self.container and not self._has_image(self.container):
            expected = "an image that exists, the address of one (docker://...), or one that a command of setup names"
            raise ConfigError("container", self.container, "no such image", expected)

    def _has_image(self, container: str) -> bool:
        """Whether there is an image now, or a command of `setup` may copy it to the node."""
        return "://" in container or Path(container).exists() or any(container in line for line in self.setup)

    def _check_options(self) -> None:
        """Raises ConfigError for an option that would contradict what the script says of itself."""
        for option in self.options:
            if not option.startswith("-"):
                raise ConfigError(
                    "options",
                    option,
                    "it does not begin with -",
                    "options of the batch system, such as --mem-per-cpu=1G",
                )
            name = re.split(r"[=\s]", option, maxsplit=1)[0]
            for key, names in OWN_OPTIONS[self.scheduler].items():
                if name in names.split():
                    expected = f"site.{key} instead" if key else "another option"
                    raise ConfigError("options", option, "mpifl submit sets it itself", expected)

    @property
    def ranks(self) -> int:
        """The MPI ranks of a run or a task that has several."""
        return self.nodes * self.ranks_per_node

    @property
    def seconds(self) -> int:
        """The time limit (s)."""
        days, _, clock = self.time.rpartition("-")
        hours, minutes, seconds = map(int, clock.split(":"))
        return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def load_site(path: Path | None = None, overrides: dict[str, Any] | None = None) -> tuple[Site, Path | None]:
    """The settings, and the file that they come from: `path`, else ./mpifl-site.yaml, else ~/.config/mpifl/site.yaml.

    Without any of these files the defaults apply. Raises ConfigError.
    """
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    found = path or next((p for p in (Path(PROJECT_FILE), home / "mpifl" / "site.yaml") if p.exists()), None)
    values = {**(read.read_yaml(found, "site") if found else {}), **(overrides or {})}
    if isinstance(seconds := values.get("time"), int) and not isinstance(seconds, bool):  # YAML reads 2:30:00 as 9000
        values["time"] = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    try:
        site: Site = Reader(Site, values, {}).read()
    except ConfigError as error:
        raise error.under("site") from None
    return site, found
