"""`mpifl report`: the table and the figures of one or more run files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from mpifl.errors import ConfigError, as_unwritable
from mpifl.runfile.reader import open_run
from mpifl.text import progress
from mpifl.tools.analysis.cautions import cautions
from mpifl.tools.analysis.figures import draw_report, find_label, without_tuned
from mpifl.tools.analysis.labels import read_labels
from mpifl.tools.analysis.options import PAGE, Options
from mpifl.tools.analysis.page import Incomplete, write_page
from mpifl.tools.analysis.pivot import build_pivot
from mpifl.tools.analysis.run import find_runs
from mpifl.tools.analysis.tables import build_table, format_csv, summary
from mpifl.tools.analysis.trials import Group, Trial, group_trials, load_trial

MAX_NOTES = 20  # lines about run files below the table


def report(paths: Sequence[str | Path], out: str | Path | None = None, options: Options | None = None) -> str:
    """The table for the terminal; with `out`, also report.md, report.csv, report.tex and the figures in that folder.

    `paths` are run files, patterns and folders. Trials are grouped by their labels if all are runs of studies,
    otherwise by what differs in their configurations, seeds and names aside. Runs that are running, were killed or
    failed are included as they are; these, and files that cannot be read, have a line below the table. Raises
    ConfigError where no file can be read, or for a file that cannot be written.
    """
    options = options or Options()
    if options.all:
        wrong = "only a STUDY.yaml has a selection, so every run is shown anyway"
        raise ConfigError("all", "true", wrong, remedy="leave out --all")
    trials, unread = load_trials(paths, options.metrics, options.sums)
    groups, runs = group_trials(trials), incomplete_runs(trials, unread) if PAGE in options.formats else []
    notes = [*file_notes(trials, unread, options.sums), *few(cautions(groups, options.spread))]
    return report_groups(groups, out, options, notes, incomplete=runs)


def load_trials(
    paths: Sequence[str | Path], metrics: Collection[str] | None = None, sums: Collection[str] = ()
) -> tuple[list[Trial], list[ConfigError]]:
    """The trials of run files, patterns and folders, and an error for each file that cannot be read.

    metrics, sums: as in `load_trial`. Raises ConfigError where no file can be read.
    """
    found = find_runs(paths)
    labels = read_labels(found)
    trials, unread = [], []
    for path in progress(found, "reading run files"):
        try:
            trials.append(load_trial(path, metrics, sums, labels.get(path)))
        except ConfigError as error:
            unread.append(error)
    if not trials:
        if len(unread) == 1:
            raise unread[0]
        raise ConfigError(
            "run files", f"{len(unread)} files", f"none can be read; the first: {unread[0]}", "at least one that can"
        )
    return trials, unread


def report_groups(
    groups: Sequence[Group], out: str | Path | None, options: Options, notes: Sequence[str] = (),
    marked: Collection[int] = (), candidates: Sequence[Group] = (), title: str = "",
    incomplete: Sequence[Incomplete] = (), tuned: Sequence[str] = (),
) -> str:  # fmt: skip
    """The report of groups: the table, and with `out` the files, as `report` makes them.

    notes: further lines below the table. marked: indices of the best groups. candidates: all groups of a study, before
    its selection. title: heading of the page. incomplete: the runs that the page lists as missing or not completed.
    tuned: labels whose values were selected for each method.
    """
    options.check_names(groups)
    if options.panels:
        find_label(options.panels, groups, "panels")
    if options.pivot:
        table = build_pivot(groups, options, tuned, notes)
    else:
        table = build_table(groups, options, marked, notes)
    text = "\n".join([table.text(), "", *table.notes])
    if out is None:
        return text
    data = summary(groups, options, marked) if table.data is None else table.data
    folder = Path(out)
    written: list[Path] = []
    with as_unwritable("out", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, write in (
            ("md", table.markdown), ("csv", lambda: format_csv(data)), ("tex", table.latex)
        ):  # fmt: skip
            if suffix in options.formats:
                (folder / f"report.{suffix}").write_text(write(), encoding="utf-8")
                written.append(folder / f"report.{suffix}")
        pictures, missing = draw_report(groups, folder, options, candidates, tuned)
        written += pictures
        if PAGE in options.formats:
            shown, title = without_tuned(groups, tuned), title or folder.absolute().name
            write_page(folder / "report.html", title, table, shown, options, incomplete)
            written.append(folder / "report.html")
    return "\n".join([text, *missing, "", *(f"wrote {path}" for path in written)])


def incomplete_runs(trials: Sequence[Trial], unread: Sequence[ConfigError]) -> list[Incomplete]:
    """The run files that cannot be read, and those of runs that are not completed, with the reasons."""
    found = [Incomplete(str(error.value), "cannot be read", error.text) for error in unread]
    for trial in trials:
        if trial.status != "completed":  # the file of a killed run has "running"
            status = "killed or cut off" if trial.status == "running" and not trial.alive else trial.status
            found.append(Incomplete(str(trial.path), status, reason_of(trial.path)))
    return found


def reason_of(path: Path) -> str:
    """The text of the last event that ended the run; "" where there is none."""
    try:
        with open_run(path) as run:
            kinds, texts = (run.rows("events", name, 0, run.count("events")).tolist() for name in ("kind", "text"))
    except ConfigError:
        return ""
    said = [text for kind, text in zip(kinds, texts, strict=True) if kind in (b"failed", b"interrupted")]
    return said[-1].decode("utf-8", "replace") if said else ""


def file_notes(trials: Sequence[Trial], unread: Sequence[ConfigError], sums: Collection[str] = ()) -> list[str]:
    """A line about each file that cannot be read or lacks a column, and about each run that is not completed."""
    notes = []
    for trial in trials:
        if trial.status == "running":
            state = "is being written" if trial.alive else "was killed or cut off"
            notes.append(f"Not completed: {trial.path} {state}; its rows so far are included.")
        elif trial.status != "completed":
            notes.append(f"Not completed: {trial.path}, {trial.status}; its rows are included.")
        for name in sums:
            if len(trial.evaluations) and trial.evaluations[name].isna().all():
                notes.append(f"Without {name}: {trial.path}, written by an older version.")
    return [*few([f"Left out: {error}." for error in unread]), *few(notes)]


def few(notes: Sequence[str]) -> list[str]:
    """The first MAX_NOTES, and how many more there are."""
    left = len(notes) - MAX_NOTES
    return [*notes[:MAX_NOTES], f"... and {left} more."] if left > 0 else list(notes)
