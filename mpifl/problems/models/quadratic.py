"""Quadratics with known optima: f_i(x) = 1/2 (x - c_i)' A_i (x - c_i), A_i diagonal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from mpifl.config.types import Bounds, NonNegativeFloat, NonNegativeInt, Size
from mpifl.errors import ConfigError
from mpifl.problems.inits import Zero
from mpifl.problems.problem import Data, Init, Model, Partition, Problem, ProblemSize
from mpifl.problems.settings import ProblemSettings
from mpifl.rng import stream


@dataclass(frozen=True)
class Quadratic(Model):
    """f_i(x) = 1/2 (x-c_i)' A_i (x-c_i), with diagonal A_i and c_i given or drawn from a seed; clients weigh 1/n."""

    name: str = "quadratic"
    curvatures: list[Any] | None = None
    """Diagonal of A_i for each client: n numbers, or n lists of d; null: drawn."""
    optima: list[Any] | None = None
    """c_i for each client: n numbers (d = 1), or n lists of d; null: drawn from N(0, 1)."""
    dim: Size = 10
    """Dimension d, where optima are drawn."""
    condition: Annotated[float, Bounds(at_least=1)] = 10.0
    """Drawn curvatures are log-uniform between 1 and this."""
    seed: NonNegativeInt = 0
    """Seed of what is drawn; the run's own seed does not change it."""
    sigma: NonNegativeFloat = 0.0
    """Standard deviation of the noise in each entry of a local step's gradient."""
    init: Init = Zero()
    """Law of the initial model's entries."""

    def __post_init__(self) -> None:
        super().__post_init__()
        a, c = _table("curvatures", self.curvatures), _table("optima", self.optima)
        if a is not None and c is not None and (len(a) != len(c) or a.shape[1] not in (1, c.shape[1])):
            wrong = f"optima have the shape {c.shape}"
            raise ConfigError("curvatures", f"{a.shape}", wrong, "the same shape, or one number per client")

    def data(self) -> Data:
        from mpifl.problems.data.no_data import NoData

        return NoData()

    def fixed_clients(self) -> int | None:
        given = self.optima if self.optima is not None else self.curvatures
        return 10 if given is None else len(given)

    def dimension(self) -> int:
        """d, of what is given; one curvature for each client says nothing of it."""
        a, c = _table("curvatures", self.curvatures), _table("optima", self.optima)
        if c is not None:
            return c.shape[1]
        return a.shape[1] if a is not None and a.shape[1] > 1 else self.dim

    def check(self, data: Data, settings: ProblemSettings) -> None:
        for field in ("optima", "curvatures"):
            given = getattr(self, field)
            if given is not None and len(given) != settings.clients:
                raise ConfigError("clients", settings.clients, f"model.{field} is for {len(given)}", str(len(given)))
        from mpifl.problems.data.no_data import NoData

        if not isinstance(data, NoData):
            raise ConfigError("data", getattr(data, "name", ""), "the model quadratic has no data", "none or null")
        for key in ("test_split", "validation_split"):
            if fraction := getattr(settings, key):
                raise ConfigError(key, fraction, "the model quadratic has no data", "null")
        if settings.micro_batches > 1:
            raise ConfigError("micro_batches", settings.micro_batches, "the model quadratic has no rows", "1")
        if settings.l2:
            raise ConfigError("l2", settings.l2, "the model quadratic has no regulariser", "0")

    def size(self, data: Data, settings: ProblemSettings) -> ProblemSize:
        assert settings.clients is not None
        d = self.dimension()
        entries, itemsize = settings.clients * d, np.dtype(settings.dtype).itemsize
        block = 8 * min(entries, BLOCK)  # bytes of a block in float64
        return ProblemSize(d, settings.clients, 2 * itemsize * entries, 2 * block, block)

    def problem(self, data: Data, partition: Partition, settings: ProblemSettings) -> Problem:
        return QuadraticProblem(settings, self)

    def objective(
        self, settings: ProblemSettings, meta: dict[str, Any], shard: Sequence[np.ndarray], i: int, seed: int
    ) -> QuadraticObjective:
        return QuadraticObjective(self.sigma, meta["clients"], shard, i, seed)


def _table(field: str, given: list[Any] | None) -> np.ndarray | None:
    """(n, d) float64; n numbers are n rows of one."""
    if given is None:
        return None
    try:
        table = np.array(given, np.float64)
    except (TypeError, ValueError):
        table = np.array(np.nan)
    if table.ndim not in (1, 2) or not table.size or not np.isfinite(table).all():
        raise ConfigError(field, given, "not a table of finite numbers", "n numbers, or n lists of d numbers")
    return table.reshape(len(table), -1)


BLOCK = 1 << 22  # values that an evaluation computes, or a draw makes, at once


def _drawn(draw: Callable[[tuple[int, int]], np.ndarray], shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
    """`draw(shape)` as `dtype`, without all of it in float64 at once."""
    result, rows = np.empty(shape, dtype), max(1, BLOCK // shape[1])
    for k in range(0, shape[0], rows):
        result[k : k + rows] = draw((min(rows, shape[0] - k), shape[1]))
    return result


class QuadraticProblem(Problem):
    """`train_loss` is the uniform mean of the f_i; there is nothing to test on."""

    def __init__(self, settings: ProblemSettings, model: Quadratic) -> None:
        assert settings.clients is not None
        self.clients, self.dtype, self.init = settings.clients, np.dtype(settings.dtype), model.init
        generator = stream(model.seed, "quadratic")
        a, c = _table("curvatures", model.curvatures), _table("optima", model.optima)
        if c is None:
            c = _drawn(generator.standard_normal, (self.clients, model.dimension()), self.dtype)
        if a is None:
            most = np.log(model.condition)
            a = _drawn(lambda shape: np.exp(generator.uniform(0, most, shape)), c.shape, self.dtype)
        self.d = c.shape[1]
        self._c = c.astype(self.dtype, copy=False)
        self._a = np.ascontiguousarray(np.broadcast_to(a, c.shape), self.dtype)
        self.samples = np.ones(self.clients, np.int64)
        self.layout = [("x", (self.d,))]
        self.meta = {
            "d": self.d,
            "dtype": self.dtype.name,
            "clients": self.clients,
            "samples": self.samples.tolist(),
            "layout": [["x", [self.d]]],
        }

    def initial(self, seed: int) -> np.ndarray:
        return self.init.draw(stream(seed, "init"), self.d).astype(self.dtype)

    def shard(self, i: int) -> list[np.ndarray]:
        """[diagonal of A_i (d,), c_i (d,)]"""
        return [self._a[i], self._c[i]]

    def evaluate(self, x: np.ndarray, training: bool = True) -> dict[str, float]:
        if not training:
            return dict.fromkeys(("train_loss", "test_loss", "test_accuracy"), float("nan"))
        total, rows = 0.0, max(1, BLOCK // self.d)
        memory = np.empty((min(rows, self.clients), self.d))
        with np.errstate(over="ignore", invalid="ignore"):  # the run may have diverged; the setting belongs to a thread
            for k in range(0, self.clients, rows):
                c, a = self._c[k : k + rows], self._a[k : k + rows]
                part = memory[: len(c)]  # a (x - c)^2, in place
                np.square(np.subtract(x, c, part, dtype=np.float64), part)
                total += float(np.multiply(a, part, part).sum())
        loss = total / (2 * self.clients)
        return {"train_loss": loss, "test_loss": float("nan"), "test_accuracy": float("nan")}

    def gradient(self, x: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray((self._a * (x - self._c.astype(np.float64))).mean(0))

    def optimum(self, weights: np.ndarray | None = None) -> np.ndarray:
        """(d,) float64 minimiser of sum_i weights_i f_i; uniform weights where none are given."""
        w = np.ones(self.clients) if weights is None else np.asarray(weights, np.float64)
        return (w @ (self._a * self._c.astype(np.float64))) / (w @ self._a.astype(np.float64))


class QuadraticObjective:
    """One client's quadratic. The "rows" of a local step are its gradient noise (d,), or slice(None) without noise."""

    samples = 1

    def __init__(self, sigma: float, clients: int, shard: Sequence[np.ndarray], i: int, seed: int) -> None:
        self.a, self.c = shard
        self.sigma, self.clients, self.share, self.i, self.seed = sigma, clients, 1 / clients, i, seed

    def batches(self, round: int, steps: int, epochs: int | None = None) -> Sequence[Any]:
        """Each local step's noise; an epoch is one step."""
        count = steps if epochs is None else epochs
        if not self.sigma:
            return [slice(None)] * count
        noise = stream(self.seed, "batch", self.i, round).standard_normal((count, len(self.c)))
        return list((self.sigma * noise).astype(self.c.dtype))

    def gradient(self, x: np.ndarray, rows: Any = None) -> np.ndarray:
        """(d,) A_i (x - c_i), plus the step's noise"""
        result: np.ndarray = x - self.c
        result *= self.a
        if isinstance(rows, np.ndarray):
            result += rows
        return result

    def loss(self, x: np.ndarray, rows: Any = None) -> float:
        """1/2 (x-c_i)' A_i (x-c_i), plus noise' x, whose gradient the noise is"""
        gap = (x - self.c).astype(np.float64)
        tilt = float(rows @ x) if isinstance(rows, np.ndarray) else 0.0
        return float(gap @ (self.a * gap)) / 2 + tilt

    def fisher(self, x: np.ndarray) -> np.ndarray:
        """(d,) the diagonal of A_i: the information that one observation of a normal law with this precision holds"""
        return self.a.copy()

    def accuracy(self, x: np.ndarray) -> float:
        """There is nothing to test on."""
        return float("nan")
