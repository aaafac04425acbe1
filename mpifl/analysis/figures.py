"""The report's figures: a metric against time, one line a group (mean over the trials) with a min-max band."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mpifl.analysis.trials import Group

# Okabe and Ito's colours, which people with colour blindness tell apart; with line styles for more groups than colours.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", ":", "-.")
METRICS = {"accuracy": ("test_accuracy", 100.0, "test accuracy (%)"), "loss": ("train_loss", 1.0, "train loss")}
DECADES = 1.5  # a loss that spans more is drawn on a logarithmic axis


def draw(groups: Sequence[Group], out: Path, formats: Sequence[str]) -> list[Path]:
    """Writes accuracy.* and loss.* into `out`; a metric that no run file holds is left out. Returns what it wrote."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import LogFormatterSciNotation

    written = []
    virtual = all(trial.clock.startswith("virtual") for group in groups for trial in group.trials)
    for stem, (metric, scale, label) in METRICS.items():
        curves = [(group.name, group.curve(metric) * scale) for group in groups]
        finite = [curve["mean"].to_numpy() for _, curve in curves if np.isfinite(curve["mean"]).any()]
        if not finite:
            continue
        with plt.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
            figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
            for k, (name, curve) in enumerate(curves):
                colour, style = COLOURS[k % len(COLOURS)], STYLES[k // len(COLOURS) % len(STYLES)]
                marker = "o" if len(curve) == 1 else None
                axes.plot(curve.index, curve["mean"], style, color=colour, linewidth=1.6, label=name, marker=marker)
                axes.fill_between(curve.index, curve["min"], curve["max"], color=colour, alpha=0.18, linewidth=0)
            axes.set_xlabel("virtual time (s)" if virtual else "time (s)")
            axes.set_ylabel(label)
            axes.margins(x=0.01)
            if stem == "accuracy":
                axes.set_ylim(0, 100)
            else:
                values = np.concatenate(finite)
                values = values[np.isfinite(values) & (values > 0)]
                if len(values) and np.log10(values.max() / values.min()) > DECADES:
                    axes.set_yscale("log")
                    axes.yaxis.set_major_formatter(LogFormatterSciNotation())
            axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
            axes.set_axisbelow(True)
            rows = max(1, len(curves))
            if rows > 1:
                figure.legend(
                    loc="outside lower center",
                    ncols=1 if max(len(n) for n, _ in curves) > 34 else 2,
                    frameon=False,
                    fontsize=9,
                )
                figure.set_size_inches(6.4, 4.0 + 0.1 * rows)
            for kind in formats:
                figure.savefig(out / f"{stem}.{kind}", dpi=200)
                written.append(out / f"{stem}.{kind}")
            plt.close(figure)
    return written
