"""Fixtures of the tests of problems."""

from __future__ import annotations

import gzip
import json
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifl.errors import ConfigError


@contextmanager
def refusal(pattern: str) -> Iterator[pytest.ExceptionInfo[ConfigError]]:
    """The block raises a ConfigError of one line, in which the pattern is found."""
    with pytest.raises(ConfigError, match=pattern) as raised:
        yield raised
    assert "\n" not in str(raised.value)


@pytest.fixture
def data_root() -> Path:
    """The folder of real data; skips the test without it."""
    root = os.environ.get("MPIFL_DATA", "")
    if not root or not Path(root).is_dir():
        pytest.skip("MPIFL_DATA names no folder of data")
    return Path(root)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cache of tokens."""
    monkeypatch.setenv("MPIFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# ALL_LETTERS of LEAF's language_utils.py
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
Users = dict[str, dict[str, list[Any]]]


def write_leaf(folder: Path, users: Users, name: str = "a.json") -> Path:
    """Writes users as LEAF's scripts do."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"users": list(users), "num_samples": [len(u["y"]) for u in users.values()], "user_data": users}
    (folder / name).write_text(json.dumps(content))
    return folder / name


def idx_bytes(array: np.ndarray, kind: int = 8) -> bytes:
    """An IDX file's bytes, by the format's own description."""
    return struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


@pytest.fixture
def image_root(tmp_path: Path) -> Callable[..., Path]:
    """Writes a small image data set in its files' layout; returns the data root."""

    def write(name: str = "mnist", train: int = 50, test: int = 20, zipped: bool = True, first: int = 0) -> Path:
        generator = np.random.default_rng(1)
        folder = tmp_path / name
        folder.mkdir()
        halves = ("emnist-letters-train", "emnist-letters-test") if name == "emnist-letters" else ("train", "t10k")
        for half, count in zip(halves, (train, test), strict=True):
            images = generator.integers(0, 256, (count, 28, 28))
            labels = np.arange(count) % 10 + first
            for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
                raw = idx_bytes(array)
                path = folder / f"{half}-{kind}-ubyte{'.gz' if zipped else ''}"
                path.write_bytes(gzip.compress(raw, 1) if zipped else raw)
        return tmp_path

    return write
