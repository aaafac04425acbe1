"""Checks a user's own class: for mistakes that would show late in a run, or never."""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
from collections.abc import Iterator

from mpifl.errors import ConfigError


def check_class(cls: type, base: type) -> None:
    """Raises ConfigError("name", ...) for options that are lost, missing methods, and methods that set `self.name`.

    cls: a subclass of `base`, whose methods without a body are abstract.
    """
    own = [c for c in cls.__mro__ if issubclass(c, base) and not c.__module__.startswith("mpifl.")]
    for c in own:
        if "__dataclass_params__" not in vars(c) and (lost := _options(c)):
            wrong = f"{_place(c)} is not a dataclass, so its options {', '.join(lost)} are lost"
            raise _wrong(cls, wrong, "@dataclass(frozen=True) above it")
    if own and (missing := _missing(cls, base)):
        wrong = f"{_place(cls)} does not have the method {missing}, and neither does a base class"
        raise _wrong(cls, wrong, remedy="write it")
    for c in own:
        for method, line, name in _assignments(c):
            wrong = f"{_place(c, line)}, method {method} sets self.{name}"
            hint = "keep such values in the State of init_server or init_client" if hasattr(base, "init_server") else ""
            raise _wrong(cls, wrong, "methods that set no attribute of self", hint)


def _wrong(cls: type, wrong: str, expected: str = "", remedy: str = "") -> ConfigError:
    return ConfigError("name", f"{cls.__module__}:{cls.__qualname__}", wrong, expected, remedy)


def _place(cls: type, line: int | None = None) -> str:
    """The place of a class: `mean.py:12, class Mean`; without a source file the class alone."""
    try:
        file, first = inspect.getsourcefile(cls), inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):
        return f"class {cls.__qualname__}"
    return f"{os.path.basename(file or '')}:{line or first}, class {cls.__qualname__}"


def _options(cls: type) -> list[str]:
    """The annotated names of a class's own body that a dataclass would have as fields."""
    return [name for name, hint in vars(cls).get("__annotations__", {}).items() if "ClassVar" not in str(hint)]


def _missing(cls: type, base: type) -> str:
    """The first abstract method that a class lacks, as `train(self, client, message, objective)`; "" if none."""
    for name, method in vars(base).items():
        needed = getattr(method, "__isabstractmethod__", False)
        if (needed or (name == "personal_model" and getattr(cls, "personal_models", False))) and getattr(
            cls, name
        ) is method:
            return f"{name}({', '.join(inspect.signature(method).parameters)})"
    return ""


def _assignments(cls: type) -> Iterator[tuple[str, int, str]]:
    """Method, line and name of every `self.name = ...` in a class's own methods, where its source can be read."""
    try:
        lines, first = inspect.getsourcelines(cls)
        (tree,) = ast.parse(textwrap.dedent("".join(lines))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return
    for method in getattr(tree, "body", []):
        if isinstance(method, ast.FunctionDef) and method.args.args and not method.decorator_list:
            for node in _own_nodes(method):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    owner = node.value
                    if isinstance(owner, ast.Name) and owner.id == method.args.args[0].arg:
                        yield method.name, first + node.lineno - 1, node.attr


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below one, without those of functions and classes inside."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield child
            yield from _own_nodes(child)
