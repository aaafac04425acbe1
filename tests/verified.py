"""`mpifl verify` over the run files that tests leave."""

from __future__ import annotations

from pathlib import Path

from mpifl.errors import ConfigError

FOLDERS = ("algorithms", "api", "faults", "mpi", "scheduling", "server", "slurm")  # whose tests make runs


def verify_files(folder: Path) -> int:
    """Verifies every run file below a folder; their number. Raises Contradiction."""
    from mpifl.tools.verify.run_file import check_file

    found = 0
    for path in sorted(folder.rglob("*.h5")):
        try:
            check_file(path)
            found += 1
        except ConfigError:  # no run file
            continue
    return found
