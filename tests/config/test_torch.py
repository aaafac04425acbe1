"""The section `problem.torch` and `problem.entry`: mistakes that are found before anything is read."""

from __future__ import annotations

from typing import Any

import pytest

from mpifl.config.read import job_from_dict, job_to_dict, replayed
from mpifl.errors import ConfigError


def values(clock: str = "virtual", **problem: Any) -> dict[str, Any]:
    given = {"model": "torch-logistic", "clients": 4, **problem}
    delay = {"name": "exponential", "rate": 1}
    return {
        "name": "a", "seed": 0, "problem": given, "algorithm": {"name": "fedavg"}, "stop": {"updates": 4},
        "output": "a.h5", "clock": {"mode": clock, "delay": delay},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"clock": "virtual"}, (False, True, 1)),
        ({"clock": "real"}, (True, False, None)),
        ({"clock": "virtual", "torch": {"batched": True, "threads": 3}}, (True, True, 3)),
        ({"clock": "real", "torch": {"batched": False, "deterministic": True}}, (False, True, None)),
    ],
)
def test_null_is_what_the_clock_needs(given: dict[str, Any], expected: tuple[Any, ...]) -> None:
    section = job_from_dict(values(**given)).problem.torch
    assert section and (section.batched, section.deterministic, section.threads) == expected


def test_a_replay_computes_one_by_one_with_the_threads_of_the_run(tmp_path: Any) -> None:
    recorded = job_to_dict(job_from_dict(values(clock="real")))
    again = replayed(recorded, tmp_path / "b.h5", [], threads=5).problem.torch
    assert again and (again.batched, again.deterministic, again.threads) == (False, True, 5)
    recorded["problem"]["torch"]["threads"] = 2
    again = replayed(recorded, tmp_path / "b.h5", [], threads=5).problem.torch
    assert again and again.threads == 2
    numpy = job_to_dict(job_from_dict(values(model="logistic")))
    assert replayed(numpy, tmp_path / "b.h5", []).problem.torch is None


@pytest.mark.parametrize(
    ("problem", "key"),
    [
        ({"torch": {"device": "cuda:x"}}, "problem.torch.device"),
        ({"torch": {"autocast": "float16"}}, "problem.torch.autocast"),
        ({"torch": {"buffers": "global"}}, "problem.torch.buffers"),
        ({"torch": {"threads": 0}}, "problem.torch.threads"),
        ({"torch": {"batched": "yes"}}, "problem.torch.batched"),
        ({"torch": {"devise": "cpu"}}, "problem.torch.devise"),
        ({"model": "logistic", "torch": {}}, "problem.torch"),
        ({"options": {"a": 1}}, "problem.options"),
        ({"evaluation_rows": 0}, "problem.evaluation_rows"),
        ({"model": "logistic", "entry": "no colon"}, "problem.entry"),
        ({"model": "logistic", "entry": "a:b", "data": "digits"}, "problem.data"),
        ({"model": "logistic", "entry": "a:b", "partition": "iid"}, "problem.partition"),
        ({"model": "cnn", "entry": "a:b"}, "problem.model"),
        ({"model": "logistic", "entry": "a:b", "options": [1]}, "problem.options"),
    ],
)
def test_what_is_wrong_is_named(problem: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        job_from_dict(values(**problem))
    assert caught.value.key == key
