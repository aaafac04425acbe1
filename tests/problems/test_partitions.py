"""Every partition gives each row to exactly one client, by its own rule, and depends on its own seed only."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpifl.errors import ConfigError
from mpifl.problems.dirichlet import Dirichlet, candidates
from mpifl.problems.partitions import ClassesPerClient, Iid, NearIid
from mpifl.rng import stream
from tests.problems.conftest import refusal


def labels(draw_seed: int, rows: int, classes: int) -> np.ndarray:
    return np.random.default_rng(draw_seed).integers(0, classes, rows)


def table(owner: np.ndarray, y: np.ndarray, clients: int, classes: int) -> np.ndarray:
    """(clients, classes) rows of each class that each client holds; fails unless every row has one owner."""
    assert owner.shape == y.shape and owner.min() >= 0 and owner.max() < clients
    return np.array([np.bincount(y[owner == i], minlength=classes) for i in range(clients)])


@given(st.integers(0, 99), st.integers(1, 400), st.integers(1, 12), st.integers(1, 30))
def test_parts_that_are_iid_or_nearly(seed: int, rows: int, classes: int, clients: int) -> None:
    """Equal sizes; or equally many rows of each class, and what is left over to the last client."""
    y = labels(seed, rows, classes)
    sizes = table(Iid(seed=seed).owners(y, classes, clients, 1), y, clients, classes).sum(1)
    assert sizes.sum() == rows and sizes.max() - sizes.min() <= 1
    held, counts = NearIid(seed=seed).owners(y, classes, clients, 1), np.bincount(y, minlength=classes)
    each = table(held, y, clients, classes)
    assert (each[:-1] == counts // clients).all() and (each.sum(0) == counts).all()


@given(st.integers(0, 99), st.integers(1, 6), st.integers(1, 10), st.integers(1, 8))
def test_classes_per_client(seed: int, m: int, classes: int, multiple: int) -> None:
    m = min(m, classes)
    clients = multiple * classes
    per_class = clients * m // classes * 3
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), per_class))
    held = table(ClassesPerClient(m=m, seed=seed).owners(y, classes, clients, 1), y, clients, classes)
    assert ((held > 0).sum(1) == m).all()  # m different classes
    assert (held.sum(1) == 3 * m).all()  # equal sized
    assert (held.sum(0) == per_class).all()


@pytest.mark.parametrize(("m", "clients"), [(11, 10), (3, 7)])
def test_classes_per_client_that_does_not_divide(m: int, clients: int) -> None:
    y = np.arange(100) % 10
    with refusal(f"problem.partition.m={m}: "):
        ClassesPerClient(m=m).owners(y, 10, clients, 1)


@settings(deadline=None)
@given(
    st.integers(0, 99),
    st.floats(0.1, 100),
    st.integers(1, 20),
    st.integers(1, 10),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_dirichlet_is_complete_and_keeps_the_least(
    seed: int, alpha: float, clients: int, classes: int, least: int, skew: int
) -> None:
    y = np.minimum(labels(seed, 3000, classes), classes - 1 - min(skew, classes - 1))
    try:
        owner = Dirichlet(alpha=alpha, seed=seed).owners(y, classes, clients, least)
    except ConfigError as error:
        pytest.fail(str(error))
    assert table(owner, y, clients, classes).sum(1).min() >= least


def test_dirichlet_keeps_its_own_least_over_the_batch() -> None:
    y = labels(0, 2000, 10)
    assert np.bincount(Dirichlet(alpha=1, min_samples=60).owners(y, 10, 20, 5)).min() >= 60
    y = np.repeat(np.arange(10), 6000)
    sizes = np.bincount(Dirichlet().owners(y, 10, 128, 32), minlength=128)
    assert sizes.min() >= 32 and sizes.sum() == 60000


@pytest.mark.parametrize("clients", [5, 40])
def test_dirichlet_shares_have_the_moments_of_the_distribution(clients: int) -> None:
    """Mean 1/n, variance (1/n)(1 - 1/n)/(n alpha + 1), covariance -1/(n^2 (n alpha + 1)) (textbook)."""
    alpha, size = 0.3, 10**9
    generator = stream(5, "test")
    blocks = [candidates(generator, alpha, np.full(8, size), clients, 0) for _ in range(40)]
    shares = np.concatenate(blocks).reshape(-1, clients) / size
    n, draws = clients, len(shares)
    assert draws == 40 * 256 * 8
    assert shares.sum(1) == pytest.approx(1)
    covariance = np.cov(shares.T)
    variance = (1 / n) * (1 - 1 / n) / (n * alpha + 1)
    assert shares.mean(0) == pytest.approx(1 / n, abs=5 * (variance / draws) ** 0.5)
    assert np.diag(covariance) == pytest.approx(variance, rel=0.06)
    off = covariance[~np.eye(n, dtype=bool)]
    assert off.mean() == pytest.approx(-1 / (n**2 * (n * alpha + 1)), rel=0.02)
    far = covariance[: n // 3, -(n // 3) :]  # clients of different groups
    assert far.mean() == pytest.approx(-1 / (n**2 * (n * alpha + 1)), rel=0.1)


def test_dirichlet_floors_and_gives_the_remainder_to_the_last() -> None:
    sizes = np.array([7, 0, 100])
    found = candidates(stream(1, "test"), 1.0, sizes, 6, 0)
    assert (found.sum(2) == sizes).all() and (found >= 0).all()
    assert found[:, 0, -1].mean() > found[:, 0, :-1].mean()  # five floors of 7 lose about 2.5 rows together


def test_dirichlet_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpifl.problems.dirichlet.BUDGET", 1e4)
    y = labels(0, 1000, 10)
    with refusal(r"problem.partition.min_samples=49: none of 256 splits gave each client as many"):
        Dirichlet(alpha=0.1, min_samples=49).owners(y, 10, 20, 1)
    with refusal(r"there are 1000 rows for 20 clients; expected at most 50"):
        Dirichlet(min_samples=51).owners(y, 10, 20, 1)


@pytest.mark.parametrize("kind", [Iid, NearIid, ClassesPerClient, Dirichlet])
def test_equal_seeds_give_equal_partitions_and_others_do_not(kind: type) -> None:
    y = labels(0, 1000, 10)
    first, again, other = (kind(seed=s).owners(y, 10, 10, 1) for s in (3, 3, 4))
    assert (first == again).all() and (first != other).any()
