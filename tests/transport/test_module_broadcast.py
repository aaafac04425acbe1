"""Modules that rank 0 broadcasts: which these are, and how another rank imports them."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.resources
import inspect
import marshal
import os
import py_compile
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mpifl.transport import module_broadcast

SOURCES = {
    "broadcast_pkg/__init__.py": "from broadcast_pkg.inner import double\n",
    "broadcast_pkg/inner.py": "def double(x):\n    return 2 * x\n\n\ndef fail():\n    raise ValueError\n",
    "broadcast_pkg/table.txt": "rows\n",
}


@pytest.fixture
def finder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A package that is found in memory alone; the list of files that are opened."""
    modules = {}
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        if name.endswith(".py"):
            module = name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
            modules[module] = ("", name, marshal.dumps(compile(text, str(tmp_path / name), "exec")))
    names = list(modules)
    monkeypatch.setitem(module_broadcast.FOLDERS, "", str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [module_broadcast.ModuleFinder(modules), *sys.meta_path])
    opened: list[str] = []
    monkeypatch.setattr(
        module_broadcast.ModuleLoader, "get_data", lambda self, path: opened.append(path) or Path(path).read_bytes()
    )
    yield opened
    for name in names:
        sys.modules.pop(name, None)


def test_a_package_from_memory_is_like_one_from_files(finder: list[str], tmp_path: Path) -> None:
    package = importlib.import_module("broadcast_pkg")
    inner = sys.modules["broadcast_pkg.inner"]
    assert package.double(21) == 42 and not finder
    folder = tmp_path / "broadcast_pkg"
    assert package.__path__ == [str(folder)] and package.__file__ == str(folder / "__init__.py")
    assert inner.__spec__.origin == inner.__file__ == str(folder / "inner.py") and not hasattr(inner, "__path__")
    assert inner.__package__ == "broadcast_pkg"
    assert inspect.getsource(inner.double) == "def double(x):\n    return 2 * x\n"
    assert importlib.resources.files("broadcast_pkg").joinpath("table.txt").read_text() == "rows\n"
    with pytest.raises(ValueError) as raised:
        inner.fail()
    assert str(raised.traceback[-1].path) == inner.__file__
    (folder / "inner.py").write_text("changed = True\n")
    assert importlib.reload(inner).changed


def test_what_is_not_in_memory_is_found_elsewhere(finder: list[str]) -> None:
    found = module_broadcast.ModuleFinder({})
    assert found.find_spec("broadcast_pkg") is None and found.find_spec("numpy") is None
    module_broadcast.clear_modules()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("broadcast_pkg")


def test_the_code_is_that_of_the_files() -> None:
    found = dict(module_broadcast._read_modules(module_broadcast._package_files()))
    names = {"mpifl.client", "mpifl.client.rank", "mpifl.algorithms.area", "mpifl.algorithms.common.vectors"}
    assert names | {"mpifl.problems.models.logistic", "mpifl.transport.handshake"} <= found.keys()
    assert not {name for name in found if name.startswith(("mpifl.server", "mpifl.storage", "mpifl.problems.data"))}
    assert module_broadcast._find_numpy(np.__version__)
    imported = ("json.decoder", "numpy", "numpy.linalg._linalg")
    others = ("sys", "zipimport", "pytest", "numpy._core._multiarray_umath", __name__)
    found |= module_broadcast._read_modules(module_broadcast._imported_files([*imported, *others]))
    assert not set(others) & found.keys()
    for name in "mpifl.client", "mpifl.rng", *imported:
        key, file, code = found[name]
        path = os.path.join(module_broadcast.FOLDERS[key], file)
        assert path == importlib.import_module(name).__file__
        assert marshal.loads(code).co_code == compile(Path(path).read_text(), path, "exec").co_code


def test_the_version_of_numpy_is_that_beside_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module_broadcast.FOLDERS, "numpy", "")
    assert not module_broadcast._find_numpy("0.0.1")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert not module_broadcast._find_numpy(np.__version__)  # there is none
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").touch()
    assert not module_broadcast._find_numpy("1.2.3")
    (tmp_path / "numpy-1.2.3.dist-info").mkdir()
    assert module_broadcast._find_numpy("1.2.3") and module_broadcast.FOLDERS["numpy"] == str(tmp_path / "numpy")


@pytest.mark.parametrize(("name", "kept"), [("shapes", False), ("mpifl.shapes", True)])
def test_code_without_docstrings(name: str, kept: bool, tmp_path: Path) -> None:
    """All else is as in the source: code may also use the text of its docstring, or begin with another text.

    Classes and modules of the package keep theirs: of a class without one, `dataclasses` writes the signature.
    """
    text = '''
"""Of the module."""
import dataclasses
class Shape:
    """Of the class."""
    sides = 4
    def area(self):
        """Of the method."""
        def inner():
            "Of the inner function."
            return "area"
        return inner
class Named:
    """Named"""
class Used:
    """Twice"""
    text = "Twice"
class Without:
    text = "No docstring"
@dataclasses.dataclass
class Point:
    """A point."""
    x: float = 0.5
def same():
    "text"
    return "text"
def unused():
    "text"
    return "other text"
def completed():
    "${ARRAY_FUNCTION_LIKE}"
def numbers():
    "Of the generator."
    yield from ("one", "two")
async def later():
    "Of the coroutine."
first = lambda: "first"
'''
    (tmp_path / "shapes.py").write_text(text)
    ((_, (_, _, code)),) = module_broadcast._read_modules({name: str(tmp_path / "shapes.py")})
    module = types.ModuleType(name)
    sys.modules[name] = module  # as `dataclasses` needs it
    try:
        exec(marshal.loads(code), vars(module))
    finally:
        del sys.modules[name]
    shape, point = module.Shape, module.Point
    inner = shape().area()
    assert (module.__doc__, shape.__doc__) == (("Of the module.", "Of the class.") if kept else (None, None))
    assert point.__doc__ == ("A point." if kept else "Point(x: float = 0.5)") and point().x == 0.5
    assert module.Named.__qualname__ == "Named" and module.Used.text == "Twice"
    assert module.Without.text == "No docstring" and shape.sides == 4
    assert shape.area.__doc__ is None and inner.__doc__ is None and module.unused.__doc__ is None
    assert module.later.__doc__ is None and module.numbers.__doc__ is None and list(module.numbers()) == ["one", "two"]
    assert (module.same.__doc__, module.Named.__doc__) == ("text", "Named")  # the code has one constant for both
    assert module.completed.__doc__ == module_broadcast.NEEDED
    assert inner() == "area" and module.same() == "text"
    assert module.unused() == "other text" and module.first() == "first"


@pytest.mark.parametrize("tried", [True, False])
def test_numpy_from_memory_is_like_one_from_files(tried: bool, tmp_path: Path) -> None:
    """But for docstrings, where its version was tried; also for modules that examine these, as numpy.ma does."""
    pytest.importorskip("torch")
    if tried and not np.__version__.startswith(module_broadcast.WITHOUT_DOCSTRINGS):
        pytest.skip("NumPy of this version keeps its docstrings")
    begin = f"""
import marshal, sys
from mpifl.transport import module_broadcast
tried = {tried}
module_broadcast.WITHOUT_DOCSTRINGS = {module_broadcast.WITHOUT_DOCSTRINGS if tried else ()}
"""
    collect = "open('modules', 'wb').write(marshal.dumps(module_broadcast._collect()))"
    use = """
modules, methods, version = marshal.load(open('modules', 'rb'))
assert module_broadcast._find_numpy(version) and 'numpy' not in sys.modules
sys.meta_path.insert(0, module_broadcast.ModuleFinder(modules))
module_broadcast._use_methods(methods)
import numpy
assert type(numpy.linalg._linalg.__spec__.loader) is module_broadcast.ModuleLoader
module_broadcast.clear_modules()
import numpy.ma, numpy.fft, numpy.polynomial, numpy.random, numpy.testing, numpy.f2py, numpy.typing
import scipy.optimize, scipy.stats, h5py, pandas, sklearn.linear_model, matplotlib.pyplot, torch
without = numpy.sum, numpy.ndarray.sum, numpy.ma.sum, numpy.ma.median, numpy.fft.fft, numpy.polynomial.Polynomial.fit
assert [function.__doc__ is None for function in without] == [tried] * len(without)
assert torch.from_numpy(numpy.ones(2)).sum() == pandas.Series([1, 2]).median() + 0.5
print(numpy.ma.sum([1, 2]), numpy.linalg.norm([3.0, 4.0]), numpy.random.default_rng(0).integers(1, 2))
"""
    for text in collect, use:
        words = [sys.executable, "-c", f"{begin}\n{text}"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    assert done.stdout == "3 5.0 1\n"


def test_methods_of_dataclasses_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On rank 0; another rank executes their code, until the modules are cleared. The classes are the same."""
    text = "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass Point:\n    x: int = 2\n    y: float = 0.5\n"
    for name in "first", "second", "third":
        (tmp_path / f"{name}_points.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(module_broadcast, "IMPORTED", ["first_points"])
    compiled: list[str] = []
    compile_text = module_broadcast._compile
    monkeypatch.setattr(module_broadcast, "_compile", lambda text: compiled.append(text) or compile_text(text))
    methods = module_broadcast._compile_methods()
    assert list(methods) == compiled and len(compiled) >= 1 and not hasattr(dataclasses, "exec")
    module_broadcast._use_methods(methods)
    compiled.clear()
    point = importlib.import_module("second_points").Point
    assert not compiled and repr(point(y=1.5)) == "Point(x=2, y=1.5)"
    assert hash(point()) == hash((2, 0.5)) and point() == point(2) and point.__init__.__annotations__["x"] is int
    with pytest.raises(dataclasses.FrozenInstanceError):
        point().x = 3
    line = dataclasses.make_dataclass("Line", ["begin", "end"])  # not one of rank 0's
    assert line(1, 2).end == 2 and compiled
    module_broadcast.clear_modules()
    compiled.clear()
    assert importlib.import_module("third_points").Point().x == 2 and not compiled


def test_a_module_that_does_not_compile_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that imports it reads the file and reports the error."""
    (tmp_path / "client").mkdir()
    (tmp_path / "client" / "right.py").write_text("x = 1\n")
    (tmp_path / "client" / "wrong.py").write_text("x = \n")
    (tmp_path / "client" / "cut.py").write_text("x = [1, 2, 3]\n")
    bytecode = Path(py_compile.compile(str(tmp_path / "client" / "cut.py"), doraise=True))
    bytecode.write_bytes(bytecode.read_bytes()[:40])  # as a full disk leaves it
    monkeypatch.setitem(module_broadcast.FOLDERS, "mpifl", str(tmp_path))
    found = dict(module_broadcast._read_modules(module_broadcast._package_files()))
    assert found.keys() == {"mpifl.client.right"}


def test_an_installation_has_a_version_or_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module_broadcast.FOLDERS, "mpifl", str(tmp_path))
    assert module_broadcast.installation().endswith(f", mpifl in '{tmp_path}'")
    (tmp_path / "BUILD").write_text("1.2.3\ncommit\n")
    python = sys.version.split()[0]
    before = module_broadcast.installation()
    assert before.startswith(f"{sys.implementation.name} {python}, bytecode ") and before.endswith(", mpifl 1.2.3")
    monkeypatch.setattr(module_broadcast, "MAGIC_NUMBER", b"\0\0\r\n")
    assert before != module_broadcast.installation()
