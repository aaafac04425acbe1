"""The contract of imports in pyproject.toml, which `make check` holds the package to, notices what is wrong."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
WRONG = [  # a file of mpifl, what it must not import, and the contract that says so
    ("runfile/tables.py", "mpifl.server.loop", "Arrows point one way"),
    ("transport/frames.py", "mpifl.client.worker", "Arrows point one way"),
    ("server/session.py", "mpifl.tools.export", "Arrows point one way"),
    ("problems/problem.py", "mpifl.algorithms.base", "Arrows point one way"),
    ("transport/backoff.py", "mpifl.transport.mpi_server", "No cycle of imports"),
    ("scheduling/delays.py", "mpifl.problems.problem", "Problems are beside everything else"),
    ("algorithms/area.py", "mpifl.runfile.tables", "Algorithms know vectors and numbers"),
    ("algorithms/fedavg.py", "mpifl.algorithms.fedbuff", "A method imports no other method"),
    ("client/worker.py", "mpi4py", "Only the transport imports mpi4py"),
    ("server/loop.py", "h5py", "Only run files and checkpoints import h5py"),
    ("problems/models/mlp.py", "torch", "Torch stays in its package"),
    ("server/progress.py", "matplotlib", "Only the analysis imports matplotlib"),
    ("tools/analysis/labels.py", "mpifl.tools.studies.study", "A tool imports only tools below it"),
]


def test_imports_in_the_wrong_direction(tmp_path: Path) -> None:
    """Also where a function imports it when it is called; and a package that the contract gives no place."""
    copy = shutil.copytree(ROOT / "mpifl", tmp_path / "mpifl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for file, module, _ in WRONG:
        with (copy / file).open("a") as source:
            source.write(f"\n\ndef _later() -> None:\n    import {module}\n")
    (copy / "helpers").mkdir()
    (copy / "helpers" / "__init__.py").touch()
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "200"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1, done.stdout + done.stderr
    for file, module, contract in WRONG:
        assert re.search(rf"^{contract}.* BROKEN", done.stdout, flags=re.MULTILINE), contract
        importer = f"mpifl.{file.removesuffix('.py').replace('/', '.')}"
        assert f"{importer} -> {module}" in done.stdout or contract.startswith("No cycle"), done.stdout
    assert "mpifl.helpers" in done.stdout
