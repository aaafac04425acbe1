"""Compares the run file of a replay with the one that it repeats."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from mpifl.runfile.reader import Run
from mpifl.runfile.tables import TABLES

NORM_ROUNDING = 1e-5  # relative: rounding of an update's norm in float32


def computed_together(run: Run) -> bool:
    """Whether a rank of a run computed clients together, which rounds differently than one by one in a replay."""
    return any(fact.get("batched") is True for fact in _compute(run))


def _on_device(run: Run) -> bool:
    """Whether the clients' vectors were in the memory of a device, where the norms of updates were computed."""
    return any(fact.get("transfers", "host") != "host" for fact in _compute(run))


def _compute(run: Run) -> list[dict[str, Any]]:
    """What each rank computed with."""
    return list(json.loads(run.attrs.get("compute", "[]")))


def first_difference(one: Run, other: Run) -> str:
    """The first difference between a run file and its replay; "" if there is none."""
    for table in (name for name in TABLES if name != "events"):
        if one.count(table) != other.count(table):
            return f"{table}: {one.count(table)} rows, the replay has {other.count(table)}"
        for name in TABLES[table].columns:
            a, b = one.rows(table, name, 0, one.count(table)), other.rows(table, name, 0, other.count(table))
            known = np.full(len(a), True)
            if a.dtype.kind == "f" and TABLES[table].columns[name].missing is not None:
                known = ~np.isnan(a)
            same = (a == b) | ((a != a) & (b != b))
            if name == "norm" and _on_device(one):  # a GPU sums in another order
                same |= np.isclose(a, b, rtol=NORM_ROUNDING, atol=0.0)
            differ = np.flatnonzero(known & ~same)
            if differ.size:
                k = int(differ[0])
                text = f"{name} is {a[k].item()!r}, the replay has {b[k].item()!r}"
                return f"{table} row {k}: {text}"
    if one.has_final_model:
        x, y = one.model, other.model
        differ = np.flatnonzero(x.view(f"u{x.itemsize}") != y.view(f"u{y.itemsize}"))
        if differ.size:
            k = int(differ[0])
            return f"model/x item {k} is {x[k].item()!r}, the replay has {y[k].item()!r}"
    return ""
