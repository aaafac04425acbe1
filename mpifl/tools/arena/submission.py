"""Submissions to the arena, files with a method's source, its runs and their hashes, and their verification."""

from __future__ import annotations

import json
import logging
import os
import platform
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mpifl.config.registry import FAMILIES
from mpifl.errors import MAX_PART, ConfigError, Contradiction, as_unwritable, shortened
from mpifl.runfile.reader import Run, open_run
from mpifl.safe_input import parse_json
from mpifl.text import format_count
from mpifl.tools.arena.audit import check_source, rules_of
from mpifl.tools.arena.meter import refuse_polls
from mpifl.tools.arena.suite import Suite, load_suite, own_method, scenario_study
from mpifl.tools.arena.table import (
    Row,
    hashes,
    mean_losses,
    measured,
    parse_table,
    read_content,
    read_table,
    write_table,
)
from mpifl.tools.studies.index import Index
from mpifl.tools.studies.study import Study, StudyRun, identify
from mpifl.tools.studies.sweep import sweep
from mpifl.version import source as version

log = logging.getLogger(__package__)

SUBMISSION_KEYS = ("suite", "tier", "method", "source", "environment", "table")
RUNS_PER_CHECK = 10  # one of so many runs is recomputed
ROUNDING = 1e-5  # relative tolerance of losses where the BLAS kernels differ
RESTRICTION = """
from mpifl.tools.arena.meter import meter
meter({}, dict(globals().get("ARENA", {{}})).get("knows", []))
"""  # is appended to the source of a submission when it is run


def environment() -> dict[str, str]:
    """What the bits of a run may depend on."""
    from threadpoolctl import threadpool_info

    kernels = sorted({f"{each['internal_api']} {each.get('version')} {each.get('architecture', '')}".strip()
                      for each in threadpool_info()})  # fmt: skip
    return {"mpifl": str(version().commit or "unknown"), "python": platform.python_version(), "numpy": np.__version__,
            "machine": platform.machine(), "kernels": ", ".join(kernels)}  # fmt: skip


def source_of(name: str) -> str:
    """The source of a method "module:Class", whose module is a single file. Raises ConfigError."""
    file = getattr(sys.modules[name.partition(":")[0]], "__file__", None)
    if not file:
        raise ConfigError("--method", name, "its module has no file", "a method in one file")
    return Path(file).read_text("utf-8")


def why_refused(name: str) -> str:
    """Why a method "module:Class" cannot be submitted; "" where it can."""
    try:
        check_source(source_of(name))
        refuse_polls(FAMILIES["algorithm"].find(name))
    except ConfigError as error:
        return f"no submission is written of {name}, since it would be refused: {error}"
    return ""


def keep_source(folder: Path, name: str) -> None:
    """Keeps a copy of the source of a method "module:Class" beside its runs.

    Raises ConfigError where the folder has runs of a source that computes something else, or cannot be written.
    """
    source, copy = source_of(name), folder / "source.py"
    if copy.exists() and any(folder.glob("*/*.h5")) and rules_of(copy.read_text("utf-8")) != rules_of(source):
        wrong = f"its source has changed since the runs in {folder}, whose source is in {copy.name} there"
        raise ConfigError("--method", name, wrong, remedy="remove or rename this folder, or give another one as --out")
    with as_unwritable("--out", folder):
        folder.mkdir(parents=True, exist_ok=True)
        copy.write_text(source, encoding="utf-8")


def write_submission(path: Path, suite: Suite, tier: str, name: str, rows: Sequence[Row]) -> Path:
    """Writes the submission of a method "module:Class". Raises ConfigError."""
    content = {"suite": suite.name, "tier": tier, "method": name,
               "source": source_of(name), "environment": environment(),
               "table": write_table([row for row in rows if row.method == name])}  # fmt: skip
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Submission:
    """A submission that was read, and checked as far as this is possible without running its code."""

    path: Path
    suite: Suite
    tier: str
    method: str
    source: str
    environment: dict[str, Any]
    rows: list[Row]


def read_submission(path: Path) -> Submission:
    """Reads a submission and checks its source. Raises ConfigError."""
    suite, text, expected = load_suite(), read_content(path), f"JSON with {', '.join(SUBMISSION_KEYS)}"
    try:
        content = parse_json(text)
    except ValueError as error:
        raise ConfigError("arena", path, f"not a submission: {error}", expected) from None
    if not isinstance(content, dict) or set(content) != set(SUBMISSION_KEYS):
        found = ", ".join(map(str, content)) or "no keys" if isinstance(content, dict) else type(content).__name__
        raise ConfigError("arena", path, f"not a submission: it has {shortened(found, MAX_PART)}", expected)
    if content["suite"] != suite.name:
        raise ConfigError("suite", content["suite"], "the submission is for another suite", suite.name)
    suite.tier(str(content["tier"]), "tier")
    if not all(isinstance(content[key], str) for key in ("method", "source", "table")):
        raise ConfigError("arena", path, "not a submission", "text as method, source and table")
    if not isinstance(content["environment"], dict):
        raise ConfigError("arena", path, "not a submission", "an object as environment")
    check_source(content["source"])
    rows = parse_table(path, content["table"])
    return Submission(path, suite, str(content["tier"]), content["method"], content["source"],
                      content["environment"], rows)  # fmt: skip


def verify_submission(
    path: Path, trust: bool = False, whole: bool = False, ranks: int = 1, processes: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> str:  # fmt: skip
    """Checks a submission, recomputes a random tenth of its runs, and says what was checked, in one line.

    Args:
        path: The submission.
        trust: Whether the method's code may be run.
        whole: Recompute all runs.
        ranks: MPI ranks of each recomputed run; the bits must not depend on them.
        processes: Runs computed at a time; None: one for each core.
        progress: Called with a line on the state of a scenario whenever a run ends.

    Raises:
        ConfigError: It is no submission, or not of this suite, or its source has what a method may not have.
        Contradiction: Its runs are not those of the rules, or have other results.
    """
    found = read_submission(path)
    if not trust:
        wrong = "verifying it runs the code in this file"
        raise ConfigError("arena", path, wrong, remedy="add --trust if you trust its author")
    compute = partial(sweep, processes=processes, progress=progress)
    with _module(found) as folder:
        method = own_method(found.method, "method")
        studies = {name: scenario_study(found.suite, each, {found.method: method}, folder, ranks)
                   for name, each in found.suite.tier(found.tier).items()}  # fmt: skip
        recomputed = Recomputed()
        _recompute_share(found, studies, whole, compute, recomputed)
        line = _verified(found, found.method, recomputed)
        for name, study in studies.items():
            reported = [row.identity for row in found.rows if row.scenario == name and row.role == "reporting"]
            if any(reported):
                run = next(run for run in study.runs if run.identity == reported[0])
                check_independence(found, study, run, compute)
    return line


def verify_table(
    path: Path, tier: str | None = None, only: Sequence[str] = (), method: str | None = None, whole: bool = False,
    ranks: int = 1, processes: int | None = None, progress: Callable[[str], None] | None = None,
) -> str:  # fmt: skip
    """Checks a results table of the suite's methods as a submission, and says what was checked, in one line.

    Args:
        path: The table.
        tier: The scenarios that it has to have; None: the smallest tier that has those of `only`.
        only: Names of scenarios that are checked; empty: all of the tier.
        method: The only method that is checked; None: all of the suite.
        whole, ranks, processes, progress: As of `verify_submission`.

    Raises:
        ConfigError: It is no table, or an unknown tier, scenario or method.
        Contradiction: Its runs are not those of the rules, or have other results.
    """
    suite, rows = load_suite(), read_table(path)
    if method and method not in suite.methods:
        raise ConfigError("--method", method, "not a method of the suite", f"one of {', '.join(suite.methods)}")
    tier = tier or suite.tier_of(only)
    scenarios, recomputed = suite.chosen(tier, only), Recomputed()
    compute = partial(sweep, processes=processes, progress=progress)
    for name in [method] if method else suite.methods:
        own = [row for row in rows if row.method == name and row.scenario in scenarios]
        found = Submission(path, suite, tier, name, "", {"kernels": "unknown kernels"}, own)
        with tempfile.TemporaryDirectory(prefix="mpifl-arena-") as folder:
            studies = {key: scenario_study(suite, each, {name: suite.methods[name]}, Path(folder), ranks)
                       for key, each in scenarios.items()}  # fmt: skip
            _recompute_share(found, studies, whole, compute, recomputed)
    return _verified(found, method or format_count(len(suite.methods), "method"), recomputed)


@dataclass
class Recomputed:
    """The runs that a verification has computed again."""

    runs: int = 0
    """in the file"""
    drawn: int = 0
    """of them, computed again"""
    rounded: int = 0
    """that agree only within rounding"""
    differing: list[str] = field(default_factory=list)
    """a line for each run that differs"""


def _recompute_share(
    found: Submission, studies: Mapping[str, Study], whole: bool, compute: Callable[..., Index], recomputed: Recomputed
) -> None:  # fmt: skip
    """Checks the rules, computes a share of the runs again, and counts them. Raises Contradiction against the rules."""
    check_rules(found, studies)
    runs = [row for row in found.rows if row.identity]
    drawn = runs if whole else random.SystemRandom().sample(runs, -(-len(runs) // RUNS_PER_CHECK))
    recomputed.runs += len(runs)
    recomputed.drawn += len(drawn)
    for name, study in studies.items():
        recompute(found, study, [row for row in drawn if row.scenario == name], compute, recomputed)


def _verified(found: Submission, what: str, recomputed: Recomputed) -> str:
    """The line that says what was checked. Raises Contradiction where a run differs."""
    kernels, here = found.environment.get("kernels"), environment()["kernels"]
    by = f"computed with {kernels}, here with {here}"
    count = f"{recomputed.drawn} of {recomputed.runs} runs recomputed"
    if differing := recomputed.differing:
        of = f"{len(differing)} of {recomputed.drawn} runs differ, the first: " if recomputed.drawn > 1 else ""
        text = f"{found.path}: {of}{differing[0]}"
        if kernels != here:
            text += f"; {by}, which can be the reason: verify with the same kernels (OPENBLAS_CORETYPE)"
        raise Contradiction(text)
    rounded = recomputed.rounded
    how = f", {rounded} of them within rounding ({ROUNDING:g}): {by}" if rounded else " to the bit"
    return f"{found.path}: {what} in {found.suite.name}, {found.tier} tier: all rules hold, {count}{how}"


@contextmanager
def _module(found: Submission) -> Iterator[Path]:
    """Makes the source of a submission the module that its method names, in a temporary working directory."""
    name = found.method.partition(":")[0]
    if not name.isidentifier() or name in sys.stdlib_module_names:
        raise ConfigError("method", found.method, "it does not name a module of its own", "module:Class")
    with tempfile.TemporaryDirectory(prefix="mpifl-arena-") as folder, chdir(folder):
        Path(f"{name}.py").write_text(
            f"{found.source}\n{RESTRICTION.format(found.method.partition(':')[2])}", encoding="utf-8"
        )
        before, path = sys.modules.pop(name, None), os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, path]))  # ranks that are started import it too
        sys.path.insert(0, folder)
        try:
            yield Path(folder)
        finally:
            sys.path.remove(folder)
            sys.modules.pop(name, None)
            if before:
                sys.modules[name] = before
            os.environ.pop("PYTHONPATH") if path is None else os.environ.update(PYTHONPATH=path)


def check_rules(found: Submission, studies: Mapping[str, Study]) -> None:
    """Checks that the rows are those of the suite's configurations, seeds and selection. Raises Contradiction."""
    if unknown := {row.scenario for row in found.rows} - studies.keys():
        raise Contradiction(f"{found.path}: scenario {min(unknown)} is not in the {found.tier} tier")
    for name, study in studies.items():
        rows = [row for row in found.rows if row.scenario == name]
        seen = {(row.configuration, row.seed): row for row in rows}
        counts = Counter((row.configuration, row.seed) for row in rows)
        best = selected([row for row in rows if row.role == "tuning"])
        tuning = set(found.suite.tuning_seeds)
        runs = {(str(run.labels["algorithm"]), run.seed): run.identity for run in study.runs}
        expected = {key: identity for key, identity in runs.items() if key[1] in tuning or key[0] == best}
        if not best:  # every configuration failed, and so has the method
            expected |= {("", seed): "" for seed in found.suite.reporting_seeds}
        for key in dict.fromkeys([*seen, *expected]):
            where = f"{found.path}: {name}, seed {key[1]}, {key[0] or 'no configuration'}"
            if key not in seen:
                raise Contradiction(f"{where}: this run is missing")
            if key not in runs and key not in expected:
                raise Contradiction(f"{where}: the suite has no such configuration or seed for this method")
            if key not in expected:
                raise Contradiction(
                    f"{where}: this configuration is reported, but the tuning seeds select {best or 'none'}"
                )
            role = "tuning" if key[1] in tuning else "reporting"
            for what, stated, right in (("method", seen[key].method, found.method), ("role", seen[key].role, role),
                                        ("hash of its job", seen[key].identity, expected[key])):  # fmt: skip
                if stated != right:
                    raise Contradiction(f"{where}: the {what} is {stated}, but the suite's rules give {right}")
            if counts[key] > 1:
                raise Contradiction(f"{where}: this run occurs {counts[key]} times")


def selected(tuning: Sequence[Row]) -> str:
    """The configuration with the smallest mean loss over the tuning seeds, as in a study; "": no mean is finite."""
    finite = {text: loss for text, loss in mean_losses(tuning).items() if np.isfinite(loss)}
    return min(finite, key=lambda text: finite[text], default="")


def recompute(
    found: Submission, study: Study, drawn: Sequence[Row], compute: Callable[..., Index], recomputed: Recomputed
) -> None:
    """Computes runs of a scenario again, and counts those that differ, or agree only within rounding.

    compute: `sweep`, with its options.
    """
    stated = {row.identity: row for row in drawn}
    index = compute(study, only=lambda run: run.identity in stated)
    same_kernels = found.environment.get("kernels") == environment()["kernels"]
    for here in measured(found.suite, found.suite.scenarios[study.options.name], study, index):
        row = stated[here.identity]
        wrong = [name for name, one, other in zip(Row._fields, row, here, strict=True) if str(one) != str(other)]
        if wrong and not same_kernels and agree(row, here):
            recomputed.rounded += 1
        elif wrong:
            where = f"{row.scenario}, seed {row.seed}, {row.configuration}"
            stated_value, value = getattr(row, wrong[0]), getattr(here, wrong[0])
            why = f": {index.entries[here.identity].error}" if here.status == "failed" else ""
            text = f"{where}: {wrong[0]} is {stated_value} in the file, but {value} when computed here{why}"
            recomputed.differing.append(text)
            log.warning("%s", text)


def agree(one: Row, other: Row) -> bool:
    """Whether two rows of the same job agree within the rounding of other kernels."""

    def numbers(row: Row) -> list[float]:
        return [row.time, row.updates, row.bytes, row.accuracy, row.worst, *map(float, row.curve.split())]

    same = one.status == other.status and len(numbers(one)) == len(numbers(other))
    losses = np.allclose((one.loss, one.area), (other.loss, other.area), rtol=ROUNDING)
    return bool(same and losses and np.allclose(numbers(one), numbers(other), rtol=0.01, atol=0.01, equal_nan=True))


def check_independence(found: Submission, study: Study, run: StudyRun, compute: Callable[..., Index]) -> None:
    """Checks that the updates of a run depend neither on its evaluations nor on its horizon. Raises Contradiction.

    Compares those of the run, of the run with one evaluation at its end, and of the run to half of its horizon.
    """
    end = run.job.stop.time
    assert end is not None
    jobs = {"": run.job, "evaluations": replace(run.job, evaluate=replace(run.job.evaluate, every=end)),
            "the horizon": replace(run.job, stop=replace(run.job.stop, time=end / 2))}  # fmt: skip
    folder = f"{study.folder}/variants"
    runs = {what: StudyRun({"variant": what}, run.seed, replace(job, output=f"{folder}/{k}.h5"), identify(job))
            for k, (what, job) in enumerate(jobs.items())}  # fmt: skip
    variants = Study(replace(study.options, output=folder, select=None), tuple(runs.values()))
    index = compute(variants)
    here = index.entries[run.identity]
    stated = {row.status for row in found.rows if row.identity == run.identity}
    if here.status == "failed" and "failed" not in stated:
        raise Contradiction(f"{found.path}: {study.options.name}, seed {run.seed}: the run fails here: {here.error}")
    if index.counts()["completed"] < len(runs):
        return
    with ExitStack() as stack:
        files = {what: stack.enter_context(open_run(each.path)) for what, each in runs.items()}
        for what in ("evaluations", "the horizon"):
            count = files[what].count("updates")
            if not np.array_equal(_updates(files[""], count), _updates(files[what], count)) or (
                what == "evaluations" and hashes(files[""])[0] != hashes(files[what])[0]
            ):
                raise Contradiction(
                    f"{found.path}: {study.options.name}, seed {run.seed}: the updates depend on {what}"
                )


def _updates(run: Run, count: int) -> np.ndarray:
    """(5, count) columns of the first updates."""
    columns = ("time", "client", "version", "local_steps", "norm")
    return np.array([run.rows("updates", name, 0, count).astype(float) for name in columns])
