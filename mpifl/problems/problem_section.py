"""The `problem` section of a job."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from math import inf
from typing import Annotated, Any, Literal

from mpifl.config.types import Bounds, Config, NonNegativeFloat, PositiveInt, Size
from mpifl.errors import ConfigError
from mpifl.problems.models.logistic import Logistic
from mpifl.problems.models.network import Network
from mpifl.problems.partitions import Iid, Natural
from mpifl.problems.problem import Data, Model, Partition
from mpifl.problems.settings import ProblemSettings, Torch


@dataclass(frozen=True)
class ProblemConfig(Config):
    """What is minimised: data, partitioned over clients, and a model. Nulls are replaced by what fits the rest."""

    data: Data | None = None
    """Data set; null: the model's own (digits for logistic)."""
    root: str | None = None
    """Folder of the data files; null: $MPIFL_DATA, else ~/.cache/mpifl."""
    download: bool = False
    """Fetch data files that are missing under the root, with their checksums verified."""
    clients: Size | None = None
    """Number of clients n; null: as many as the data or the model come with (digits 32, synthetic 30)."""
    partition: Partition | None = None
    """How training rows are assigned to clients; null: natural where the data come by client, else iid."""
    test_split: Annotated[float, Bounds(above=0, below=1)] | None = None
    """Fraction of each client's rows to hold out as its own test rows; null: those that the data bring, if any."""
    validation_split: Annotated[float, Bounds(above=0, below=1)] | None = None
    """Fraction of each client's training rows, after `test_split`, to hold out as validation rows; null: none."""
    model: Model = Logistic()
    """Model and its options."""
    entry: str | None = None
    """A problem of your own instead of data and model: package.module:function, which returns a torch module, a loss
    and each client's data set; or the first model and clients with custom training loops."""
    options: Any = None
    """What `entry` is called with: a section of keyword arguments."""
    torch: Torch | None = None
    """How torch computes, for models that are torch modules; null for the others."""
    l2: NonNegativeFloat = 0.0
    """Regulariser nu: nu/2 ||w||^2 is added to every client's loss (the bias is left out)."""
    batch_size: PositiveInt | None = None
    """Rows b in one local step's batch; null, or b >= s_i: all of the client's rows."""
    micro_batches: PositiveInt = 1
    """Pieces that a batch is computed in, one after the other or by the ranks of a client (`ranks_per_client`)."""
    drop_last: bool = False
    """With local_epochs, leave out the last batch of each pass where it has fewer rows than the others."""
    evaluation_rows: PositiveInt | None = None
    """Most training rows, most test rows, most validation rows, and most of the clients' own test rows together, that
    losses and accuracies are evaluated on, drawn once; null: all."""
    dtype: Literal["float32", "float64"] = "float32"
    """float32 or float64: of the model, of the rows, and of what crosses the wire."""

    def __post_init__(self) -> None:
        super().__post_init__()
        uses_torch = self.entry is not None or isinstance(self.model, Network)
        if uses_torch and self.torch is None:
            self._fill("torch", Torch())
        elif self.torch is not None and not uses_torch:
            raise ConfigError("torch", "a section", "the model is not a torch module", "null")
        if self.torch and self.torch.autocast and self.dtype != "float32":
            raise ConfigError("torch.autocast", self.torch.autocast, "float64 stays as it is", "null, or dtype float32")
        if self.micro_batches > (self.batch_size or inf):
            wrong = f"a batch has problem.batch_size={self.batch_size} rows"
            raise ConfigError("micro_batches", self.micro_batches, wrong, f"at most {self.batch_size}")
        if self.entry is not None:
            self._check_entry()
            return
        if self.options is not None:
            raise ConfigError("options", self.options, "they are for problem.entry, which is null", "null")
        data = self.data or self.model.data()
        self._fill("data", data)
        self._fill("partition", self.partition or (Natural() if data.natural else Iid()))
        if isinstance(self.partition, Natural) and not data.natural:
            raise ConfigError("partition", "natural", "these data do not come by client", "another partition")
        self._fill("clients", self.clients or self.model.fixed_clients() or data.default_clients)
        self.model.check(data, self.settings)
        if self.clients is None and not data.natural:
            raise ConfigError("clients", None, "required", "an integer of at least 1")

    def _check_entry(self) -> None:
        if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", self.entry or ""):
            raise ConfigError("entry", self.entry, "not the name of a function", "package.module:function")
        for key, given in (("data", self.data), ("partition", self.partition)):
            if given is not None:
                wrong = "with problem.entry the data are your own"
                raise ConfigError(key, getattr(given, "name", given), wrong, "null")
        if self.model != Logistic():
            raise ConfigError("model", getattr(self.model, "name", ""), "with problem.entry it is your own", "none")
        if self.options is not None and not (
            isinstance(self.options, dict) and all(isinstance(key, str) for key in self.options)
        ):
            raise ConfigError(
                "options", self.options, "not a section", "the keyword arguments of problem.entry by name"
            )

    def _fill(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)  # frozen only once it is constructed

    @property
    def settings(self) -> ProblemSettings:
        """What models use of this section."""
        return ProblemSettings(**{field.name: getattr(self, field.name) for field in fields(ProblemSettings)})
