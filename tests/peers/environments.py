"""Other frameworks, each in a folder of its own under build/peers: `make peers` installs them.

They are installed without their dependencies but for those listed here: torch and NumPy are the tests' own, and what
the classes under comparison do not use is left out (`drivers/exchange.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
DRIVERS = Path(__file__).with_name("drivers")
PACKAGES = {
    "flower": [
        "flwr==1.42.0", "iterators==0.0.2", "typer==0.29.2", "httpx==0.28.1", "annotated-doc==0.0.7",
        "shellingham==1.5.4", "cryptography==50.0.2", "cffi==2.1.1", "pycryptodome==4.4.0",
    ],
    "fedlab": ["fedlab==1.3.0"],
    "appfl": ["appfl==1.12.0", "omegaconf==2.4.0"],
}  # fmt: skip


def folder(peer: str) -> Path:
    """Where a peer is installed."""
    return ROOT / "build" / "peers" / peer


def missing(peer: str) -> str:
    """Why a peer cannot be compared with; empty if it can."""
    pins = folder(peer) / "pins.txt"
    if pins.exists() and pins.read_text() == "\n".join(PACKAGES[peer]):
        return ""
    return f"{PACKAGES[peer][0]} is not installed: make peers"


def install(peer: str) -> None:
    """Installs a peer, unless it is there with these versions. Raises CalledProcessError."""
    if not missing(peer):
        return
    where = folder(peer)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--upgrade"]
    subprocess.run([*pip, "--target", str(where), *PACKAGES[peer]], check=True)
    (where / "pins.txt").write_text("\n".join(PACKAGES[peer]))


def drive(peer: str, here: Path, case: str, options: dict[str, Any], **arrays: Any) -> dict[str, np.ndarray]:
    """The arrays that a peer's own class computes from these: `drivers/PEER_driver.py` in a process of its own."""
    np.savez(here / "in.npz", **arrays)
    (here / "in.json").write_text(json.dumps({"case": case, **options}))
    environment = {**os.environ, "PYTHONPATH": str(folder(peer)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(DRIVERS / f"{peer}_driver.py"), str(here)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(here / "out.npz", allow_pickle=False) as out:
        return {name: out[name] for name in out.files}


if __name__ == "__main__":
    for name in PACKAGES:
        install(name)
