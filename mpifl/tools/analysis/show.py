"""`mpifl show`: what a run file holds, for the terminal."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from mpifl.runfile.reader import Run, open_run
from mpifl.safe_input import parse_json, printable
from mpifl.text import format_count, format_duration
from mpifl.tools.analysis.trials import overload_of

MAX_EVALUATIONS = 12  # evaluations that are printed
MAX_EVENTS = 8  # events that are printed, the last ones
POLL_INTERVAL = 1.0  # s between two reads of a live run
QUARTILES = ["accuracy_q25", "accuracy_median", "accuracy_q75"]  # quartiles over the clients
# The table leaves these columns out: a line of their own summarises them.
HIDDEN = [
    *(f"{kind}_{name}" for kind in ("personal", "client") for name in QUARTILES),
    "client_accuracy_variance",
    "age",
]
WORST = "worst 10 % {client_accuracy_worst:.4f}, variance {client_accuracy_variance:.4g}"
MAX_VALUE = 1000  # characters of a fact that are printed
MAX_TITLE_WIDTH = 15  # a column title of this many letters is broken into lines


def show(
    path: str | Path, follow: bool = False, write: Callable[[str], None] = print, period: float = POLL_INTERVAL
) -> None:
    """Prints what the run file holds; with `follow`, also each new evaluation of a live run until it ends or Ctrl-C.

    Raises ConfigError where the file cannot be read.
    """
    with open_run(path) as run:
        write(format_summary(run))
        if not follow:
            return
        shown = len(run.evaluations)
        try:
            while run.status == "running":
                if not run.is_alive:
                    write(printable(describe_status(run)))
                    return
                time.sleep(period)
                run.refresh()
                for row in run.evaluations.iloc[shown:].drop(columns=HIDDEN).to_dict("records"):
                    write("  ".join(f"{k} {format_value(k, v)}" for k, v in row.items() if not math.isnan(v)))
                shown = len(run.evaluations)
            write(printable(describe_status(run)))
        except KeyboardInterrupt:
            write("")


def describe_status(run: Run) -> str:
    """The status as text; that of a killed run is inferred, since its file still has "running"."""
    if run.status != "running":
        return run.status
    if not run.open_ended:
        return "ended without a final status (its process left before the run was closed)"
    if run.is_alive:
        return f"running (last heartbeat {run.age:.1f} s ago)"
    return f"killed or cut off: no heartbeat for {format_duration(run.age)} (a live run writes one twice a second)"


def format_summary(run: Run) -> str:
    """Formats the facts, evaluations and events of a run."""
    attrs, updates, clients = run.attrs, run.updates, run.clients
    seconds = float(updates.time.iloc[-1]) if len(updates) else 0.0
    rate = f", {len(updates) / seconds:.6g} a second" if seconds > 0 else ""
    hosts = attrs.get("hosts") or "[]"
    hosts = Counter(parse_json(hosts) if isinstance(hosts, str) else hosts)
    facts = {
        "file": str(run.path),
        "status": describe_status(run),
        "name": attrs.get("name", ""),
        "algorithm": attrs.get("algorithm", ""),
        "clock": attrs.get("clock", ""),
        "clients": len(clients),
        "ranks": attrs.get("ranks", ""),
        "hosts": ", ".join(f"{host} ({format_count(ranks, 'rank')})" for host, ranks in hosts.items()),
        "started": attrs.get("started", ""),
        "finished": attrs.get("finished", "") or "-",
        "updates": f"{len(updates)} in {seconds:.6g} s{rate}",
        "global steps": len(run.aggregations),
    }
    if len(updates):
        facts["staleness"] = f"mean {updates.staleness.mean():.4g}, max {updates.staleness.max()}"
    if len(clients):
        counts = clients.updates
        facts["updates per client"] = f"min {counts.min()}, median {counts.median():.6g}, max {counts.max()}"
        if (clients.state != "live").any():
            facts["client states"] = ", ".join(f"{n} {state}" for state, n in clients.state.value_counts().items())
    for title, *columns in (
        ("personal accuracy", "personal", "personal_accuracy_mean", "best mean {personal_accuracy_best:.4f}"),
        ("accuracy over clients", "client", "client_accuracy_worst", WORST),
    ):
        if text := format_accuracies(run.evaluations, *columns):
            facts[title] = text
    if (row := run.best_evaluation) >= 0:
        keep, best = run.config.get("keep"), run.evaluations.iloc[row]
        metric = str(keep.get("best")) if isinstance(keep, dict) else ""
        value = f"{metric} {format_value(metric, best[metric])}, " if metric in best else ""
        facts["best model"] = f"{value}after {int(best.updates)} updates"
    facts["overload"], facts["contacts"] = overload_of(run)
    for title, name, unit in (
        ("wall time", "wall_seconds", "s"),
        ("CPU time of rank 0", "server_cpu_share", "of wall time"),
        ("memory of rank 0", "peak_rss_mb", "MiB at most"),
    ):
        if not math.isnan(attrs.get(name, math.nan)):
            facts[title] = f"{attrs[name]:.4g} {unit}"
    width = max(map(len, facts))
    shown = {key: printable(value, most=MAX_VALUE) for key, value in facts.items() if value != ""}
    parts = ["\n".join(f"{key:<{width}}  {value}" for key, value in shown.items())]
    parts += [text for text in (format_evaluations(run.evaluations), format_events(run.events)) if text]
    return "\n\n".join(parts)


def format_evaluations(frame: pd.DataFrame) -> str:
    """Formats at most MAX_EVALUATIONS evaluations, evenly spaced, with the first and the last."""
    if frame.empty:
        return "no evaluation yet"
    count = min(MAX_EVALUATIONS, len(frame))
    picks = [round(k * (len(frame) - 1) / max(1, count - 1)) for k in range(count)]
    kept = frame.iloc[picks].drop(columns=HIDDEN).dropna(axis=1, how="all")
    kept = kept.rename(columns=lambda name: name if len(name) < MAX_TITLE_WIDTH else name.replace("_", "\n"))
    rows = [{name: format_value(name, value) for name, value in row.items()} for row in kept.to_dict("records")]
    heading = f"evaluations ({count} of {len(frame)})" if count < len(frame) else "evaluations"
    body = tabulate(rows, headers="keys", disable_numparse=True, colalign=["right"] * kept.shape[1])
    return f"{heading}\n{body}"


def format_accuracies(frame: pd.DataFrame, whose: str, known: str, more: str) -> str:
    """Formats how the last accuracies, of `whose` models, are spread over the clients; "" where none were recorded.

    known: the column that tells; more: a format of further columns.
    """
    rows = frame.dropna(subset=known)
    if rows.empty:
        return ""
    last = rows.iloc[-1]
    quartiles = ", ".join(f"{last[f'{whose}_{name}']:.4f}" for name in QUARTILES)
    return f"mean {last[f'{whose}_accuracy_mean']:.4f}, quartiles {quartiles}, {more.format_map(last)}"


def format_events(frame: pd.DataFrame) -> str:
    """Formats the last MAX_EVENTS events, one line each."""
    if frame.empty:
        return ""
    lines = [f"events ({len(frame)})"]
    for when, kind, client, text in frame[["time", "kind", "client", "text"]].iloc[-MAX_EVENTS:].to_numpy():
        of_client = f" client {client}" if client >= 0 else ""
        lines.append(printable(f"{when:10.4g} s  {kind}{of_client}  {text}".rstrip()))
    return "\n".join(lines)


def format_value(name: Hashable, value: float) -> str:
    """Formats one number of the evaluations."""
    if math.isnan(value):
        return "-"
    if name in ("updates", "version"):
        return str(int(value))
    return f"{value:.4f}" if "accuracy" in str(name) else f"{value:.5g}"
