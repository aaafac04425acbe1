"""Problems whose models are torch modules. Only jobs that have one import these: torch takes seconds and memory."""

from __future__ import annotations

import os

# These give the same bits wherever in memory a flat vector happens to lie, on a CPU and on a GPU.
ENVIRONMENT = {"MKL_CBWR": "AUTO,STRICT", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def set_environment() -> None:
    """Sets what MKL and cuBLAS read before they compute, unless the user has; `execution` removes it after a run."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
