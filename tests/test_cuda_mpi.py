"""What the MPI library says of GPU memory: queries of Open MPI and MPICH, switches of others, loaded libraries."""

from __future__ import annotations

import ctypes
import os
import sys
from types import SimpleNamespace

import pytest

from mpifl import cuda_mpi
from mpifl.cuda_mpi import cuda_aware

OPEN_MPI, MPICH = "Open MPI v5.0.8, package", "MPICH Version:      4.3.2"
CRAY, MVAPICH = "MPI VERSION    : CRAY MPICH version 8.1.29.24", "MVAPICH2 Version      :\t2.3.7"


class Library:
    """What ctypes finds in a library: functions that are missing, or give these answers."""

    def __init__(self, **answers: int) -> None:
        if "open" in answers:
            self.MPIX_Query_cuda_support = lambda: answers["open"]
        if "mpich" in answers:
            cuda = answers["mpich"]
            self.MPIX_GPU_query_support = lambda kind, found: setattr(found._obj, "value", cuda if kind == 0 else 0)


@pytest.mark.parametrize(
    ("version", "library", "environment", "expected"),
    [
        (OPEN_MPI, {"open": 1}, {}, True), (OPEN_MPI, {"open": 0}, {}, False), (OPEN_MPI, {}, {}, False),
        (OPEN_MPI, {"open": 0}, {"MPICH_GPU_SUPPORT_ENABLED": "1", "MV2_USE_CUDA": "1"}, False),
        (OPEN_MPI, {"open": 0}, {"MPIFL_CUDA_AWARE": "1"}, True),
        (OPEN_MPI, {"open": 1}, {"MPIFL_CUDA_AWARE": "0"}, False),
        (OPEN_MPI, {"open": 1}, {"MPIFL_CUDA_AWARE": ""}, True),
        (MPICH, {"mpich": 1}, {}, True), (MPICH, {"mpich": 0}, {}, False),
        (CRAY, {"open": 1}, {}, False), (CRAY, {}, {"MPICH_GPU_SUPPORT_ENABLED": "1"}, True),
        (CRAY, {"open": 1}, {"MPICH_GPU_SUPPORT_ENABLED": "0"}, False),
        (MVAPICH, {"open": 1}, {}, False), (MVAPICH, {}, {"MV2_USE_CUDA": "1"}, True),
    ],
)  # fmt: skip
def test_whether_mpi_takes_gpu_memory(
    monkeypatch: pytest.MonkeyPatch, version: str, library: dict[str, int], environment: dict[str, str], expected: bool
) -> None:
    for name in ("MPIFL_CUDA_AWARE", "MPICH_GPU_SUPPORT_ENABLED", "MV2_USE_CUDA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", SimpleNamespace(Get_library_version=lambda: version))  # type: ignore[arg-type]
    monkeypatch.setattr(cuda_mpi, "_loaded", lambda name: {f"/lib/{name}.so"})
    monkeypatch.setattr(ctypes, "CDLL", lambda path, mode: Library(**library))
    assert cuda_aware() is expected


def test_without_mpi_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPIFL_CUDA_AWARE", raising=False)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    monkeypatch.setattr(cuda_mpi, "_loaded", lambda name: pytest.fail("asked"))
    assert cuda_aware() is False


def test_loaded_libraries_are_found_by_name() -> None:
    """Those of this process, by name; one that is not loaded, or is none, says no."""
    assert cuda_mpi._loaded("no such library") == set()
    files = cuda_mpi._loaded("libc.")
    assert files and all(os.path.basename(file).startswith("libc.") for file in files)
    assert not any(map(cuda_mpi._reports_cuda, [*files, "/none/libmpi.so", __file__]))
