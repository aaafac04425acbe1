"""The reference of Python names as Markdown, made from signatures and docstrings."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

from mpifl.config.schema import meanings

SECTION = re.compile(r"^(Args|Attributes|Returns|Raises):$")
ENTRY = re.compile(r"^    (\*{0,2}\w+): (.*)$")  # `name: meaning` of a section; deeper lines continue it


class _Text(str):
    """An annotation that is shown as it is written."""

    __repr__ = str.__str__


def api(dotted: str) -> str:
    """A function, or a class with its public members: signature and docstring, below a heading."""
    module, _, name = dotted.rpartition(".")
    return "\n\n".join(_object(name, getattr(importlib.import_module(module), name), "###"))


def _object(name: str, thing: Any, heading: str) -> Iterator[str]:
    yield f"{heading} `{name}`"
    if inspect.isclass(thing):
        if (thing.__init__ is not object.__init__) and not issubclass(thing, BaseException):
            yield _code(name, thing)
        yield from _docstring(thing)
        yield from _fields(thing)
        for member, value in _members(thing):
            yield from _object(f"{name}.{member}", value, f"{heading}#")
    elif isinstance(thing, property):
        returns = inspect.signature(thing.fget).return_annotation if thing.fget else ""
        yield f"```py\n{name}: {returns}\n```"
        yield from _docstring(thing)
    else:
        yield _code(name, thing)
        yield from _docstring(thing)


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties with a docstring, those of bases in this package included."""
    seen: set[str] = set()
    for base in cls.__mro__:
        if not base.__module__.startswith("mpifl") or base.__name__ == "Config":
            continue
        for name, value in vars(base).items():
            thing = getattr(value, "__func__", value)  # a class method or a static one
            known = inspect.isfunction(thing) or isinstance(thing, property)
            if not name.startswith("_") and name not in seen and known and inspect.getdoc(thing):
                seen.add(name)
                yield name, thing


def _fields(cls: type) -> Iterator[str]:
    """The fields that have a text of their own below them."""
    if hasattr(cls, "__dataclass_fields__") and (texts := meanings(cls)):
        yield "\n".join(f"- `{name}`: {prose(' '.join(text.split()))}" for name, text in texts.items())


def _code(name: str, thing: Any) -> str:
    """The signature in a code block, a parameter a line if it is long."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return f"```py\n{name}\n```"
    parameters = [
        p.replace(annotation=_Text(p.annotation) if isinstance(p.annotation, str) else p.annotation)
        for p in signature.parameters.values() if p.name != "self"
    ]  # fmt: skip
    returns = signature.return_annotation
    signature = signature.replace(
        parameters=parameters, return_annotation=_Text(returns) if isinstance(returns, str) else returns
    )
    text = f"{name.rpartition('.')[2]}{signature}"
    if len(text) > 84:
        shown = [str(p) for p in parameters]
        keyword = next((k for k, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY), None)
        if keyword is not None and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
            shown.insert(keyword, "*")
        end = str(signature).rpartition(")")[2]
        text = f"{name.rpartition('.')[2]}(\n" + "".join(f"    {each},\n" for each in shown) + f"){end}"
    return f"```py\n{text}\n```"


def _docstring(thing: Any) -> Iterator[str]:
    """The docstring; its sections as lists."""
    section = ""
    entries: list[str] = []
    lines: list[str] = []
    for line in [*(inspect.getdoc(thing) or "").splitlines(), "end"]:
        if section and (not line or line.startswith(" ")):
            if found := ENTRY.match(line):
                entries.append(f"- `{found[1]}`: {prose(found[2])}")
            elif line and entries:
                entries[-1] += f" {prose(line.strip())}"
            elif line:
                entries.append(prose(line.strip()))
            continue
        if section:
            yield f"**{section}**\n\n" + "\n".join(entries)
            section, entries = "", []
        if found := SECTION.match(line):
            yield from _paragraphs(lines)
            section, lines = found[1], []
        elif line != "end":
            lines.append(line)
    yield from _paragraphs(lines)


def _paragraphs(lines: list[str]) -> Iterator[str]:
    for paragraph in "\n".join(lines).split("\n\n"):
        if paragraph.strip():
            if re.search(r"^\S.*?\S {2,}\S", paragraph, re.M):  # columns, whose alignment says something
                yield f"```text\n{paragraph.strip(chr(10))}\n```"
            else:
                yield prose(paragraph.strip("\n"))


def prose(text: str) -> str:
    """Markdown of a docstring's text; outside backticks `<` and `*` are escaped."""
    pieces = text.replace("<", "&lt;").split("`")
    return "`".join(piece.replace("*", r"\*") if k % 2 == 0 else piece for k, piece in enumerate(pieces))
