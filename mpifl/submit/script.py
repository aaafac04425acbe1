"""Writes the batch script of a job or a study, and submits it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files
from math import ceil
from pathlib import Path
from string import Template

from mpifl.config.job import Job
from mpifl.config.read import parse_override
from mpifl.errors import ConfigError
from mpifl.storage.checkpoint_set import folder_of
from mpifl.studies.study import Study
from mpifl.submit.site import Site

COMMANDS = {"slurm": "sbatch"}


def study_script(site: Site, study: Study, path: Path, overrides: Sequence[str], tasks: int | None = None) -> str:
    """The script of an array of tasks that run a study; tasks: their number, None: one for `site.processes` runs."""
    count = ceil(len(study.runs) / site.processes) if tasks is None else min(tasks, len(study.runs))
    words = ["sweep", str(path.absolute()), *_without_output(overrides), _output(study.folder)]
    sweep = f"{_python(site)} {shlex.join(words)} --processes {site.processes} --part"
    return _filled(
        site, f"{site.scheduler}-study", name=study.options.name, tasks=str(count), last=str(count - 1),
        at_once=str(min(site.at_once, count)), command=sweep,
        log=_option_value(study.folder.resolve() / "logs", "%A-%a.log"),
    )  # fmt: skip


def job_script(site: Site, job: Job, path: Path, overrides: Sequence[str]) -> str:
    """The script of one run of a job on `site.nodes` nodes."""
    output = Path(job.output).resolve()
    words = [str(path.absolute()), *_without_output(overrides), _output(output)]
    python, target = _python(site), shlex.quote(str(output))
    return _filled(
        site, f"{site.scheduler}-job", name=job.name, log=_option_value(output.parent, "%x-%j.log"),
        run=f"{python} run {shlex.join(words)}", resume=f"{python} resume {target} --trust",
        checkpoints=shlex.quote(str(folder_of(output))), launch=_launch(site),
    )  # fmt: skip


def submit(site: Site, script: str, logs: Path) -> str:
    """Submits a script; returns what the batch system printed. Raises ConfigError if it cannot be submitted."""
    command = COMMANDS[site.scheduler]
    if shutil.which(command) is None:
        raise ConfigError("site.scheduler", site.scheduler, f"a machine with {command}; --dry-run prints the script")
    try:
        logs.mkdir(parents=True, exist_ok=True)  # without it the batch system ends the job without a log
        done = subprocess.run([command], input=script, text=True, capture_output=True, check=False)
    except OSError as error:
        raise ConfigError("output", logs, f"a folder that can be written ({error.strerror})") from None
    if done.returncode:
        text = f"a script that {command} accepts; it ended with exit code {done.returncode}"
        raise ConfigError("submit", command, " ".join(done.stderr.split()) or text)
    return done.stdout.strip()


def _without_output(overrides: Sequence[str]) -> list[str]:
    return [override for override in overrides if not override.startswith("output=")]


def _output(path: Path) -> str:
    """The override that writes to a path, which may hold what YAML reads as something else."""
    text = f"output={path.resolve()}"
    with suppress(ConfigError):
        if parse_override(text) == ("output", str(path.resolve())):
            return text
    return f"output={json.dumps(str(path.resolve()), ensure_ascii=False)}"


def _option_value(folder: Path, pattern: str = "") -> str:
    """A path as the value of an option in an `#SBATCH` line: quoted where SLURM would end it at a blank or a `#`.

    pattern: Name of a log in the folder, with `%` fields; in the folder's own name a `%` is one.
    """
    text = f"{str(folder).replace('%', '%%')}/{pattern}" if pattern else str(folder)
    if not re.search(r"[\s#'\"\\]", text):
        return text
    return '"' + re.sub(r'(["\\\\])', r"\\\1", text) + '"'


def _python(site: Site) -> str:
    inside = ["apptainer", "exec", site.container, "python"] if site.container else [sys.executable]
    return shlex.join([*inside, "-m", "mpifl"])


def _launch(site: Site) -> str:
    if site.launcher == "srun":
        return shlex.join(["srun", *([f"--mpi={site.mpi}"] if site.mpi else [])])
    own = Path(sys.executable).with_name("mpirun")  # of the wheel, in this environment
    mpirun = str(own) if own.exists() and not site.container else "mpirun"
    return shlex.join([mpirun, "--map-by", f"ppr:{site.ranks_per_node}:node", "--bind-to", "none"])


def _filled(site: Site, template: str, **values: str) -> str:
    text = (files("mpifl.submit") / "templates" / f"{template}.sh").read_text(encoding="utf-8")
    own = {
        "time": site.time, "nodes": str(site.nodes), "ranks": str(site.ranks_per_node),
        "processes": str(site.processes), "warning": str(site.warning), "folder_now": _option_value(Path.cwd()),
        "setup": "\n".join(site.setup) or ":", "options": _options(site),
    }  # fmt: skip
    return Template(text).substitute(own | values)


def _options(site: Site) -> str:
    """The lines for partition, account and further options."""
    own = {"--partition": site.partition, "--account": site.account}
    lines = [f"#SBATCH {option}={value}" for option, value in own.items() if value]
    return "\n".join([*lines, *(f"#SBATCH {option}" for option in site.options)]) or "# no further options"
