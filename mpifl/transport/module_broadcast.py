"""Rank 0 reads the modules that ranks with clients import, and broadcasts their code: the others open no file for them.

With it goes the code of the methods that `dataclasses` makes for classes of IMPORTED. It writes them as text, and to
compile that is half of the time that a rank takes to import its modules.

Still read from files: what is imported before MPI starts or after the clients are built, extension modules, a user's
own modules, and everything where the package is in a zip file or has no source.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import MAGIC_NUMBER, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifl.errors import ConfigError, host_name
from mpifl.transport.launcher import is_fault_tolerant

if TYPE_CHECKING:
    from types import CodeType

    from mpi4py import MPI

FOLDERS = {"mpifl": os.path.dirname(os.path.dirname(__file__)), "": os.path.dirname(os.__file__)}  # of modules below
FILES = {  # patterns of those that are broadcast
    "mpifl": (
        "errors.py", "host_memory.py", "memory.py", "objective.py", "rng.py", "signals.py", "untrusted.py",
        "algorithms/**/*.py", "client/*.py", "config/__init__.py", "config/client_job.py", "config/types.py",
        "problems/*.py", "problems/models/*.py", "transport/*.py",
    ),
    "": (  # the standard library's that NumPy and mpi4py do not import, or numpy.random alone
        "copy.py", "dataclasses.py", "heapq.py", "json/__init__.py", "json/decoder.py", "json/encoder.py",
        "json/scanner.py", "signal.py", "threading.py",
    ),
}  # fmt: skip
EXTENSIONS = {"_heapq", "_json", "select"}
IMPORTED = (  # by rank 0 before the broadcast: what most ranks with clients use
    "mpifl.algorithms.common.step_schedules", "mpifl.algorithms.common.strong_convexity", "mpifl.client.worker",
    "mpifl.config.client_job", "mpifl.problems.rows", "mpifl.transport.queues",
)  # fmt: skip
HEADER_BYTES = 1024  # rank 0's `installation` and the number of bytes that follow

_quarantined: list[np.ndarray] = []  # buffers that MPI may still use, since a rank has died
Module = tuple[str, str, bytes]  # key of FOLDERS, file below the folder, code as marshal writes it


def broadcast_modules(comm: MPI.Comm) -> None:
    """Broadcasts the modules; on ranks other than 0 they are imported from memory until `clear_modules`.

    Where rank 0 has died and MPI goes on, the others read files, and find out in the handshake.
    Raises ConfigError on a rank with another version of the package or of Python than rank 0 has.
    """
    from mpifl.transport.mpi import MPI

    send = _send_to_each if is_fault_tolerant() else _broadcast
    content = (dict(_read_modules()), _compile_methods()) if comm.rank == 0 else ()
    data, own = np.frombuffer(marshal.dumps(content), np.uint8), installation()
    header = np.array(f"{data.size}\n{own}", f"S{HEADER_BYTES}")
    try:
        send(comm, header)
        size, theirs = header.item().decode().split("\n")
        if comm.rank:
            data = np.empty(int(size), np.uint8)
        send(comm, data)
    except MPI.Exception:
        if not is_fault_tolerant():
            raise
        _quarantined.extend([header, data])
        return
    if theirs != own:
        raise ConfigError("installation", own, f"{theirs}, as on rank 0, on {host_name()} too")
    if comm.rank:
        modules, methods = marshal.loads(data.data)
        sys.meta_path.insert(0, ModuleFinder(modules))
        _use_methods(methods)


def _broadcast(comm: MPI.Comm, buffer: np.ndarray) -> None:
    from mpifl.transport.mpi import MPI, wait

    wait(comm.Ibcast((buffer, MPI.BYTE), 0))


def _send_to_each(comm: MPI.Comm, buffer: np.ndarray) -> None:
    """`_broadcast` to the ranks that are alive; where a collective call fails, Open MPI may lose later messages."""
    from mpifl.transport.mpi import MPI, SETUP, wait

    if comm.rank:
        wait(comm.Irecv((buffer, MPI.BYTE), 0, SETUP))
        return
    requests = []
    for rank in range(1, comm.size):
        with contextlib.suppress(MPI.Exception):  # it has died: found out again in the handshake
            requests.append(comm.Isend((buffer, MPI.BYTE), rank, SETUP))
    for request in requests:
        try:
            wait(request)
        except MPI.Exception:
            _quarantined.append(buffer)


def clear_modules() -> None:
    """Frees what was broadcast and not used; from now on imports read files."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, ModuleFinder)]
    if "dataclasses" in sys.modules:
        vars(sys.modules["dataclasses"]).pop("exec", None)


def installation() -> str:
    """What has to be equal on all ranks: the package, which a checkout names by its folder, and Python."""
    try:
        package = Path(FOLDERS["mpifl"], "BUILD").read_text(encoding="ascii").split("\n")[0]
    except (FileNotFoundError, NotADirectoryError):  # in a zip file
        package = f"in {FOLDERS['mpifl']!a}"
    python = f"{sys.implementation.name} {sys.version.split()[0]}, bytecode {MAGIC_NUMBER[:2].hex()}"
    return f"{python}, mpifl {package}"[: HEADER_BYTES - 20]


def _read_modules() -> Iterator[tuple[str, Module]]:
    """Names and code of the modules, from their bytecode files where these are up to date."""
    for package, patterns in FILES.items():
        folder = Path(FOLDERS[package])
        for path in (path for pattern in patterns for path in folder.glob(pattern)):
            file = path.relative_to(folder)
            name = ".".join(part for part in (package, *file.with_suffix("").parts) if part not in ("", "__init__"))
            try:
                code = SourceFileLoader(name, str(path)).get_code(name)
            except Exception:  # unreadable, or damaged bytecode: raised again on every rank that imports it
                continue
            yield name, (package, str(file), marshal.dumps(code))


def _compile_methods() -> dict[str, bytes]:
    """Imports IMPORTED; the text of each method that `dataclasses` writes for it, and the code as marshal writes it."""
    import dataclasses

    methods = {}

    def execute(text: str, *namespaces: Any) -> None:
        code = _compile(text)
        methods[text] = marshal.dumps(code)
        exec(code, *namespaces)

    vars(dataclasses)["exec"] = execute  # instead of the built-in function
    try:
        for name in IMPORTED:
            import_module(name)
    finally:
        del vars(dataclasses)["exec"]
    return methods


def _use_methods(methods: dict[str, bytes]) -> None:
    """Lets `dataclasses` execute these methods' code instead of compiling their text, until `clear_modules`."""
    import dataclasses

    def execute(text: str, *namespaces: Any) -> None:
        code = methods.get(text)
        exec(marshal.loads(code) if code else _compile(text), *namespaces)

    vars(dataclasses)["exec"] = execute


def _compile(text: str) -> CodeType:
    return compile(text, "<string>", "exec", dont_inherit=True)  # without the __future__ imports of this module


class ModuleFinder:
    """Finds modules that rank 0 has broadcast; an entry of `sys.meta_path`."""

    def __init__(self, modules: dict[str, Module]) -> None:
        self._modules = modules

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name in EXTENSIONS:  # found without a search of the folders before theirs; None where they are elsewhere
            return PathFinder.find_spec(name, [os.path.join(FOLDERS[""], "lib-dynload")])
        found = self._modules.pop(name, None)  # once: a module that is reloaded is read from its file
        if found is None:
            return None
        package, file, code = found
        location = os.path.join(FOLDERS[package], file)
        return spec_from_file_location(name, location, loader=ModuleLoader(name, location, code))


class ModuleLoader(SourceFileLoader):
    """Executes code that was broadcast. All else, such as the source for tracebacks, is that of this rank's file."""

    def __init__(self, name: str, path: str, code: bytes) -> None:
        super().__init__(name, path)
        self._code: bytes | None = code

    def get_code(self, fullname: str) -> Any:
        if self._code is None:  # it has been executed
            return super().get_code(fullname)
        code, self._code = marshal.loads(self._code), None
        return code
