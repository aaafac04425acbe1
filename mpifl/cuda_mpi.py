"""Whether the MPI library in use sends and receives the memory of NVIDIA GPUs."""

from __future__ import annotations

import ctypes
import os
import sys

SWITCHES = {"CRAY MPICH": "MPICH_GPU_SUPPORT_ENABLED", "MVAPICH": "MV2_USE_CUDA"}  # MPIs with CUDA code that is off


def cuda_aware() -> bool:
    """Whether the MPI that this process uses sends and receives the memory of NVIDIA GPUs; no where it does not say so.

    MPIFL_CUDA_AWARE=0 or 1 overrules what is found.
    """
    if (forced := os.environ.get("MPIFL_CUDA_AWARE")) in ("0", "1"):
        return forced == "1"
    if "mpi4py.MPI" not in sys.modules:
        return False
    version = sys.modules["mpi4py.MPI"].Get_library_version()
    for name, switch in SWITCHES.items():
        if name in version.upper():
            return os.environ.get(switch) == "1"
    return any(_reports_cuda(path) for path in _loaded("libmpi"))


def _loaded(name: str) -> set[str]:
    """The files of shared libraries of such a name that are in this process' memory (Linux)."""
    try:
        with open("/proc/self/maps") as file:
            lines = file.read().splitlines()
    except OSError:
        return set()
    paths = {line.split(maxsplit=5)[-1] for line in lines}
    return {path for path in paths if os.path.basename(path).startswith(name)}


def _reports_cuda(path: str) -> bool:
    """What a library answers to the queries of Open MPI and of MPICH."""
    try:
        library = ctypes.CDLL(path, os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return False
    if hasattr(library, "MPIX_Query_cuda_support"):
        return bool(library.MPIX_Query_cuda_support())
    answer = ctypes.c_int(0)
    if hasattr(library, "MPIX_GPU_query_support"):
        library.MPIX_GPU_query_support(0, ctypes.byref(answer))  # 0: CUDA
    return bool(answer.value)
