"""A study while it runs: its state in the terminal, and its report, made again and again."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from mpifl.errors import ConfigError
from mpifl.runfile.run_lock import is_locked
from mpifl.safe_input import printable
from mpifl.text import format_count, format_duration
from mpifl.tools.analysis.curves import metric_label
from mpifl.tools.analysis.labels import read_index, read_labels
from mpifl.tools.analysis.options import PAGE, Options, scale_of
from mpifl.tools.analysis.trials import Group, Trial, group_trials, load_trial
from mpifl.tools.studies.index import Entry, count_text, entries_of, estimate
from mpifl.tools.studies.search import time_left
from mpifl.tools.studies.select import NothingToReport, report_study
from mpifl.tools.studies.study import Study
from mpifl.tools.studies.study_slices import LOCK

PERIOD = 2.0  # s between two looks at the folder, or more where a look takes long
BARS = "▁▂▃▄▅▆▇█"
CLEAR = "\033[H\033[J"  # moves the cursor of a terminal to its first line, and clears it
UNDONE = ("waiting", "interrupted", "running")  # statuses of runs that have not ended
OTHER_LINES = 9  # lines of the screen that have no curve


def follow(folder: Path, write: Callable[[str], None], period: float = PERIOD) -> None:
    """Shows the state of a study's folder until all its runs have ended, or Ctrl-C.

    On a terminal it redraws the screen; elsewhere it writes the first line whenever that changes.
    """
    known: dict[Path, tuple[object, Trial]] = {}
    last = ""
    for entries in _looks(folder, write, period):
        _read(folder, entries, known)
        text = state(folder, entries, {path: trial for path, (_, trial) in known.items()})
        if sys.stdout.isatty():
            print(CLEAR, end="")
            write(text)
        elif (line := text.partition("\n")[0]) != last:
            write(line)
            last = line


def watch_report(
    study: Study, out: Path, options: Options, write: Callable[[str], None], period: float = PERIOD
) -> None:
    """Makes the page of a study again whenever further runs have ended, until all have, or Ctrl-C; then the report."""
    page, last = replace(options, formats=(PAGE,), watch=True), ""
    for entries in _looks(study.folder, write, period):
        if (counts := count_text(entries)) != last and "completed" in counts:
            last = counts
            try:
                report_study(study, out, page)
                write(f"{counts}: wrote {out / 'report.html'}")
            except NothingToReport:  # the trials that decide are computed before those that are reported
                write(f"{counts}: no run to report yet")
    formats = options.formats if PAGE in options.formats else (*options.formats, PAGE)
    write(report_study(study, out, replace(options, formats=formats, watch=False)))


def _looks(folder: Path, write: Callable[[str], None], period: float) -> Iterable[list[Entry]]:
    """The runs of a folder again and again, until all have ended and no sweep computes them; ends at Ctrl-C too.

    Where there is none yet it waits for the first; Ctrl-C is then an error.
    """
    if not entries_of(folder):
        write(f"{folder}: no run has started yet, waiting")
        while not entries_of(folder):
            time.sleep(period)
    with suppress(KeyboardInterrupt):
        while True:
            begin, entries = time.monotonic(), entries_of(folder)
            yield entries
            if not any(e.status in UNDONE for e in entries) and not is_locked(folder / LOCK):
                return
            time.sleep(max(period, 4 * (time.monotonic() - begin)))


def _read(folder: Path, entries: Sequence[Entry], known: dict[Path, tuple[object, Trial]]) -> None:
    """Reads the trials whose files have changed since the last look; known: those read so far, with their stamps."""
    paths = {folder / entry.file: entry.stamp for entry in entries if entry.stamp}
    labels = read_labels(paths)
    for path, stamp in paths.items():
        if path not in known or known[path][0] != stamp:
            with suppress(ConfigError):  # a damaged file is counted as such
                known[path] = stamp, load_trial(path, {"test_accuracy", "train_loss"}, (), labels.get(path))


def state(folder: Path, entries: Sequence[Entry], trials: Mapping[Path, Trial]) -> str:
    """The numbers of runs by status, the time that is left, the runs under way, the failures, and curves as text."""
    running = {e.file: _share(trials.get(folder / e.file)) for e in entries if e.status == "running"}
    todo = [(e.labels, 1 - running.get(e.file, 0.0)) for e in entries if e.status in UNDONE]
    if stages := read_index(folder).stages:
        computed = [(_reached(trials.get(folder / e.file)), e.seconds) for e in entries]
        seconds = time_left(stages, computed, len(running))
    else:
        seconds = estimate(entries, todo, len(running))
    left = f", about {format_duration(seconds)} left" if todo and seconds else ""
    lines = [f"{folder}: {format_count(len(entries), 'run')}: {count_text(entries)}{left}"]
    size = shutil.get_terminal_size()
    lines += [f"running  {file} {share:.0%}" for file, share in list(running.items())[:4]]
    failed = [e for e in entries if e.status == "failed"]
    lines += [f"failed   {e.file} {printable(e.error)}"[: size.columns] for e in failed[-2:]]
    groups = group_trials(trials[folder / e.file] for e in entries if folder / e.file in trials)
    return "\n".join([*lines, "", *curves(groups, size.columns, max(3, size.lines - OTHER_LINES))])


def _reached(trial: Trial | None) -> float:
    """How far a run of a search is, by its last evaluation: s of its clock, or updates."""
    if trial is None or not len(trial.evaluations):
        return 0.0
    return trial.last("updates" if trial.config.get("stop.time") is None else "time")


def _share(trial: Trial | None) -> float:
    """The share of a run that is done, by its last evaluation."""
    if trial is None or not len(trial.evaluations):
        return 0.0
    last = trial.evaluations.iloc[-1]
    stops = {unit: trial.config.get(f"stop.{unit}") for unit in ("time", "updates")}
    shares = [last[unit] / stop for unit, stop in stops.items() if isinstance(stop, int | float)]
    return float(min(1.0, max(shares, default=0.0)))


def curves(groups: Sequence[Group], columns: int, most: int) -> list[str]:
    """A line for each group, the best ones first: its name, the curve of its mean, its last value, its trials."""
    metric = "test_accuracy" if any(len(group.last("test_accuracy")) for group in groups) else "train_loss"
    found = [(group, group.curve(metric)["mean"]) for group in groups]
    found = [(group, curve) for group, curve in found if len(curve)]
    if not found:
        return ["no evaluation yet"]
    sign = -1 if metric == "test_accuracy" else 1
    found.sort(key=lambda pair: sign * np.nan_to_num(pair[1].iloc[-1], nan=sign * np.inf))
    names = max(len(group.name) for group, _ in found[:most])
    width = min(60, max(10, columns - names - 28))
    end = max(curve.index[-1] for _, curve in found)
    values = np.concatenate([curve.to_numpy()[np.isfinite(curve)] for _, curve in found])
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    lines = [f"{metric_label(metric)}, mean over the trials so far, from 0 to {end:g} s"]
    for group, curve in found[:most]:
        at = np.searchsorted(curve.index.to_numpy(), np.linspace(0, end, width), side="right") - 1
        shown = [_bar(curve.iloc[k], low, high) if k >= 0 else " " for k in at]
        done = sum(trial.status == "completed" for trial in group.trials)
        value = f"{curve.iloc[-1] * scale_of(metric):8.4g}"
        lines.append(f"{printable(group.name):<{names}}  {''.join(shown)} {value}  {done} of {len(group.trials)} done")
    return [*lines, *([f"... and {len(found) - most} more"] if len(found) > most else [])]


def _bar(value: float, low: float, high: float) -> str:
    if not np.isfinite(value):
        return "!"
    return BARS[round((value - low) / (high - low or 1.0) * (len(BARS) - 1))]
