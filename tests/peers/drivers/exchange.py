"""What the drivers share: numbers in and out as files, and empty modules for libraries that are not installed."""

import json
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import numpy as np


class Empty(ModuleType):
    """A module all of whose names are empty classes: enough to be imported, not to be used."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Stubs(MetaPathFinder, Loader):
    """Finds the listed libraries, which the classes under comparison do not use, as `Empty` modules."""

    def __init__(self, names):
        self._names = names

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in self._names else None

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        pass


def leave_out(*names):
    """Has these libraries found as empty modules."""
    sys.meta_path.insert(0, Stubs(names))


def main(cases):
    """Runs the case that in.json names on the arrays of in.npz; its dict of arrays becomes out.npz."""
    here = Path(sys.argv[1])
    options = json.loads((here / "in.json").read_text())
    with np.load(here / "in.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(here / "out.npz", **cases[options["case"]](options, **arrays))
