"""The entry point of `mpifl` and `python -m mpifl`."""

from __future__ import annotations

import sys

from mpifl.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
