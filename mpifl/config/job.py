"""A job: everything that one run needs to know. `mpifl.config.read` makes one of a YAML file or a dict."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from mpifl import algorithms
from mpifl.algorithms.base import NEEDS, Algorithm
from mpifl.config.types import INT64_MAX, Bounds, Config, NonNegativeFloat, PositiveFloat, PositiveFraction, PositiveInt
from mpifl.errors import ConfigError, inside
from mpifl.problems.data.no_data import NoData
from mpifl.problems.metrics import MAX_METRICS, MAX_NAME, METRICS
from mpifl.problems.partitions import Natural
from mpifl.problems.problem_section import ProblemConfig
from mpifl.safe_input import NAME_BYTES, PATH_BYTES
from mpifl.scheduling.availability import Always, Availability
from mpifl.scheduling.delays import Delay, NoDelay
from mpifl.text import divisors, neighbours

# Keys of a job that decide what it writes and where, or how it uses memory, and not what it computes.
OUTPUT_KEYS = ("name", "output", "overwrite", "log_interval", "output_tensorboard", "memory")
NOT_IDENTITY = (*OUTPUT_KEYS, "checkpoint", "ranks_per_client")  # keys of a job that do not change what a run computes
MAX_EVALUATIONS = 1_000_000  # evaluations in a run in virtual time, which never merges them
MAX_AGGREGATIONS = 1_000_000_000  # aggregations by time in a run in virtual time
NOT_NEEDED = {"solver": "sgd", "accuracy": "null"}  # options that need nothing of a client; of others it is 0
OWN_METRIC = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)


@dataclass(frozen=True)
class Clock(Config):
    """What decides the order in which updates are consumed."""

    mode: Literal["real", "virtual"] = "real"
    """real: as updates arrive; virtual: by the delay model, the same on any number of ranks"""
    delay: Delay = field(default_factory=NoDelay)
    """how long a client takes from one contact to the next: a delay model"""
    availability: Availability = field(default_factory=Always)
    """when each client is on: an availability model"""


Watched = Literal["validation_loss", "validation_accuracy", "train_loss"]  # metrics that may choose a model


@dataclass(frozen=True)
class Plateau(Config):
    """A metric that no longer gets better."""

    metric: Watched = "validation_loss"
    """validation_loss, validation_accuracy or train_loss"""
    evaluations: PositiveInt = 10
    """evaluations in a row that do not have the best value so far; of those that measure the metric
    (`evaluate.train_every`)"""

    def rows(self, train_every: int) -> int:
        """The number of evaluations in a row among which `evaluations` measure the metric."""
        return self.evaluations * (train_every if self.metric == "train_loss" else 1)


@dataclass(frozen=True)
class Stop(Config):
    """When the run ends: the first of those given."""

    time: PositiveFloat | None = None
    """seconds of the run's clock"""
    updates: PositiveInt | None = None
    """updates that the server has consumed"""
    accuracy: PositiveFraction | None = None
    """test accuracy that an evaluation reaches, 0..1"""
    plateau: Plateau | None = None
    """a metric that no longer gets better; null: none"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.time, self.updates, self.accuracy, self.plateau) == (None,) * 4:
            expected = "at least one of time, updates, accuracy, plateau"
            raise ConfigError("stop", None, "nothing ends the run", expected)


@dataclass(frozen=True)
class Keep(Config):
    """What the run file keeps besides the final model."""

    best: Watched | None = None
    """the model with the best value of this metric, validation_loss, validation_accuracy or train_loss; null: none"""


@dataclass(frozen=True)
class Evaluate(Config):
    """How often the global model is evaluated: exactly one of every and updates is given."""

    every: Annotated[float, Bounds(at_least=1e-6)] | None = None
    """seconds of the run's clock"""
    updates: PositiveInt | None = None
    """updates that the server has consumed"""
    train_every: PositiveInt = 1
    """evaluations for each one that measures the training loss, and the gradient: 1, all do; 5, the first of every
    five; the others cost only the test rows"""
    gradient: bool = False
    """also measure the norm of the training loss's gradient, without a method's own g; where a method minimises f + g
    also that of the gradient mapping"""
    clients: bool = False
    """also measure the model on each client's own test rows: accuracies by client, their quartiles, worst tenth,
    variance"""
    metrics: list[str] = field(default_factory=list)
    """further metrics of the test rows: balanced_accuracy, macro_f1, auroc, or package.module:function of your own"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.every is None) == (self.updates is None):
            both = None if self.every is None else "every and updates"
            wrong = "both are given" if both else "neither is given"
            raise ConfigError("evaluate", both, wrong, "either every (seconds) or updates (a count)")
        if len(self.metrics) > MAX_METRICS or len(set(self.metrics)) < len(self.metrics):
            wrong = "too many" if len(self.metrics) > MAX_METRICS else "a name occurs twice"
            expected = f"at most {MAX_METRICS} distinct names"
            raise ConfigError("evaluate.metrics", ", ".join(self.metrics), wrong, expected)
        for k, name in enumerate(self.metrics):
            if ":" in name:
                if not OWN_METRIC.fullmatch(name) or len(name.encode()) > MAX_NAME:
                    expected = f"package.module:function of at most {MAX_NAME} bytes"
                    raise ConfigError(f"metrics[{k}]", name, "not the name of a function, or too long", expected)
            elif name not in METRICS:
                (near,) = get_close_matches(name, METRICS, 1, cutoff=0.0)
                known = f"one of {', '.join(METRICS)}, or package.module:function"
                raise ConfigError(f"metrics[{k}]", name, "no such metric", known, f"the nearest is {near}")


@dataclass(frozen=True)
class Checkpoint(Config):
    """How often the run saves a checkpoint; a signal that ends it also saves one."""

    every: PositiveFloat | None = None
    """seconds of the run's clock; null: not by time"""
    updates: PositiveInt | None = None
    """updates that the server has consumed; null: not by updates"""
    wall: PositiveFloat | None = 600.0
    """seconds of wall time, or more where checkpoints take over 2% of the time; null: not by wall time"""
    end: bool = False
    """also when the run is completed, so that `mpifl resume` can extend it from there"""


@dataclass(frozen=True)
class Faults(Config):
    """The policy for failed clients and refused updates."""

    lost: Literal["freeze", "rehost", "stop"] = "freeze"
    """for a lost client: freeze, the run continues without it; rehost, another rank hosts it; stop, the run fails"""
    norm: PositiveFloat | None = None
    """an update with a larger Euclidean norm is refused; null: only one that is not finite, or of another shape"""
    refusals: PositiveInt = 3
    """updates refused in a row after which a client is set aside; moves in a row after which it is frozen"""
    patience: PositiveFloat | None = None
    """seconds of wall time that a client may take for an answer, its emulated delay not counted; null: any time"""
    grace: PositiveFloat = 60.0
    """seconds of wall time in which a run ends after a signal; what cannot be saved in that time is left out"""


@dataclass(frozen=True)
class MemoryUse(Config):
    """What a run takes of the memory of its hosts."""

    check: bool = True
    """before the run, compare its estimated memory with what its hosts have, and refuse a run that needs more"""
    client_states: NonNegativeFloat | None = None
    """bytes of the clients' states that a rank keeps in memory, such as 4e9; those beyond are in a file; null: all"""
    folder: str | None = None
    """folder of that file, which has no name and is gone when the run ends; null: that of the run file"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.folder == "":
            raise ConfigError("folder", self.folder, "empty", "the name of a folder, or null")
        if self.folder is not None and self.client_states is None:
            raise ConfigError(
                "folder",
                self.folder,
                "the folder is for the file of memory.client_states, which is null",
                "null",
                "or set that",
            )


@dataclass(frozen=True)
class Job(Config):
    """One run."""

    name: str
    """the run's name, and by default the name of its file"""
    seed: Annotated[int, Bounds(at_least=0, at_most=INT64_MAX)]
    """all random numbers of the run are functions of it; 0 .. 2**63 - 1"""
    problem: ProblemConfig
    """what is minimised: data, partition, model"""
    algorithm: Algorithm
    """the method that minimises it"""
    stop: Stop
    """when the run ends"""
    output: str
    """the run file; results/NAME.h5 where a job file does not say"""
    clock: Clock = field(default_factory=Clock)
    """what decides the order in which updates are consumed"""
    evaluate: Evaluate = field(default_factory=lambda: Evaluate(every=1.0))
    """how often the global model is evaluated, and by which metrics"""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    """how often the run is saved"""
    keep: Keep = field(default_factory=Keep)
    """what the run file keeps besides the final model"""
    faults: Faults = field(default_factory=Faults)
    """the policy for clients that fail"""
    memory: MemoryUse = field(default_factory=MemoryUse)
    """what the run takes of the memory of its hosts"""
    ranks_per_client: PositiveInt = 1
    """MPI ranks that compute a client together, each its part of `problem.micro_batches`; more than one needs these"""
    overwrite: bool = False
    """replace the output where it exists"""
    log_interval: PositiveFloat | None = 60.0
    """seconds of wall time between two lines of the log, where stderr is no terminal; null: none"""
    output_tensorboard: bool = False
    """write TensorBoard scalars while the run goes on, into the folder NAME-tensorboard beside the run file"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"\w[\w.+=,@-]*", self.name) or len(self.name.encode()) > 200:
            expected = "at most 200 bytes of letters, digits and . + = , @ _ -, the first a letter, a digit or _"
            raise ConfigError("name", self.name, "not a valid file name", expected)
        if not Path(self.output).name.removesuffix(".h5") or not self.output.endswith(".h5"):
            raise ConfigError(
                "output", self.output, "it does not end in NAME.h5", "the path of a file that ends in .h5"
            )
        try:
            path = os.fsencode(self.output)
        except UnicodeEncodeError:
            encoding = sys.getfilesystemencoding()
            wrong, remedy = f"this system's encoding, {encoding}, lacks some letters", "set LC_ALL=C.UTF-8"
            raise ConfigError("output", ascii(self.output)[1:-1], wrong, "a path in that encoding", remedy) from None
        if len(path) > PATH_BYTES or max(map(len, path.split(b"/"))) > NAME_BYTES:
            expected = f"at most {PATH_BYTES} bytes, and {NAME_BYTES} in each name"
            raise ConfigError("output", self.output, "the path is too long", expected)
        zero = self.clock.delay.may_be_zero and not self.algorithm.polls  # a poll waits for its time
        if self.clock.mode == "virtual" and zero and self.stop.updates is None:
            wrong, expected = "its times may be 0, and virtual time would stand still", "a model with times above 0"
            raise ConfigError("clock.delay", type_name(self.clock.delay), wrong, expected, "or set stop.updates")
        if self.clock.mode == "virtual" and self.algorithm.needs_timings() and not self.clock.delay.has_split_times:
            wrong = "it has no separate times of computing and exchanging, which this method needs"
            raise ConfigError("clock.delay", type_name(self.clock.delay), wrong, "speed")
        if self.clock.availability.cohort_from == "available" and not self.algorithm.draws_cohorts:
            rounds = "its rounds need every client" if self.algorithm.pace == "synchronous" else "it has no cohorts"
            name = algorithms.name_of(type(self.algorithm)) or type_name(self.algorithm)
            wrong = f"the algorithm is {name}, and {rounds}"
            raise ConfigError("clock.availability.cohort_from", "available", wrong, "all")
        if self.stop.time and self.stop.updates is None:
            self.check_duration(self.stop.time)
        if self.evaluate.clients:
            self._check_client_rows()
        plateau = self.stop.plateau.metric if self.stop.plateau else None
        for key, metric in (("stop.plateau.metric", plateau), ("keep.best", self.keep.best)):
            if metric and metric.startswith("validation") and self.problem.validation_split is None:
                expected = "train_loss, or problem.validation_split such as 0.1"
                raise ConfigError(key, metric, "there are no validation rows", expected)
        if self.evaluate.metrics and isinstance(self.problem.data, NoData):
            wrong = f"the model {type_name(self.problem.model)} has no class labels"
            raise ConfigError("evaluate.metrics", ", ".join(self.evaluate.metrics), wrong, "[]")
        if self.problem.torch is not None:
            torch = self.problem.torch.with_defaults(repeatable=self.clock.mode == "virtual")
            object.__setattr__(self, "problem", replace(self.problem, torch=torch))
        if self.algorithm.torch_optimizer() and self.problem.torch is None:
            wrong = f"the model {type_name(self.problem.model)} is not a torch module"
            raise ConfigError("algorithm.solver", "torch", wrong, "another solver")
        if self.problem.entry is None:  # else its clients may have custom training loops
            self.check_micro_batches()
        if self.problem.clients is not None:  # null: the data decide the number of clients
            with inside("algorithm"):
                self.algorithm.validate(self.problem.clients)

    def check_clients(self, offers: Collection[str] | None) -> None:
        """Raises ConfigError where clients with custom training loops lack what method or evaluations need.

        offers: the hooks that all of them have; None: clients compute gradients of a model.
        """
        if offers is None:
            self.check_micro_batches()
            return
        wrong = "the clients have custom training loops"
        if self.problem.micro_batches > 1:
            raise ConfigError("problem.micro_batches", self.problem.micro_batches, wrong, "1")
        if self.algorithm.torch_optimizer():
            raise ConfigError("algorithm.solver", "torch", wrong, "sgd")
        for need, option in self.algorithm.client_needs().items():
            if not any(hook in offers for hook in NEEDS[need]):
                name = algorithms.name_of(type(self.algorithm)) or type_name(self.algorithm)
                expected = f"clients with {' or '.join(NEEDS[need])}" if NEEDS[need] else ""
                other = f"set algorithm.{option}={NOT_NEEDED.get(option, 0)}, or choose" if option else "choose"
                remedy = f"{other} another method: mpifl list algorithms --own-training"
                raise ConfigError("algorithm", name, f"it needs {need}, and {wrong}", expected, remedy)
        if "sharded" in offers and self.ranks_per_client > 1:
            self._check_sharded()
        if self.evaluate.gradient and "gradient" not in offers:
            raise ConfigError("evaluate.gradient", True, f"{wrong} and no gradient", "false")

    def _check_sharded(self) -> None:
        """Raises ConfigError where method or faults need whole vectors of clients of which each rank has a part."""
        g, method, name = self.ranks_per_client, self.algorithm, algorithms.name_of(type(self.algorithm))
        wrong = f"the clients are sharded, so each of the {g} ranks of one has a part of its vectors"
        remedy = "or set ranks_per_client=1"
        vectors = {method.vectors_down, method.vectors_up, method.min_vectors_up}
        if name is None or vectors != {1} or vars(method.init_client(np.zeros(1), 0)):
            expected = "a method of the package that sends one vector each way and keeps none on its clients"
            raise ConfigError("algorithm", name or type_name(method), wrong, expected, remedy)
        if self.faults.norm is not None:
            raise ConfigError("faults.norm", self.faults.norm, wrong, "null", remedy)

    def check_micro_batches(self) -> None:
        """Raises ConfigError where the ranks of a client cannot have equally many micro-batches."""
        g, m = self.ranks_per_client, self.problem.micro_batches
        if m % g:
            wrong = f"each rank of a client computes equally many of the problem.micro_batches={m}"
            remedy = f"or set problem.micro_batches to {neighbours(m, range(g, m + g + 1, g))}"
            raise ConfigError("ranks_per_client", g, wrong, neighbours(g, divisors(m)), remedy)

    def _check_client_rows(self) -> None:
        """Raises ConfigError where it is clear that no client has test rows of its own, before the data are read."""
        problem, remedy = self.problem, ""
        if problem.entry is not None:
            return
        if isinstance(problem.data, NoData):
            wrong = f"the model {type_name(problem.model)} has no data"
        elif problem.test_split is None and not isinstance(problem.partition, Natural):
            wrong, remedy = "these clients have no test rows of their own", "or set problem.test_split, such as 0.2"
        else:
            return
        raise ConfigError("evaluate.clients", True, wrong, "false", remedy)

    @property
    def states_folder(self) -> str:
        """Folder of the file with the client states that memory does not hold."""
        return self.memory.folder or str(Path(self.output).parent)

    def check_duration(self, seconds: float) -> None:
        """Raises ConfigError where a run of so much virtual time has more evaluations or aggregations than can be made.

        The real clock merges overdue ones.
        """
        if self.clock.mode == "real":
            return
        every, trigger = self.evaluate.every, self.algorithm.aggregation_trigger()
        end = f" ({seconds:g} s of virtual time)"
        many = f"more than {MAX_AGGREGATIONS:,} aggregations to the end{end}"
        if every and seconds / every > MAX_EVALUATIONS:
            wrong = f"more than {MAX_EVALUATIONS:,} evaluations to the end{end}"
            raise ConfigError("evaluate.every", every, wrong, f"at least {seconds / MAX_EVALUATIONS:g}")
        if trigger and trigger.period and seconds / trigger.period > MAX_AGGREGATIONS:
            expected = f"at least {seconds / MAX_AGGREGATIONS:g}"
            raise ConfigError("algorithm.trigger.period", trigger.period, many, expected)
        if trigger and trigger.poisson and seconds * trigger.poisson > MAX_AGGREGATIONS:
            expected = f"at most {MAX_AGGREGATIONS / seconds:g}"
            raise ConfigError("algorithm.trigger.poisson", trigger.poisson, many, expected)


def type_name(section: object) -> str:
    """The name by which a job selects a section's class; of a user's own class that has none, the class' own."""
    return str(getattr(section, "name", type(section).__qualname__))
