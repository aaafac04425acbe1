"""Finds a user's own functions and classes by their names, as their files are now."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import cache_from_source, module_from_spec
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from mpifl.errors import ConfigError

_sources: dict[str, tuple[int, int]] = {}  # imported module: time and size of its file when it was seen first
STANDARD_LIBRARY = {*sys.stdlib_module_names, "test"}  # Python leaves its tests out of that list
LIBRARIES = (os.path.dirname(__file__), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))


class ChangedDirectory(RuntimeError):
    """A user's code has changed the working directory."""


@contextlib.contextmanager
def working_directory_kept() -> Iterator[None]:
    """Raises ChangedDirectory after a block that changes the working directory, and changes it back.

    Paths of a job are relative to it: a run file would be written elsewhere, or replace another one there.
    """
    before = os.getcwd()
    try:
        yield
    finally:
        if (after := os.getcwd()) != before:
            os.chdir(before)
    if after != before:
        raise ChangedDirectory(f"it changes the working directory to {after}, to which paths of the job are relative")


def import_object(key: str, name: str, kind: str) -> Any:
    """What "package.module:name" names, as its file is now. Raises ConfigError(key, ...); kind: Class or function."""
    module, _, attribute = name.partition(":")
    found: Any = None
    try:
        _forget_edited()
        with working_directory_kept():
            found = import_own(module)
        _sources.update({own: _stamp(file) for own, file in _own_files().items() if own not in _sources})
        return attrgetter(attribute)(found)
    except (Exception, SystemExit) as error:  # whatever a user's module raises, also where it parses sys.argv
        clear = isinstance(error, ImportError | AttributeError | ChangedDirectory)
        reason = (str(error) if clear else f"{type(error).__name__}: {error}") + _place(error)
        known = [k for k, value in vars(found).items() if callable(value)] if found else []
        remedy = ""
        if module == "__main__":
            remedy = "what another program or rank is to find has to be in a module of its own"
        elif isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
            remedy = "modules are searched for in the working directory and on PYTHONPATH"
        elif isinstance(error, AttributeError) and (near := difflib.get_close_matches(attribute, known, 1)):
            remedy = f"did you mean {near[0]}?"
        raise ConfigError(key, name, f"cannot be imported: {reason}", f"package.module:{kind}", remedy) from error


def _place(error: BaseException) -> str:
    """The line of a user's file in which an error was raised, as ` (mine.py:3)`; "" where there is none."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((*LIBRARIES, "<"))]
    return f" ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else ""


def import_own(name: str) -> ModuleType:
    """Imports the module "package.module"; raises whatever it raises.

    A file test.py in the working directory is imported in place of Python's package of that name, as for a script in
    that directory. Only the module that is named is: other imports find the standard library.
    """
    if spec := find_own(name):
        before = sys.modules.get(spec.name)
        module = sys.modules[spec.name] = module_from_spec(spec)
        try:
            assert spec.loader
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[spec.name]
            if before:
                sys.modules[spec.name] = before
            raise
    return importlib.import_module(name)


def find_own(name: str) -> ModuleSpec | None:
    """The first part of a module's name, where it is in the working directory and has not been imported from there.

    A module that has been imported from elsewhere stays, unless it is one of the standard library.
    """
    first = name.partition(".")[0]
    spec = PathFinder.find_spec(first, [os.getcwd()])
    if spec is None or spec.origin is None:  # no folder without __init__.py
        return None
    loaded = sys.modules.get(first)
    if loaded is None or (first in STANDARD_LIBRARY and getattr(loaded, "__file__", None) != spec.origin):
        return spec
    return None


def import_name(key: str, thing: Any) -> str:
    """The name "package.module:name" of a function or class. Raises ConfigError(key, ...) where it has none."""
    module, qualified = (getattr(thing, key, type(thing).__name__) for key in ("__module__", "__qualname__"))
    name = f"{module}:{qualified}"
    with contextlib.suppress(AttributeError, KeyError):
        if attrgetter(qualified)(sys.modules[module]) is thing:
            return name
    expected = "a function or class at the top level of a module or notebook"
    raise ConfigError(key, name, "ranks and replays cannot find it by this name", expected)


def _forget_edited() -> None:
    """Has edited modules imported again, with all others of their folder, which may have taken something from them."""
    own = _own_files()
    edited = [name for name, file in own.items() if _sources.get(name, now := _stamp(file)) != now]
    for name in edited:
        with contextlib.suppress(OSError):  # Python compares only seconds and size
            os.unlink(cache_from_source(own[name]))
        folder = Path(own[name]).parents[name.count(".") + own[name].endswith("__init__.py")]
        for other, file in own.items():
            if folder in Path(file).parents:
                sys.modules.pop(other, None)
                _sources.pop(other, None)


def _own_files() -> dict[str, str]:
    """The source files of imported modules that belong to no installed package."""
    files = {name: _file(module) for name, module in list(sys.modules.items()) if name != "__main__"}
    return {name: file for name, file in files.items() if file and not file.startswith(LIBRARIES)}


def _file(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) and file.endswith(".py") else ""


def _stamp(file: str) -> tuple[int, int]:
    try:
        found = os.stat(file)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
