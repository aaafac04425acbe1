"""Writes the batch script of a job or a study, and submits it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.resources import files
from math import ceil
from pathlib import Path
from string import Template
from typing import NamedTuple

from mpifl.config.job import Job
from mpifl.config.read import load, parse_override
from mpifl.errors import ConfigError, as_unwritable
from mpifl.runfile.checkpoint_folder import folder_of
from mpifl.runfile.create import refuse_existing, refuse_live
from mpifl.runfile.reader import open_run
from mpifl.server.resume import is_unfinished
from mpifl.text import format_count
from mpifl.tools.studies.index import Index
from mpifl.tools.studies.search import cannot_split
from mpifl.tools.studies.study import Study
from mpifl.tools.submit.site import Site
from mpifl.transport.layout import Layout

COMMANDS = {"slurm": ["sbatch"], "pbs": ["qsub"], "flux": ["flux", "batch"], "lsf": ["bsub"]}
# Files that name the hosts to an mpirun that was built without the scheduler.
HOST_FILES = {"pbs": "$PBS_NODEFILE", "lsf": "$LSB_DJOB_HOSTFILE"}
MAX_SEEDS = 100_000
ULFM = """
if {} 2> /dev/null | grep -q "Fault Tolerance support: yes"; then
    launch+=(--with-ft ulfm)  # the run goes on without ranks that die
fi"""
MPI_MODULE = re.compile(r"\b(module|ml)\s.*(mpi|mvapich)", re.IGNORECASE)  # a command that loads an MPI
NODE_LOCAL = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # folders that are usually on a disk, or in memory, of each node
SEED = "\ue000"  # a letter that no path has; it stands for the value of the shell's variable `seed`


class Script(NamedTuple):
    """A batch script."""

    text: str
    logs: Path
    """the folder of its logs"""
    tasks: int
    """number of tasks of its array; 1: it has no array"""
    notes: Sequence[str] = ()
    """warnings, as of tasks without runs or ranks without clients"""


def study_script(
    site: Site, study: Study, path: Path, overrides: Sequence[str], tasks: int | None = None, runs: int | None = None
) -> Script:
    """The script of an array of tasks that run a study. Raises ConfigError where a task has too few ranks for a run.

    tasks: their number; runs: of each task. Both None: as many runs a task as it computes at a time.
    """
    ranks, total = study.options.ranks, site.ranks
    at_a_time = site.processes if ranks == 1 else (total - 1) // ranks
    if not at_a_time:
        wrong = f"a task has {total} ranks (site.nodes × site.ranks_per_node), of which one only dispatches runs"
        raise ConfigError("ranks", ranks, wrong, f"at most {total - 1}")
    if study.options.search:
        for option, count in (("--tasks", tasks), ("--runs", runs)):
            if count and (option, count) != ("--tasks", 1):
                raise cannot_split(option, count, "one task")
        tasks = 1
    if Index(study).counts()["completed"] == len(study.runs):
        raise ConfigError("submit", path, f"all {len(study.runs)} runs are completed", "a study with runs to do")
    notes = _notes(site, ranks > 1, output=study.folder, study=path)
    if tasks and tasks > len(study.runs):
        notes.append(f"--tasks={tasks}: one task for each of the study's {format_count(len(study.runs), 'run')}")
    if ranks > 1 and (idle := total - 1 - at_a_time * ranks):
        notes.append(f"{idle} of {total} ranks of a task will be idle: a run has {ranks}, and one only dispatches runs")
    count = min(tasks or ceil(len(study.runs) / (runs or at_a_time)), len(study.runs))
    words = ["sweep", str(path.absolute()), *_without(overrides, "output"), _output(study.folder)]
    words += [] if ranks > 1 else ["--processes", str(site.processes)]
    logs = study.folder.resolve() / "logs"
    body = {"tasks": str(count), "command": f"{_python(site)} {shlex.join(words)}"}
    title = f"Study {study.options.name}: {format_count(count, 'task')} for {format_count(len(study.runs), 'run')}"
    text = _filled(site, "study", title, study.options.name, logs, count, ranks > 1, body)
    return Script(text, logs, count, notes)


def job_script(
    site: Site, job: Job, path: Path, overrides: Sequence[str], seeds: Sequence[int] | None = None
) -> Script:
    """The script of one run of a job on `site.nodes` nodes; with seeds, of an array with one run for each of them.

    Raises ConfigError where the ranks form incomplete groups, or a run file exists, unless it is an interrupted run of
    the same job, which then continues.
    """
    layout = Layout(site.ranks, job.ranks_per_client).check()
    output = Path(job.output).resolve()
    words = [str(path.absolute()), *_without(overrides, "output", *(["seed", "name"] if seeds else []))]
    python, target, extra, before = _python(site), _output(output), "", ""
    if seeds:
        target = _output(output.with_name(f"{output.stem}-seed-{SEED}.h5"))
        extra, before = f' seed="$seed" name={job.name}-seed-"$seed"', f"seeds=({' '.join(map(str, seeds))})\n"
        before += "seed=${seeds[$task]}\n"
    file = parse_override(target)[1]
    again = '[ "$restarts" != 0 ]'
    continued = [_continues(each) for each in _jobs(job, path, overrides, output, seeds)]
    if any(continued):
        again += f" || [ -e {_quoted(file)} ]"
    notes = _notes(site, True, output=output.parent, job=path)
    if (clients := job.problem.clients) and (idle := site.ranks - clients * layout.per_client - 1) > 0:
        each = f", each of {layout.per_client} ranks" if layout.per_client > 1 else ""
        notes.append(f"{idle} of {site.ranks} ranks will be idle: the job has {format_count(clients, 'client')}{each}")
    node_of = [rank // site.ranks_per_node for rank in range(site.ranks)]
    if across := sum(len({node_of[rank] for rank in layout.group_of(leader)}) > 1 for leader in layout.leaders):
        of = f"{format_count(layout.groups, 'group')} of {layout.per_client} ranks"
        notes.append(f"{across} of {of} will be on several nodes")
    if 0 < site.gpus_per_node < site.ranks_per_node - 1 and layout.per_client > 1:
        gpus = f"a node has {format_count(site.gpus_per_node, 'GPU')} for {site.ranks_per_node} ranks"
        notes.append(f"{gpus}, and each rank of a client takes one: ranks will share them")
    body = {
        "seeds": before, "run": f"{python} run {shlex.join(words)}{extra} {_quoted(target)}", "again": again,
        "resume": f"{python} resume {_quoted(file)} --trust", "checkpoints": _quoted(str(folder_of(Path(file)))),
    }  # fmt: skip
    nodes, ranks = format_count(site.nodes, "node"), format_count(site.ranks_per_node, "rank")
    title = f"Job {job.name} on {nodes} with {ranks} each"
    tasks = len(seeds or [0])
    text = _filled(site, "job", title, job.name, output.parent, tasks, True, body)
    return Script(text, output.parent, tasks, notes)


def _notes(site: Site, launched: bool, **paths: Path) -> list[str]:
    """Warnings about what will not work on the nodes; launched: the script starts ranks; paths: those that they use."""
    notes = []
    loads = next((line for line in site.setup if MPI_MODULE.search(line)), None)
    if launched and loads and (mpirun := _mpirun(site)) and mpirun.is_absolute():
        notes.append(f"site.setup={loads}: the script starts {mpirun}, of the MPI that pip installed beside this "
                     "Python; for that of the module, install mpifl without the extra [mpi]")  # fmt: skip
    if not site.python and not site.container:
        paths |= {"python": Path(sys.executable)}
    for name, path in {**paths, "folder": Path.cwd()}.items():
        if own := next((folder for folder in NODE_LOCAL if path.resolve().is_relative_to(folder)), None):
            notes.append(f"{name}={path.absolute()}: {own} is usually of one node alone, and the job runs on others; "
                         "use a folder that they share")  # fmt: skip
    return notes + _memory_notes(site)


def _memory_notes(site: Site) -> list[str]:
    """A warning where SLURM gives a job that does not ask for memory a part of that of its nodes."""
    if site.scheduler != "slurm" or shutil.which("scontrol") is None or any("--mem" in each for each in site.options):
        return []
    for words in ([["partition", site.partition]] if site.partition else []) + [["config"]]:
        done = subprocess.run(["scontrol", "show", *words], capture_output=True, text=True, check=False)
        if found := re.search(r"DefMemPer(\w+) *= *(\d+)", done.stdout):
            least = f"{found[2]} MB a {found[1]}"
            return [f"site.options has no --mem: this cluster then gives a job {least}; ask for what it needs, as in "
                    "options: [--mem-per-cpu=4G]"]  # fmt: skip
    return []


def _jobs(job: Job, path: Path, overrides: Sequence[str], output: Path, seeds: Sequence[int] | None) -> Iterator[Job]:
    """The jobs of an array over seeds whose run files exist, or the one job."""
    if not seeds:
        yield job
    for seed in seeds or []:
        file = output.with_name(f"{output.stem}-seed-{seed}.h5")
        if os.path.lexists(file):
            yield load(path, overrides, {"seed": seed, "name": f"{job.name}-seed-{seed}", "output": str(file)})


def _continues(job: Job) -> bool:
    """Whether an interrupted run of this job is there. Raises ConfigError for any other file."""
    path = Path(job.output)
    if job.overwrite or path.is_dir() or not os.path.lexists(path):
        refuse_existing(path, job.overwrite)
        return False
    refuse_live(path)
    with open_run(path) as run:
        if not is_unfinished(run, job):
            refuse_existing(path, overwrite=False)
    return True


def parse_seeds(text: str) -> list[int]:
    """The seeds of a text such as 0-19 or 0,3,5-7. Raises ConfigError."""
    seeds: list[int] = []
    for part in text.split(","):
        if not (found := re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", part)):
            raise ConfigError("--seeds", text, "not a list of seeds", "seeds such as 0-19 or 0,3,5-7")
        low, high = int(found[1]), int(found[2] or found[1])
        if not low <= high < low + MAX_SEEDS:
            raise ConfigError(
                "--seeds", text, f"{part} falls, or is too long", f"ranges that rise, of at most {MAX_SEEDS:,} seeds"
            )
        seeds += range(low, high + 1)
    if len(set(seeds)) < len(seeds):
        raise ConfigError("--seeds", text, "a seed occurs twice", "distinct seeds")
    return seeds


def submit(site: Site, script: Script) -> str:
    """Submits a script; returns what the batch system printed. Raises ConfigError if it cannot be submitted."""
    command = COMMANDS[site.scheduler]
    if shutil.which(command[0]) is None:
        raise ConfigError(
            "site.scheduler",
            site.scheduler,
            f"this machine has no {command[0]}",
            "a machine with it",
            "--dry-run prints the script",
        )
    made = not script.logs.exists()
    with as_unwritable("output", script.logs):
        script.logs.mkdir(parents=True, exist_ok=True)  # a missing folder would end the job without a log
    if not os.access(script.logs, os.W_OK | os.X_OK, effective_ids=True):
        raise ConfigError("output", script.logs, "cannot be written: Permission denied", "a folder that can be written")
    # Flux has no arrays of batch jobs, so each task is submitted by itself.
    several = site.scheduler == "flux" and script.tasks > 1
    commands = [[*command, f"--env=MPIFL_TASK={task}"] for task in range(script.tasks)] if several else [command]
    try:
        return "\n".join(_submit_one(words, script.text) for words in commands)
    except ConfigError:
        if made:
            with suppress(OSError):  # others have put files there
                script.logs.rmdir()
        raise


def _submit_one(command: Sequence[str], text: str) -> str:
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    if done.returncode:
        answer = " ".join(done.stderr.replace(f"{command[0]}: error: ", "").split())
        reason = f"its answer: {answer}" if answer else f"it ended with exit code {done.returncode}"
        raise ConfigError("submit", shlex.join(command), reason, "a script that it accepts")
    return done.stdout.strip()


# -- words of the shell ------------------------------------------------------------------------------------------------
def _without(overrides: Sequence[str], *keys: str) -> list[str]:
    return [override for override in overrides if override.partition("=")[0] not in keys]


def _output(path: Path) -> str:
    """The override that writes to a path, which may hold what YAML reads as something else."""
    text = f"output={path.resolve()}"
    with suppress(ConfigError):
        if parse_override(text) == ("output", str(path.resolve())):
            return text
    return f"output={json.dumps(str(path.resolve()), ensure_ascii=False)}"


def _quoted(text: str) -> str:
    """The text as a word of the shell."""
    return '"$seed"'.join(map(shlex.quote, text.split(SEED)))


def _option_value(folder: Path, pattern: str = "", escape: bool = False) -> str:
    """A path as the value of an option in a script's comment: quoted where it would end at a blank or a `#`.

    pattern: Name of a log in the folder, with the batch system's fields. escape: double `%` in the folder's own name.
    """
    name = str(folder).replace("%", "%%") if escape else str(folder)
    text = f"{name}/{pattern}" if pattern else name
    if not re.search(r"[\s#'\"\\]", text):
        return text
    return '"' + re.sub(r'(["\\\\])', r"\\\1", text) + '"'


def _python(site: Site) -> str:
    """The words for the shell that start mpifl."""
    python = f'"{site.python}"' if site.python else "python" if site.container else shlex.quote(sys.executable)
    gpu = ["--nv"] if site.gpus_per_node else []
    inside = shlex.join(["apptainer", "exec", *gpu, site.container]) + " " if site.container else ""
    return f"{inside}{python} -m mpifl"


def _mpirun(site: Site) -> Path | None:
    """The mpirun that starts the ranks; None where another launcher does."""
    if (site.launcher or ("flux" if site.scheduler == "flux" else "mpirun")) != "mpirun":
        return None
    own = Path(sys.executable).with_name("mpirun")  # an MPI from pip has it beside Python
    return own if own.exists() and not site.container else Path("mpirun")


def _launch(site: Site) -> str:
    """The lines that set `launch` to the words that start the ranks."""
    launcher, mpirun = site.launcher or "flux", _mpirun(site)
    total, each, ulfm, why = site.ranks, str(site.ranks_per_node), "", ""
    if mpirun:
        hosts = f' --hostfile "{HOST_FILES[site.scheduler]}"' if site.scheduler in HOST_FILES else ""
        words = f"{shlex.quote(str(mpirun))}{hosts} --map-by ppr:{each}:node --bind-to none"
        ulfm = ULFM.format(shlex.quote(str(mpirun.with_name("ompi_info"))))
        why = "# --bind-to none: a rank may use every core of its job; else all threads of rank 0 would share one.\n"
    elif launcher == "srun":
        words = shlex.join(["srun", *([f"--mpi={site.mpi}"] if site.mpi else [])])
    elif launcher == "flux":
        words = f"flux run --nodes={site.nodes} --ntasks={total}"
    else:
        words = f"mpiexec -n {total} -ppn {each}"
    return f"{why}launch=({' '.join([words, *map(shlex.quote, site.launcher_options)])}){ulfm}"


# -- the template ------------------------------------------------------------------------------------------------------
def _filled(
    site: Site, body: str, title: str, name: str, logs: Path, tasks: int, launched: bool, values: dict[str, str]
) -> str:
    """The template of the scheduler, with that of what it runs; launched: on ranks, rather than in one process."""
    nodes, ranks = (site.nodes, site.ranks_per_node) if launched else (1, 1)
    cores, array = 1 if launched else site.processes, tasks > 1
    per_node = ranks * cores
    log = {
        "slurm": "%x-%A-%a.log" if array else "%x-%j.log", "pbs": "", "flux": "{{name}}-{{id}}.log",
        "lsf": f"{name}-%J-%I.log" if array else f"{name}-%J.log",
    }[site.scheduler]  # fmt: skip
    path = _option_value(logs, log, escape=site.scheduler == "slurm")
    own = {
        "title": title, "name": name, "nodes": str(nodes), "ranks": str(ranks), "cores": str(cores),
        "cores_per_node": str(per_node), "slots": str(nodes * per_node), "slots_per_node": str(per_node),
        "gpus": f":ngpus={site.gpus_per_node}" if site.gpus_per_node else "",
        "time": site.time, "requeues": str(site.requeues),
        "minutes": str(ceil(site.seconds / 60)), "lead": str(site.seconds - site.warning),
        "warning": str(site.warning), "warning_minutes": str(ceil(site.warning / 60)),
        "job_array": f'"{name}[1-{tasks}]%{min(site.at_once, tasks)}"' if array else name,
        "log": f"{path}/" if site.scheduler == "pbs" else path,
        "folder_now": shlex.quote(str(Path.cwd())) if site.scheduler == "pbs" else _option_value(Path.cwd()),
        "setup": "\n".join(site.setup) or ":", "options": _options(site, tasks),
        "launch": f"\n{_launch(site)}\n" if launched else "",
        "start": '"${launch[@]}" "${command[@]}"' if launched else '"${command[@]}"',
    }  # fmt: skip
    parts = (_template(site.scheduler), _template(body), _template("wait"))
    return Template("".join(parts)).substitute(own | values)


def _template(name: str) -> str:
    return (files("mpifl.tools.submit") / "templates" / f"{name}.sh").read_text(encoding="utf-8")


def _options(site: Site, tasks: int) -> str:
    """The lines for the array, the partition, the account, GPUs and further options."""
    at_once, gpus = min(site.at_once, tasks), site.gpus_per_node
    mark, array, partition, account, gpu = {
        "slurm": ("#SBATCH", f"--array=0-{tasks - 1}%{at_once}", "--partition={}", "--account={}",
                  f"--gpus-per-node={gpus}"),
        "pbs": ("#PBS", f"-J 0-{tasks - 1}%{at_once}", "-q {}", "-A {}", ""),
        "flux": ("# flux:", "", "--queue={}", "--bank={}", f"--gpus-per-slot={gpus}"),
        "lsf": ("#BSUB", "", "-q {}", "-P {}", f'-gpu "num={gpus}"'),
    }[site.scheduler]  # fmt: skip
    lines = [
        array if tasks > 1 else "", partition.format(site.partition) if site.partition else "",
        account.format(site.account) if site.account else "", gpu if gpus else "", *site.options,
    ]  # fmt: skip
    return "\n".join(f"{mark} {line}" for line in lines if line) or "# no further options"
