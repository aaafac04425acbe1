"""Robust aggregation in job files: how a rule is written, where it is refused, and that it is listed."""

from __future__ import annotations

from typing import Any

import pytest

from mpifl.algorithms.common.robust import Clip, Krum, Mean, Median
from mpifl.config import listing, read
from mpifl.errors import ConfigError


def job_of(**section: Any) -> Any:
    problem = {"clients": 6, "model": {"name": "quadratic", "dim": 2}}
    return read.job_from_dict(
        {"name": "r", "seed": 0, "output": "r.h5", "problem": problem, "algorithm": section, "stop": {"updates": 1}}
    )


def algorithm_of(**section: Any) -> Any:
    return job_of(**section).algorithm


def test_sections() -> None:
    """By name alone, or with options; what is dumped reads again."""
    assert algorithm_of(name="fedavg").aggregation == Mean()
    assert algorithm_of(name="fedprox", aggregation="median").aggregation == Median()
    assert algorithm_of(name="fedbuff", aggregation={"name": "clip", "norm": 2}).aggregation == Clip(norm=2.0)
    rule = {"name": "krum", "bad": 2, "keep": 4}
    assert algorithm_of(name="apfl", aggregation=rule).aggregation == Krum(bad=2, keep=4)
    job = job_of(name="fedavg", aggregation=rule)
    assert read.job_from_dict(read.job_to_dict(job)) == job


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"aggregation": "clip"}, "algorithm.aggregation.norm"),
        ({"aggregation": {"name": "krum", "bad": 4}}, "algorithm.aggregation.bad"),
        ({"aggregation": {"name": "krum", "bad": 2}, "cohort": 4}, "algorithm.aggregation.bad"),
        ({"aggregation": {"name": "krum", "bad": 3, "keep": 4}}, "algorithm.aggregation.keep"),
        ({"aggregation": "krun"}, "algorithm.aggregation.name"),
        ({"name": "fedbuff", "trigger": {"every": 3}, "aggregation": "krum"}, "algorithm.aggregation.bad"),
        ({"name": "fedbuff", "trigger": {"period": 3.0}, "aggregation": "krum"}, "algorithm.aggregation.bad"),
        ({"aggregation": "krum", "sampling": "samples"}, "algorithm.sampling"),
        ({"aggregation": "krum", "sampling": "samples", "cohort": 6}, "algorithm.sampling"),
        ({"name": "fedprox", "aggregation": "krum", "sampling": "samples", "cohort": 2}, "algorithm.sampling"),
        ({"name": "apfl", "aggregation": "krum", "sampling": "samples", "cohort": 5}, "algorithm.sampling"),
    ],
    ids=str,
)
def test_what_is_refused(section: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        algorithm_of(**{"name": "fedavg", **section})
    assert caught.value.key == key, caught.value


def test_who_is_drawn_twice_is_one_member() -> None:
    """With replacement a round has fewer vectors than draws, and nobody knows how many: krum alone must."""
    with pytest.raises(ConfigError, match=r"^algorithm\.sampling=samples: uniform with krum: .* m is not known$"):
        algorithm_of(name="fedavg", sampling="samples", cohort=5, aggregation="krum")
    for rule in ("mean", "median", "trimmed-mean", {"name": "clip", "norm": 1}):
        algorithm_of(name="fedavg", sampling="samples", cohort=5, aggregation=rule)
    for cohort in (None, 5):
        algorithm_of(name="fedavg", cohort=cohort, aggregation={"name": "krum", "bad": 2})


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedbuff", "apfl"])
def test_listed(name: str) -> None:
    text = listing.algorithms(name)
    for line in ("aggregation ", "aggregation.trim ", "aggregation.norm ", "aggregation.bad ", "aggregation.keep "):
        assert line in text
    assert "krum" in text and "2 f + 3" in text
