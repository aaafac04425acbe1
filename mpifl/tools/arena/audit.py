"""Reads the source of a submitted method, and refuses it if it could see more than the method's messages.

The source is parsed and not run. A method computes from its arguments, keeps its state in `State` objects only, and
imports only the interface of algorithms and numerical functions. No way is known here in which it could then reach the
clock's draws, the data of other clients or the evaluations. This is a review and not a sandbox.
"""

from __future__ import annotations

import ast
import importlib
import math
import sys
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from mpifl.errors import MAX_PART, ConfigError, shortened

ALLOWED_MODULES = {"math", "numpy"}  # may be imported as a whole
ALLOWED_NAMES = {  # names that may be imported from a module; None: all
    "__future__": {"annotations"}, "dataclasses": {"dataclass", "field", "replace"}, "collections.abc": None,
    "typing": {"Annotated", "Any", "Callable", "ClassVar", "Final", "Iterator", "Literal", "Mapping", "NamedTuple",
               "Optional", "Sequence", "Union", "cast"},
}  # fmt: skip
OWN_MODULES = ("mpifl.algorithms", "mpifl.config.types", "mpifl.objective")  # what they define may be imported
FORBIDDEN_NAMES = {
    "open", "eval", "exec", "compile", "globals", "locals", "vars", "getattr", "setattr", "delattr", "input",
    "print", "breakpoint", "memoryview", "object", "type",
}  # fmt: skip
IMMUTABLE_TYPES = {"bool", "float", "frozenset", "int", "str", "tuple"}  # types whose instances clients may share
DEFAULT_NODES = (  # what the default value of a field may consist of
    ast.Call, ast.Name, ast.Load, ast.Constant, ast.keyword, ast.Lambda, ast.arguments, ast.Tuple, ast.UnaryOp,
    ast.unaryop, ast.BinOp, ast.operator,
)  # fmt: skip
TYPE_CHECKS = {"cast", "isinstance", "issubclass"}  # functions whose arguments may be classes
MAX_ENTRIES = 16  # numbers and texts in a literal list, tuple, set or dict; more could be a trained model
MAX_NUMBER = 24  # characters of a number: those of the longest float
MAX_TEXT = 200  # characters of a text that is not a docstring
FORBIDDEN_ATTRIBUTES = {
    *(sys.stdlib_module_names - {"array", "copy", "numbers", "select", "time", "trace"}),  # modules
    "load", "save", "savez", "savez_compressed", "loadtxt", "savetxt", "genfromtxt", "fromregex", "fromfile",
    "tofile", "memmap", "DataSource", "dump", "dumps", "lib", "core", "testing", "ctypeslib", "f2py", "ma", "rec",
    "char", "strings", "polynomial", "emath", "dtypes", "exceptions", "matrixlib", "seterr", "seterrcall",
    "setbufsize", "set_printoptions",  # of NumPy: files, random numbers, settings, and what imports other modules
    "gi_frame", "gi_yieldfrom", "cr_frame", "cr_await", "ag_frame", "ag_await", "tb_frame", "tb_next", "f_back",
    "f_globals", "f_locals", "f_builtins", "format", "format_map",  # frames; text that has attributes of objects
    "base", "flags", "setflags",  # of an array: the memory that it is a part of, and whether it may be written
    "fget", "fset", "fdel",  # of a property: functions
}  # fmt: skip
KNOWLEDGE = {  # attributes, and what a method that uses them has to declare in `knows`
    "rates": "the rates of the clients",
    "needs_timings": "the times of computing and exchange",
}


def check_source(source: str) -> None:
    """Raises ConfigError, with the first line of the source that is not allowed in a submitted method."""
    try:
        tree = ast.parse(source)
        options = [ast.literal_eval(node.value) for node in tree.body if _is_arena(node)]  # type: ignore[attr-defined]
        knows = [str(each) for each in dict(*options[-1:]).get("knows", [])]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        expected = "a Python module whose ARENA is a dict of literals"
        raise ConfigError("source", "the method's module", f"cannot be parsed: {error}", expected) from None
    outer = {name for node in tree.body for name in _bound(node)}
    for line, wrong in sorted(_problems(tree, outer, knows)):
        text = source.splitlines()[line - 1].strip() if line else "the module"
        expected = "a method that computes only from its arguments and its State"
        remedy = "docs/guides/arena.md lists under Submissions what a source may use"
        raise ConfigError("source", f"line {line}, {shortened(text, MAX_PART)}", wrong, expected, remedy)


def rules_of(source: str) -> str:
    """What a source computes: without comments, documentation, and ARENA, whose options are in the job of each run."""
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if not _is_arena(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [each for each in node.body if not (isinstance(each, ast.Expr)
                                                            and isinstance(each.value, ast.Constant))]  # fmt: skip
    return ast.dump(tree)


def _is_arena(node: ast.stmt) -> bool:
    """Whether a statement sets ARENA, which is read only before the runs."""
    return isinstance(node, ast.Assign) and [getattr(each, "id", "") for each in node.targets] == ["ARENA"]


def _bound(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of the module binds."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def _problems(tree: ast.Module, outer: set[str], knows: list[str]) -> Iterator[tuple[int, str]]:
    """The lines that are not allowed, each with the reason."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    defined = {each.name for each in tree.body if isinstance(each, ast.ClassDef | ast.FunctionDef)}
    imported = {name for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom) for name in _bound(node)}
    makers = {*IMMUTABLE_TYPES, *imported, *(each.name for each in classes)} - {"np", "State", *ALLOWED_MODULES}
    for owner in classes:
        for rule in (node for node in owner.body if isinstance(node, ast.FunctionDef)):
            first = [argument.arg for argument in [*rule.args.posonlyargs, *rule.args.args][:1]]
            if first not in (["self"], ["cls"]) and not any(
                _base(one) == "staticmethod" for one in rule.decorator_list
            ):
                yield rule.lineno, "has a method whose first argument is neither self nor cls"
            if rule.name.startswith("__") and rule.name != "__post_init__":
                yield rule.lineno, f"defines {rule.name}"
    for body in [tree.body, *(each.body for each in classes)]:
        for statement in body:
            if isinstance(statement, ast.Assign | ast.AnnAssign) and not _is_constant(statement, makers):
                yield statement.lineno, "assigns a mutable value outside functions, which clients could share"
            elif not isinstance(statement, ast.Assign | ast.AnnAssign | ast.ClassDef | ast.FunctionDef | ast.Import
                                | ast.ImportFrom | ast.Expr):  # fmt: skip
                yield statement.lineno, "is not an import, a definition or a constant"
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import):
            yield from ((line, f"imports {a.name}") for a in node.names if a.name not in ALLOWED_MODULES)
        elif isinstance(node, ast.ImportFrom):
            yield from ((line, f"imports {name} of {node.module}") for name in _refused_names(node))
        elif isinstance(node, ast.Global | ast.Nonlocal):
            yield line, "uses global or nonlocal"
        elif isinstance(node, ast.Name) and (node.id in FORBIDDEN_NAMES or node.id.startswith("__")):
            yield line, f"uses {node.id}"
        elif isinstance(node, ast.Attribute):
            if node.attr == "__post_init__":
                continue
            if node.attr.startswith("__"):
                yield line, f"uses {node.attr}"
            elif node.attr in FORBIDDEN_ATTRIBUTES or (node.attr.startswith("_") and not _is_own(node.value, defined)):
                yield line, f"uses {node.attr}, which may read or write outside its arguments"
            elif node.attr in KNOWLEDGE and KNOWLEDGE[node.attr] not in knows:
                yield line, f"uses {node.attr} and does not declare that it knows {KNOWLEDGE[node.attr]}"
            elif isinstance(node.ctx, ast.Store) and _base(node) in {"self", "cls", *outer}:
                yield line, "changes an object that clients share"
        elif isinstance(node, ast.Match):
            yield line, "uses match, whose patterns read attributes"
        elif isinstance(node, ast.ClassDef):
            if not any(map(_freezes, [*node.decorator_list, *node.bases])):
                yield line, "is neither a frozen dataclass nor a named tuple"
            for each in node.decorator_list:
                if _base(each.func if isinstance(each, ast.Call) else each) != "dataclass":
                    yield line, "has a class decorator other than dataclass"
        elif isinstance(node, ast.FunctionDef | ast.Lambda):
            if isinstance(node, ast.FunctionDef) and node.name in KNOWLEDGE and KNOWLEDGE[node.name] not in knows:
                yield line, f"defines {node.name} and does not declare that it knows {KNOWLEDGE[node.name]}"
            defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
            if not all(_is_plain(each) for each in defaults):
                yield line, "has a mutable default value"
            for each in getattr(node, "decorator_list", []):
                if not (isinstance(each, ast.Name) and each.id in ("property", "staticmethod", "classmethod")):
                    yield line, "has a decorator other than property, staticmethod or classmethod"
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if annotation and _has_text(annotation):
                yield line, "has an annotation as text, which is evaluated"
    yield from _shared_values(tree, {"cls", *defined, *imported})
    yield from _long_literals(tree)


def _freezes(node: ast.expr) -> bool:
    """Whether a class with this decorator or base has instances that cannot be changed."""
    if isinstance(node, ast.Call):
        constants = {each.arg: getattr(each.value, "value", None) for each in node.keywords}
        return _base(node.func) == "dataclass" and constants.get("frozen") is True
    return _base(node) == "NamedTuple"


def _has_text(annotation: ast.AST) -> bool:
    """Whether an annotation has text, except in Literal[...]."""
    if isinstance(annotation, ast.Subscript) and _base(annotation.value) == "Literal":
        return False
    if isinstance(annotation, ast.Constant):
        return isinstance(annotation.value, str)
    return any(map(_has_text, ast.iter_child_nodes(annotation)))


def _is_own(node: ast.expr, defined: set[str]) -> bool:
    """Whether this is the method itself, or a class or function of the source."""
    return isinstance(node, ast.Name) and node.id in {"self", "cls", *defined}


def _shared_values(tree: ast.Module, shared: set[str]) -> Iterator[tuple[int, str]]:
    """Where a class, a function or a module is used as a value: its attributes could be set under another name."""
    nodes = list(ast.walk(tree))
    bodies = [each.body for each in nodes if isinstance(each, ast.ClassDef)]
    constants = {name for body in bodies for each in body if isinstance(each, ast.Assign | ast.AnnAssign)
                 for name in _bound(each)}  # fmt: skip
    functions = {each.name for body in bodies for each in body if isinstance(each, ast.FunctionDef)
                 and not any(_base(one) == "property" for one in each.decorator_list)}  # fmt: skip
    fine: set[ast.AST] = set()  # nodes that are called, whose attribute is used, or that are only annotations or bases
    for node in nodes:
        if isinstance(node, ast.Call):
            fine |= {node.func, *(node.args if _base(node.func) in TYPE_CHECKS else ())}
            fine |= {each.value for each in node.keywords if each.arg == "default_factory"}
        elif isinstance(node, ast.Attribute):
            fine.add(node.value)
        elif isinstance(node, ast.ClassDef):
            fine |= {*node.bases, *node.decorator_list}
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            fine |= set(ast.walk(annotation)) if annotation else set()
    for node in nodes:
        if node in fine or not isinstance(getattr(node, "ctx", None), ast.Load):
            continue
        if isinstance(node, ast.Name) and node.id in shared:
            yield node.lineno, f"uses {node.id} as a value"
        elif isinstance(node, ast.Attribute):
            base = _base(node)
            if base in ("np", "numpy", "math"):
                refused = not _is_number_or_type(ast.unparse(node))
            else:
                owner = isinstance(node.value, ast.Name)
                refused = owner and ((base == "self" and node.attr in functions)
                                     or (base in shared and node.attr not in constants))  # fmt: skip
            if refused:
                yield node.lineno, f"uses {ast.unparse(node)} as a value"


def _is_number_or_type(name: str) -> bool:
    """Whether a name such as np.float64 is a number, or a type of numbers, to which no attribute can be added."""
    found: object = {"np": np, "numpy": np, "math": math}[name.partition(".")[0]]
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    return (
        found is None or isinstance(found, int | float) or (isinstance(found, type) and issubclass(found, np.generic))
    )


def _long_literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Literals that could hold a trained model."""
    documentation = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node not in documentation:
            value = node.value
            long = len(value) > MAX_TEXT if isinstance(value, str | bytes) else len(repr(value)) > MAX_NUMBER
        else:
            entries = getattr(node, "elts", None) or getattr(node, "keys", None) or []
            long = sum(isinstance(each, ast.Constant | ast.UnaryOp) for each in entries) > MAX_ENTRIES
        if long:
            most = f"{MAX_ENTRIES} entries, {MAX_TEXT} characters or {MAX_NUMBER} digits"
            yield getattr(node, "lineno", 0), f"has a literal of more than {most}, which could be a trained model"


def _refused_names(node: ast.ImportFrom) -> Iterator[str]:
    """The imported names that are not allowed."""
    module, found = node.module or "", None
    for alias in node.names:
        if not node.level and module in ALLOWED_NAMES and alias.name != "*":
            if ALLOWED_NAMES[module] is None or alias.name in (ALLOWED_NAMES[module] or ()):
                continue
        elif not node.level and f"{module}.".startswith(tuple(f"{own}." for own in OWN_MODULES)) and alias.name != "*":
            with suppress(ImportError):
                found = vars(importlib.import_module(module)).get(alias.name)
            if module == "mpifl.config.types":
                if alias.name == "Bounds" or hasattr(found, "__metadata__"):  # Annotated[...]
                    continue
            elif str(getattr(found, "__module__", "")).startswith((*OWN_MODULES, "typing")):
                continue
        yield alias.name


def _base(node: ast.expr) -> str:
    """The name at the start of a.b[c].d; "" where there is none."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_constant(node: ast.Assign | ast.AnnAssign, makers: set[str]) -> bool:
    """Whether what is assigned outside functions cannot be changed by a client.

    makers: what may be called for a field's default, such as Trigger(every=4).
    """
    if _is_arena(node):
        return True
    value = node.value
    if isinstance(value, ast.Call) and isinstance(node, ast.AnnAssign):
        parts = list(ast.walk(value))
        return all(isinstance(each, DEFAULT_NODES) for each in parts) and all(
            isinstance(each.func, ast.Name) and each.func.id in makers for each in parts if isinstance(each, ast.Call)
        ) and all(each.id in makers for each in parts if isinstance(each, ast.Name))  # fmt: skip
    return value is None or _is_plain(value)


def _is_plain(value: ast.expr) -> bool:
    """Whether an expression is a constant: a number, text, None, a name, or a tuple of these."""
    if isinstance(value, ast.Tuple):
        return all(map(_is_plain, value.elts))
    if isinstance(value, ast.UnaryOp):
        return _is_plain(value.operand)
    return isinstance(value, ast.Constant | ast.Name | ast.Attribute)
