"""The results table of the arena: a row for each run, with its measures, the hashes of its content and its curve."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import math
import zlib
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, get_type_hints

import numpy as np

from mpifl.errors import MAX_PART, ConfigError, error_text, shortened
from mpifl.runfile.reader import Run, open_run
from mpifl.runfile.tables import TABLES
from mpifl.safe_input import SMALL_BYTES, read_text_file
from mpifl.tools.analysis.trials import train_every
from mpifl.tools.arena.suite import TIERS, Scenario, Suite, stored_table
from mpifl.tools.studies.index import Index
from mpifl.tools.studies.study import Study

HASH_DIGITS = 16  # hexadecimal digits of a hash
CURVE_POINTS = 50  # evaluations in a curve, after the first
NEVER = math.inf  # the time to a target that is not reached


class Row(NamedTuple):
    """One run."""

    scenario: str
    method: str
    configuration: str
    """section `algorithm` of its job, as JSON"""
    seed: int
    role: str
    """tuning or reporting"""
    status: str
    """completed; diverged: the last training loss is not finite; failed"""
    time: float = NEVER
    """s of the run's clock until the target is first reached; inf: never"""
    updates: float = NEVER
    """updates consumed until then"""
    bytes: float = NEVER
    """of these updates and the messages that they answer"""
    loss: float = NEVER
    """training loss at the end; inf where the run diverged or failed"""
    area: float = NEVER
    """mean training loss over the evaluations"""
    accuracy: float = math.nan
    """test accuracy at the end; NaN: not measured"""
    worst: float = math.nan
    """mean accuracy of the worst tenth of the clients at the end; NaN: not measured"""
    identity: str = ""
    """hash of its job"""
    model: str = ""
    """hash of its final model"""
    tables: str = ""
    """hash of the rows of its run file"""
    curve: str = ""
    """training loss at evenly spaced evaluations; empty for tuning runs"""


def measured(suite: Suite, scenario: Scenario, study: Study, index: Index) -> Iterator[Row]:
    """A row for each run that has ended, and failed reporting runs of methods without a selected configuration."""
    reported = set()
    for run in study.runs:
        entry = index.entries.get(run.identity)
        role = "tuning" if run.seed in suite.tuning_seeds else "reporting"
        if role == "reporting" and entry:
            reported.add(run.labels["method"])
        if entry is None or not index.has_ended(run):
            continue
        start = (scenario.name, str(run.labels["method"]), str(run.labels["algorithm"]), run.seed, role)
        if entry.status == "failed":
            yield Row(*start, "failed", identity=run.identity)
        else:
            with open_run(run.path) as file:
                yield _measured(start, run.identity, file, scenario.target)
    decided = all(index.has_ended(run) for run in study.runs if run.seed in suite.tuning_seeds)
    for method in dict.fromkeys(str(run.labels["method"]) for run in study.runs) if decided else ():
        if method not in reported:  # every configuration failed or diverged
            for seed in suite.reporting_seeds:
                yield Row(scenario.name, method, "", seed, "reporting", "failed")


def _measured(start: tuple[str, str, str, int, str], identity: str, run: Run, target: float) -> Row:
    """The row of a completed run."""

    def column(name: str, table: str = "evaluations") -> np.ndarray:
        return run.rows(table, name, 0, run.count(table))

    every, evaluations = train_every(run), run.count("evaluations")
    loss = column("train_loss")[np.arange(evaluations) // every * every]  # the last evaluation that measured it
    fine = bool(np.isfinite(loss[-1]))
    reached = np.flatnonzero(loss <= target)
    time = updates = traffic = NEVER
    if fine and reached.size:
        k = int(reached[0])
        time, updates = float(column("time")[k]), float(column("updates")[k])
        each = column("bytes", "updates") + column("bytes_down", "updates")
        traffic = float(each[: int(updates)].sum())
    places = np.linspace(0, evaluations - 1, min(evaluations, CURVE_POINTS + 1)).round().astype(int)
    curve = " ".join(f"{value:.5g}" for value in loss[places].tolist()) if start[-1] == "reporting" else ""
    return Row(
        *start, "completed" if fine else "diverged", time, updates, traffic, float(loss[-1]) if fine else math.inf,
        float(loss.mean()) if fine else math.inf, float(column("test_accuracy")[-1]),
        float(column("client_accuracy_worst")[-1]), identity, *hashes(run), curve,
    )  # fmt: skip


def hashes(run: Run) -> tuple[str, str]:
    """The hashes of the final model and of all rows but events: the same on any number of ranks in virtual time."""
    model = hashlib.sha256(_little_endian(run.model)).hexdigest()[:HASH_DIGITS]
    rows = hashlib.sha256()
    for table in TABLES:
        if table != "events":
            for name in TABLES[table].columns:
                rows.update(_little_endian(run.rows(table, name, 0, run.count(table))))
    return model, rows.hexdigest()[:HASH_DIGITS]


def _little_endian(values: np.ndarray) -> bytes:
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()


def mean_losses(rows: Sequence[Row]) -> dict[str, float]:
    """The mean training loss at the end of each configuration."""
    losses: dict[str, list[float]] = {}
    for row in rows:
        losses.setdefault(row.configuration, []).append(row.loss)
    return {text: float(np.mean(values)) for text, values in losses.items()}


# -- CSV ---------------------------------------------------------------------------------------------------------------
def write_table(rows: Sequence[Row]) -> str:
    """The rows as CSV, numbers with all digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows(rows)
    return text.getvalue()


def read_table(path: Path) -> list[Row]:
    """The rows of a CSV file, which may be compressed by gzip. Raises ConfigError where it is no such table."""
    return parse_table(path, read_content(path).decode("utf-8", "replace"))


def stored_rows(tier: str, scenarios: Container[str]) -> list[Row]:
    """The results of the suite's methods that come with the package, in those scenarios of a tier."""
    tables = [stored_table(name) for name in TIERS[: TIERS.index(tier) + 1]]
    return [row for path in tables if path.exists() for row in read_table(path) if row.scenario in scenarios]


def read_content(path: Path) -> bytes:
    """The content of a table or a submission, unzipped. Raises ConfigError where it cannot be read, or is too large."""
    try:
        content = read_text_file(path, SMALL_BYTES)
        if path.suffix == ".gz":
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
                content = file.read(SMALL_BYTES + 1)
            if len(content) > SMALL_BYTES:
                raise ValueError(f"it has more than {SMALL_BYTES} bytes")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        wrong, expected = f"cannot be read: {error_text(error)}", "a file that mpifl arena wrote"
        raise ConfigError("arena", path, wrong, expected) from None
    return content


def parse_table(path: Path, text: str) -> list[Row]:
    """The rows of CSV text from a file. Raises ConfigError where it is no such table."""
    kinds = list(get_type_hints(Row).values())
    try:
        lines = list(csv.reader(io.StringIO(text)))
        if tuple(lines[0]) != Row._fields:
            raise ValueError(f"its columns are {shortened(', '.join(lines[0]), MAX_PART)}")
        return [Row(*(kind(cell) for kind, cell in zip(kinds, line, strict=True))) for line in lines[1:]]
    except (ValueError, IndexError, csv.Error) as error:
        expected = f"a table of mpifl arena, with the columns {', '.join(Row._fields)}"
        raise ConfigError("arena", path, f"not a results table: {error}", expected) from None
