"""Jobs under the virtual clock: every algorithm, trigger, reply policy, delay model, and size of vector."""

from __future__ import annotations

from typing import Any

from mpifl.algorithms import ALIASES, names

SMALL = {"clients": 7, "model": {"name": "quadratic", "dim": 12, "sigma": 0.3}}
DIGITS = {
    "data": "digits", "clients": 9, "partition": {"name": "dirichlet", "alpha": 0.5, "min_samples": 4},
    "model": {"name": "logistic", "init": {"name": "uniform", "half_width": 0.1}}, "l2": 1e-3, "batch_size": 8,
}  # fmt: skip
MEASURED = {**DIGITS, "validation_split": 0.2, "test_split": 0.2}
EVERY_METRIC = {"clients": True, "metrics": ["balanced_accuracy", "auroc"]}
LARGE = {"clients": 40, "model": {"name": "quadratic", "dim": 20000}, "dtype": "float64"}  # not inline; pool too small
LARGE32 = {"clients": 5, "model": {"name": "quadratic", "dim": 20000, "sigma": 0.1}, "dtype": "float32"}
SPEED = {"mode": "virtual", "delay": {"name": "speed", "compute": 0.1, "exchange": 0.3, "spread": 3,
                                      "noise": "exponential"}}  # fmt: skip
EXPONENTIAL = {"mode": "virtual", "delay": {"name": "exponential", "rate": 10, "spread": 4}}


def intermittent(clock: dict[str, Any] = EXPONENTIAL, **options: Any) -> dict[str, Any]:
    """A clock whose clients go on and off, a few times in a run."""
    return {**clock, "availability": {"name": "renewal", "on": 0.5, "off": 0.25, **options}}


def job(algorithm: dict[str, Any], problem: dict[str, Any] = SMALL, **more: Any) -> dict[str, Any]:
    base = {"seed": 5, "clock": EXPONENTIAL, "stop": {"updates": 60}, "evaluate": {"updates": 20}}
    return {**base, "problem": problem, "algorithm": {"step_size": 0.05, **algorithm}, **more}


AREA = {"name": "area", "step_weights": "one"}
CASES = {
    "ace": job({"name": "ace", "reply": "before", "local_steps": 2}, DIGITS),
    "aced": job({"name": "ace", "delay_threshold": 6, "fill": "zero"}, LARGE32),
    "area-before": job({**AREA, "trigger": {"every": 3}, "reply": "before"}),
    "area-after": job({**AREA, "trigger": {"every": 3}, "reply": "after", "first_contact": "zero", "local_steps": 3}),
    "area-deferred": job({**AREA, "trigger": {"every": 3}, "reply": "deferred", "output": "average"}),
    "area-bernoulli": job({**AREA, "trigger": {"bernoulli": 0.3}, "reply": "after"}),
    "area-period": job({**AREA, "trigger": {"period": 0.05}}, evaluate={"every": 0.1}, stop={"time": 1.0}),
    "area-poisson": job({**AREA, "trigger": {"poisson": 20}, "reply": "deferred"}, stop={"time": 1.0}),
    "area-digits": job(
        {"name": "area", "step_size": 5, "trigger": {"every": 4}}, MEASURED, evaluate={"every": 0.25, "clients": True}
    ),
    "area-large": job({**AREA, "trigger": {"every": 4}}, LARGE),
    "area-large-deferred": job({**AREA, "trigger": {"every": 30}, "reply": "deferred"}, LARGE),
    "area-accuracy": job(
        {"name": "area", "step_size": 20}, DIGITS, stop={"accuracy": 0.5, "updates": 500}, evaluate={"updates": 5}
    ),
    "fedavg-all": job({"name": "fedavg", "local_epochs": 2, "weights": "samples"}, DIGITS),
    "fedavg-cohort": job({"name": "fedavg", "cohort": 3, "local_steps": 2}),
    "fedavg-samples": job({"name": "fedavg", "cohort": 6, "sampling": "samples"}, DIGITS),
    "fedavg-large": job({"name": "fedavg", "cohort": 36}, LARGE),
    "fedbuff": job({"name": "fedbuff", "trigger": {"every": 4}, "staleness": "inverse-sqrt"}),
    "fedbuff-deferred": job({"name": "fedbuff", "trigger": {"every": 4}, "reply": "deferred", "local_steps": 4}),
    "ca2fl": job({"name": "ca2fl", "trigger": {"every": 4}, "staleness": "inverse-sqrt"}, LARGE32),
    "fadas": job({"name": "fadas", "trigger": {"every": 3}, "delay_threshold": 1, "delay_rule": "scale"}),
    "fedadam": job({"name": "fedadam", "cohort": 4, "server_step": 0.01}, DIGITS),
    "fedavgm": job({"name": "fedavgm", "cohort": 30, "local_steps": 2}, LARGE),
    "fedbuff-period": job({"name": "fedbuff", "trigger": {"period": 0.1}, "reply": "before"}, LARGE32),
    "async-fedavg": job({"name": "async-fedavg", "trigger": {"every": 2}}),
    "async-fedavg-after": job({"name": "async-fedavg", "rule": "mix-over-n", "reply": "after"}),
    "async-fedavg-memory": job({"name": "async-fedavg", "rule": "server-memory", "reply": "deferred"}, LARGE32),
    "async-fedavg-poisson": job({"name": "async-fedavg", "rule": "delta-over-n", "trigger": {"poisson": 9}}, DIGITS),
    "fedasync-before": job({"name": "fedasync", "reply": "before"}),
    "fedasync-after": job({"name": "fedasync", "staleness": "hinge", "local_steps": 2}, LARGE32),
    "ties": job(AREA, clock={"mode": "virtual", "delay": {"name": "fixed", "seconds": [1, 1, 2, 1, 0.5, 0, 1]}}),
    "no-delay": job({**AREA, "trigger": {"every": 2}}, clock={"mode": "virtual"}),
    "one-client": job(AREA, {"clients": 1, "model": {"name": "quadratic", "dim": 3}}),
    "one-update": job({"name": "fedasync"}, stop={"updates": 1}),
    "before-any-update": job({**AREA, "trigger": {"period": 1e-3}}, stop={"time": 2.5e-3}),
    "apfl": job({"name": "apfl", "cohort": 4, "adapt": "round"}, MEASURED, evaluate={**EVERY_METRIC, "updates": 20}),
    "async-comm-sgd": job({"name": "async-comm-sgd", "gap": 4}, clock=SPEED),
    "async-feddr": job({"name": "async-feddr", "eta": 0.2, "regulariser": {"name": "l1", "tau": 0.01}}, LARGE32),
    "async-sgd": job({"name": "async-sgd", "step_rule": "adaptive"}),
    "async-sgd-ringmaster": job({"name": "ringmaster", "threshold": 6}, DIGITS),
    "async-sgd-times": job({"name": "async-sgd", "rescale": "times"}, DIGITS),
    "asypfl": job({"name": "asypfl", "fisher_steps": 1, "local_steps": 2}, {**DIGITS, "test_split": 0.2}, clock=SPEED),
    "asypfl-synchronous": job({"name": "asypfl", "mode": "synchronous", "indicators": "equal"}),
    "f-svrg": job({"name": "f-svrg", "cohort": 3, "local_steps": 3}, DIGITS),
    "fedamp": job({"name": "fedamp", "proximal": 0.1}, {**DIGITS, "test_split": 0.1}),
    "fedcompass": job({"name": "fedcompass", "min_steps": 2, "max_steps": 6}, DIGITS, clock=SPEED),
    "feddane": job({"name": "feddane", "cohort": 3, "mu": 0.1, "local_steps": 3}, DIGITS),
    "feddane-pipelined": job({"name": "feddane", "variant": "pipelined-memory", "decay": 0.9}, LARGE),
    "feddr": job({"name": "feddr", "cohort": 3, "eta": 0.5, "local_epochs": 1, "init": "mean"}, DIGITS),
    "feddr-accuracy": job({"name": "feddr", "eta": 0.5, "solver": "gd", "accuracy": {"name": "relative"}}),
    "fedadmm": job({"name": "fedadmm", "cohort": 3, "rho": 1.0}),
    "feddyn": job({"name": "feddyn", "cohort": 3, "output": "all", "local_steps": 2}, DIGITS),
    "fedexp": job({"name": "fedexp", "local_steps": 3}, DIGITS),
    "fednova": job({"name": "fednova", "local_epochs": 1, "cohort": 4, "weights": "samples"}, DIGITS),
    "fedgate": job({"name": "fedgate", "levels": 4, "local_steps": 3}),
    "fedpd": job({"name": "fedpd", "skip": 0.5, "eta": 0.5}, DIGITS),
    "fedpd-vr": job({"name": "fedpd", "solver": "sarah", "refresh": 3, "gamma": 2.0, "local_steps": 2}, DIGITS),
    "fedprox": job({"name": "fedprox", "cohort": 5, "local_epochs": 3, "drop_percent": 0.5}, DIGITS),
    "fedsplit": job({"name": "fedsplit", "eta": 0.2}, evaluate={"updates": 20, "gradient": True}),
    "inexact-dane": job({"name": "inexact-dane", "mu": 1.0}),
    "mifa": job({"name": "mifa", "cohort": 3, "step_schedule": "inverse"}, DIGITS),
    "mime": job({"name": "mime", "momentum": 0.5, "cohort": 4, "local_steps": 2}, LARGE),
    "mime-lite": job({"name": "mime", "momentum": 0.5, "lite": True, "local_steps": 2}, DIGITS),
    "proxskip": job({"name": "proxskip", "probability": 0.4}, DIGITS, clock=SPEED),
    "ringleader": job({"name": "ringleader"}, DIGITS),
    "ringleader-large": job({"name": "ringleader"}, LARGE32, clock=SPEED),
    "quafl": job({"name": "quafl", "cohort": 3, "local_steps": 4, "period": 0.25}, DIGITS),
    "quafl-on-and-off": job(
        {"name": "quafl", "cohort": 4, "local_steps": 5, "period": 0.4}, clock=intermittent(SPEED, on=2)
    ),
    "favas": job({"name": "favas", "cohort": 3, "local_steps": 4, "period": 0.25}, DIGITS),
    "favas-large": job(
        {"name": "favas", "local_steps": 3, "alpha": "deterministic", "period": 0.2}, LARGE32, clock=SPEED
    ),
    "scaffold": job({"name": "scaffold", "cohort": 4, "local_steps": 3}, LARGE),
    "vrl-sgd": job({"name": "vrl-sgd", "warm_up": True, "local_steps": 3}, DIGITS),
    "area-on-and-off": job({**AREA, "trigger": {"period": 0.07}}, clock=intermittent(spread=3)),
    "fedbuff-restart": job(
        {"name": "fedbuff", "trigger": {"every": 3}}, DIGITS, clock=intermittent(SPEED, on=2, interrupted="restart")
    ),
    "fedavg-available": job({"name": "fedavg", "cohort": 4}, LARGE, clock=intermittent(cohort_from="available")),
    "mifa-period": job({"name": "mifa", "period": 0.15}, clock=intermittent()),
    "mifa-available": job({"name": "mifa", "cohort": 5}, clock=intermittent(cohort_from="available", start="on")),
    "many-clients": job(AREA, {"clients": 300, "model": {"name": "quadratic", "dim": 2}}, stop={"updates": 400}),
}
CASES |= {  # a method or another name of one without a case above: with its defaults
    name: job({"name": name})
    for name in [*names(), *ALIASES]
    if name not in {case["algorithm"]["name"] for case in CASES.values()}
}
