"""A problem of a user's own: a function that returns a torch module, a loss and each client's data set.

Every rank calls the function twice: for the module and the loss with torch's generator at the place that the run's seed
gives, and for the data sets at a fixed one. So the data are the same on all ranks and for all seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
import torch

from mpifl.errors import ConfigError
from mpifl.problems.base import Hosted, Place, Problem
from mpifl.problems.torch.device import prepare
from mpifl.problems.torch.flat import Flat
from mpifl.problems.torch.objective import Examples, Shared, TorchObjective, local_statistics, measure
from mpifl.problems.torch.problem import CPU
from mpifl.problems.torch.returned import Returned, call, examples, try_out, wrong
from mpifl.streams import stream

if TYPE_CHECKING:
    from mpifl.problems.config import ProblemConfig

_here: WeakValueDictionary[int, EntryProblem] = WeakValueDictionary()  # by id(meta): one process holds the data once


class EntryProblem(Problem):
    """All clients' rows. `train_loss` is the mean loss over them plus the regulariser, `test_loss` the mean loss over
    the test rows; `test_accuracy` is nan where outputs are not (rows, classes) and targets not whole numbers."""

    def __init__(self, config: ProblemConfig) -> None:
        made = call(config, 0)
        self._config, self.dtype, self.clients = config, np.dtype(config.dtype), len(made.datasets)
        if config.clients not in (None, self.clients):
            text = f"{self.clients}, the number of data sets that {config.entry} returns, or null"
            raise ConfigError("problem.clients", config.clients, text)
        self.rows = [examples(config, made.datasets[i], f"client {i}") for i in range(self.clients)]
        test = [] if made.test is None else [examples(config, made.test, "the test set")]
        self._shared = _shared(config, made, CPU)
        self._holds_first = True
        try_out(config, made, {f"client {i}": rows for i, rows in enumerate(self.rows)})
        if test:
            try_out(config, made, {"the test set": test[0]})
        self._seen = _few(config.evaluation_rows, self.rows), _few(config.evaluation_rows, test)
        self.layout, self.d = self._shared.flat.layout, self._shared.flat.d
        self.samples = np.array([len(rows) for rows in self.rows], np.int64)
        self.meta = {"clients": self.clients, "samples": self.samples.tolist(), "sums": [_sums(r) for r in self.rows]}
        _here[id(self.meta)] = self
