"""Modules of a user's own in the working directory come before the standard library's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mpifl.config.trust import module_location
from mpifl.user_code import import_object, import_own


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Names of the standard library, each a file of the working directory too; what they stand for is put back."""
    monkeypatch.chdir(tmp_path)
    names = ["test", "code", "statistics"]
    import statistics  # noqa: F401 - one of them has been imported before

    for name in names:
        if name in sys.modules:
            monkeypatch.setitem(sys.modules, name, sys.modules[name])
        else:
            monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type] - so that it is removed afterwards
            del sys.modules[name]
        (tmp_path / f"{name}.py").write_text(f"def make(): return '{name}'\n")
    return names


def test_a_module_in_the_working_directory_comes_before_the_standard_library(names: list[str]) -> None:
    for name in names:
        assert module_location(name) == f"{Path.cwd() / name}.py"
        assert import_object("problem.entry", f"{name}:make", "function")() == name
        assert import_own(name) is sys.modules[name], "it is imported once"
        assert module_location(name) == f"{Path.cwd() / name}.py"


def test_a_module_that_fails_leaves_the_standard_library_as_it_was(names: list[str]) -> None:
    before = sys.modules["statistics"]
    Path("statistics.py").write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        import_own("statistics")
    assert sys.modules["statistics"] is before


def test_a_folder_of_data_is_no_module_and_what_others_imported_stays(names: list[str], tmp_path: Path) -> None:
    import json

    import numpy

    (tmp_path / "json").mkdir()  # no __init__.py
    (tmp_path / "numpy.py").write_text("")
    assert import_own("json") is json and import_own("numpy.linalg") is numpy.linalg
