"""Clients with custom training loops that do what the package does on quadratics, and clients that do wrong."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from mpifl.problems import Contact, ProblemSettings
from mpifl.problems.models.quadratic import Quadratic, QuadraticProblem


class Site:
    """Plain SGD on f_i of `problem.model: quadratic`, with the noise that the package draws for it."""

    def __init__(self, shard: list[np.ndarray], sigma: float) -> None:
        (self.a, self.c), self.sigma, self.contacts = shard, sigma, 0

    def slope(self, x: np.ndarray) -> np.ndarray:
        g: np.ndarray = x - self.c
        g *= self.a
        return g

    def fit(self, x: np.ndarray, contact: Contact) -> tuple[np.ndarray, int]:
        steps = contact.steps or contact.epochs or 0
        noise = (self.sigma * contact.generator.standard_normal((steps, len(x)))).astype(x.dtype)
        for k in range(steps):
            g = self.slope(x)
            if self.sigma:
                g += noise[k]
            contact.term.add_gradient(x, g)
            g *= contact.step_size
            x -= g
        return x, steps

    def evaluate(self, x: np.ndarray) -> dict[str, float]:
        gap = x.astype(np.float64) - self.c
        return {"train_loss": float(gap @ (self.a * gap)) / 2}


class TermSite(Site):
    """Adds the term of a method to its loss."""

    adds_term = True


class GradientSite(Site):
    """Computes gradients as well."""

    def gradient(self, x: np.ndarray, generator: np.random.Generator | None) -> np.ndarray:
        return self.slope(x)


class ShardedSite(Site):
    """Each rank of whose group has a part of the model. In round 1 client 1 makes trouble on the second one."""

    sharded = adds_term = True
    trouble = ""

    def fit(self, x: np.ndarray, contact: Contact) -> tuple[np.ndarray, int]:
        part, steps = contact.part, contact.steps or contact.epochs or 0
        if self.trouble and (contact.client, contact.round) == (1, 1) and contact.comm and contact.comm.rank == 1:
            if self.trouble == "raises":
                raise ValueError("one member alone")
            wrong = {"nan": (x * np.float32("nan"), 1), "length": (x[1:], 1), "steps": (x, 7)}
            return wrong[self.trouble]
        a, c = self.a[part], self.c[part]
        noise = (self.sigma * contact.generator.standard_normal((steps, len(self.c)))).astype(x.dtype)
        for k in range(steps):
            g = (x - c) * a + noise[k, part]
            contact.term.add_gradient(x, g)
            x = x - contact.step_size * g
        return x, steps


class MomentumSite(Site):
    """Heavy ball whose velocity stays from one contact to the next, and the number of contacts."""

    def __init__(self, shard: list[np.ndarray], sigma: float) -> None:
        super().__init__(shard, sigma)
        self.velocity = np.zeros_like(self.c)

    def fit(self, x: np.ndarray, contact: Contact) -> tuple[np.ndarray, int]:
        self.velocity = 0.9 * self.velocity + self.slope(x) + self.noise(x, contact)
        self.contacts += 1
        return x - contact.step_size * self.velocity, 1

    def noise(self, x: np.ndarray, contact: Contact) -> Any:
        return (self.sigma * contact.generator.standard_normal(len(x))).astype(x.dtype)

    def save(self) -> dict[str, Any]:
        return {"velocity": self.velocity, "contacts": self.contacts, "half": np.float32(self.contacts / 2)}

    def load(self, saved: dict[str, Any]) -> None:
        assert type(saved["contacts"]) is int and type(saved["half"]) is np.float32
        self.velocity, self.contacts = saved["velocity"], saved["contacts"]


class GlobalSite(MomentumSite):
    """Draws from NumPy's global generator."""

    def noise(self, x: np.ndarray, contact: Contact) -> Any:
        return (self.sigma * np.random.standard_normal(len(x))).astype(x.dtype)


class Forgetful(MomentumSite):
    """Does not restore its velocity."""

    def load(self, saved: dict[str, Any]) -> None:
        self.contacts = saved["contacts"]


class Unseeded(MomentumSite):
    """Draws from a generator of its own."""

    def noise(self, x: np.ndarray, contact: Contact) -> Any:
        return np.random.default_rng().standard_normal(len(x)).astype(x.dtype)


class Long(MomentumSite):
    """Takes some time."""

    def fit(self, x: np.ndarray, contact: Contact) -> tuple[np.ndarray, int]:
        time.sleep(0.02)
        return super().fit(x, contact)


class Untried(MomentumSite):
    """Whose contacts are not to be tried."""

    trial = False


class Counts(MomentumSite):
    """Returns x minus the number of its contacts so far; the second contact of client 1 is not finite."""

    def fit(self, x: np.ndarray, contact: Contact) -> tuple[np.ndarray, int]:
        self.contacts += 1
        return x - np.float32(np.nan if (contact.client, contact.round) == (1, 1) else self.contacts), 1


def quadratics(
    kind: str = "Site", clients: int = 7, dim: int = 12, sigma: float = 0.3, dtype: str = "float32", trouble: str = ""
) -> tuple[np.ndarray, list[Site]]:
    """The clients of `{clients, model: {name: quadratic, dim, sigma}, dtype}`."""
    ShardedSite.trouble = trouble
    problem = QuadraticProblem(ProblemSettings(clients=clients, dtype=dtype), Quadratic(dim=dim, sigma=sigma))
    return np.zeros(dim, dtype), [globals()[kind](problem.shard(i), sigma) for i in range(clients)]


class Named:
    """A `Site` whose model is a matrix and a vector by name."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def fit(self, x: dict[str, Any], contact: Contact) -> tuple[dict[str, Any], int]:
        y, steps = self.site.fit(self.flat(x), contact)
        w, b = y[:9].reshape(3, 3), y[9:]
        if isinstance(x["w"], np.ndarray):
            return {"b": b, "w": w}, steps
        return {"b": x["b"].new_tensor(b), "w": x["w"].new_tensor(w).requires_grad_()}, steps

    def evaluate(self, x: dict[str, Any]) -> dict[str, float]:
        return self.site.evaluate(self.flat(x))

    def flat(self, x: dict[str, Any]) -> np.ndarray:
        return np.concatenate([np.asarray(x["w"]).ravel(), np.asarray(x["b"])])


def named(kind: str) -> tuple[dict[str, Any], list[Named]]:
    """The clients of `quadratics`, of NumPy or torch."""
    x0: dict[str, Any] = {"w": np.zeros((3, 3), np.float32), "b": np.zeros(3, np.float32)}
    if kind == "torch":
        import torch

        x0 = {name: torch.from_numpy(part) for name, part in x0.items()}
    return x0, [Named(site) for site in quadratics()[1]]


class Measured:
    """Client k has k + 1 training rows with loss k, and 2k test rows with accuracy k/4; client 3 has no test rows."""

    def __init__(self, k: int) -> None:
        self.k, self.samples = k, k + 1

    def fit(self, x: np.ndarray, contact: Contact) -> tuple[np.ndarray, int]:
        return x, 1

    def evaluate(self, x: np.ndarray) -> dict[str, float]:
        test = {} if self.k == 3 else {"test_accuracy": self.k / 4, "rows": 2 * self.k}
        return {"train_loss": np.float32(self.k), **test}


class Unmeasured:
    """Has no `evaluate`."""

    def fit(self, x: np.ndarray, contact: Contact) -> tuple[np.ndarray, int]:
        return x, 1


def measured(clients: int) -> tuple[np.ndarray, list[Measured]]:
    return np.zeros(2, np.float32), [Measured(k) for k in range(clients)]


def unmeasured() -> tuple[np.ndarray, list[Unmeasured]]:
    return np.zeros(2, np.float32), [Unmeasured(), Unmeasured()]


# -- mistakes ----------------------------------------------------------------------------------------------------------
class Wrong(MomentumSite):
    """A client whose contacts after the trial go wrong as `case` says; with `trial:` before it, the trial does."""

    def __init__(self, shard: list[np.ndarray], case: str) -> None:
        super().__init__(shard, 0.0)
        self.case = case.removeprefix("trial:")
        self.trial = case.startswith("trial:")

    def fit(self, x: np.ndarray, contact: Contact) -> Any:
        y = super().fit(x, contact)[0]
        if self.case == "hangs" and contact.round == (0 if self.trial else 1):
            time.sleep(1000)
        if self.case == "raises":
            raise KeyError("of the user's own")
        if self.case == "exits":
            raise SystemExit(4)
        if self.case == "moves":
            os.chdir("/")
        return {
            "length": (y[:-1], 1),
            "double": (y.astype(np.float64), 1),
            "no pair": y,
            "a list": [y, 1],
            "nan": (y * np.nan, 1),
            "no steps": (y, 0),
            "true": (y, True),
            "text": (y, "1"),
            "mapping": ({"x": y}, 1),
        }.get(self.case, (y, 1))

    def evaluate(self, x: np.ndarray) -> Any:
        return {
            "evaluates to text": {"train_loss": "low"},
            "evaluates to a number": 0.5,
            "evaluates by another name": {"loss": 0.5},
            "evaluates minus rows": {"test_loss": 0.5, "rows": -1},
            "evaluates to numbers": {"train_loss": np.array([1.0, 2.0])},
        }.get(self.case, super().evaluate(x))

    def save(self) -> dict[Any, Any]:
        saved = super().save()
        return {
            "saves an object": {**saved, "self": self},
            "saves a list": [*saved.values()],  # type: ignore[dict-item]
            "saves without names": {1: 2},
        }.get(self.case, saved)


class Part:
    """A client that is sharded, and has what `case` says."""

    def __init__(self, case: str) -> None:
        self.sharded = case != "whole"
        for hook in {"save": ["save", "load"], "gradient": ["gradient"]}.get(case, []):
            setattr(self, hook, dict)

    def fit(self, x: np.ndarray, contact: Contact) -> tuple[np.ndarray, int]:
        return x, 1


class Lacking:
    """A client that lacks what `case` says."""

    def __init__(self, case: str) -> None:
        self.case = case
        if case != "no fit":
            self.fit = lambda x, contact: (x, 1)
        if case == "no load":
            self.save = dict
        if case == "no samples":
            self.samples = 0
        if case == "samples":
            self.samples = 10**30


class Mistyped:
    """A client whose property raises an AttributeError."""

    def __init__(self, case: str) -> None:
        self.case = case

    def fit(self, x: np.ndarray, contact: Contact) -> tuple[np.ndarray, int]:
        return x, 1

    @property
    def samples(self) -> int:
        return len(self.data) if self.case == "mistyped samples" else 1  # type: ignore[attr-defined]

    @property
    def evaluate(self) -> Any:
        return self.measure if self.case == "mistyped evaluate" else None  # type: ignore[attr-defined]


def wrong(case: str = "", dtype: str = "float32", client: int | None = None) -> Any:
    """x0 and clients with one thing wrong; client: the one that does wrong, None: each."""
    x0: Any = np.zeros(3, dtype)
    shards = [[np.ones(3, dtype), np.full(3, k, dtype)] for k in range(3)]
    clients: Any = [Wrong(shard, case if client in (None, k) else "") for k, shard in enumerate(shards)]
    return {
        "clients by name": (x0, {"north": Part("whole"), "south": Part("whole")}),
        "no fit": (x0, [Lacking(case)]),
        "no load": (x0, [Lacking(case)]),
        "no samples": (x0, [Lacking(case)]),
        "samples": (x0, [Lacking(case)]),
        "mistyped samples": (x0, [Mistyped(case)]),
        "mistyped evaluate": (x0, [Mistyped(case)]),
        "one name twice": ({1: x0, "1": x0}, clients),
        "some sharded": (x0, [Part(""), Part("whole")]),
        "sharded with names": ({"w": x0}, [Part("")]),
        "sharded with a gradient": (x0, [Part("gradient")]),
        "sharded with save": (x0, [Part("save")]),
        "no clients": (x0, []),
        "a generator": (x0, (client for client in clients)),
        "ints": (np.zeros(3, int), clients),
        "doubles": (np.zeros(3), clients),
        "a matrix": (np.zeros((3, 1), dtype), clients),
        "a number": (1.0, clients),
        "x0 of nan": (x0 * np.nan, clients),
        "names of lists": ({"w": [0.0, 0.0]}, clients),
        "nothing": (x0[:0], clients),
    }.get(case, (x0, clients))
