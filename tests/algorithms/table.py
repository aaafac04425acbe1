"""Every algorithm on every test problem of quadratics a_i/2 (x - c_i)^2, with its exact limit; and what it sends.

A new algorithm of the package adds its rows here, and no other test has to change.

T1      drift: two clients of unlike curvature, equal response times
T2      f1 = x^2, f2 = -x^2 from x = 1: f is 0 everywhere
T3, T4  client 0 answers three times as often; equal and unequal curvature
T5      two diagonal entries; with and without a regulariser
T6      random diagonals, M = 8 local steps of 0.1
T7      clients 0 and 1 do 2 and 6 steps a contact, in the time that these take
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

RANDOM = np.random.default_rng(6)
A = {
    "T1": [[1.0], [10.0]], "T2": [[2.0], [-2.0]], "T3": [[1.0], [1.0]], "T4": [[1.0], [4.0]],
    "T5": [[1.0, 2.0], [3.0, 0.5], [0.5, 4.0]], "T6": RANDOM.uniform(0.5, 3.0, (3, 4)).round(3).tolist(),
    "T7": [[1.0], [1.0]],
}  # fmt: skip
C = {
    "T1": [[1.0], [-1.0]], "T2": [[0.0], [0.0]], "T3": [[0.0], [1.0]], "T4": [[0.0], [1.0]],
    "T5": [[1.0, -1.0], [2.0, 0.3], [-1.0, 0.2]], "T6": RANDOM.standard_normal((3, 4)).round(3).tolist(),
    "T7": [[0.0], [1.0]],
}  # fmt: skip
EQUAL = {"name": "fixed", "seconds": 1.0}
UNEQUAL = {"name": "fixed", "seconds": [1.0, 3.0]}  # under the virtual clock, ties to the lower client: 0, 0, 0, 1
BY_WORK = {"name": "speed", "compute": 1.0, "exchange": 1e-9}  # a contact takes as long as its local steps
CLOCKS = {"T3": UNEQUAL, "T4": UNEQUAL, "T7": BY_WORK}


# -- where a method must end: the facts of docs/methods, on the problems of docs/algorithms.md -------------------------
def weighted(problem: str, k: np.ndarray) -> list[float]:
    """sum k_i c_i / sum k_i, entry by entry: the minimiser where k = a; a drift point; a proximal point."""
    return list((k * C[problem]).sum(0) / k.sum(0))


def optimum(problem: str) -> list[float]:
    return weighted(problem, np.array(A[problem]))


def drift(problem: str, step: float, count: int) -> list[float]:
    """The fixed point of the mean of `count` gradient steps: k_i = 1 - (1 - step a_i)^count."""
    return weighted(problem, 1 - (1 - step * np.array(A[problem])) ** count)


def proximal(problem: str, mu: float) -> list[float]:
    """The fixed point of the mean of exact proximal steps of weight mu: k_i = a_i/(a_i + mu)."""
    return weighted(problem, np.array(A[problem]) / (np.array(A[problem]) + mu))


def growth(step: float, count: int, rounds: int) -> list[float]:
    """FedAvg on T2: x grows by ((1-2 step)^count + (1+2 step)^count)/2 a round."""
    return [(((1 - 2 * step) ** count + (1 + 2 * step) ** count) / 2) ** rounds]


@dataclass(frozen=True)
class Row:
    """A job on a problem, and the server's model after so many updates, within the accuracy."""

    problem: str
    algorithm: dict[str, Any]
    limit: list[float]
    updates: int
    accuracy: float = 1e-12
    note: str = ""
    clock: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return "-".join(filter(None, [self.problem, self.algorithm["name"], self.note]))

    def job(self) -> dict[str, Any]:
        """The job, with one client for each curvature, in float64."""
        init = {"name": "constant", "value": 1.0 if self.problem == "T2" else 0.0}
        model = {"name": "quadratic", "curvatures": A[self.problem], "optima": C[self.problem], "init": init}
        return {
            "seed": 5,
            "problem": {"model": model, "dtype": "float64"},
            "algorithm": self.algorithm,
            "clock": {"mode": "virtual", "delay": self.clock or CLOCKS.get(self.problem, EQUAL)},
            "stop": {"updates": self.updates},
            "evaluate": {"updates": self.updates},
        }


GD = "gd"  # the batches of these problems are the whole objective: sgd would do the same
EVERY1, EVERY2 = {"trigger": {"every": 1}}, {"trigger": {"every": 2}, "reply": "deferred"}
ROWS: list[Row] = []


def on(
    problems: str, algorithm: dict[str, Any], limit: Any, updates: int, accuracy: float = 1e-12, **more: Any
) -> None:
    """A row for each problem; `limit` is what a function says of it, or numbers."""
    for p in problems.split():
        ROWS.append(Row(p, algorithm, limit(p) if callable(limit) else limit, updates, accuracy, **more))


# Synchronous, and exact for any number of local steps.
PHASES = {"scaffold": 1, "fedgate": 1, "vrl-sgd": 1, "f-svrg": 2, "inexact-dane": 2, "feddane": 2, "mime": 2}
for name, rounds in PHASES.items():
    on("T1", {"name": name, "step_size": 0.02, "local_steps": 5}, optimum, 250 * rounds)
    on("T2", {"name": name, "step_size": 0.1}, [1.0], 20 * rounds)
    on("T3 T4", {"name": name, "step_size": 0.05, "local_steps": 4}, optimum, 300 * rounds)
    on("T5 T6", {"name": name, "step_size": 0.1, "local_steps": 8}, optimum, 450 * rounds)
on("T1", {"name": "feddane", "step_size": 0.05, "local_steps": 400, "mu": 10.0}, optimum, 300, note="proximal")
on("T1 T6", {"name": "scaffold", "step_size": 0.02, "local_steps": 5, "option": "I"}, optimum, 1500, note="I")
# A decaying correction ends at FedProx's fixed point.
on("T1", {"name": "feddane", "mu": 1.0, "decay": 0.5, "step_size": 1 / 11, "local_steps": 300}, [-9 / 31], 400,
   note="decay")  # fmt: skip
for variant in ("pipelined", "pipelined-memory"):
    on("T1", {"name": "feddane", "step_size": 0.02, "local_steps": 5, "variant": variant, "mu": 1.0}, optimum, 500,
       note=variant)  # fmt: skip
LITE = {"name": "mime", "step_size": 0.1, "local_steps": 8, "lite": True}
on("T6", LITE, lambda p: drift(p, 0.1, 8), 450, note="lite")

DUAL: dict[str, dict[str, Any]] = {"feddyn": {"alpha": 2.0}, "fedadmm": {"rho": 2.0, "eta": None}}
for name, more in DUAL.items():
    on("T1", {"name": name, "step_size": 0.05, "local_steps": 10, **more}, optimum, 500)
    # exact local solutions: as fedpd with eta 1/10, one step too far in the first round, and then for ever at rest
    far = {"alpha": 10.0} if name == "feddyn" else {"rho": 10.0, "eta": None}
    on("T2", {"name": name, "step_size": 0.08, "local_steps": 400, "solver": GD, **far}, [1 / (1 - 4 * 0.1**2)], 40)
    on("T3 T4", {"name": name, "step_size": 0.1, "local_steps": 4, **more}, optimum, 500)
    on("T5", {"name": name, "step_size": 0.1, "local_steps": 8, **more}, optimum, 450)
    on("T6", {"name": name, "step_size": 0.1, "local_steps": 8, "cohort": 2, **more}, optimum, 900)
on("T1 T6", {"name": "fedadmm-wang", "eta": 0.5, "step_size": 0.1, "local_steps": 10}, optimum, 900)
on("T1", {"name": "proxskip", "step_size": 0.05, "probability": 0.3}, optimum, 500)
on("T1", {"name": "scaffnew", "step_size": 0.05, "probability": 0.3}, optimum, 500)
on("T2", {"name": "proxskip", "step_size": 0.1}, [1.0], 20)
on("T3 T4", {"name": "proxskip", "step_size": 0.05, "period": 4}, optimum, 300)
on("T5 T6", {"name": "proxskip", "step_size": 0.1, "probability": 0.2}, optimum, 450)

EXACT = {"solver": GD, "accuracy": {"name": "absolute", "M": 1e-24, "at_most": 300}}
for name, more in (("feddr", {"alpha": 1.0}), ("fedsplit", {}), ("async-feddr", {"alpha": 0.5})):
    slow = 6 if name == "async-feddr" else 1
    on("T1", {"name": name, "eta": 0.3, "step_size": 0.12, **EXACT, **more}, optimum, 200 * slow)
    on("T3 T4", {"name": name, "eta": 0.5, "step_size": 0.25, **EXACT, **more}, optimum, 200 * slow)
    on("T5 T6", {"name": name, "eta": 0.5, "step_size": 0.2, **EXACT, **more}, optimum, 300 * slow)
on("T2", {"name": "feddr", "alpha": 1.0, "eta": 0.1, "step_size": 0.08, **EXACT}, [1 / (1 - 4 * 0.1**2)], 20)
on("T6", {"name": "scaffold", "step_size": 0.1, "local_steps": 8, "cohort": 2}, optimum, 1200, note="two-of-three")
on("T6", {"name": "feddr", "alpha": 1.0, "eta": 0.5, "step_size": 0.2, "cohort": 2, **EXACT}, optimum, 900,
   note="two-of-three")  # fmt: skip
PENALTIES = {
    "l1": {"name": "l1", "tau": 0.5},
    "l2": {"name": "l2", "tau": 0.5},
    "l2sq": {"name": "l2sq", "tau": 0.25},
    "elastic": {"name": "elastic-net", "tau_1": 0.5, "tau_2": 0.25},
    "box": {"name": "box", "low": -0.1, "high": 0.4},
}


def composite(kind: str) -> list[float]:
    """T5: argmin mean f_i + g, entry by entry: H = mean a_i, h = mean a_i c_i; e.g. soft(h, tau)/H for tau ||x||_1."""
    a, c = np.array(A["T5"]), np.array(C["T5"])
    H, h = a.mean(0), (a * c).mean(0)
    if kind == "l2":  # H x - h + tau x/||x|| = 0: by bisection over r = ||x||, x = h/(H + tau/r)
        low, high = 1e-9, 10.0
        for _ in range(200):
            r = (low + high) / 2
            low, high = (r, high) if np.linalg.norm(h / (H + 0.5 / r)) > r else (low, r)
        return list(h / (H + 0.5 / r))
    soft = np.sign(h) * np.maximum(np.abs(h) - 0.5, 0)
    return list(
        {"l1": soft / H, "l2sq": h / (H + 0.5), "elastic": soft / (H + 0.5), "box": (h / H).clip(-0.1, 0.4)}[kind]
    )


for kind, g in PENALTIES.items():
    for name, alpha, updates in (("feddr", 1.0, 450), ("async-feddr", 0.5, 2000)):
        section = {"name": name, "eta": 0.5, "step_size": 0.2, "alpha": alpha, "regulariser": g, **EXACT}
        on("T5", section, composite(kind), updates, note=kind)

PD = {"name": "fedpd", "solver": GD, "local_steps": 400, "accuracy": 1e-30}
on("T1", {**PD, "eta": 0.1, "step_size": 0.08}, optimum, 400)
on("T2", {**PD, "eta": 0.1, "step_size": 0.08}, [1.041666666666667], 20)
on("T3 T4 T5 T6", {**PD, "eta": 0.2, "step_size": 0.15}, optimum, 450)
VR = {"name": "fedpd", "solver": "sarah", "local_steps": 40, "refresh": 5}
on("T1 T6", {**VR, "eta": 0.1, "gamma": 0.5}, optimum, 900, note="vr")

# Synchronous, with a drift or a proximal bias. FedNova's normalisation changes nothing where all take as many steps,
# nor does FedExP's step where epsilon is large.
for name, more in (
    ("fedavg", {}), ("apfl", {}), ("asypfl", {"mode": "synchronous", "indicators": "equal"}), ("fednova", {}),
    ("fedexp", {"epsilon": 1e9, "output": "last"}),
):  # fmt: skip
    on("T1", {"name": name, "step_size": 0.05, "local_steps": 10, **more}, [-0.4268843393694543], 200)
    on("T2", {"name": name, "step_size": 0.1, "local_steps": 3, **more}, growth(0.1, 3, 4), 8)
    on("T3 T4", {"name": name, "step_size": 0.2, **more}, optimum, 300)
    on("T5", {"name": name, "step_size": 0.1, **more}, optimum, 700)
    on("T6", {"name": name, "step_size": 0.1, "local_steps": 8, **more}, lambda p: drift(p, 0.1, 8), 300)
for name, mu in (("fedprox", 1.0), ("fedamp", 1.0)):
    # fedamp: with sigma far above all distances every client is sent the mean of the models, and lambda/alpha_k is mu.
    more = {"mu": mu} if name == "fedprox" else {"sigma": 1e13, "proximal": 5e12}
    third = {"mu": mu} if name == "fedprox" else {"sigma": 1e13, "proximal": 1e13 / 3}
    on("T1", {"name": name, "solver": GD, "step_size": 0.15, "local_steps": 300, **more}, [-9 / 31], 200, 1e-11)
    on("T3 T4", {"name": name, "solver": GD, "step_size": 0.3, "local_steps": 100, **more}, lambda p: proximal(p, 1.0),
       200, 1e-11)  # fmt: skip
    on("T5 T6", {"name": name, "solver": GD, "step_size": 0.3, "local_steps": 100, **third}, lambda p: proximal(p, 1.0),
       450, 1e-11)  # fmt: skip
on("T2", {"name": "fedprox", "mu": 0.0, "step_size": 0.1, "local_steps": 2}, growth(0.1, 2, 5), 10)
AMP = {"name": "fedamp", "sigma": 1e13, "proximal": 0.0, "step_size": 0.1, "local_steps": 2}
on("T2", AMP, growth(0.1, 2, 5), 10, 1e-11)

on("T1", {"name": "fedexp", "step_size": 0.05, "local_steps": 10, "epsilon": 0.1}, [-0.4268843393694543], 300,
   note="large-steps")  # fmt: skip
UNEVEN = {"name": "fednova", "step_size": 0.01, "steps": [2, 10]}
on("T1", UNEVEN, [-0.734956998269], 400, 1e-9, note="uneven")
on("T1", {**UNEVEN, "normalise": False}, [-0.940705122753], 400, 1e-9, note="fedavg")

# Equal speeds: one group of all, so FedAvg's rounds with the weight alpha, of Qmax local steps.
COMPASS = {"name": "fedcompass", "min_steps": 2, "alpha": 0.9}
on("T1", {**COMPASS, "step_size": 0.05, "max_steps": 10}, [-0.4268843393694543], 300)
on("T3 T4", {**COMPASS, "step_size": 0.05, "max_steps": 8}, lambda p: drift(p, 0.05, 8), 500, clock=EQUAL)
on("T5", {**COMPASS, "step_size": 0.005, "max_steps": 2}, optimum, 6000, 0.02)
on("T6", {**COMPASS, "step_size": 0.1, "max_steps": 8}, lambda p: drift(p, 0.1, 8), 300)

# All clients polled, so often that each has taken a contact's local steps; x and the X_i then rest where the Y_i - x,
# or the (Y_i - x)/E_i, add up to 0. On T3 and T4 client 0 takes three steps between polls, client 1 one.
POLLED = {"name": "speed", "compute": [1.0, 3.0], "exchange": 0.1}


def polled(name: str, problem: str, step: float, counts: int | list[int]) -> list[float]:
    a = np.array(A[problem])
    s, E = len(a), np.broadcast_to(counts, len(a))[:, None]
    r = (1 - step * a) ** E
    return weighted(problem, (1 - r) / E if name == "favas" else (1 - r) / (s + 1 - s * r))


for name in ("quafl", "favas"):
    on("T1", {"name": name, "step_size": 0.05, "local_steps": 10}, polled(name, "T1", 0.05, 10), 1600)
    section = {"name": name, "step_size": 0.05, "local_steps": 4, "period": 3.5}
    for problem in ("T3", "T4"):
        on(problem, section, polled(name, problem, 0.05, [3, 1]), 3000, clock=POLLED)
    for problem in ("T5", "T6"):
        section = {"name": name, "step_size": 0.1, "local_steps": 8}
        on(problem, section, polled(name, problem, 0.1, 8), 1500)
on("T1", {"name": "favano", "step_size": 0.05, "local_steps": 10}, polled("favas", "T1", 0.05, 10), 1600)

# Server optimisers, by the names that they are known under: they rest where FedAvg does. Adam's second moment vanishes
# there, so that it rests only for small server steps.
for name, server_step, more in (
    ("fedavgm", 1.0, {}),
    ("fedadagrad", 0.2, {}),
    ("fedadam", 0.02, {}),
    ("fedyogi", 0.05, {}),
    ("fadas", 0.1, {"delay_threshold": 1, **EVERY2}),
):
    section = {"name": name, "server_step": server_step, **more}
    on("T1", {**section, "step_size": 0.05, "local_steps": 10}, [-0.4268843393694543], 1400, 1e-9)
    on("T4", {**section, "step_size": 0.1}, optimum, 900, 1e-9, clock=EQUAL)

# Robust means: those that leave nobody out have the limit of the mean. Of the gradients a_i (x - c_i) half are not
# below 0, and half not above, where x is the median of the c_i.
MIDDLE = {"T5": list(np.median(C["T5"], axis=0)), "T6": list(np.median(C["T6"], axis=0))}
for rule in ("median", {"name": "trimmed-mean", "trim": 0.34}):
    for name, more in (
        ("fedavg", {}),
        ("fedprox", {"mu": 0.0}),
        ("fedbuff", {"trigger": {"every": 3}, "reply": "deferred"}),
    ):
        section = {"name": name, "step_size": 0.1, "aggregation": rule, **more}
        on("T5 T6", section, MIDDLE.get, 900, 1e-11, note=rule if isinstance(rule, str) else "trimmed-mean")
for rule in ({"name": "krum", "bad": 0, "keep": 3}, {"name": "clip", "norm": 10.0}):
    section = {"name": "fedavg", "step_size": 0.1, "local_steps": 8, "aggregation": rule}
    on("T6", section, lambda p: drift(p, 0.1, 8), 300, note=str(rule["name"]))

# Asynchronous, and biased to fast clients: by the number of contacts, to first order in the step.
FAST = {"T3": [1 / 4], "T4": [4 / 7]}
for name, more in (
    ("async-fedavg", {"step_weights": "one", **EVERY1}), ("fedbuff", EVERY1), ("async-sgd", {}),
    ("fedasync", {"proximal": 0.0, "staleness": "constant"}), ("asypfl", {"indicators": "equal"}),
):  # fmt: skip
    on("T3 T4", {"name": name, "step_size": 0.01, **more}, FAST.get, 2000, 0.02, note="biased")
for name, more in (("async-fedavg", {"step_weights": "one"}), ("fedbuff", {}), ("area", {"step_weights": "one"}),
                   ("async-comm-sgd", {"gap": 8, "draw": "fixed"})):  # fmt: skip
    # Rounds of all clients: a FedAvg step with as many local steps.
    three = {"trigger": {"every": 3}, "reply": "deferred"}
    count = {} if name == "async-comm-sgd" else {"local_steps": 8}
    on("T6", {"name": name, "step_size": 0.1, **more, **count, **three}, lambda p: drift(p, 0.1, 8), 450)
    two = {"gap": 2} if name == "async-comm-sgd" else {"local_steps": 2}
    on("T2", {"name": name, "step_size": 0.1, **more, **two, **EVERY2}, growth(0.1, 2, 5), 10)
    ten = {"gap": 10} if name == "async-comm-sgd" else {"local_steps": 10}
    on("T1", {"name": name, "step_size": 0.05, **more, **ten, **EVERY2}, [-0.4268843393694543], 300)
    one = {"gap": 1} if name == "async-comm-sgd" else {}
    on("T5", {"name": name, "step_size": 0.1, **more, **one, **three}, optimum, 750)
on("T1", {"name": "async-sgd", "step_size": 0.005}, optimum, 1500, 0.01)
on("T5", {"name": "async-sgd", "step_size": 0.01}, optimum, 2000, 0.02)
on("T2", {"name": "fedasync", "step_size": 0.1, "proximal": 0.0, "mixing": 1.0, "staleness": "constant"}, [1.2**6], 12)
SLOW = {"name": "fedasync", "proximal": 0.0, "mixing": 0.01, "staleness": "constant"}
on("T1", {**SLOW, "step_size": 0.05, "local_steps": 10}, [-0.4268843393694543], 2000, 0.02)
on("T5", {**SLOW, "step_size": 0.1}, optimum, 6000, 0.02)
on("T6", {**SLOW, "step_size": 0.1, "local_steps": 8}, lambda p: drift(p, 0.1, 8), 3000, 0.02)

EQUALLY = {"name": "asypfl", "indicators": "equal"}
on("T1", {**EQUALLY, "step_size": 0.005}, optimum, 2000, 0.01, note="asynchronous")
on("T5", {**EQUALLY, "step_size": 0.01}, optimum, 3000, 0.02, note="asynchronous")
on("T6", {**EQUALLY, "step_size": 0.01, "local_steps": 8}, lambda p: drift(p, 0.01, 8), 1500, 0.05, note="asynchronous")

# Without the bias: steps in proportion to the clients' times, to first order in the step.
on("T3 T4", {"name": "rescaled-asgd", "step_size": 0.01}, optimum, 3000, 0.02)
# A delay of 4 is the slow client's largest.
on("T3 T4", {"name": "ringmaster", "threshold": 4, "step_size": 0.01}, FAST.get, 2000, 0.02, note="all-applied")
on("T3 T4", {"name": "ringmaster", "threshold": 3, "step_size": 0.1}, [0.0], 2000, note="one-discarded")

# Asynchronous and unbiased, by a table of last updates; with several local steps FedAvg's drift point.
for name, more in (("ace", {}), ("ia2sgd", {}), ("ca2fl", EVERY1)):
    on("T3 T4", {"name": name, "step_size": 0.05, **more}, optimum, 1000, note="memory")
    on("T5", {"name": name, "step_size": 0.05, **more}, optimum, 1500, note="memory")
    on("T6", {"name": name, "step_size": 0.01, "local_steps": 8, **more}, lambda p: drift(p, 0.01, 8), 1500,
       note="memory", clock={"name": "fixed", "seconds": [1.0, 2.5, 7.0]})  # fmt: skip
    on("T1", {"name": name, "step_size": 0.005, "local_steps": 10, **more}, lambda p: drift(p, 0.005, 10), 1500,
       note="memory")  # fmt: skip
on("T3 T4", {"name": "ca2fl", "step_size": 0.05, "trigger": {"every": 2}}, optimum, 1500, note="memory-of-two")
for problem, step in (("T1", 0.05), ("T3 T4", 0.1), ("T5 T6", 0.1)):
    on(problem, {"name": "ringleader", "step_size": step}, optimum, 2000)
on("T2", {"name": "ringleader", "step_size": 0.1}, [1.0], 20)
on("T1", {"name": "mifa", "step_size": 0.02, "local_steps": 10}, lambda p: drift(p, 0.02, 10), 300)
on("T2", {"name": "mifa", "step_size": 0.1, "local_steps": 3}, growth(0.1, 3, 4), 8)
on("T3 T4", {"name": "mifa", "step_size": 0.2}, optimum, 300)
on("T5", {"name": "mifa", "step_size": 0.05, "cohort": 2}, optimum, 1500)
on("T6", {"name": "mifa", "step_size": 0.02, "local_steps": 8, "cohort": 2}, lambda p: drift(p, 0.02, 8), 1200)

# Asynchronous and unbiased.
AREA = {"name": "area", "step_weights": "one"}
on("T1", {**AREA, "step_size": 0.05}, optimum, 600, note="one-step")
on("T3", {**AREA, "step_size": 0.5}, optimum, 400)
on("T4", {**AREA, "step_size": 0.2, "trigger": {"every": 2}}, optimum, 800)
on("T6", {**AREA, "step_size": 0.1, "local_steps": 8}, lambda p: drift(p, 0.1, 8), 600, note="uneven",
   clock={"name": "fixed", "seconds": [1.0, 2.5, 7.0]})  # fmt: skip
on("T7", {"name": "asypfl", "step_size": 0.01, "local_steps": 2, "indicators": {"name": "given", "values": [1, 3]}},
   [0.5], 1500, 0.03)  # fmt: skip
on("T7", {"name": "asypfl", "step_size": 0.01, "local_steps": 2, "indicators": "equal"}, [0.25], 2000, 0.03,
   note="biased", clock=UNEQUAL)  # fmt: skip
COMM = {"name": "async-comm-sgd", "step_size": 0.01, "draw": "fixed"}
on("T3 T4", {**COMM, "gap": [1, 3]}, optimum, 2000, 0.03, clock=BY_WORK)
on("T7", {**COMM, "gap": [2, 6]}, [0.5], 1500, 0.05)

# Of every method its last row: the others are of the long tier.
SHORT = [*{row.algorithm["name"]: row for row in ROWS}.values()]

ONLY = "a statement on asypfl's and async-comm-sgd's local steps a contact; for other methods the problem is T3"
EXCUSED = {  # (algorithm, problem) -> why there is no row
    **{
        (name, "T2"): "the iterates are compared by hand"
        for name in ("ace", "async-sgd", "favas", "fedcompass", "quafl")
    },
    ("fedsplit", "T2"): "for convex f_i only",
    ("async-feddr", "T2"): "nothing is stated where all points are optimal: the limit depends on the order of arrivals",
    ("async-sgd", "T6"): "one gradient a contact: there are no 8 local steps",
}

# Vectors that a client sends and receives in one round (one contact, if asynchronous); `test_wire.py` compares bytes.
CLAIMS: list[tuple[str, dict[str, Any], int, int, int]] = [  # name, options, contacts per round, up, down
    *(
        (name, {}, 1, 1, 1)
        for name in (
            "ace", "apfl", "async-comm-sgd", "async-fedavg", "async-sgd", "fedamp", "fedasync", "favas", "fedadmm",
            "fedavg", "fedbuff", "feddyn", "fedexp", "fedgate", "fednova", "fedpd", "fedprox", "mifa", "proxskip",
            "quafl", "vrl-sgd",
        )
    ),
    *((name, {"eta": 0.1}, 1, 1, 1) for name in ("async-feddr", "feddr", "fedsplit")),
    ("area", {"step_weights": "one"}, 1, 1, 1),
    ("asypfl", {"indicators": "equal"}, 1, 1, 1),
    ("fedcompass", {"min_steps": 2, "max_steps": 4}, 1, 1, 1),
    ("f-svrg", {}, 2, 2, 2),  # gradient and model up, model and mean gradient down
    ("feddane", {}, 2, 2, 2),  # two round trips
    ("feddane", {"variant": "pipelined"}, 1, 2, 2),  # one round trip
    ("inexact-dane", {}, 2, 2, 2),
    ("mime", {}, 2, 2, 2),
    ("mime", {"momentum": 0.5}, 2, 2, 3),  # 2 + |s| down
    ("mime", {"momentum": 0.5, "lite": True}, 1, 2, 2),
    ("scaffold", {}, 1, 2, 2),  # control variates as well
]  # fmt: skip
