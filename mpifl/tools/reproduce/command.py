"""`mpifl reproduce`: runs the missing runs of a paper's items and writes their page."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from tabulate import tabulate

from mpifl.errors import ConfigError, RunFailed, as_unwritable
from mpifl.tools.reproduce.items import data_of, find_paper, list_items, load_block, load_items, missing_data
from mpifl.tools.reproduce.page import write_pages
from mpifl.tools.studies.sweep import dry_run, final_line, sweep_selected

OUT = Path("results/reproduce")


def overview() -> str:
    """What can be reproduced, as a table."""
    return tabulate(list(list_items()), headers="keys", disable_numparse=True)


def reproduce(
    name: str, overrides: Sequence[str] = (), processes: int | None = None, out: Path = OUT, download: bool = False,
    compute: bool = True, progress: Callable[[str], None] | None = None,
) -> str:  # fmt: skip
    """Runs the missing runs of an item or a paper and writes its page; returns what is printed.

    Args:
        name: An item, a paper, or a study file with a section `page`.
        overrides: `key=value` of the studies.
        processes: Runs at a time; None: one for each core.
        out: Folder of the page and its figures.
        download: Download data that are missing.
        compute: Whether to run what is missing; else the page shows the completed runs.
        progress: Called with a line on the state of the study, whenever a run ends.

    Raises:
        ConfigError: An unknown name, a wrong study, data that are missing, or no completed run.
        RunFailed: Some runs failed; the page is written, and says so.
    """
    options, items = load_items(name, overrides)
    check_out(out)
    whole = find_paper(name)[1] is None
    for item in items:
        for block in item.page.blocks:
            load_block(item, block)
    lines, failed = [], 0
    if compute:
        missing = [missing_data(item, download) for item in items]
        for item, absent in zip(items, missing, strict=True):
            without = [data for data, _ in absent]
            here = {run.identity for run in item.study.runs if data_of(run.job) not in without}
            if not (whole or here):
                raise absent[0][1]
            lines += [f"not run: {error}" for _, error in absent]
            if not here:
                continue
            index = sweep_selected(item.study, processes, progress, here)
            lines.append(final_line(index))
            failed += index.counts()["failed"]
    with as_unwritable("--out", out):
        lines.append(f"wrote {', '.join(map(str, write_pages(options, items, out, whole)))}")
    if failed:
        raise RunFailed("; ".join([f"{failed} runs failed", *lines]))
    return "\n".join(lines)


def check_out(out: Path) -> None:
    """Raises ConfigError where the folder of the page cannot be made: before the runs, not after them."""
    existing = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        reason = "Permission denied" if existing.is_dir() else f"{existing} is a file"
        raise ConfigError("--out", out, f"cannot be written: {reason}", "a folder that can be written")


def describe_runs(name: str, overrides: Sequence[str] = (), processes: int | None = None) -> str:
    """The runs of an item or a paper with their status, and the time that the missing ones take."""
    return "\n\n".join(dry_run(item.study, processes) for item in load_items(name, overrides)[1])
