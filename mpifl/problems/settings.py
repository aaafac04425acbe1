"""The `problem` section of a job."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpifl.errors import LARGEST, ConfigError, choice, number, whole
from mpifl.problems.base import Data, Model, Partition
from mpifl.problems.models.logistic import Logistic
from mpifl.problems.models.network import Network
from mpifl.problems.partitions import Iid, Natural


@dataclass(frozen=True)
class Torch:
    """How torch computes, where the model is a torch module."""

    device: str = "cpu"
    """Where clients compute: cpu; cuda, a GPU of the rank's host (the rank's number there mod their count); cuda:K."""
    autocast: str | None = None
    """bfloat16: forward passes in bfloat16 where torch holds that to be safe; null: all in problem.dtype."""
    buffers: str = "averaged"
    """Running statistics of batch norm: averaged, as entries of the flat vector; or local, each client its own."""
    batched: bool | None = None
    """Clients of a rank that are ready together are computed in one call, with the same result within rounding; null:
    under the real clock alone, as the virtual clock's bits must not depend on the number of ranks."""
    deterministic: bool | None = None
    """Only algorithms that give the same bits each time; null: under the virtual clock and in replays."""
    threads: int | None = None
    """Threads a rank; null: 1 under the virtual clock (bits may depend on it), else as many as the rank has cores."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise ConfigError("device", self.device, "cpu, cuda or cuda:K")
        if self.autocast is not None:
            choice("autocast", self.autocast, ("bfloat16",))
        choice("buffers", self.buffers, ("averaged", "local"))
        whole("threads", self.threads, 1, optional=True)
        if self.threads is not None and self.threads > 1024:
            raise ConfigError("threads", self.threads, "a whole number from 1 to 1024, or null")

    def settled(self, repeatable: bool) -> Torch:
        """Nothing left null but threads under the real clock; repeatable: the run's bits are to be the same again."""
        return replace(
            self,
            batched=not repeatable if self.batched is None else self.batched,
            deterministic=repeatable if self.deterministic is None else self.deterministic,
            threads=1 if repeatable and self.threads is None else self.threads,
        )


@dataclass(frozen=True)
class ProblemConfig:
    """What is minimised: data, dealt to clients, and a model. Parts left null are filled in with what fits the rest."""

    data: Data | None = None
    """Data set; null: the model's own (digits for logistic)."""
    root: str | None = None
    """Folder of the data files; null: $MPIFL_DATA, else ~/.cache/mpifl."""
    download: bool = False
    """Fetch data files that are missing under the root, with their checksums verified."""
    clients: int | None = None
    """Number of clients n; null: as many as the data or the model come with (digits 32, synthetic 30)."""
    partition: Partition | None = None
    """How training rows are dealt to clients; null: natural where the data come by client, else iid."""
    test_split: float | None = None
    """Fraction of each client's rows to hold out as its own test rows; null: those that the data bring, if any."""
    model: Model = Logistic()
    """Model and its options."""
    entry: str | None = None
    """A problem of your own instead of data and model: package.module:function, which returns a torch module, a loss
    and each client's data set."""
    options: Any = None
    """What `entry` is called with: a section of keyword arguments."""
    torch: Torch | None = None
    """How torch computes, for models that are torch modules; null for the others."""
    l2: float = 0.0
    """Regulariser nu: nu/2 ||w||^2 is added to every client's loss (the bias is left out)."""
    batch_size: int | None = None
    """Rows b in one local step's batch; null, or b >= s_i: all of the client's rows."""
    evaluation_rows: int | None = None
    """Most training rows, most test rows, and most of the clients' own test rows together, that losses and accuracies
    are measured on, drawn once; null: all."""
    dtype: str = "float32"
    """float32 or float64: of the model, of the rows, and of what crosses the wire."""

    def __post_init__(self) -> None:
        choice("dtype", self.dtype, ("float32", "float64"))
        number("l2", self.l2, 0)
        if self.test_split is not None and not 0 < self.test_split < 1:
            raise ConfigError("test_split", self.test_split, "a fraction above 0 and below 1, or null")
        whole("batch_size", self.batch_size, 1, optional=True)
        whole("clients", self.clients, 1, optional=True, high=LARGEST)
        whole("evaluation_rows", self.evaluation_rows, 1, optional=True)
        uses_torch = self.entry is not None or isinstance(self.model, Network)
        if uses_torch and self.torch is None:
            self._fill("torch", Torch())
        elif self.torch is not None and not uses_torch:
            raise ConfigError("torch", "a section", "null: the model is no torch module")
        if self.torch and self.torch.autocast and self.dtype != "float32":
            raise ConfigError("torch.autocast", self.torch.autocast, "null, or dtype float32: float64 stays as it is")
        if self.entry is not None:
            self._check_entry()
            return
        if self.options is not None:
            raise ConfigError("options", self.options, "null: they are for problem.entry")
        data = self.data or self.model.data()
        self._fill("data", data)
        self._fill("partition", self.partition or (Natural() if data.natural else Iid()))
        if isinstance(self.partition, Natural) and not data.natural:
            raise ConfigError("partition", "natural", "another partition: these data do not come by client")
        self._fill("clients", self.clients or self.model.devices() or data.devices)
        self.model.check(self)
        if self.clients is None and not data.natural:
            raise ConfigError("clients", None, "a whole number of at least 1")

    def _check_entry(self) -> None:
        if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", self.entry or ""):
            raise ConfigError("entry", self.entry, "package.module:function")
        for key, given in (("data", self.data), ("partition", self.partition), ("test_split", self.test_split)):
            if given is not None:
                raise ConfigError(key, getattr(given, "name", given), "null: with problem.entry the data are your own")
        if self.model != Logistic():
            raise ConfigError("model", getattr(self.model, "name", ""), "none: with problem.entry it is your own")
        if self.options is not None and not (
            isinstance(self.options, dict) and all(isinstance(key, str) for key in self.options)
        ):
            raise ConfigError("options", self.options, "a section: the keyword arguments of problem.entry")

    def _fill(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)  # frozen, but not yet: this is its construction

    def folder(self) -> Path:
        """The data root."""
        return Path(self.root or os.environ.get("MPIFL_DATA") or "~/.cache/mpifl").expanduser()
