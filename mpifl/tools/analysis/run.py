"""A run file for notebooks and scripts, with plots; and several of them as one."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpifl.config.job import OUTPUT_KEYS
from mpifl.errors import ConfigError
from mpifl.runfile.reader import Run as RunFile
from mpifl.runfile.reader import RunTables, open_run
from mpifl.tools.analysis.labels import read_labels
from mpifl.tools.analysis.trials import PROGRESS, SUMS, Group, flat_config, group_trials, load_trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame


class Run(RunFile):
    """A run file, as it was when it was opened or last refreshed; a context manager.

    Attributes:
        path: The run file.
        attrs: The root attributes: plain strings, numbers and lists.
        open_ended: Whether the file was never closed: the run is running, or was killed.
    """

    def plot(self, y: str | Sequence[str], x: str = "time", ax: Axes | None = None, **style: Any) -> Axes:
        """Draws columns of `evaluations` against another one; returns the Axes.

        Args:
            y: A column or several: "test_accuracy", "train_loss", ...
            x: "time" (s), "updates" or "version".
            ax: Where to draw; None: in a new figure.
            style: Options of matplotlib's `plot`.

        Raises:
            ConfigError: `evaluations` has no such column, or no values in it.
        """
        from mpifl.tools.analysis.curves import plot_columns

        virtual = str(self.attrs.get("clock", "")).startswith("virtual")
        return plot_columns(self.evaluations, [y] if isinstance(y, str) else list(y), x, virtual, ax, **style)


class Runs(RunTables):
    """Several run files, with one table of evaluations, of updates, and so on for all of them.

    The first columns of each table are `run`, the file's name; the labels on the axes of the study, if the files are
    those of a study; `seed`; and the other keys of the configuration that differ between the runs, such as
    `algorithm.step_size`. The column `client` has a client's number in its run. Files are opened when they are read,
    and closed again.
    """

    def __init__(self, paths: Sequence[str | Path]) -> None:
        """Args:
            paths: The run files.

        Raises:
            ConfigError: A file cannot be read.
        """
        self.paths = [Path(path) for path in paths]
        self._studies = read_labels(self.paths)
        configs = []
        for path in self.paths:
            with open_run(path) as run:
                configs.append(flat_config(run))
        keys = dict.fromkeys(key for config in configs for key in config if key not in OUTPUT_KEYS)
        differing = [key for key in keys if len({json.dumps(c.get(key), default=str) for c in configs}) > 1]
        axes = dict.fromkeys(axis for known in self._studies.values() for axis in known.axes)
        stems = [path.stem for path in self.paths]
        names = stems if len(set(stems)) == len(stems) else [str(path) for path in self.paths]
        self.labels = []
        for path, name, config in zip(self.paths, names, configs, strict=True):
            values = self._studies[path].axes if path in self._studies else {}
            label = {"run": name, **{axis: values.get(axis, config.get(axis)) for axis in axes}}
            label |= {"seed": config.get("seed")} if axes else {}
            self.labels.append(label | {key: config.get(key) for key in differing if key not in label})
        self._frames: dict[str, DataFrame] = {}

    @property
    def status(self) -> DataFrame:
        """One row for each run: `run`, the keys that differ, and `status`."""
        import pandas as pd

        return pd.DataFrame([{**label, "status": run.status} for label, run in zip(self.labels, self, strict=True)])

    @property
    def groups(self) -> list[Group]:
        """The runs as trials of groups.

        Runs of a study that have the same labels on its axes are one group, others if they differ only in their seed.
        """
        return self._groups(())

    def _groups(self, sums: Sequence[str]) -> list[Group]:
        return group_trials(load_trial(path, sums=sums, labels=self._studies.get(path)) for path in self.paths)

    def plot(
        self, y: str, ax: Axes | None = None, x: str = "time", spread: str = "range", trials: bool = False, **style: Any
    ) -> Axes:  # fmt: skip
        """Draws a column of `evaluations`, one line for each configuration; returns the Axes.

        Runs that differ only in their seed are one line, their mean, with a band of their spread.

        Args:
            y: A column: "test_accuracy", "train_loss", ...
            ax: Where to draw; None: in a new figure.
            x: "time", "updates", "rounds", "bytes" or "local-steps".
            spread: "range": from the smallest value to the largest; "sd": standard deviation; "ci95": 95 % interval of
                the mean.
            trials: Also draw a thin line for each run.
            style: Options of matplotlib's `plot`.

        Raises:
            ConfigError: `evaluations` has no such column, or no values in it.
        """
        from mpifl.tools.analysis.curves import plot_groups
        from mpifl.tools.analysis.options import Options

        Options(x=(x,), spread=spread)  # raises ConfigError where they are wrong
        groups = self._groups([PROGRESS[x]] if PROGRESS[x] in SUMS else [])
        return plot_groups(groups, y, x, spread, ax, trials, **style)

    def figure(
        self, kind: str, x: str = "time", spread: str = "range", panels: str | None = None, width: float = 3.3,
        reach: float | Sequence[float] = (), trials: bool = False, window: tuple[float, float] | None = None,
    ) -> Figure:  # fmt: skip
        """Draws a figure for a paper, as `mpifl report` does; returns the matplotlib Figure.

        Its caption is `Figure.get_label()`.

        Args:
            kind: One of those of `mpifl report --figures`, such as "accuracy", "step-size-loss" or "timeline", or a
                column of `evaluations`.
            x: What curves and profiles are drawn against, as in `plot`.
            spread: As in `plot`.
            panels: An axis of the study, or a key of the job, whose values get a panel each.
            width: Inches.
            reach: Test accuracies (0..1) of "profile".
            trials: Curves have a thin line for each run.
            window: First and last time (s) of "timeline"; None: the beginning.

        Raises:
            ConfigError: An argument is wrong, or the runs have no values for the figure.
        """
        from mpifl.tools.analysis.figures import draw_figure
        from mpifl.tools.analysis.options import Options

        options = Options(x=(x,), spread=spread, panels=panels, width=width, reach=_accuracies(reach), trials=trials,
                          window=window)  # fmt: skip
        return draw_figure(kind, self._groups(sorted(options.sums)), options)

    def summary(self, reach: float | Sequence[float] = (), reach_in: str | Sequence[str] = "time") -> DataFrame:
        """One row for each configuration: labels, numbers of trials, and statistics over the trials.

        The columns are those of `report.csv`: of each metric at the last evaluation the number of trials that have it
        (`test_accuracy_trials`), and their `_mean`, `_min`, `_max`, `_sd` (standard deviation) and `_ci95` (half the
        width of the 95 % interval of the mean). What it takes to reach an accuracy has the same columns
        (`time_to_0.9_mean`).

        Args:
            reach: Test accuracies (0..1).
            reach_in: "time", "updates", "rounds", "bytes", "local-steps", or several of these.

        Raises:
            ConfigError: An argument is wrong.
        """
        from mpifl.tools.analysis.options import Options
        from mpifl.tools.analysis.tables import summary

        options = Options(
            reach=_accuracies(reach), reach_in=(reach_in,) if isinstance(reach_in, str) else tuple(reach_in)
        )
        return summary(self._groups(sorted(options.sums)), options)

    def _table(self, name: str) -> DataFrame:
        if name not in self._frames:
            import pandas as pd

            parts = []
            for label, run in zip(self.labels, self, strict=True):
                frame: DataFrame = getattr(run, name)
                if name == "clients":
                    frame = frame.rename_axis("client").reset_index()
                for k, (key, value) in enumerate(label.items()):
                    frame.insert(k, key, value)
                parts.append(frame)
            self._frames[name] = pd.concat(parts, ignore_index=True)
        return self._frames[name]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, k: int) -> Run:
        return Run(self.paths[k])

    def __iter__(self) -> Iterator[Run]:
        """The runs one by one, each open until the next one is asked for."""
        for path in self.paths:
            with Run(path) as run:
                yield run

    def __repr__(self) -> str:
        return f"<Runs {len(self)} files>"


def _accuracies(reach: float | Sequence[float]) -> tuple[float, ...]:
    return (reach,) if isinstance(reach, int | float) else tuple(reach)


def find_runs(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """The run files that a path, a pattern, a folder or a list of these names, each once. Raises ConfigError."""
    found: list[Path] = []
    for path in [paths] if isinstance(paths, str | Path) else paths:
        if Path(path).is_dir():
            here = sorted(Path(path).glob("*.h5"))
        elif os.path.lexists(path):
            here = [Path(path)]
        else:
            here = [Path(name) for name in sorted(glob.glob(str(path), recursive=True)) if not Path(name).is_dir()]
        if not here:
            raise ConfigError("run files", path, "no run files", "a run file, a pattern or a folder with run files")
        found += here
    if not found:
        raise ConfigError("run files", "none", "no path is given", "at least one")
    return list(dict.fromkeys(found))
