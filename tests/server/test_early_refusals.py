"""What is refused without a look at the data is refused before they are loaded, which may take long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mpifl import load_job
from mpifl.errors import ConfigError
from mpifl.server.start import run_server

JOB = {
    "name": "a", "seed": 1, "problem": {"clients": 4}, "algorithm": {"name": "fedavg"}, "stop": {"updates": 4},
    "clock": {"mode": "virtual", "delay": {"name": "exponential", "rate": 10}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({}, "output"),
        ({"clock": {"mode": "virtual", "delay": {"name": "trace", "path": "none.csv"}}}, "clock.delay.path"),
        ({"clock": {"mode": "virtual", "delay": {"name": "fixed", "seconds": [1, 2]}}}, "clock.delay.seconds"),
        (
            {"clock": {**JOB["clock"], "availability": {"name": "trace", "path": "none.csv", "after": "off"}}},  # type: ignore[dict-item]
            "clock.availability.path",
        ),
        ({"evaluate": {"updates": 4, "metrics": ["nowhere:metric"]}}, "evaluate.metrics"),
    ],
)
def test_no_data_are_loaded(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    path = tmp_path / "a.h5"
    if key == "output":
        path.write_text("precious")
    loaded: list[object] = []
    with pytest.raises(ConfigError) as refused:
        run_server(load_job({**JOB, "output": str(path), **changes}), load=loaded.append)  # type: ignore[arg-type]
    assert refused.value.key == key and not loaded
