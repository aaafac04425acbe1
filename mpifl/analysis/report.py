"""`mpifl report`: the table and the figures of one or more run files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mpifl.analysis.run import find_runs
from mpifl.analysis.tables import format_csv, format_table, table_notes
from mpifl.analysis.trials import Group, group_trials, load_trial
from mpifl.errors import ConfigError

FORMATS = ("md", "csv", "png", "pdf")


def report(paths: Sequence[str | Path], out: str | Path | None = None, formats: Sequence[str] = FORMATS) -> str:
    """The table for the terminal; with `out`, also report.md, report.csv, accuracy.* and loss.* in that folder.

    `paths` are run files, patterns and folders. Trials are grouped by what differs in their configurations, seeds and
    names aside. Runs that are running, were killed or failed are included as they are, and marked. A file of a folder
    or a pattern that cannot be read is named below the table. Raises ConfigError for one that is named itself, where
    no file can be read, or for a file that cannot be written.
    """
    if not paths:
        raise ConfigError("run files", "none", "at least one")
    named, trials = {Path(path) for path in paths}, []
    notes: list[str] = []
    for path in (found := find_runs(paths)):
        try:
            trials.append(load_trial(path))
        except ConfigError as error:
            if path in named or len(notes) == len(found) - 1:
                raise
            notes.append(f"Left out: {error}.")
    return report_groups(group_trials(trials), out, formats, notes)


def report_groups(
    groups: Sequence[Group], out: str | Path | None = None, formats: Sequence[str] = FORMATS, notes: Sequence[str] = ()
) -> str:
    """The same for trials that are grouped already; notes: further lines below the table."""
    for name in formats:
        if name not in FORMATS:
            raise ConfigError("formats", name, f"one of {', '.join(FORMATS)}")
    notes = [*table_notes(groups), *notes]
    text = "\n".join([format_table(groups), "", *notes])
    if out is None:
        return text
    folder = Path(out)
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in (
            ("md", "\n".join([format_table(groups, "github"), "", *notes, ""])),
            ("csv", format_csv(groups)),
        ):
            if name in formats:
                (folder / f"report.{name}").write_text(content, encoding="utf-8")
                written.append(folder / f"report.{name}")
        pictures = [name for name in formats if name in ("png", "pdf")]
        if pictures:
            from mpifl.analysis.figures import draw_report

            written += draw_report(groups, folder, pictures)
    except OSError as error:
        raise ConfigError("out", folder, f"a folder that can be written ({error.strerror or error})") from error
    return "\n".join([text, "", *(f"wrote {path}" for path in written)])
