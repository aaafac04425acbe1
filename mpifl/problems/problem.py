"""What a problem is made of: a data set, a partition of its rows over the clients, a model, an initial model.

Each part is a frozen dataclass whose fields are its options; a new one is a subclass. Nothing
here is heavier than NumPy: every rank imports it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from mpifl.config.types import Config
from mpifl.objective import NO_STATE, ModuleState, Objective
from mpifl.problems.settings import ProblemSettings
from mpifl.vector_memory import HOST, VectorMemory

if TYPE_CHECKING:
    from pathlib import Path

Shard = Sequence["np.ndarray"]  # a client's part of the data, as its rank receives it
VALIDATION = ("validation_loss", "validation_accuracy")
Layout = list[tuple[str, tuple[int, ...]]]  # names and shapes of a model's parts, in the order of the flat vector


class Tokens(NamedTuple):
    """Text as numbers, in a file that every rank maps into its memory; a row is a window of it."""

    file: Path  # .npy, (tokens,) unsigned integers below `vocabulary`
    window: int  # tokens in a row
    vocabulary: int


@dataclass
class Rows:
    """Training rows and test rows of a data set, and the client of each where the data come by client."""

    x: np.ndarray  # (S, features), any numeric dtype; text: (S, 1) int64, where each row begins in `tokens`
    y: np.ndarray  # (S,) int labels, or float targets of a regression
    x_test: np.ndarray  # (T, features); T = 0 where there is none
    y_test: np.ndarray  # (T,)
    classes: int  # labels are 0 .. classes - 1; 0: targets are numbers
    divisor: float = 1  # features are x / divisor
    owner: np.ndarray | None = None  # (S,) int client of each training row
    owner_test: np.ndarray | None = None  # (T,) int client of each test row; -1: no client
    shape: tuple[int, ...] = ()  # channels, height and width of a row that is an image
    tokens: Tokens | None = None  # the text; None: the rows are no text
    files: tuple[tuple[object, int], ...] = ()  # each file and its number of rows: of all training, then all test rows

    def __post_init__(self) -> None:
        self.classes, self.divisor = int(self.classes), float(self.divisor)  # NumPy's numbers do not travel as JSON


class RowCounts(NamedTuple):
    """The size of a data set."""

    train: int
    test: int
    features: int
    classes: int
    raw: int  # bytes of a row as it is read, before it is scaled


class ProblemSize(NamedTuple):
    """What a problem takes of the memory of rank 0, in bytes unless noted."""

    d: int  # entries of the model
    clients: int  # number of clients
    data: int  # the loaded data
    loading: int  # more while the data are loaded
    evaluating: int  # more while a model is evaluated


@dataclass(frozen=True)
class Data(Config):
    """The base of every data set."""

    default_clients: ClassVar[int | None] = None  # number of clients where the job does not say
    natural: ClassVar[bool] = False  # the rows come by client

    def counts(self, clients: int) -> RowCounts | None:
        """The size of the data, without reading them; None where only the files tell."""
        return None

    @abstractmethod
    def read(self, root: Path, download: bool, clients: int | None) -> Rows:
        """The rows, from files under `root`; missing files are downloaded first where `download` is set."""
        raise NotImplementedError


@dataclass(frozen=True)
class Partition(Config):
    """The base of every rule that assigns the training rows to clients."""

    @abstractmethod
    def owners(self, y: np.ndarray, classes: int, clients: int, batch: int) -> np.ndarray:
        """(S,) the client of each row, from the rows' labels y (S,); `batch` is the least useful number of rows."""
        raise NotImplementedError


@dataclass(frozen=True)
class Init(Config):
    """The base of every distribution of the initial model."""

    @abstractmethod
    def draw(self, generator: np.random.Generator, d: int) -> np.ndarray:
        """(d,) float64"""
        raise NotImplementedError


class ComputeResources(NamedTuple):
    """What a rank has to compute with."""

    local_rank: int = 0  # the rank's number among those with clients on its host
    cores: int = 1  # the rank's share of the host's cores


class HostedClients(NamedTuple):
    """The clients of one rank."""

    objectives: Mapping[int, Objective]
    facts: Mapping[str, Any] = {}  # JSON-able: how this rank computes, for the run file
    # trains several clients in one call: results in the order of the functions
    train_batch: Callable[[Sequence[Callable[[], Any]]], list[Any]] | None = None
    memory: VectorMemory = HOST  # memory of the clients' vectors


class Problem:
    """n clients' objectives on one flat vector of length d, and how well a model does."""

    d: int
    dtype: np.dtype
    clients: int
    samples: np.ndarray  # (n,) int64 s_i
    layout: Layout
    meta: dict[str, Any]  # JSON-able: what `objective` needs besides the configuration and a shard
    validation_rows: int = 0  # rows held out by `problem.validation_split`
    offers: frozenset[str] | None = None  # hooks of clients with custom training loops; None: they have no such loops
    draws: bool = False  # evaluations draw from the process' generators: no client may compute meanwhile in its process

    def prepare(self, resources: ComputeResources) -> Mapping[str, Any]:
        """Called once, before the first evaluation, with rank 0's resources; facts for the run file, JSON-able."""
        return {}

    def initial(self, seed: int) -> np.ndarray:
        """(d,) the first model of a run."""
        raise NotImplementedError

    def module_state(self) -> ModuleState:
        """The `state_dict` of a torch module beside the flat vector, for exports of the run file."""
        return NO_STATE

    def shard(self, i: int) -> list[np.ndarray]:
        """Client i's C-contiguous arrays, views where there is one big array."""
        raise NotImplementedError

    def check_batches(self, passes: bool) -> None:
        """Raises ConfigError where clients have batches of one row, which the model cannot take.

        passes: batches are those of passes over the client's rows, as with `local_epochs`.
        """

    def begin_evaluation(self, version: int) -> None:
        """Called before the model of a version is evaluated: what is drawn then belongs to the run's seed and to it."""

    def evaluate(self, x: np.ndarray, training: bool = True) -> dict[str, float]:
        """train_loss, test_loss, test_accuracy, client_accuracy_mean of the model x (d,); nan where there is none. With
        validation rows also validation_loss and validation_accuracy. Without `training` train_loss is nan.

        May run in a thread while gradients are computed, unless `draws`.
        """
        return self.evaluate_with_clients(x, training)[0]

    def test_scores(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """(T,) int64 labels of the test rows, and (T, C) float64 scores: probabilities under the model x.

        Rows that do not count are left out. None where the rows have no class labels, or outputs are no scores of them.
        Raises NotImplementedError where a model has no scores.
        """
        return None

    def evaluate_with_clients(self, x: np.ndarray, training: bool = True) -> tuple[dict[str, float], np.ndarray]:
        """What `evaluate` and `client_accuracies` return; a subclass has this one or `evaluate`."""
        return self.evaluate(x, training), self.client_accuracies(x)

    def client_accuracies(self, x: np.ndarray) -> np.ndarray:
        """(n,) accuracy of the model x (d,) on each client's own test rows; nan where a client has none."""
        return np.full(self.clients, np.nan)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """(d,) the gradient at x (d,) of what `evaluate` calls train_loss."""
        raise NotImplementedError


def metric_values(
    train: float, test: tuple[float, float], own: np.ndarray, validation: tuple[float, float] | None
) -> dict[str, float]:
    """What `Problem.evaluate` returns: losses with accuracies, and the accuracies of clients own (n,)."""
    known = own[~np.isnan(own)]
    found = {"train_loss": train, "test_loss": test[0], "test_accuracy": test[1]}
    found["client_accuracy_mean"] = float(known.mean()) if len(known) else nan
    return found | (dict(zip(VALIDATION, validation, strict=True)) if validation else {})


@dataclass(frozen=True)
class Model(Config):
    """The base of every model: what a client's loss is."""

    def data(self) -> Data:
        """The data set where the job names none."""
        raise NotImplementedError

    def fixed_clients(self) -> int | None:
        """The number of clients, where the model alone decides it."""
        return None

    def size(self, data: Data, settings: ProblemSettings) -> ProblemSize | None:
        """What the problem takes of memory, without reading the data; None where only the data tell."""
        return None

    def check(self, data: Data, settings: ProblemSettings) -> None:
        """Raises ConfigError where the data or the settings do not fit this model."""

    @abstractmethod
    def problem(self, data: Data, partition: Partition, settings: ProblemSettings) -> Problem:
        """Reads the data and partitions it; on rank 0 or in one process."""
        raise NotImplementedError

    @abstractmethod
    def objective(self, settings: ProblemSettings, meta: dict[str, Any], shard: Shard, i: int, seed: int) -> Objective:
        """Client i's objective, on any rank."""
        raise NotImplementedError

    def host(
        self,
        settings: ProblemSettings,
        meta: dict[str, Any],
        shards: Mapping[int, Shard],
        seed: int,
        resources: ComputeResources,
    ) -> HostedClients:
        """A rank's clients, from client -> shard. Raises ConfigError where this rank cannot compute them."""
        return HostedClients({i: self.objective(settings, meta, shard, i, seed) for i, shard in shards.items()})
