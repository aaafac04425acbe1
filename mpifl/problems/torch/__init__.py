"""Problems whose models are torch modules. Only jobs that have one import these: torch takes seconds and memory."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys

log = logging.getLogger(__name__)
# These give the same bits wherever in memory a flat vector happens to lie, on a CPU and on a GPU.
ENVIRONMENT = {"MKL_CBWR": "AUTO,STRICT", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
ALL, STRICT = -1, 0x10000  # MKL's MKL_CBWR_ALL and MKL_CBWR_STRICT


def set_environment() -> None:
    """Sets what MKL and cuBLAS read before they compute, unless the user has; `execution` removes it after a run.

    Logs a warning, once, where MKL has computed before.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if "torch" in sys.modules and os.environ["MKL_CBWR"] == ENVIRONMENT["MKL_CBWR"]:
        _check_mkl()


@functools.cache
def _check_mkl() -> None:
    """Logs a warning where MKL has read its variable before that was set; a torch without MKL has no such function."""
    import torch

    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    settings = getattr(ctypes.CDLL(library), "mkl_serv_cbwr_get", None) if os.path.exists(library) else None
    if settings and not settings(ALL) & STRICT:
        log.warning(
            "torch has computed in this process before the run, so the last bits may differ from those of other "
            "processes; to avoid that, start Python with the environment variable MKL_CBWR=%s",
            ENVIRONMENT["MKL_CBWR"],
        )
