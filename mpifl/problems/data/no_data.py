"""No data: the model needs none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mpifl.errors import ConfigError
from mpifl.problems.problem import Data, Rows


@dataclass(frozen=True)
class NoData(Data):
    """No data set, for models that need none."""

    name: str = "none"

    def read(self, root: Path, download: bool, clients: int | None) -> Rows:
        raise ConfigError("problem.data", self.name, "this model needs data", "a data set")
