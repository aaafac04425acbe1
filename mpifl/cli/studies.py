"""Commands that compute many runs: sweeps, batch jobs, the studies of papers."""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mpifl import api
from mpifl.cli.command import TRUST, Command, at_least_one, file_and_overrides, flag, is_override, one_path, value
from mpifl.cli.output import print_result
from mpifl.errors import ConfigError, RunFailed
from mpifl.safe_input import printable
from mpifl.signals import Interrupted

if TYPE_CHECKING:
    from mpifl.tools.studies.index import Index


def _sweep(args: argparse.Namespace) -> None:
    """Under MPI it checks the study alone: `_sweep_on_ranks` runs it."""
    from mpifl.tools.studies.study import load_study
    from mpifl.tools.studies.study_slices import Part
    from mpifl.tools.studies.sweep import count_groups, dry_run, print_progress, sweep
    from mpifl.transport.launcher import communicator

    path, overrides = file_and_overrides("sweep", "STUDY.yaml", args.arguments)
    part = Part.parse(args.part) if args.part else None
    study = load_study(path, overrides)
    comm = communicator()
    count = count_groups(comm.size, study.options.ranks) if comm else args.processes
    if comm and args.processes:
        wrong = "under mpirun each rank but 0, or group of `ranks`, computes one run at a time"
        raise ConfigError("--processes", args.processes, wrong, remedy="leave out the option")
    if args.dry_run:
        print_result(dry_run(study, count))
    elif comm is None:
        index = sweep(study, args.processes, print_progress(), part=part, stop_on_failure=args.stop_on_failure)
        _end_of_sweep(index, args.arguments)


def _sweep_on_ranks(args: argparse.Namespace) -> int:
    """`mpifl sweep` under MPI, once the study has been checked: whole runs side by side."""
    from mpifl.tools.studies.study import load_study
    from mpifl.tools.studies.study_slices import Part
    from mpifl.tools.studies.sweep import print_progress, sweep_on_ranks
    from mpifl.transport.launcher import broadcast_number, communicator, run_or_abort

    comm = communicator()
    if comm is None or args.dry_run:  # `_sweep` has done it
        return 0
    part = Part.parse(args.part) if args.part else None

    def run() -> int:
        try:
            index = sweep_on_ranks(
                comm, lambda: load_study(*file_and_overrides("sweep", "STUDY.yaml", args.arguments)),
                print_progress(), part, args.stop_on_failure,
            )  # fmt: skip
            if index:
                _end_of_sweep(index, args.arguments)
        except ConfigError as error:
            print(f"mpifl: {printable(error)}", file=sys.stderr)
            return 2
        except RunFailed as error:
            logging.getLogger("mpifl").error("%s", error)
            return 3
        except Interrupted as error:
            return error.code
        return 0

    return run_or_abort(comm, lambda: broadcast_number(comm, run()))


def _end_of_sweep(index: Index, arguments: list[str]) -> None:
    """Prints how a sweep ended, and which command comes next.

    Raises RunFailed where runs have failed, or are not completed.
    """
    from mpifl.tools.studies.sweep import final_line

    print_result(final_line(index))
    if index.searched and not index.counts()["completed"]:
        raise RunFailed("no run of the search has come to its end")
    if not index.searched and (failed := index.counts()["failed"]):  # a search ranks a run that failed last
        raise RunFailed(f"{failed} of {len(index.entries)} runs of the study failed")
    if left := index.unfinished():  # runs that were interrupted, or that other processes still compute
        raise RunFailed(f"{left} of {len(index.entries)} runs of the study are not completed: sweep it again")
    print(f"next: mpifl report {shlex.join(arguments)} --out FOLDER", file=sys.stderr)


def _submit(args: argparse.Namespace) -> None:
    from mpifl.config import read
    from mpifl.tools.studies.study import load_study
    from mpifl.tools.submit.script import job_script, parse_seeds, study_script, submit
    from mpifl.tools.submit.site import load_site

    path, overrides = file_and_overrides("submit", "STUDY.yaml or JOB.yaml", args.arguments)
    given = {"time": args.time, "partition": args.partition, "account": args.account}
    site_keys = dict(read.parse_override(word.removeprefix("site.")) for word in overrides if word.startswith("site."))
    overrides = [word for word in overrides if not word.startswith("site.")]
    site, _ = load_site(args.site, site_keys | {key: text for key, text in given.items() if text is not None})
    if "axes" in read.read_yaml(path, "submit"):
        if args.seeds:
            wrong = f"{path} is a study, which has its seeds in the key trials"
            raise ConfigError("--seeds", args.seeds, wrong, "a job", "set trials instead")
        if args.tasks and args.runs:
            raise ConfigError("--runs", args.runs, "--tasks is given too", "one of the two")
        script = study_script(site, load_study(path, overrides), path, overrides, args.tasks, args.runs)
    else:
        for option, count in (("--tasks", args.tasks), ("--runs", args.runs)):
            if count:
                raise ConfigError(option, count, f"{path} is a job", "a study")
        seeds = parse_seeds(args.seeds) if args.seeds is not None else None
        script = job_script(site, api.load_job(path, *overrides), path, overrides, seeds)
    if args.dry_run:
        print_result(script.text, end="")
    else:
        print_result(f"{submit(site, script)}\nlogs: {script.logs}")
    for note in script.notes:
        logging.getLogger("mpifl").warning("%s", note)


def _reproduce(args: argparse.Namespace) -> None:
    from mpifl.tools.reproduce.command import OUT, describe_runs, overview, reproduce
    from mpifl.tools.studies.sweep import print_progress
    from mpifl.transport.launcher import communicator

    if not args.arguments:
        print_result(overview())
        return
    name, *overrides = args.arguments
    if wrong := [argument for argument in overrides if not is_override(argument)]:
        raise ConfigError(
            "reproduce", wrong[0], "not key=value", "key=value after the item, the paper or the STUDY.yaml"
        )
    if args.trials:
        if any(override.startswith("trials=") for override in overrides):
            raise ConfigError("--trials", args.trials, "trials=... is given too", "one of the two")
        overrides.append(f"trials={args.trials}")
    if args.dry_run:
        print_result(describe_runs(name, overrides, args.processes))
        return
    if communicator():
        remedy = "on MPI ranks, run the study with mpifl sweep, then this with --no-runs"
        raise ConfigError("reproduce", name, "started by mpirun", "a start without it", remedy)
    print_result(
        reproduce(name, overrides, args.processes, args.out or OUT, args.download, not args.no_runs, print_progress())
    )


def _arena(args: argparse.Namespace) -> None:
    from mpifl.tools.arena import command, submission
    from mpifl.tools.studies.sweep import print_progress
    from mpifl.transport.launcher import communicator

    if communicator():
        remedy = "on MPI ranks, run the studies in the folder --out with mpifl sweep, then this with --no-runs"
        raise ConfigError("arena", " ".join(args.arguments) or "''", "started by mpirun", "a start without it", remedy)
    names = tuple(args.scenario.split(",")) if args.scenario is not None else ()
    verify = args.arguments[:1] == ["verify"]
    others = {"--out": args.out, "--no-runs": args.no_runs}
    if not verify:
        others = {"--all": args.all, "--ranks": args.ranks, "--trust": args.trust}
    elif args.arguments[-1].endswith(".json"):
        others |= {"--scenario": args.scenario, "--method": args.method}
    for option, given in others.items():
        if given:
            wrong = "the verification of this file does not take it" if verify else "only arena verify takes it"
            raise ConfigError(option, given, wrong, remedy="leave it out")
    if verify:
        path = one_path(
            "arena verify", args.arguments[1:], "a submission NAME.json, or a table NAME.csv or NAME.csv.gz"
        )
        how = args.all, args.ranks or 1, args.processes, print_progress()
        if path.suffix == ".json":
            print_result(submission.verify_submission(path, args.trust, *how))
        else:
            print_result(submission.verify_table(path, args.tier, names, args.method, *how))
    elif args.arguments:
        raise ConfigError("arena", args.arguments[0], "no such argument", "verify FILE, or options alone")
    else:
        out, runs = args.out or command.OUT, not args.no_runs
        print_result(command.arena(args.tier, args.method, names, out, runs, args.processes, print_progress()))


PROCESSES = {
    "--processes": value(
        "N", "runs computed at a time; default: the number of cores divided by the ranks of a run", at_least_one
    )
}
DRY_RUN = {"--dry-run": flag("list the runs and estimate their time, without running them")}

SWEEP = Command(
    _sweep,
    "STUDY.yaml [key=value ...]",
    "run the missing runs of a study, several at a time",
    {
        **PROCESSES,
        **DRY_RUN,
        "--stop-on-failure": flag("begin no other run once one has failed; those under way go on to their ends"),
        "--part": value("K/N", "compute only runs K, K + N, K + 2N, ... (K from 0 to N - 1), as one of N batch tasks"),
    },
    _sweep_on_ranks,
)

SUBMIT = Command(
    _submit,
    "STUDY.yaml|JOB.yaml [key=value ...] [site.key=value ...]",
    "submit a study or a job to the batch system",
    {
        "--dry-run": flag("print the batch script, and submit nothing"),
        "--site": value(
            "FILE",
            "file with the settings of the site; default: ./mpifl-site.yaml, else ~/.config/mpifl/site.yaml",
            Path,
        ),
        "--tasks": value("N", "number of tasks that share a study's runs", at_least_one),
        "--runs": value("N", "runs of a study that each task computes", at_least_one),
        "--seeds": value("LIST", "run a job once for each of these seeds, such as 0-19 or 0,3,5-7"),
        "--time": value("H:MM:SS", "time limit of a task"),
        "--partition": value("NAME", "partition of the batch system"),
        "--account": value("NAME", "account that is charged"),
    },
)

REPRODUCE = Command(
    _reproduce,
    "[PAPER[/ITEM]|STUDY.yaml [key=value ...]]",
    "run the study of a paper's table or figure, and write a page with its results beside the published ones; "
    "without an argument, list the tables and figures",
    {
        "--trials": value("N", "number of trials of each combination; default: as in the study", at_least_one),
        **PROCESSES,
        "--out": value("DIR", "write the page here; default: results/reproduce", Path),
        "--download": flag("download data that are missing"),
        "--no-runs": flag("run nothing: write the page from the completed runs"),
        **DRY_RUN,
    },
)

ARENA = Command(
    _arena,
    "[verify SUBMISSION.json|TABLE.csv]",
    "compare methods in fixed scenarios, with equal numbers of configurations; verify a submission or a results table",
    {
        "--tier": value("NAME", "quick or standard; default: the smallest that has the scenarios of --scenario"),
        "--method": value(
            "MODULE:CLASS",
            "tune, run and compare a method of your own with the stored results; verify: only this method of a table",
        ),
        "--scenario": value("NAMES", "only these scenarios of the tier, separated by commas"),
        "--out": value("DIR", "folder of the runs, the table and the page; default: results/arena", Path),
        "--no-runs": flag("run nothing: write the table and the page from the existing runs"),
        "--all": flag("verify: compute all runs again, instead of a random tenth"),
        "--ranks": value("N", "verify: number of MPI ranks that compute each run", at_least_one),
        **TRUST,
        **PROCESSES,
    },
)
