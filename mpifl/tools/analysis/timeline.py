"""The timeline figure: the contacts of some clients in a span of time, and the aggregations that use their updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpifl.runfile.reader import open_run
from mpifl.tools.analysis import style
from mpifl.tools.analysis.curves import axis_label
from mpifl.tools.analysis.trials import Group

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_CLIENTS, MAX_CLIENTS_WIDE = 12, 20  # clients in a figure as wide as a column, as a page
CONTACTS = 8  # contacts shown for a client, on average
MAX_STEPS = 60  # aggregations that are drawn as lines
CONTACT, COMPUTING, STEP = "#9DB8D9", "#0A3A80", "#777777"
USED: Any = {"color": STEP, "marker": "o", "markersize": 3.2, "markerfacecolor": "#101010", "markeredgecolor": "white",
             "markeredgewidth": 0.4}  # fmt: skip


class Contacts(NamedTuple):
    """The contacts whose updates were consumed, in order: each from the message to the update's consumption."""

    client: np.ndarray
    start: np.ndarray
    """time at which the message was sent, s"""
    end: np.ndarray
    """time at which the update was consumed, s"""
    computing: np.ndarray
    """(contacts, 2) s, when the client computed; NaN where the run file does not say"""
    used: np.ndarray
    """time of the aggregation that uses the update, s; NaN: none yet"""
    steps: np.ndarray
    """times of the aggregations, s"""
    clients: int


def read_contacts(path: str | Path) -> Contacts:
    """The contacts of a run file. Raises ConfigError where it cannot be read.

    A client is sent its next message when its update is consumed, or at the aggregation that makes the version of that
    message, if that is later. Time in transit is divided between message and update by their bytes.
    """
    with open_run(path) as run:
        rows = run.count("updates")
        client, end, version, down, up, compute, exchange = (
            run.rows("updates", name, 0, rows)
            for name in ("client", "time", "version", "bytes_down", "bytes", "compute", "exchange")
        )
        steps, counts = (run.rows("aggregations", name, 0, run.count("aggregations")) for name in ("time", "updates"))
        clients = len(run.rows("clients", "rank", 0, None))
    start = np.zeros(rows)
    if len(steps):
        start = np.where(version > 0, steps[np.clip(version - 1, 0, len(steps) - 1)], 0.0)
    order = np.lexsort((np.arange(rows), client))
    same = client[order][1:] == client[order][:-1]
    before = np.zeros(rows)
    before[order[1:][same]] = end[order[:-1][same]]
    start = np.minimum(np.maximum(start, before), end)
    with np.errstate(invalid="ignore", divide="ignore"):
        finish = end - exchange * up / (up + down)
    computing = np.stack([np.maximum(finish - compute, start), finish], axis=1)
    used = np.append(steps, np.nan)[np.searchsorted(counts, np.arange(rows), side="right")]
    return Contacts(client, start, end, computing, used, steps, clients)


def timeline_figure(
    groups: Sequence[Group], names: Sequence[str], width: float, window: tuple[float, float] | None
) -> Figure:
    """The first trial of each group, a panel each: bars from message to update, and within them of computing.

    A dot on the line of an aggregation is an update that it uses. window: the span of time (s); None: the beginning.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure, axes = style.panels(names, width, 2.3 if len(groups) == 1 else 1.9, shared=False)
    shown = MAX_CLIENTS if width < 5 else MAX_CLIENTS_WIDE
    handles: dict[str, Artist] = {"contact": Patch(color=CONTACT)}
    virtual = True
    for ax, group in zip(axes, groups, strict=True):
        contacts = read_contacts(group.trials[0].path)
        computing, steps = _draw(ax, contacts, shown, window)
        if computing:
            handles["computing"] = Patch(color=COMPUTING)
        if steps:
            handles["aggregation and its updates"] = Line2D([], [], **USED, linewidth=0.8, linestyle=":")
        virtual &= group.trials[0].clock.startswith("virtual")
        count = min(shown, contacts.clients)
        ax.set_ylabel(f"client ({count} of {contacts.clients})" if count < contacts.clients else "client")
    for ax in axes:
        ax.set_xlabel(axis_label("time", virtual))
    style.add_legend(figure, handles, axes)
    figure.set_label("Contacts of some clients in one trial, each from the message to the update")
    return figure


def _draw(ax: Axes, contacts: Contacts, shown: int, window: tuple[float, float] | None) -> tuple[bool, bool]:
    """Draws the contacts of the first clients; whether it drew times of computing, and aggregations."""
    count = min(shown, contacts.clients)
    mine = np.flatnonzero(contacts.client < count)
    first, last = window or (0.0, float(contacts.end[mine[: CONTACTS * count][-1]]) if len(mine) else 1.0)
    mine = mine[(contacts.start[mine] < last) & (contacts.end[mine] > first)]
    drawn = False
    for client in range(count):
        rows = mine[contacts.client[mine] == client]
        spans = [(contacts.start[k], contacts.end[k] - contacts.start[k]) for k in rows]
        ax.broken_barh(spans, (client - 0.4, 0.8), facecolor=CONTACT, edgecolor="white", linewidth=0.6)
        within = contacts.computing[rows]
        within = within[~np.isnan(within).any(axis=1)]
        drawn |= bool(len(within))
        ax.broken_barh([(a, b - a) for a, b in within], (client - 0.2, 0.4), facecolor=COMPUTING)
    steps = contacts.steps[(contacts.steps >= first) & (contacts.steps <= last)]
    few = 0 < len(steps) <= MAX_STEPS
    if few:
        ax.vlines(steps, -0.6, count - 0.4, color=STEP, linewidth=0.8, linestyle=":")
        ax.plot(contacts.used[mine], contacts.client[mine], **USED, linestyle="none")
    style.format_axes(ax)
    ax.grid(False)
    ax.set_xlim(first, last or 1.0)
    ax.set_ylim(count - 0.4, -0.6)
    ax.set_yticks(range(0, count, max(1, -(-count // 6))))
    return drawn, few
