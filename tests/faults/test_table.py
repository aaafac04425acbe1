"""The page of what was counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults import table
from tests.faults.harness import tally


def test_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPIFL_FAULTS_OUT", str(tmp_path))
    with tally(1, "kills") as counted:
        for _ in range(2):
            with counted.run("area") as told:
                told[0] = "fine"
        with pytest.raises(ValueError), counted.run("feddr"):
            raise ValueError
    (tmp_path / "cost.json").write_text(json.dumps([{"item": 9, "what": "checkpoint", "median ratio": 1.01}]))
    page = table.page(tmp_path)
    assert "2 of 3 runs passed." in page
    rows = [line.split(" | ")[:3] for line in page.splitlines() if line.startswith(("| area", "| feddr"))]
    assert rows == [["| area", "2", "2 fine"], ["| feddr", "1", "1 failed"]]
    assert "| checkpoint | 1.01 |" in page
    assert page.rstrip().endswith("two-node SLURM, soak.") and "Not run here: whole jobs killed" in page
