"""The interactive page of the arena's results: one file with all that it shows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mpifl.config import read
from mpifl.config.registry import FAMILIES
from mpifl.tools.analysis.page import script_json
from mpifl.tools.arena import statistics
from mpifl.tools.arena.suite import Scenario, run_command
from mpifl.tools.arena.table import Row, mean_losses

MEASURES = ("loss", "time", "worst")
ALL_DIGITS = 17  # of a float: the page ranks methods, and with fewer digits some would share a rank
TEMPLATE = Path(__file__).with_name("interactive.html")


def write_interactive(
    path: Path, title: str, about: str, facts: Sequence[Mapping[str, Mapping[str, str]]], names: Sequence[str],
    rows: Sequence[Row], scenarios: Mapping[str, Scenario],
) -> Path:  # fmt: skip
    """Writes the page; returns its path.

    facts: by scenario and method, what is shown with a cell.
    """
    scores = {measure: statistics.scores(rows, measure, list(scenarios), names) for measure in MEASURES}
    described: list[dict[str, Any]] = []
    cells: list[list[dict[str, Any]]] = []
    for s, (key, each) in enumerate(scenarios.items()):
        job = read.load(each.path)
        described.append({"name": key, "task": each.task, "partition": each.partition, "delay": each.delay,
                          "why": each.why, "clients": job.problem.clients, "horizon": job.stop.time,
                          "target": each.target})  # fmt: skip
        cells.append([])
        for m, name in enumerate(names):
            own = [row for row in rows if (row.scenario, row.method, row.role) == (key, name, "reporting")]
            configuration = own[0].configuration if own else ""
            cells[-1].append({
                **{measure: _numbers(score[s, m], ALL_DIGITS) for measure, score in scores.items()},
                "curve": _median_curve(own),
                "steps": loss_by_step([r for r in rows if (r.scenario, r.method, r.role) == (key, name, "tuning")]),
                "facts": [[title, value] for title, value in facts[s].get(name, {}).items() if value],
                "command": run_command(each, configuration, own[0].seed) if configuration else "",
            })  # fmt: skip
    data = {"title": title, "about": about.replace("`", ""), "methods": list(names),
            "seeds": scores["loss"].shape[2], "scenarios": described, "cells": cells}  # fmt: skip
    path.write_text(TEMPLATE.read_text(encoding="utf-8").replace("@DATA@", script_json(data)), encoding="utf-8")
    return path


def _numbers(values: np.ndarray, digits: int = 5) -> list[float | None]:
    """Values for JSON, with so many digits; None where one is not finite."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values.tolist()]


def loss_by_step(rows: Sequence[Row]) -> list[list[float | None]]:
    """[step size, mean training loss at the end] of each tuned configuration; None: a run diverged or failed."""
    points = []
    for text, loss in mean_losses(rows).items():
        options = json.loads(text)
        default = getattr(FAMILIES["algorithm"].find(options["name"]), "step_size", math.nan)
        points.append([options.get("step_size", default), loss])
    return [_numbers(np.array(point)) for point in sorted(points)]


def _median_curve(rows: Sequence[Row]) -> list[float | None]:
    """The median training loss over the seeds at each evaluation; empty without a run that has a curve."""
    curves = [[float(value) for value in row.curve.split()] for row in rows if row.curve]
    if not curves:
        return []
    values = np.array([each + [math.inf] * (max(map(len, curves)) - len(each)) for each in curves])
    return _numbers(np.median(np.nan_to_num(values, nan=math.inf), axis=0))
