"""Marks all tests of this folder `gpu`, and skips them where torch finds no GPU."""

from __future__ import annotations

import pytest
import torch

from tests.mpi.conftest import run, start  # noqa: F401  fixtures


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="torch finds no GPU on this host"))
