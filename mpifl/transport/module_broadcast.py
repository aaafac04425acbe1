"""Rank 0 reads the modules that ranks with clients import, and broadcasts their code: the others open no file for it.

These are modules of the package, of NumPy, and of the standard library as far as these two import it. The code of the
methods that `dataclasses` makes for classes of IMPORTED is sent as well: it writes them as text, and to compile that is
half of the time that a rank takes to import the package. Docstrings are left out, 2 MB with NumPy's. A rank that
has NumPy from rank 0 leaves them out of the rest of NumPy as well: a module there that has docstrings edits others'.

Still read from files: what is imported before MPI starts or after the clients are built, extension modules, a user's
own modules, and everything where the package is in a zip file or has no source.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import MAGIC_NUMBER, spec_from_file_location
from typing import TYPE_CHECKING, Any

from mpifl.errors import ConfigError, host_name
from mpifl.transport.launcher import is_fault_tolerant

if TYPE_CHECKING:
    from types import CodeType

    from mpi4py import MPI

# Folders of modules: of the package, of the standard library; of NumPy once it is found.
FOLDERS = {"mpifl": os.path.dirname(os.path.dirname(__file__)), "": os.path.dirname(os.__file__)}
FILES = (  # patterns of the package's modules, for any algorithm and problem
    "errors.py", "heap.py", "host_memory.py", "memory.py", "objective.py", "rng.py", "signals.py", "untrusted.py",
    "algorithms/**/*.py", "client/*.py", "config/__init__.py", "config/client_job.py", "config/types.py",
    "problems/*.py", "problems/models/*.py", "transport/*.py",
)  # fmt: skip
IMPORTED = (  # by rank 0 before the broadcast: what most ranks with clients use
    "mpifl.algorithms.common.step_schedules", "mpifl.algorithms.common.strong_convexity", "mpifl.client.rank",
    "mpifl.problems.rows",
)  # fmt: skip
WITHOUT_DOCSTRINGS = ("2.4.", "2.5.")  # versions of NumPy that were tried without; those up to 2.3 need some
NEEDED = "${ARRAY_FUNCTION_LIKE}"  # in docstrings that NumPy completes when it is imported; it would make "" of None
HEADER_BYTES = 1024  # rank 0's `installation` and the number of bytes that follow

_quarantined: list[bytearray] = []  # buffers that MPI may still use, since a rank has died
Module = tuple[str, str, bytes]  # key of FOLDERS, file below the folder, code as marshal writes it


def broadcast_modules(comm: MPI.Comm) -> None:
    """Broadcasts the modules; on ranks other than 0 they are imported from memory until `clear_modules`.

    Where rank 0 has died and MPI goes on, the others read files, and find out in the handshake.
    Raises ConfigError on a rank with another version of the package or of Python than rank 0 has.
    """
    from mpifl.transport.mpi import MPI

    send = _send_to_each if is_fault_tolerant() else _broadcast
    data = bytearray(marshal.dumps(_collect())) if comm.rank == 0 else bytearray()
    own = installation()
    header = bytearray(f"{len(data)}\n{own}\n".encode().ljust(HEADER_BYTES))
    try:
        send(comm, header)
        size, theirs, _ = header.decode().split("\n")
        if comm.rank:
            data = bytearray(int(size))
        send(comm, data)
    except MPI.Exception:
        if not is_fault_tolerant():
            raise
        _quarantined.extend([header, data])
        return
    if theirs != own:
        raise ConfigError("installation", own, f"{theirs}, as on rank 0, on {host_name()} too")
    if comm.rank:
        modules, methods, numpy_version = marshal.loads(data)
        if not _find_numpy(numpy_version):
            modules = {name: module for name, module in modules.items() if module[0] != "numpy"}
        sys.meta_path.insert(0, ModuleFinder(modules))
        _use_methods(methods)


def _broadcast(comm: MPI.Comm, buffer: bytearray) -> None:
    from mpifl.transport.mpi import MPI, wait

    wait(comm.Ibcast((buffer, MPI.BYTE), 0))


def _send_to_each(comm: MPI.Comm, buffer: bytearray) -> None:
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
    for finder in sys.meta_path:
        if isinstance(finder, ModuleFinder):
            finder.clear()
    _restore_exec()


def installation() -> str:
    """What has to be equal on all ranks: the package, which a checkout names by its folder, and Python."""
    try:
        with open(os.path.join(FOLDERS["mpifl"], "BUILD"), encoding="ascii") as file:
            package = file.readline().rstrip()
    except (FileNotFoundError, NotADirectoryError):  # in a zip file
        package = f"in {FOLDERS['mpifl']!a}"
    python = f"{sys.implementation.name} {sys.version.split()[0]}, bytecode {MAGIC_NUMBER[:2].hex()}"
    return f"{python}, mpifl {package}"[: HEADER_BYTES - 20]


def _collect() -> tuple[dict[str, Module], dict[str, bytes], str]:
    """Imports what ranks with clients import. Returns modules by name, methods of `dataclasses`, NumPy's version."""
    before = set(sys.modules)
    methods = _compile_methods()
    from numpy import __version__ as version

    from mpifl.rng import import_generators

    import_generators()
    numpy_found = _find_numpy(version)
    imported = [name for name in sys.modules if name not in before and (numpy_found or _key(name) != "numpy")]
    return dict(_read_modules(_imported_files(imported) | _package_files())), methods, version


def _find_numpy(version: str) -> bool:
    """Whether this rank's NumPy has that version, as pip and conda note it beside its folder; notes that in FOLDERS."""
    spec = PathFinder.find_spec("numpy")
    if spec is None or spec.origin is None:
        return False
    FOLDERS["numpy"] = folder = os.path.dirname(spec.origin)
    return os.path.isdir(f"{folder}-{version}.dist-info")


def _imported_files(names: Iterable[str]) -> dict[str, str]:
    """Files by module, of those modules that are NumPy's or the standard library's and were read from files."""
    files = {}
    for name in names:
        spec: Any = getattr(sys.modules[name], "__spec__", None)
        if type(getattr(spec, "loader", None)) is not SourceFileLoader:
            continue
        known = _key(name) == "numpy" or name.partition(".")[0] in sys.stdlib_module_names
        if known and spec.origin.startswith(FOLDERS[_key(name)] + os.sep):
            files[name] = spec.origin
    return files


def _package_files() -> dict[str, str]:
    """Files by module, of the package's modules that match FILES."""
    from pathlib import Path

    folder, files = Path(FOLDERS["mpifl"]), {}
    for path in (path for pattern in FILES for path in folder.glob(pattern)):
        parts = path.relative_to(folder).with_suffix("").parts
        files[".".join(part for part in ("mpifl", *parts) if part != "__init__")] = str(path)
    return files


def _key(name: str) -> str:
    """The key in FOLDERS of a module."""
    package = name.partition(".")[0]
    return package if package in ("mpifl", "numpy") else ""


def _read_modules(files: Mapping[str, str]) -> Iterator[tuple[str, Module]]:
    """Names and code of the modules in these files, from their bytecode files where these are up to date."""
    for name, path in files.items():
        try:
            code = SourceFileLoader(name, path).get_code(name)
        except Exception:  # unreadable, or damaged bytecode: raised again on every rank that imports it
            continue
        key = _key(name)
        yield name, (key, os.path.relpath(path, FOLDERS[key]), marshal.dumps(_without_docstrings(name, code)))


def _without_docstrings(module: str, code: Any) -> Any:
    """The code of a module, without docstrings, which it must not read while it is executed.

    The package's modules and classes keep theirs: for a class without one, `dataclasses` would write a signature. NumPy
    of other versions keeps all. Of its modules that describe what is written in C nothing is left.
    """
    from opcode import hasconst, opmap
    from types import CodeType

    key = _key(module)
    if key == "numpy" and not getattr(sys.modules.get("numpy"), "__version__", "").startswith(WITHOUT_DOCSTRINGS):
        return code
    if key == "numpy" and module.rpartition(".")[2].startswith("_add_newdocs"):
        return _compile("")

    def docstring(code: CodeType) -> int | None:
        """Which constant is the docstring."""
        if "__doc__" in code.co_names[:8] and key != "mpifl":  # of a class or module, which stores it first
            store = _find_instruction(code, opmap["STORE_NAME"], code.co_names.index("__doc__"))
            load, constant = code.co_code[store - 2 : store] if store > 0 else (None, 0)
            if load == opmap["LOAD_CONST"] and _find_instruction(code, load, constant) == store - 2:
                return constant if _find_instruction(code, load, constant, store) < 0 else None
        text = code.co_consts[0] if code.co_consts else None
        if isinstance(text, str) and NEEDED not in text:  # of a function, if no instruction uses it
            return 0 if all(_find_instruction(code, load, 0) < 0 for load in hasconst) else None
        return None

    def strip(code: CodeType) -> CodeType:
        constants = [strip(each) if isinstance(each, CodeType) else each for each in code.co_consts]
        if (k := docstring(code)) is not None:
            constants[k] = None
        return code.replace(co_consts=tuple(constants))

    return strip(code)


def _find_instruction(code: CodeType, operation: int, argument: int, begin: int = 0) -> int:
    """Where bytecode first has an instruction, of two bytes, from `begin` on; -1 if nowhere."""
    instructions, sought = code.co_code, bytes([operation, argument])
    found = instructions.find(sought, begin)
    while found > 0 and found % 2:
        found = instructions.find(sought, found + 1)
    return found


def _compile_methods() -> dict[str, bytes]:
    """Imports IMPORTED; the text of each method that `dataclasses` writes for it, and the code as marshal writes it."""
    methods = {}

    def compile_and_keep(text: str) -> CodeType:
        code = _compile(text)
        methods[text] = marshal.dumps(code)
        return code

    _replace_exec(compile_and_keep)
    try:
        for name in IMPORTED:
            import_module(name)
    finally:
        _restore_exec()
    return methods


def _use_methods(methods: dict[str, bytes]) -> None:
    """Lets `dataclasses` execute these methods' code instead of compiling their text, until `clear_modules`."""
    _replace_exec(lambda text: marshal.loads(methods[text]) if text in methods else _compile(text))


def _replace_exec(code_of: Callable[[str], CodeType]) -> None:
    """Lets `dataclasses` execute `code_of` of the text of a method that it has written, until `_restore_exec`."""
    import dataclasses

    def execute(text: str, *namespaces: Any) -> None:
        exec(code_of(text), *namespaces)

    vars(dataclasses)["exec"] = execute  # instead of the built-in function


def _restore_exec() -> None:
    if "dataclasses" in sys.modules:
        vars(sys.modules["dataclasses"]).pop("exec", None)


def _compile(text: str) -> CodeType:
    return compile(text, "<string>", "exec", dont_inherit=True)  # without the __future__ imports of this module


class ModuleFinder:
    """Finds modules that rank 0 has broadcast, and the rest of NumPy if that is among them; for `sys.meta_path`."""

    def __init__(self, modules: dict[str, Module]) -> None:
        self._modules, self._has_numpy = modules, "numpy" in modules

    def clear(self) -> None:
        """Frees the modules that were not imported."""
        self._modules = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        found = self._modules.pop(name, None)  # once: a module that is reloaded is read from its file
        if found is None:
            return self._find_in_numpy(name, path) if self._has_numpy and _key(name) == "numpy" else None
        package, file, code = found
        location = os.path.join(FOLDERS[package], file)
        return spec_from_file_location(name, location, loader=ModuleLoader(name, location, code))

    def _find_in_numpy(self, name: str, path: Any) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path)
        if spec and spec.origin and type(spec.loader) is SourceFileLoader:
            spec.loader = ModuleLoader(name, spec.origin)
        return spec


class ModuleLoader(SourceFileLoader):
    """Executes code that was broadcast, once; else that of this rank's file, without docstrings.

    All else, such as the source for tracebacks, is that of the file.
    """

    def __init__(self, name: str, path: str, code: bytes | None = None) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> Any:
        if self._code is None:
            return _without_docstrings(fullname, super().get_code(fullname))
        code, self._code = marshal.loads(self._code), None
        return code
