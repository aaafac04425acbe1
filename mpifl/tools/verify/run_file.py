"""`mpifl verify`: checks that a run file is undamaged, and that its rows are a history that its job allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from mpifl import execution
from mpifl.algorithms.base import Algorithm, Clients
from mpifl.config.job import Evaluate, Faults, Stop
from mpifl.config.registry import FAMILIES
from mpifl.config.schema import Reader, fields_of
from mpifl.config.trust import outside_code
from mpifl.config.types import Config, PositiveInt
from mpifl.errors import ConfigError, Contradiction, RunFailed
from mpifl.runfile.reader import DamagedRun, Run, open_run
from mpifl.runfile.replayed import computed_together, first_difference
from mpifl.runfile.tables import CLIENTS, TABLES
from mpifl.scheduling.availability import Always, Availability, TraceAvailability
from mpifl.scheduling.delays import Delay, NoDelay, Trace
from mpifl.scheduling.timeline import Timeline
from mpifl.server.start import run_server
from mpifl.tools.verify.history import History, Rules, verify
from mpifl.transport.frames import HEADER_BYTES


def verify_file(path: Path, replay: bool = False, trust: bool = False) -> str:
    """Checks a run file, and with `replay` repeats the run in this process; what was checked, in one line.

    Raises Contradiction with the first thing that is wrong, ConfigError for what is no run file or cannot be replayed.
    """
    line = check_file(path)
    if not replay:
        return f"{line}; what is computed from the data was not checked (--replay)"
    with TemporaryDirectory(prefix="mpifl-verify-") as folder:
        output = Path(folder, "replay.h5")
        task = execution.replay_task(path, keys={"output": output}, trust=trust)
        if task.replay and computed_together(task.replay):
            wrong = "clients were computed together, and --replay would differ within rounding"
            raise ConfigError("verify", path, wrong, "a run with problem.torch.batched: false")
        try:
            with execution.restored_torch(task.job):
                outcome = run_server(task.job, replay=task.replay, load=execution.load_problem)
        except RunFailed as error:
            raise Contradiction(f"{path}: the replay failed: {error}") from error
        if outcome.status != "completed":
            raise Contradiction(f"{path}: the replay failed: {outcome.error}")
        with open_run(path) as one, open_run(output) as other:
            if text := first_difference(one, other):
                raise Contradiction(f"{path}: {text}")
            what = "rows and model" if one.has_final_model else "rows; the run has no final model"
    return f"{line}; the replay computed the same {what}"


def check_file(path: str | Path) -> str:
    """Checks a run file; returns a line that says what was checked.

    Raises ConfigError if it is not a run file, Contradiction with the first thing that is wrong.
    """
    try:
        with open_run(path) as run:
            while True:
                before = run.count("checksums"), run.status
                try:
                    return _check(run)
                except Contradiction:
                    run.refresh()  # a live run may have written between two reads
                    if (run.count("checksums"), run.status) == before:
                        raise
    except DamagedRun as error:
        raise Contradiction(str(error)) from error
    except Contradiction as error:
        raise Contradiction(f"{path}: {error}") from None


def _check(run: Run) -> str:
    checksums = run.checksums()
    if checksums.wrong:
        raise Contradiction(checksums.wrong)
    history, notes = read_history(run, checksums.blocks), []
    rules, why = read_rules(run.config, history)
    try:
        verify(history, rules)
    except RunFailed as error:  # no run can have followed this model of delays or availability
        raise Contradiction(str(error)) from error
    counts = [
        f"{run.count(name):,} {name[: -1 if run.count(name) == 1 else None]}".replace("_", " ")
        for name, table in TABLES.items()
        if run.count(name) or not table.added
    ]
    uncovered = sum(run.count(table) - min(run.count(table), rows) for table, rows in checksums.rows.items())
    if not history.closed:
        notes.append("the run was not closed: what is there was checked")
    if not run.count("checksums"):
        notes.append("written by a version without checksums")
    elif uncovered:
        notes.append(f"{uncovered:,} rows have no checksum")
    if not rules.evaluate_interval:
        notes.append("the interval of evaluations was not checked: a resume changed it")
    if why:
        notes.append(f"messages and triggers were not checked: {why}")
    return f"{run.path}: {', '.join(counts)}: rows and checksums verified" + "".join(f"; {note}" for note in notes)


# -- what is in the file -----------------------------------------------------------------------------------------------
def read_history(run: Run, blocks: Mapping[str, Any]) -> History:
    """The tables of a run file as arrays; blocks: of rows that were written at once, by table. Raises ConfigError."""
    tables = {table: _columns(run, table, list(TABLES[table].columns), run.count(table)) for table in TABLES}
    tables["clients"] = _columns(run, "clients", list(CLIENTS.columns), None)
    closed = not run.open_ended and run.status != "running"
    # An event may be written after updates that follow it, but it is written before the next block of updates.
    firm = blocks["updates"][-1].first if blocks["updates"] else 0
    return History(
        tables, run.attrs, run.config, run.rows("model", "x", 0, None), run.model_version, run.layout, closed,
        run.count("updates") if closed else firm,
    )  # fmt: skip


def _columns(run: Run, table: str, names: list[str], rows: int | None) -> dict[str, np.ndarray]:
    found = {name: run.rows(table, name, 0, rows, checked=False) for name in names}  # it names the row
    return {
        name: np.char.decode(values, "utf-8", "replace").astype(object) if values.dtype.kind == "S" else values
        for name, values in found.items()
    }


# -- what the job says -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Plain(Config):
    """The sections of a job that name no class."""

    stop: Stop
    evaluate: Evaluate
    seed: int = 0
    faults: Faults = Faults()
    ranks_per_client: PositiveInt = 1


@dataclass(frozen=True)
class _Classes(Config):
    """The sections of a job that name classes, and decide the order of events."""

    algorithm: Algorithm
    delay: Delay = NoDelay()
    availability: Availability = Always()


def read_rules(config: Mapping[str, Any], history: History) -> tuple[Rules, str]:
    """What the job of a run file says about its events, and why some of it is not known ("": all is).

    Imports nothing that the file names.
    """
    clock = config.get("clock")
    clock = clock if isinstance(clock, Mapping) else {}
    keys = [key for key in ("delay", "availability") if clock.get(key)]
    sections = {"algorithm": config.get("algorithm"), **{key: clock[key] for key in keys}}
    events = history.tables["events"]
    known: dict[str, Any] = {"virtual": clock.get("mode") == "virtual", "header": HEADER_BYTES}
    availability = sections.get("availability", {"name": "always"})
    known["always"] = isinstance(availability, Mapping) and availability.get("name") == "always"
    changed = events["text"][events["kind"] == "changed"]
    known["evaluate_interval"] = not any(str(text).startswith("evaluate.") for text in changed)
    try:
        plain: _Plain = Reader(_Plain, {key: config[key] for key in fields_of(_Plain) if key in config}, {}).read()
        known |= {key: getattr(plain, key) for key in fields_of(_Plain)}
        if names := outside_code({"algorithm": sections["algorithm"], "clock": clock}):
            return Rules(**known), f"{', '.join(names)} is code outside mpifl"
        rates, seed = history.tables["clients"]["rate"], plain.seed
        clients = Clients(history.tables["clients"]["samples"], None if np.isnan(rates).any() else rates, seed)
        job: _Classes = Reader(_Classes, sections, FAMILIES).read()
        method, times = job.algorithm, None
        if known["virtual"] and not job.delay.has_split_times and not isinstance(job.delay, Trace):
            times = job.delay.contact_times(clients.n, seed)  # those of a trace are in another file
        if not isinstance(job.delay, Trace):
            known |= {"split": job.delay.has_split_times, "rates": job.delay.rates(clients.n, seed)}
        known |= {"vectors": (method.vectors_up, method.vectors_down), "contact_times": times}
        known["among_available"] = job.availability.cohort_from == "available"
        if not isinstance(job.availability, TraceAvailability):  # a trace's periods are in another file
            next_on = job.availability.on_periods(clients.n, seed)
            restart = job.availability.interrupted == "restart"
            known["timeline"] = Timeline(next_on, clients.n, restart) if next_on else None
        elif known["among_available"]:
            return Rules(**known), "the members of its rounds follow from another file, its trace"
        if type(method).answers is not Algorithm.answers:
            return Rules(**known), "the method itself decides whom it answers"
        if method.polls:
            return Rules(**known), "its rounds begin at polls, whose times the method decides"
        known |= {"trigger": method.aggregation_trigger(), "reply": method.reply_policy()}
        known["decides"] = known["trigger"] is None and type(method).ready is not Algorithm.ready
        return Rules(**known, cohort=method.participation(clients, seed)), ""
    except (ConfigError, ValueError, TypeError, ArithmeticError, LookupError) as error:
        return Rules(**known), f"its job cannot be read ({error})"
