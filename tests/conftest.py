"""Tests compute as ranks do: on one thread, since the last bits of a sum depend on their number."""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # before NumPy is imported
    os.environ.setdefault(name, "1")
