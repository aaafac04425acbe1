"""The item `theory`: slopes of power laws, settings that follow from theorems, and mistakes that change verdicts."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from itertools import combinations, product
from math import ceil, isinf, isnan, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpifl
from mpifl.algorithms.async_feddr import largest_alpha, largest_eta
from mpifl.algorithms.base import Clients
from mpifl.algorithms.common.step_schedules import event_probabilities
from mpifl.cli import main
from mpifl.errors import ConfigError, RunFailed
from mpifl.jobs.theory.methods import FedDANEDescent, FedDRPotential
from mpifl.jobs.theory.problems import Separable, links
from mpifl.tools.analysis.spread import half_width
from mpifl.tools.reproduce.claims import CHECK, judge_claims
from mpifl.tools.reproduce.items import Item, load_items
from mpifl.tools.reproduce.spec import Measure
from mpifl.tools.reproduce.values import log_slope
from mpifl.tools.studies.index import Index
from mpifl.tools.studies.select import reported_groups


@cache
def item(name: str) -> Item:
    """An item as it is in the package."""
    return load_items(f"theory/{name}")[1][0]


# -- slopes ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("slope", [-2.0, -0.5, 1.0])
@pytest.mark.parametrize("x", [np.linspace(10, 1000, 100), np.geomspace(1, 1000, 30)], ids=["evenly", "by factors"])
def test_slope_of_a_power_law_with_noise(slope: float, x: np.ndarray) -> None:
    """Of 200 intervals over 8 seeds about 95 % hold the slope: between 89 % and 99 %. Without noise it is exact."""
    assert abs(log_slope(x, 3 * x**slope, 0.01) - slope) < 1e-12
    rng, held = np.random.default_rng(0), 0
    for _ in range(200):
        slopes = np.array([log_slope(x, 3 * x**slope * rng.lognormal(0, 0.5, x.size), 0.01) for _ in range(8)])
        held += abs(slopes.mean() - slope) <= half_width(slopes, "ci95")
    assert 178 <= held <= 198


def test_a_slope_is_over_its_range_and_counts_factors_alike() -> None:
    """Of a law with a bend: from the bend on the second exponent; over one decade on either side the mean of both, also
    where nine tenths of the points are in the second decade."""
    x = np.linspace(1, 100, 991)
    y = np.where(x < 10, x**-1, 10**2 * x**-3)
    assert abs(log_slope(x, y, 0.1) + 3) < 1e-9
    assert abs(log_slope(x, y, 0.01) + 2) < 0.1
    assert abs(log_slope(x[::-1], y[::-1], 0.1) + 3) < 1e-9
    assert abs(log_slope(np.append(0.0, x), np.append(1.0, y), 0.1) + 3) < 1e-9


def test_a_slope_without_points_or_of_a_run_that_diverged() -> None:
    x = np.array([1.0, 2.0, 4.0])
    assert isnan(log_slope(x[:2], x[:2], 0.1)) and isnan(log_slope(x, np.array([1.0, 0.0, 1.0]), 0.1))
    assert isinf(log_slope(x, np.array([1.0, 5.0, np.inf]), 0.1)) and isinf(log_slope(x, np.array([1, np.nan, 1]), 0.1))


@pytest.mark.parametrize(
    "more", [{"at_most": 1.0}, {"reaches": 0.1}, {"over": "K", "reaches": 1.0}, {"over": "K", "at_most": 1.0}]
)
def test_a_slope_is_one_of_several_ways(more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"over=.*: given with .*slope"):
        Measure("train_loss", slope=0.1, **more)


# -- settings ----------------------------------------------------------------------------------------------------------
def jobs(name: str) -> dict[tuple[str, ...], Any]:
    """The first trial's job of each combination of an item, by its labels."""
    return {tuple(map(str, run.labels.values())): run.job for run in item(name).study.runs if run.seed == 0}


def bounds(name: str) -> list[float]:
    """The numbers that the measures of an item's claims are to lie below or above."""
    return [
        claim.right
        for claim in item(name).page.claims
        if claim.measure in ("gap", "mean squared gradient norm", "least descent")
    ]


def test_the_bound_and_the_step_of_theorem_8() -> None:
    for (K,), job in jobs("area-convex").items():
        problem, clients = mpifl.load_problem(job), Clients(np.ones(5, int), job.clock.delay.rates(5, 0))
        schedule, optimum = job.algorithm.step_schedule, np.median(problem._c, 0)
        assert problem.evaluate(optimum)["train_loss"] < 1e-12 and np.linalg.norm(optimum) == schedule.radius
        assert sqrt(problem.d) == schedule.B and job.problem.model.sigma * sqrt(problem.d) == schedule.sigma
        p, p_s = event_probabilities(job.algorithm.trigger, clients)
        spread = (1 / p_s + 2 * float(np.mean(1 / p))) * schedule.radius**2
        bound = sqrt(spread * (schedule.sigma**2 + schedule.B**2) / schedule.events)  # M = 1
        assert schedule.events == float(K) == 1.5 * job.stop.updates
        if K in ("600", "38400"):
            assert any(abs(bound / b - 1) < 5e-3 for b in bounds("area-convex")), (K, bound)


def test_the_best_server_rate_and_the_events_of_each() -> None:
    for (factor,), job in jobs("area-server-rate").items():
        rates = job.clock.delay.rates(5, 0)
        best = sqrt(rates.sum() / (2 * np.mean(1 / rates)))
        assert abs(job.algorithm.trigger.poisson / (float(factor) * best) - 1) < 1e-3
        assert abs(job.stop.time * (job.algorithm.trigger.poisson + rates.sum()) / 20_000 - 1) < 1e-3


def offset(job: Any) -> float:
    """d of the steps c/(k + d) of Theorem 7: with mu = 1 and L = 2, 1/D by the formula for M = 1 or M > 1."""
    M, gamma, L, q = job.algorithm.local_steps, 4 / 3, 2.0, job.algorithm.local_steps - 1
    D = 2 / (M * 3)
    if q:
        D = min(D, gamma / (L**2 * q), sqrt(M * gamma**2 / (64 * L**4 * q**3)), (gamma / (32 * L**4 * q**3)) ** (1 / 3))
    n = job.problem.clients
    p, p_s = event_probabilities(job.algorithm.trigger, Clients(np.ones(n, int), job.clock.delay.rates(n, 0)))
    return 48 / (min(p.min(), p_s) * M * gamma * D)


def test_the_events_from_which_theorem_7_shows() -> None:
    """As the sections name them, and the slopes of (k + d)^-2 at the evaluations, over the ranges of the claims."""
    about = item("area-strongly-convex").page.about.replace(",", "")
    for (setting,), job in jobs("area-strongly-convex").items():
        d, k = offset(job), 1.5 * np.arange(job.evaluate.updates, job.stop.updates + 1, job.evaluate.updates)
        if "equal rates" not in setting:
            first = 0.25 if job.algorithm.local_steps > 1 else 0.1
            assert f"{d:.0f} events" in about or f"{d:.0f} for M = 5" in about
            assert f"{log_slope(k, (k + d) ** -2.0, first):.2f}" in about, setting
    about = item("area-rates").page.about.replace(",", "")
    for (rates,), job in jobs("area-rates").items():
        assert f"{offset(job):.0f} events for {rates}" in about or f"{offset(job):.0f} for {rates}" in about


@pytest.mark.long
def test_steps_and_bounds_of_feddr() -> None:
    for (method, K), job in jobs("feddr-rate").items():
        problem = mpifl.load_problem(job)
        gap = problem.evaluate(problem.initial(0))["train_loss"]
        if method == "FedDR":
            assert abs(job.algorithm.eta * 3 * 2 - 1) < 1e-4 and job.algorithm.alpha == 1
            bound = 160 * 2 * 10 * gap / (3 * (int(K) + 1))
            assert any(abs(bound / b - 1) < 1e-3 for b in bounds("feddr-rate"))
        else:
            assert job.algorithm.alpha < largest_alpha(20, 10)
            assert job.algorithm.eta < largest_eta(job.algorithm.alpha, 2, 20, 10)
    for (setting,), job in jobs("feddr-potential").items():
        alpha, eta = job.algorithm.alpha, job.algorithm.eta
        admitted = eta < largest_eta(alpha, 2, 0, 10) or (alpha == 1 and abs(eta * 3 * 2 - 1) < 1e-4)
        assert admitted == (not setting.startswith("not admitted"))


def test_steps_and_iterations_of_ringmaster_and_ringleader() -> None:
    for (epsilon,), job in jobs("ringmaster").items():
        e, problem = float(epsilon), mpifl.load_problem(job)
        gap, noise = problem.evaluate(problem.initial(0))["train_loss"], problem.d * job.problem.model.sigma**2
        R = max(1, ceil(noise / e - 1e-9))
        assert job.algorithm.threshold == R
        assert job.algorithm.step_size == pytest.approx(min(1 / (2 * R * 2), e / (4 * 2 * noise)))
        assert job.stop.updates == pytest.approx(8 * R * 2 * gap / e + 16 * noise * 2 * gap / e**2)
    for (epsilon,), job in jobs("ringleader").items():
        e, problem = float(epsilon), mpifl.load_problem(job)
        gap, noise = problem.evaluate(problem.initial(0))["train_loss"], problem.d * job.problem.model.sigma**2
        assert job.algorithm.step_size == pytest.approx(min(1 / (8 * 4 * 2), e / (10 * 2 * noise)), rel=1e-4)
        assert job.stop.updates / 2.375 == pytest.approx(4 * gap / (job.algorithm.step_size * e), rel=3e-3)


def test_mu_and_the_descents_of_feddane() -> None:
    for job, bound in zip(jobs("feddane").values(), bounds("feddane"), strict=True):
        B = job.algorithm.B
        assert job.algorithm.mu == 5 * 2 * B**2 and bound == pytest.approx(3 / (25 * 2 * B**2), rel=1e-3)
    sampled = next(iter(jobs("feddane-sampled").values()))
    problem = mpifl.load_problem(sampled)
    w = problem.initial(0)
    value, square = problem.evaluate(w)["train_loss"], float(np.sum(problem.gradient(w) ** 2))
    assert item("feddane-sampled").page.claims[0].right == pytest.approx(value - 0.015 * square, rel=1e-5)
    assert sampled.algorithm.mu == 40
    a, c = np.array([1, 1.2, 1.6, 2])[:, None], np.array([problem.shard(i)[1] for i in range(4)])
    gradients = a * (w - c)
    for m, claim in zip((1, 2), item("feddane-sampled").page.claims[2:], strict=True):
        sets, values = list(combinations(range(4), m)), []
        for first, second in product(sets, repeat=2):  # of both phases; gradient descent to the local optima
            shift = gradients[list(first)].mean(0) - gradients
            rate = 0.02 * (a + 40)
            ends = w - (1 - (1 - rate) ** 40) / (a + 40) * (gradients + shift)
            values.append(float((a * (ends[list(second)].mean(0) - c) ** 2).sum(1).mean() / 2))
        assert claim.right == pytest.approx(np.mean(values), abs=1e-3)


def test_the_bounds_of_fedpd() -> None:
    """36 eta^2 G^2 p^2, G^2 the mean of the clients' squared gradient norms at the optimum."""
    job = jobs("fedpd-errors")["0.01", "1"]
    problem = mpifl.load_problem(job)
    a, c = np.array([1, 2])[:, None], np.array([problem.shard(i)[1] for i in range(2)])
    optimum = (a * c).sum(0) / a.sum()
    G2 = float(((a * (optimum - c)) ** 2).sum(1).mean())
    found = [claim for claim in item("fedpd-errors").page.claims if claim.measure == "squared gradient norm"]
    assert len(found) == 4
    for claim in found:
        bound = 36 * job.algorithm.eta**2 * G2 * claim.left["p"] ** 2
        assert claim.right == pytest.approx(bound, rel=2e-3)


@pytest.mark.parametrize("loss", [np.nan, np.inf])
def test_a_potential_or_a_descent_that_is_not_finite_meets_no_claim(loss: float) -> None:
    clients, x0 = Clients(np.ones(2)), np.zeros(3)
    feddr = FedDRPotential(eta=1.0, alpha=1.0)
    server = feddr.init_server(x0, clients)
    server.logged = []
    feddr.aggregate(server)
    server.parts[:] = loss
    feddr.aggregate(server)
    assert server.rises == 1
    feddane = FedDANEDescent(mu=1.0, local_steps=1)
    server = feddane.init_server(x0, clients)
    server.logged = []
    server.slope, server.before, server.loss, server.g = 1.0, 1.0, loss, x0
    feddane.aggregate(server)
    assert not server.least > 0


# -- problems ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["area-convex", "feddr-rate", "fedpd-chain", "fedpd-errors"])
def test_gradients_are_those_of_the_losses(name: str) -> None:
    """Central differences of each client's loss, and of the mean that is evaluated."""
    job = next(iter(jobs(name).values()))
    problem = mpifl.load_problem(job)
    x = np.random.default_rng(1).standard_normal(problem.d)
    total = np.zeros(problem.d)
    for i in range(problem.clients):
        client = job.problem.model.objective(job.problem.settings, problem.meta, problem.shard(i), i, 0)
        slopes = [(client.loss(x + h) - client.loss(x - h)) / 2e-6 for h in 1e-6 * np.eye(problem.d)]
        np.testing.assert_allclose(client.gradient(x), slopes, atol=1e-6)
        total += client.gradient(x) / problem.clients
    np.testing.assert_allclose(problem.gradient(x), total, atol=1e-12)
    value = lambda x: problem.evaluate(x)["train_loss"]  # noqa: E731
    slopes = [(value(x + h) - value(x - h)) / 2e-6 for h in 1e-6 * np.eye(problem.d)]
    np.testing.assert_allclose(total, slopes, atol=1e-6)
    if isinstance(problem, Separable):
        grid = np.linspace(-6, 6, 100_001)[:, None]
        least = [np.min(problem.phi(grid - column).mean(1)) for column in problem._c.T]
        assert problem.best == pytest.approx(sum(least), abs=2e-3)


def test_the_chain_of_claim_2_1() -> None:
    """Two halves of links of one parity, which sum to (x_1 - 1)^2 + sum_j (x_j - x_{j+1})^2."""
    whole = links(0, 5) + links(1, 5)
    expected = 2 * np.eye(5) - np.eye(5, k=1) - np.eye(5, k=-1)
    expected[-1, -1] = 1
    np.testing.assert_array_equal(whole, expected)
    for half in (links(0, 5), links(1, 5)):
        assert np.count_nonzero(half - np.diag(np.diag(half)), axis=0).max() == 1


# -- mistakes in a rule ------------------------------------------------------------------------------------------------
def verdicts(name: str, out: Path, *overrides: str, only: str) -> list[str]:
    """The verdicts of the claims on one combination of an item, whose runs are computed in this process."""
    (found,) = load_items(f"theory/{name}", [f"output={out}", *overrides])[1]
    kept = [run for run in found.study.runs if only in ("", *map(str, run.labels.values()))]
    for run in kept:
        try:
            mpifl.run(run.job).close()
        except RunFailed:
            continue  # all clients were lost: their updates were not finite
    rows = claims(replace(found, study=replace(found.study, runs=tuple(kept))))
    return [row[-1].removeprefix(CHECK) for row in rows]


def claims(item: Item) -> list[list[str]]:
    """The rows of the table of claims that have values."""
    try:
        groups = reported_groups(item.study, Index(item.study)).groups
    except ConfigError:
        return [["failed"]]
    return [row for row in judge_claims(item.page, [], groups) if row[-1] != "not run"]


def mutate(monkeypatch: pytest.MonkeyPatch, where: str, old: str, new: str) -> None:
    """Replaces a piece of the source of a method "module:Class.method", which occurs in it once."""
    module_name, _, path = where.partition(":")
    owner, method = path.split(".")
    module = import_module(f"mpifl.algorithms.{module_name}")
    source = textwrap.dedent(inspect.getsource(getattr(getattr(module, owner), method)))
    assert source.count(old) == 1, (where, old)
    found: dict[str, Callable] = {}
    exec(source.replace(old, new).removeprefix("@property\n"), vars(module).copy(), found)
    changed = property(found[method]) if source.startswith("@property") else found[method]
    monkeypatch.setattr(getattr(module, owner), method, changed)


MISTAKES = {  # item, the combination, overrides of the study; the method, what is replaced, by what
    "AREA without 1/n": (
        "area-convex", "600", (), "area:Area.aggregate",
        "mean_step(server.x, server.u, server.n)", "server.x + server.u"),
    "AREA, increment with the wrong sign": (
        "area-convex", "600", (), "area:Area.train", "x - client.y", "client.y - x"),
    "AREA, memory one contact late": (
        "area-strongly-convex", "no noise, M = 1", ("set.stop.updates=20000",), "area:Area.train",
        "m, client.y = x - client.y, x", "m, client.y = x - client.y, x_s"),
    "AREA, its count stops": (
        "area-strongly-convex", "no noise, M = 1", ("set.stop.updates=20000",), "area:Area.message",
        "server.k * server.b + 1", "1"),
    "AsyPFL, tau of the server": (
        "asypfl", "E = 1", ("set.stop.updates=5000",), "asypfl:AsyPFL.train",
        "client.steps + taken if self.step_schedule.by_steps else message.version", "message.version"),
    "FedPD, dual with the wrong sign": (
        "fedpd-divergence", "FedPD, eta = 0.1", (), "fedpd:FedPD.train",
        "client.lam + (client.x - x_0) / eta", "client.lam - (client.x - x_0) / eta"),
    "FedPD, mean of x_i": (
        "fedpd-divergence", "FedPD, eta = 0.1", (), "fedpd:FedPD.train", "client.x + eta * client.lam", "client.x"),
    "FedDR without 1/n": (
        "feddr-potential", "alpha 1, eta L 1/3", (), "common.splitting:DouglasRachford.init_server",
        "client_weights(clients, self.weights)", "np.full(clients.n, 1.0)"),
    "FedDR, correction with the wrong sign": (
        "feddr-potential", "alpha 1, eta L 1/3", (), "common.splitting:DouglasRachford.train",
        "self.alpha * (xbar - client.x)", "self.alpha * (client.x - xbar)"),
    "FedDR, no reflection": (
        "feddr-potential", "alpha 1, eta L 1/3", (), "common.splitting:DouglasRachford.train", "2 * x - y", "x"),
    "asyncFedDR, no reflection": (
        "feddr-rate", "asyncFedDR", ("trials=2",), "common.splitting:DouglasRachford.train", "2 * x - y", "x"),
    "FedDANE, correction with the wrong sign": (
        "feddane", "convex, B = 2", (), "feddane:FedDANE.train", "vectors[-1] - last", "-vectors[-1] - last"),
    "Ringmaster, step with the wrong sign": (
        "ringmaster", "0.2", (), "async_sgd:AsyncSgd.aggregate", "server.x - server.step", "server.x + server.step"),
    "Ringmaster, fresh gradients discarded": (
        "ringmaster", "0.2", (), "async_sgd:AsyncSgd.receive",
        "staleness < (self.threshold", "staleness > (self.threshold"),
    "Ringmaster, fresh gradients discarded, its time": (
        "times", "Ringmaster, R = 1", (), "async_sgd:AsyncSgd.receive",
        "staleness < (self.threshold", "staleness > (self.threshold"),
    "Ringleader, step with the wrong sign": (
        "ringleader", "0.4", (), "ringleader:Ringleader.aggregate",
        "server.x - (", "server.x + ("),
    "MIFA, step without its factor": (
        "mifa", "two of four clients a round", ("set.stop.updates=6000",), "mifa:Mifa.aggregate",
        "self.factor(server) / server.n", "1 / server.n"),
    "ACE, step with the wrong sign": (
        "ace", "", (), "ace:Ace.aggregate", "server.x - u", "server.x + u"),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_rule_changes_a_verdict(mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With three seeds: a claim that holds no longer does, or one that they leave open fails."""
    name, only, overrides, where, old, new = MISTAKES[mistake]
    trials = "trials.seeds=3" if item(name).study.options.trials.vary else "trials=3"
    right = verdicts(name, tmp_path / "right", trials, *overrides, only=only)
    mutate(monkeypatch, where, old, new)
    wrong = verdicts(name, tmp_path / "wrong", trials, *overrides, only=only)
    assert "does not hold" not in right
    assert wrong == ["failed"] or any(
        now == "does not hold" or (before == "holds" != now) for before, now in zip(right, wrong, strict=True)
    ), (right, wrong)


@pytest.mark.long
def test_the_slope_over_an_axis_is_exact_for_linear_rules(tmp_path: Path) -> None:
    """On quadratics FedPD is linear in the optima: its squared error has the exponent 2 in G. The page draws it."""
    overrides = "trials=2", "set.stop.updates=60", f"output={tmp_path}/runs"
    assert verdicts("fedpd-errors", tmp_path / "runs", *overrides, only="0.01")[0] == "holds"
    assert main(["reproduce", "theory/fedpd-errors", *overrides, "--no-runs", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "theory-fedpd-errors.md").read_text()
    assert "| slope in G of p 0.01 is within 0.1 of 2 (Theorem 3)" in page and "; dashed: slope 2.*" in page
    assert (tmp_path / "theory-fedpd-errors-3.png").stat().st_size > 1000
