"""What a contact costs in real time: its length, staleness and computation beside those under the virtual clock."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from tabulate import tabulate

import mpifl
from mpifl.tools.reproduce.items import Item

TEXT = """Both clocks draw the same contact times. Under the virtual clock a contact lasts as long as drawn; in real
time it lasts longer where the work of the ranks does not fit into that time. Means over all updates of the trials:"""


def contacts(item: Item, out: Path) -> str:
    """Markdown: the mean time between two updates of a client, staleness, and time of computing, for each clock."""
    tables: dict[str, list[pd.DataFrame]] = {}
    for run in item.study.runs:
        if run.path.exists():
            with mpifl.open_run(run.path) as file:
                tables.setdefault(str(run.labels["clock"]), []).append(file.updates)
    rows = []
    for clock, updates in tables.items():
        gaps = np.concatenate([table.groupby("client").time.diff().dropna() for table in updates])
        computed = np.concatenate([table.compute for table in updates])
        computing = f"{computed.mean() * 1e3:.2f}" if np.isfinite(computed).all() else "-"
        stale = np.concatenate([table.staleness for table in updates])
        rows.append([clock, f"{gaps.mean() * 1e3:.1f}", f"{stale.mean():.2f}", str(stale.max()), computing])
    headings = ["clock", "between updates of a client, ms", "staleness", "most", "computing, ms"]
    return TEXT + "\n\n" + tabulate(rows, headings, "pipe", disable_numparse=True)
