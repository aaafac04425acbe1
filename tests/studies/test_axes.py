"""The combinations of the axes of a study."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpifl.errors import ConfigError
from mpifl.tools.studies.axes import axis_points, combinations


def test_the_first_axis_varies_slowest() -> None:
    found = [[*point.labels.items()] for point in combinations({"a": [1, 2], "b": ["x", "y"]})]
    assert found == [[("a", a), ("b", b)] for a in (1, 2) for b in ("x", "y")]
    assert [point.labels for point in combinations({})] == [{}]


def test_a_named_axis_sweeps_the_lists_inside_it() -> None:
    axis = {
        "AREA": {"algorithm": {"name": "area"}, "algorithm.step_size": [10, 100]},
        "FedAvg": {"algorithm": "fedavg"},
    }
    points = axis_points("method", axis)
    assert [point.labels for point in points] == [
        {"method": "AREA", "algorithm.step_size": 10}, {"method": "AREA", "algorithm.step_size": 100},
        {"method": "FedAvg"},
    ]  # fmt: skip
    assert points[1].settings == {"algorithm": {"name": "area"}, "algorithm.step_size": 100}
    assert list(points[1].settings) == ["algorithm", "algorithm.step_size"]  # the section first, then its key
    assert axis_points("method", {"default": None}) == axis_points("method", {"default": {}})


def test_zipped_keys_vary_together() -> None:
    points = axis_points("setting", {"zip": {"a.b": [1, 2, 3], "c": ["x", "y", "z"]}})
    assert [point.settings for point in points] == [{"a.b": 1, "c": "x"}, {"a.b": 2, "c": "y"}, {"a.b": 3, "c": "z"}]
    assert [point.labels for point in points] == [point.settings for point in points]


def test_sections_are_labelled_by_their_names_where_these_differ() -> None:
    named = axis_points("partition", [{"name": "iid"}, {"name": "dirichlet", "alpha": 1}])
    assert [point.labels["partition"] for point in named] == ["iid", "dirichlet"]
    alike = axis_points("partition", [{"name": "dirichlet", "alpha": 1}, {"name": "dirichlet", "alpha": 2}])
    assert [point.labels["partition"] for point in alike] == [
        '{"name": "dirichlet", "alpha": 1}', '{"name": "dirichlet", "alpha": 2}',
    ]  # fmt: skip


def values(spec: dict[str, Any], seed: int = 0) -> list[float]:
    return [point.settings["k"] for point in axis_points("k", spec, seed)]


def test_ranges_and_random_ones_which_are_of_their_law_and_repeat() -> None:
    assert values({"from": 0.001, "to": 10, "log": 5}) == [0.001, 0.01, 0.1, 1.0, 10.0]
    assert values({"from": 0, "to": 1, "linear": 5}) == [0.0, 0.25, 0.5, 0.75, 1.0]
    drawn = np.array(values({"from": 1e-4, "to": 1e2, "loguniform": 4000}))
    assert drawn.min() >= 1e-4 and drawn.max() <= 1e2
    # log10 is uniform on [-4, 2]: mean -1, standard deviation 6 / sqrt(12); four standard errors
    assert abs(np.log10(drawn).mean() + 1) < 4 * 6 / np.sqrt(12 * 4000)
    assert abs(np.mean(values({"from": 2, "to": 4, "uniform": 4000})) - 3) < 4 * 2 / np.sqrt(12 * 4000)
    assert values({"from": 1, "to": 2, "uniform": 3}, 1) == values({"from": 1, "to": 2, "uniform": 3}, 1)
    assert values({"from": 1, "to": 2, "uniform": 3}, 1) != values({"from": 1, "to": 2, "uniform": 3}, 2)


@pytest.mark.parametrize(
    ("axis", "says"),
    [
        ([], "axes.k=[]: empty; expected at least one value"),
        ({}, "axes.k={}: empty; expected at least one value"),
        (3, "axes.k=3: not a valid axis; expected a list of values, a range, or labels with the keys that each of"),
        ({"A": 3}, "axes.k.A=3: not a section; expected the keys that this label sets, as in {algorithm.step_size: 0"),
        ({"A": {"x": []}}, "axes.k.A.x=[]: empty; expected at least one value"),
        ({"from": 1, "to": 2}, "a range such as "),
        ({"from": 1, "to": 2, "log": 3, "linear": 3}, "a range such as "),
        ({"from": 2, "to": 1, "log": 3}, "not a valid range; expected a range such as {from: 0.001, to: 10, log: 9}"),
        ({"from": 0, "to": 1, "log": 3}, "axes.k.from=0: the range is log; expected a number above 0"),
        ({"from": 0, "to": 1, "linear": 0}, "a range such as "),
        ({"from": 1, "to": 2, "log": True}, "a range such as "),
        ({"from": "a", "to": 1, "linear": 2}, "a range such as "),
        ({"zip": {"a": [1], "b": [1, 2]}}, "axes.k.zip=a has 1, b has 2: different numbers of values; expected the"),
        ({"zip": {}}, "{zip: {key: [...], key: [...]}}"),
        ({"zip": {"a": [1]}, "b": [2]}, "{zip: {key: [...], key: [...]}}"),
    ],
)
def test_a_wrong_axis(axis: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        combinations({"k": axis})
    assert says in str(caught.value)
