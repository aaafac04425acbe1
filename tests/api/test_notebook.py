"""The example notebooks: executed as they are stored, and small."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NOTEBOOKS = {"first-run.ipynb": 3, "paper-figure.ipynb": 1}  # and their figures


def outputs(notebook: Any, kind: str) -> list[str]:
    """What the cells' outputs hold of a MIME type."""
    found = [o["data"] for cell in notebook.cells for o in cell.get("outputs", []) if "data" in o]
    return [data[kind] for data in found if kind in data]


@pytest.mark.parametrize(("name", "count"), NOTEBOOKS.items())
def test_it_is_stored_executed(name: str, count: int) -> None:
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    figures = [base64.b64decode(data) for data in outputs(notebook, "image/png")]
    assert len(figures) == count and all(5_000 < len(figure) < 100_000 for figure in figures)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("name", "count"), NOTEBOOKS.items())
def test_it_gives_the_stored_numbers(name: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for folder in ("jobs", "examples", "results"):
        (tmp_path / folder).mkdir()
    shutil.copy(ROOT / "jobs" / "quickstart.yaml", tmp_path / "jobs")
    shutil.copy(EXAMPLES / "methods.yaml", tmp_path / "examples")
    stored = nbformat.read(EXAMPLES / name, as_version=4)
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    where = {"metadata": {"path": str(tmp_path / "examples")}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()
    assert outputs(notebook, "text/plain") == outputs(stored, "text/plain")
    assert len(outputs(notebook, "image/png")) == count
