"""A run file for notebooks and scripts, with plots; and several of them as one."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpifl.analysis.trials import Group, flat_config, group_trials, load_trial
from mpifl.config.job import OUTPUT_KEYS
from mpifl.errors import ConfigError
from mpifl.storage import Run as RunFile
from mpifl.storage import open_run
from mpifl.storage.reader import RunTables

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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
        from mpifl.analysis.figures import plot_columns

        virtual = str(self.attrs.get("clock", "")).startswith("virtual")
        return plot_columns(self.evaluations, [y] if isinstance(y, str) else list(y), x, virtual, ax, **style)


class Runs(RunTables):
    """Several run files, with one table of evaluations, of updates, and so on for all of them.

    The first columns of each table are `run`, the file's name, and the keys of the configuration that differ between
    the runs: `seed`, `algorithm.step_size`. The column `client` has a client's number in its run. Files are opened when
    they are read, and closed again.
    """

    def __init__(self, paths: Sequence[str | Path]) -> None:
        """Args:
            paths: The run files.

        Raises:
            ConfigError: A file cannot be read.
        """
        self.paths = [Path(path) for path in paths]
        configs = []
        for path in self.paths:
            with open_run(path) as run:
                configs.append(flat_config(run))
        keys = dict.fromkeys(key for config in configs for key in config if key not in OUTPUT_KEYS)
        differing = [key for key in keys if len({json.dumps(c.get(key), default=str) for c in configs}) > 1]
        stems = [path.stem for path in self.paths]
        names = stems if len(set(stems)) == len(stems) else [str(path) for path in self.paths]
        self.labels = [
            {"run": name, **{key: config.get(key) for key in differing}}
            for name, config in zip(names, configs, strict=True)
        ]
        self._frames: dict[str, DataFrame] = {}

    @property
    def status(self) -> DataFrame:
        """One row for each run: `run`, the keys that differ, and `status`."""
        import pandas as pd

        return pd.DataFrame([{**label, "status": run.status} for label, run in zip(self.labels, self, strict=True)])

    @property
    def groups(self) -> list[Group]:
        """The runs grouped by configuration: runs that differ only in their seed are trials of one group."""
        return group_trials(load_trial(path) for path in self.paths)

    def plot(self, y: str, ax: Axes | None = None, **style: Any) -> Axes:
        """Draws a column of `evaluations` against time, one line for each configuration; returns the Axes.

        Runs that differ only in their seed are one line, their mean, with a band from the smallest value to the
        largest.

        Args:
            y: A column: "test_accuracy", "train_loss", ...
            ax: Where to draw; None: in a new figure.
            style: Options of matplotlib's `plot`.

        Raises:
            ConfigError: `evaluations` has no such column.
        """
        from mpifl.analysis.figures import plot_groups

        groups = self.groups
        ax = plot_groups(groups, y, ax, **style)
        if len(groups) > 1:
            ax.legend(frameon=False)
        return ax

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


def find_runs(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """The run files that a path, a pattern, a folder or a list of these names, each once. Raises ConfigError."""
    found: list[Path] = []
    for path in [paths] if isinstance(paths, str | Path) else paths:
        if Path(path).is_dir():
            here = sorted(Path(path).glob("*.h5"))
        elif Path(path).exists():
            here = [Path(path)]
        else:
            here = [Path(name) for name in sorted(glob.glob(str(path), recursive=True)) if Path(name).is_file()]
        if not here:
            raise ConfigError("run files", path, "a run file, a pattern or a folder with run files")
        found += here
    if not found:
        raise ConfigError("run files", "none", "at least one")
    return list(dict.fromkeys(found))
