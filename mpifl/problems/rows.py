"""Base of the models on rows of data: rows sorted by client in one array, batches, and evaluation over all rows."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, ClassVar

import numpy as np

from mpifl.errors import ConfigError
from mpifl.objective import Objective, to_numpy
from mpifl.problems.inits import Uniform
from mpifl.problems.problem import (
    Data,
    Init,
    Layout,
    Model,
    Partition,
    Problem,
    ProblemSize,
    Rows,
    Shard,
    metric_values,
)
from mpifl.problems.settings import ProblemSettings
from mpifl.rng import stream

CHUNK = 1024  # rows whose losses are added up at once, and that are scaled at once
EVALUATED_AT_ONCE = 16 * CHUNK  # the smallest number of rows that a model is evaluated on at once
OUTPUTS_AT_ONCE = 640 * CHUNK  # numbers that the widest part of a narrow model may compute at once, from more rows


@dataclass(frozen=True)
class RowModel(Model):
    """A model whose loss is a mean over rows plus a regulariser."""

    classifies: ClassVar[bool] = True  # targets are classes; else numbers, and nothing has an accuracy
    init: Init = Uniform()
    """Law of the initial model's entries."""

    def data(self) -> Data:
        from mpifl.problems.data.digits import Digits

        return Digits()

    def check(self, data: Data, settings: ProblemSettings) -> None:
        from mpifl.problems.data.no_data import NoData

        if isinstance(data, NoData):
            raise ConfigError("data", data.name, "this model needs data", "a data set")

    def size(self, data: Data, settings: ProblemSettings) -> ProblemSize | None:
        clients = settings.clients
        counts = None if clients is None else data.counts(clients)
        if counts is None or clients is None:
            return None
        layout = self.layout(counts.features, counts.classes)
        d = sum(int(np.prod(shape)) for _, shape in layout)
        rows, itemsize = counts.train + counts.test, np.dtype(settings.dtype).itemsize
        evaluated = min(rows_at_once(layout), max(counts.train, counts.test))
        return ProblemSize(
            d, clients, rows * (counts.features * itemsize + 8), rows * counts.raw + 8 * rows,
            4 * 8 * (CHUNK * counts.features + evaluated * counts.classes),
        )  # fmt: skip

    @abstractmethod
    def layout(self, features: int, classes: int) -> Layout:
        """Names and shapes of the parts of the flat vector."""

    def targets(self, y: np.ndarray, classes: int) -> np.ndarray:
        """(S,) targets of the loss, int64 for classes, from the labels y (S,); ConfigError for too many classes."""
        return y.astype(np.int64)

    @abstractmethod
    def losses(self, x: np.ndarray, rows: np.ndarray, y: np.ndarray, layout: Layout) -> tuple[np.ndarray, int]:
        """Each row's loss (rows,) under the model x (d,), and how many rows it classifies rightly."""

    def scores(self, x: np.ndarray, rows: np.ndarray, layout: Layout) -> np.ndarray:
        """(rows, classes) outputs of the model x (d,), whose softmax are the probabilities of the classes; optional."""
        raise NotImplementedError

    def labels(self, targets: np.ndarray) -> np.ndarray:
        """(S,) int64 labels, from the targets of the loss."""
        return targets

    @abstractmethod
    def regulariser(self, x: np.ndarray, l2: float, layout: Layout) -> float:
        """What is added to the mean loss of the rows."""

    def problem(self, data: Data, partition: Partition, settings: ProblemSettings) -> Problem:
        return RowProblem(data, partition, settings, self)


def _check_range(rows: Rows, dtype: np.dtype) -> None:
    """Raises ConfigError for a number that is too large for `dtype`, with its place where the file is known."""
    targets = [(y[:, None], 1.0) for y in (rows.y, rows.y_test)]
    parts = [(rows.x, rows.divisor), (rows.x_test, rows.divisor), *targets]
    for name, begin, (x, divisor) in zip(
        ("x", "x_test", "y", "y_test"), (0, len(rows.x), 0, len(rows.y)), parts, strict=True
    ):
        ends = np.array([x.min(initial=0), x.max(initial=0)]) if x.dtype.kind == "f" else np.zeros(2)
        with np.errstate(over="ignore"):
            if not np.isinf((ends / divisor).astype(dtype)).any():
                continue
            k = next(k for k, row in enumerate(x) if np.isinf((row / divisor).astype(dtype)).any())
        value = x[k, j := int(np.abs(x[k]).argmax())]
        wrong, expected = f"{value:g}, beyond {np.finfo(dtype).max:.3g}", f"numbers that {dtype} holds"
        if not rows.files:
            raise ConfigError("problem.dtype", dtype, f"row {k} of {name} has {wrong}", "float64")
        for file, count in rows.files:
            if begin + k < count:
                at = f"{name}[{begin + k}, {j}]" if not rows.shape else f"an entry of {name}[{begin + k}]"
                at = f"{name}[{begin + k}]" if name.startswith("y") else at
                raise ConfigError("data file", file, f"{at} is {wrong}", expected, "set problem.dtype=float64")
            begin -= count


class RowProblem(Problem):
    """Rows partitioned over n clients. `train_loss` is the mean loss over all training rows plus the regulariser
    (that is sum_i (s_i/S) f_i); `test_loss` is the mean loss over the test rows, without the regulariser."""

    def __init__(self, data: Data, partition: Partition, settings: ProblemSettings, model: RowModel) -> None:
        rows = data.read(settings.folder(), settings.download, settings.clients)
        _check_range(rows, np.dtype(settings.dtype))
        labels = np.concatenate([rows.y, rows.y_test])
        if len(rows.y) and model.classifies and not rows.classes:
            raise ConfigError(
                "problem.model", getattr(model, "name", ""), "it is a classifier, and the targets are numbers", "linear"
            )
        if not len(rows.y) or (rows.classes and (labels.min() < 0 or labels.max() >= rows.classes)):
            wrong = f"labels from {labels.min()} to {labels.max()}" if len(rows.y) else "no rows"
            name = getattr(data, "name", type(data).__name__)
            raise ConfigError("problem.data", name, wrong, f"rows with labels 0 to {rows.classes - 1}")
        owner, self.clients = _owners(partition, settings, rows)
        held = held_out(settings.test_split, owner, np.ones(len(owner), bool), "test split")
        validation = held_out(settings.validation_split, owner, ~held, "validation split")
        train_rows = ~held & ~validation
        self.samples = np.bincount(owner[train_rows], minlength=self.clients).astype(np.int64)
        if not self.samples.all():
            none = int(self.samples.argmin())
            raise ConfigError("problem.clients", self.clients, f"client {none} would have no rows", "fewer clients")
        self.model, self.l2, self.dtype = model, settings.l2, np.dtype(settings.dtype)
        self._settings = settings
        self.layout = self._layout(rows)
        order = np.argsort(owner, kind="stable")
        kept, own, validation_order = (order[rows[order]] for rows in (train_rows, held, validation))
        targets = model.targets(labels, rows.classes)
        if not model.classifies:
            targets = targets.astype(self.dtype)
        train, test = targets[: len(owner)], targets[len(owner) :]
        dtype = rows.x.dtype if rows.tokens else self.dtype  # positions in a text are not scaled
        self._x, self._y = _scaled(rows.x, rows.divisor, dtype, kept), train[kept]  # the training rows, by client
        repartitioned = rows.owner_test is None or owner is not rows.owner  # then test rows belong to no client
        whose = np.full(len(rows.y_test), -1) if repartitioned else np.asarray(rows.owner_test)
        order = np.argsort(whose, kind="stable")  # rows of no client come first
        self._x_test, self._y_test = _scaled(rows.x_test, rows.divisor, dtype, order), test[order]
        if settings.test_split:  # a client's own test rows: held out, else those that the data bring for it
            self._x_own, self._y_own, whose = _scaled(rows.x, rows.divisor, dtype, own), train[own], owner[own]
            if not len(test):
                self._x_test, self._y_test = self._x_own, self._y_own
        else:
            first = int((whose < 0).sum())
            self._x_own, self._y_own, whose = self._x_test[first:], self._y_test[first:], whose[order][first:]
        few = subsample(settings.evaluation_rows, len(whose))
        self._x_own, self._y_own = self._x_own[few], self._y_own[few]
        self._own = np.bincount(whose[few], minlength=self.clients)
        # Client i has the rows bounds[i] to bounds[i + 1].
        self._bounds, self._own_bounds = (np.append(0, np.cumsum(counts)) for counts in (self.samples, self._own))
        self.validation_rows = len(validation_order)
        self._validation: list[tuple[np.ndarray, np.ndarray]] = []
        if self.validation_rows:
            self._validation = [(_scaled(rows.x, rows.divisor, dtype, validation_order), train[validation_order])]
        self.d = sum(int(np.prod(shape)) for _, shape in self.layout)
        self.meta = {
            "d": self.d,
            "dtype": self.dtype.name,
            "clients": self.clients,
            "samples": self.samples.tolist(),
            "total": int(self.samples.sum()),
            "layout": [[name, list(shape)] for name, shape in self.layout],
            "classes": rows.classes,
            "shape": list(rows.shape or rows.x.shape[1:]),
            "tokens": rows.tokens and [str(rows.tokens.file), rows.tokens.window, rows.tokens.vocabulary],
        }

    def _layout(self, rows: Rows) -> Layout:
        """Names and shapes of the model's parts. Raises ConfigError where the rows are not for this model."""
        if rows.tokens:
            wrong, expected = "these data are text", "a model for text, char-lstm or lstm"
            raise ConfigError("problem.model", getattr(self.model, "name", ""), wrong, expected)
        return self.model.layout(rows.x.shape[1], rows.classes)

    def initial(self, seed: int) -> np.ndarray:
        return self.model.init.draw(stream(seed, "init"), self.d).astype(self.dtype)

    @functools.cached_property
    def _evaluated(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Rows and targets that models are evaluated on: of training, of the test, and held out for validation."""
        parts = [(self._x, self._y), (self._x_test, self._y_test), *self._validation]
        most = self._settings.evaluation_rows
        return [(x[few], y[few]) for x, y in parts for few in [subsample(most, len(y))]]

    def shard(self, i: int) -> list[np.ndarray]:
        """[rows (s_i, features), targets (s_i,)], and likewise its own test rows, where it has any"""
        part = self._rows_of(i)
        x, y = self._x[part], self._y[part]
        if not self._own.item(i):
            return [x, y]
        own = self._own_rows(i)
        return [x, y, self._x_own[own], self._y_own[own]]

    def _rows_of(self, i: int) -> slice:
        """The places of client i's training rows."""
        return slice(self._bounds[i], self._bounds[i + 1])

    def _own_rows(self, i: int) -> slice:
        """The places of its own test rows."""
        return slice(self._own_bounds[i], self._own_bounds[i + 1])

    def client_accuracies(self, x: np.ndarray) -> np.ndarray:
        right = np.full(self.clients, np.nan)
        if not self.model.classifies:
            return right
        with np.errstate(over="ignore", invalid="ignore"):
            for i in np.flatnonzero(self._own).tolist():
                mine = self._own_rows(i)
                right[i] = self._measure(x, self._x_own[mine], self._y_own[mine])[1] / self._own[i]
        return right

    @functools.cached_property
    def _whole(self) -> Objective:
        """One objective on all training rows."""
        meta = {**self.meta, "samples": [len(self._y)], "total": len(self._y), "clients": 1}
        return self.model.objective(self._settings, meta, [self._x, self._y], 0, 0)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            return to_numpy(self._whole.gradient(x))

    def evaluate_with_clients(self, x: np.ndarray, training: bool = True) -> tuple[dict[str, float], np.ndarray]:
        with np.errstate(over="ignore", invalid="ignore"):  # the run may have diverged; the setting belongs to a thread
            train = self._mean(x, *self._evaluated[0])[0] if training else nan
            test, *validation = (self._mean(x, *part) for part in self._evaluated[1:])
            train += self.model.regulariser(x, self.l2, self.layout)
        own = self.client_accuracies(x)
        return metric_values(train, test, own, validation[0] if validation else None), own

    def test_scores(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        from mpifl.problems.metrics import softmax

        if not self.model.classifies:
            return None
        rows, y = self._evaluated[1]
        with np.errstate(over="ignore", invalid="ignore"):  # the run may have diverged
            return self.model.labels(y).copy(), softmax(self._outputs(x, rows, y) if len(y) else np.empty((0, 1)))

    def _outputs(self, x: np.ndarray, rows: np.ndarray, y: np.ndarray) -> np.ndarray:
        """(rows, classes) outputs of the model x (d,)."""
        most = rows_at_once(self.layout)
        pieces = (rows[k : k + most] for k in range(0, len(rows), most))
        return np.concatenate([self.model.scores(x, piece, self.layout) for piece in pieces])

    def _mean(self, x: np.ndarray, rows: np.ndarray, y: np.ndarray) -> tuple[float, float]:
        if not len(rows):
            return nan, nan
        total, right = self._measure(x, rows, y)
        return total / len(rows), right / len(rows) if self.model.classifies else nan

    def _measure(self, x: np.ndarray, rows: np.ndarray, y: np.ndarray) -> tuple[float, int]:
        """The sum of the rows' losses under the model x (d,), and how many rows it classifies rightly."""
        total, right = 0.0, 0
        most = rows_at_once(self.layout)
        for k in range(0, len(rows), most):
            piece = slice(k, k + most)
            losses, hits = self.model.losses(x, rows[piece], y[piece], self.layout)
            whole = len(losses) // CHUNK * CHUNK
            for part in losses[:whole].reshape(-1, CHUNK).sum(1, dtype=np.float64).tolist():
                total += part
            total += float(losses[whole:].sum(dtype=np.float64))
            right += hits
        return total, right


def cross_entropy(scores: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, int]:
    """-log softmax(scores)[y] of each row (rows,), and for how many rows y is the class with the highest score.

    scores  (rows, classes)
    y       (rows,) classes
    """
    right = int(np.count_nonzero(scores.argmax(1) == y))
    by_class = scores.T.copy()  # NumPy is several times as fast along rows as along a few classes
    highest, own = by_class.max(0), by_class[y, np.arange(len(y))]
    by_class -= highest
    np.exp(by_class, by_class)
    return np.log(by_class.sum(0)) + highest - own, right


def softmax_residual(scores: np.ndarray, hot: np.ndarray) -> np.ndarray:
    """(rows, classes) softmax(scores) - hot, the gradient of the cross-entropy by the scores, in their place."""
    scores -= scores.max(1, keepdims=True)
    np.exp(scores, scores)
    scores /= scores.sum(1, keepdims=True)
    scores -= hot
    return scores


def rows_at_once(layout: Layout) -> int:
    """How many rows a model with these parts is evaluated on at once: a multiple of `CHUNK`."""
    widest = max((shape[-1] for _, shape in layout if shape), default=1)
    return max(EVALUATED_AT_ONCE, OUTPUTS_AT_ONCE // max(1, widest) // CHUNK * CHUNK)


def _owners(partition: Partition, settings: ProblemSettings, rows: Rows) -> tuple[np.ndarray, int]:
    """(S,) the client of each row, and the number of clients."""
    from mpifl.problems.partitions import Iid, Natural

    if isinstance(partition, Natural) and rows.owner is not None:
        clients = int(rows.owner.max()) + 1
        if settings.clients not in (None, clients):
            raise ConfigError("problem.clients", settings.clients, f"the data have {clients}", f"{clients}, or null")
        return rows.owner, clients
    if settings.clients is None:
        raise ConfigError("problem.clients", None, "required", "an integer of at least 1")
    if settings.clients > len(rows.y):
        raise ConfigError(
            "problem.clients", settings.clients, f"there are {len(rows.y)} training rows", f"at most {len(rows.y)}"
        )
    if not rows.classes and not isinstance(partition, Iid):
        name, wrong = getattr(partition, "name", ""), "it goes by classes, and the targets are numbers"
        raise ConfigError("problem.partition", name, wrong, "iid, or natural where the data come by client")
    batch = settings.batch_size or 1
    return partition.owners(rows.y, rows.classes, settings.clients, batch), settings.clients


def held_out(fraction: float | None, owner: np.ndarray, rows: np.ndarray, purpose: str) -> np.ndarray:
    """(S,) bool: the fraction of each client's `rows` (S,) bool that is held out of training, rounded down.

    One draw for all runs, uniform among a client's rows: it does not change with the run's seed. owner: (S,) the client
    of each row. purpose: of the random stream.
    """
    held = np.zeros(len(owner), bool)
    if fraction is None:
        return held
    order = np.flatnonzero(rows)
    order = order[np.argsort(owner[order], kind="stable")]
    clients, first = np.unique(owner[order], return_index=True)
    for i, mine in zip(clients.tolist(), np.split(order, first[1:]), strict=True):
        held[stream(0, purpose, i).permutation(mine)[: int(fraction * len(mine))]] = True
    return held


def subsample(most: int | None, rows: int) -> Any:
    """At most `most` of the row numbers, in order, drawn at random; the same ones for all runs."""
    if most is None or rows <= most:
        return slice(None)
    return np.sort(stream(0, "evaluation").choice(rows, most, replace=False, shuffle=False))


def _scaled(x: np.ndarray, divisor: float, dtype: np.dtype, order: np.ndarray) -> np.ndarray:
    """x[order] / divisor as `dtype`, a piece at a time: the raw rows may be all that memory has room for."""
    if dtype.kind == "i":
        return x[order]
    result = np.empty((len(order), x.shape[1]), dtype)
    for k in range(0, len(order), CHUNK):
        np.divide(x[order[k : k + CHUNK]], divisor, out=result[k : k + CHUNK], dtype=dtype, casting="unsafe")
    return result


def one_hot(y: np.ndarray, classes: int, dtype: np.dtype) -> np.ndarray:
    """(len(y), classes) one 1 in each row, at its label."""
    hot = np.zeros((len(y), classes), dtype)
    hot[np.arange(len(y)), y] = 1
    return hot


def take_rows(part: np.ndarray, rows: Any) -> np.ndarray:
    """part[rows]; all of it for None. For the few row numbers of a batch `take` needs half the time."""
    if isinstance(rows, np.ndarray):
        return part.take(rows, 0)
    return part if rows is None else part[rows]


class Batches:
    """A client's batches, and its numbers of samples that algorithms use."""

    def __init__(self, settings: ProblemSettings, meta: dict[str, Any], i: int, seed: int) -> None:
        self.seed = seed
        self.clients: int = meta["clients"]
        self.i, self.samples = i, meta["samples"][i]
        self.share = self.samples / (meta.get("total") or sum(meta["samples"]))
        most = settings.batch_size
        self.batch = most if most and most < self.samples else self.samples
        self._end = self.samples - self.samples % self.batch if settings.drop_last else self.samples

    def batches(self, round: int, steps: int, epochs: int | None = None) -> Sequence[Any]:
        """The rows of each local step: `steps` batches, each drawn afresh without replacement, or where `epochs` is
        given so many passes over the shuffled rows, the last, smaller batch included unless `problem.drop_last`."""
        s, b = self.samples, self.batch
        if b == s:
            return [slice(None)] * (steps if epochs is None else epochs)
        generator = stream(self.seed, "batch", self.i, round)
        if epochs is None:
            return [generator.choice(s, b, replace=False, shuffle=False) for _ in range(steps)]
        passes = (generator.permutation(s) for _ in range(epochs))
        return [rows[k : k + b] for rows in passes for k in range(0, self._end, b)]


class RowObjective(Batches):
    """One client's f_i on its rows."""

    def __init__(
        self, model: Any, settings: ProblemSettings, meta: dict[str, Any], shard: Shard, i: int, seed: int
    ) -> None:
        """model: the `RowModel`."""
        super().__init__(settings, meta, i, seed)
        self.model = model
        self.l2 = shard[0].dtype.type(settings.l2)
        self._meta = meta
        self.x, self.y, *self._test = shard  # _test: the client's own test rows and their targets, where it has any

    @functools.cached_property
    def layout(self) -> Layout:
        """Names and shapes of the parts of the flat vector."""
        return [(name, tuple(shape)) for name, shape in self._meta["layout"]]

    def loss(self, x: np.ndarray, rows: Any = None) -> float:
        """The mean loss of the rows, plus the model's regulariser."""
        batch, y = take_rows(self.x, rows), take_rows(self.y, rows)
        losses, _ = self.model.losses(x, batch, y, self.layout)
        return float(losses.mean(dtype=np.float64)) + self.model.regulariser(x, float(self.l2), self.layout)

    def accuracy(self, x: np.ndarray) -> float:
        """Fraction of the client's own test rows that the model x (d,) classifies rightly; nan where it has none."""
        if not self._test or not len(self._test[1]) or not self.model.classifies:
            return nan
        rows, y = self._test
        return self.model.losses(x, rows, y, self.layout)[1] / len(y)


class ClassObjective(RowObjective):
    """One client's f_i on rows whose targets are classes."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._hot = one_hot(self.y, self._meta["classes"], self.x.dtype)  # (s_i, classes)

    def one_hot(self, rows: Any) -> np.ndarray:
        """(rows, classes) one-hot targets of these rows; None: of all rows."""
        return take_rows(self._hot, rows)
