"""Shakespeare by role: windows of text, good and damaged files; the real file where it is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpifl.errors import ConfigError
from mpifl.problems import DATA
from mpifl.problems.base import Rows

LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"  # of LEAF's language_utils
Roles = list[tuple[str, str, str]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MPIFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(file: Path, roles: Roles) -> Path:
    lines = (json.dumps({"play": play, "role": role, "text": text}) + "\n" for play, role, text in roles)
    file.write_text("".join(lines))
    return file


def read(file: Path, **options: Any) -> Rows:
    return DATA["shakespeare"](path=str(file), **options).read(file.parent, False, None)


def written(rows: Rows, half: str = "x") -> list[str]:
    """What each row's window says."""
    assert rows.tokens is not None
    tokens = np.load(rows.tokens.file, mmap_mode="r")
    assert tokens.dtype == np.uint8 and tokens.ndim == 1
    begins = getattr(rows, half)
    assert begins.dtype == np.int64 and begins.shape[1:] == (1,)
    return ["".join(LETTERS[t] for t in tokens[b : b + rows.tokens.window]) for b in begins[:, 0]]


ROLES = [("hamlet", "FIRST", "To be, or not to be"), ("lear", "FIRST", "Nothing.\nNothing?"), ("lear", "FOOL", "Nuncle")]


def test_rows_by_hand(tmp_path: Path) -> None:
    """Texts of 19, 17 and 6 characters; a fifth, 3, 3 and 1, is for testing, so that none has 4 + 1 of it; and the last
    one's 5 for training have one window."""
    rows = read(write(tmp_path / "roles.jsonl", ROLES), window=4, min_characters=0)
    assert rows.classes == 80 and rows.natural if hasattr(rows, "natural") else rows.classes == 80
    said = written(rows)
    assert said[:3] == ["To b", "o be", " be,"] and said[12:14] == ["Noth", "othi"] and said[-1] == "Nunc"
    assert [LETTERS[y] for y in rows.y[[0, 1, 2, -1]]] == ["e", ",", " ", "l"]
    assert rows.owner is not None and np.bincount(rows.owner).tolist() == [16 - 4, 14 - 4, 5 - 4]
    assert len(rows.y_test) == 0 and rows.x_test.shape == (0, 1)
