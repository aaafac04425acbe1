"""The generated parts of the reference: every function returns Markdown, made from the code (`reference.py`)."""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from api import prose

from mpifl import cli
from mpifl.checkpoint.snapshot import SCALARS, ServerSnapshot, UpdateSnapshot
from mpifl.config.job import Job
from mpifl.config.registry import FAMILIES
from mpifl.config.schema import fields_of, meanings, variants
from mpifl.config.types import describe, hints, members
from mpifl.problems import ProblemConfig
from mpifl.runfile import tables as runfile_tables
from mpifl.text import capitalised
from mpifl.tools.reproduce.spec import Claim, Figure, Measure, Page, Strict, Table
from mpifl.tools.studies.study import StudyOptions
from mpifl.tools.submit.site import Site

Row = tuple[str, str, str, str]
SECTIONS = ("clock", "stop", "evaluate", "checkpoint", "keep", "faults", "memory")


# -- the job file ------------------------------------------------------------------------------------------------------
def job() -> str:
    """The keys at the top of a job."""
    return _keys(_rows(Job, deep=False))


def problem() -> str:
    return _keys(_rows(ProblemConfig, prefix="problem."))


def sections() -> str:
    """A heading and a table for each of SECTIONS."""
    found = {name: hints(Job)[name] for name in SECTIONS}
    return "\n\n".join(
        f"## `{name}`\n\n{_summary(cls)}\n\n{_keys(_rows(cls, prefix=f'{name}.'))}" for name, cls in found.items()
    )


def study() -> str:
    """The keys of a study file that are not free."""
    return _keys([("name", "text", "required", meanings(StudyOptions)["name"]), *_rows(StudyOptions)])


def page() -> str:
    """The section `page` of a study file: a table for each kind of entry."""
    kinds = {"measures": Measure, "tables": Table, "figures": Figure, "claims": Claim, "strict": Strict}
    parts = [f"### `{name}`\n\n{_summary(cls)}\n\n{_keys(_rows(cls))}" for name, cls in kinds.items()]
    return "\n\n".join([_keys(_rows(Page, deep=False)), *parts])


def site() -> str:
    """The settings of a computing centre."""
    return _keys(_rows(Site))


def algorithm_options() -> str:
    """Every method with its options."""
    family = FAMILIES["algorithm"]
    parts = []
    for name in family.names():
        cls = family.find(name)
        module = inspect.getmodule(cls)
        path = f"{cls.__module__.replace('.', '/')}.py"
        parts.append(f"## `{name}`\n\n{_summary(module)} {_summary(cls)} [Source](../../{path})\n\n{_keys(_rows(cls))}")
    return "\n\n".join(parts)


def family(key: str) -> str:
    """The classes that a section such as `data` or `delay` may name, each with its options."""
    family = FAMILIES[key]
    parts = []
    for name in family.names():
        cls = family.find(name)
        rows = list(_rows(cls))
        parts.append(f"### `{name}`\n\n{_summary(cls)}" + (f"\n\n{_keys(rows)}" if rows else ""))
    return "\n\n".join(parts)


def _rows(cls: type, prefix: str = "", default: Any = None, deep: bool = True) -> Iterator[Row]:
    """Key, type with bounds, default and meaning of every field, those of nested sections included."""
    for name, field in fields_of(cls).items():
        if name == "name" and cls is not Job:
            continue
        value = getattr(default, name) if default is not None else _default(field)
        kinds = members(hints(cls)[name])
        choices = variants(kinds)
        sections = [kind for kind in kinds if dataclasses.is_dataclass(kind)]
        null = " or null" if type(None) in kinds else ""
        if name in FAMILY_ANCHORS:
            allowed = f"[one of these](job-file.md#{FAMILY_ANCHORS[name]})" + (
                " or null" if type(None) in kinds else ""
            )
        elif choices:
            others = describe(hints(cls)[name])
            allowed = f"one of {', '.join(choices)}" + (f" or {others}" if others else "")
        elif sections:
            allowed = f"a section{null}"
        else:
            allowed = describe(hints(cls)[name]) or "anything"
        yield f"{prefix}{name}", allowed, _text(value), meanings(cls).get(name, "")
        if not deep or name in FAMILY_ANCHORS:
            continue
        shared: dict[Row, list[str]] = {}  # an option that several choices have is one row
        for kind, choice in choices.items():
            for row in _rows(choice, f"{prefix}{name}."):
                shared.setdefault(row, []).append(kind)
        yield from ((*row[:3], f"{', '.join(kinds)}: {row[3]}") for row, kinds in shared.items())
        if not choices:
            for section in sections:
                yield from _rows(section, f"{prefix}{name}.", value if isinstance(value, section) else None)


FAMILY_ANCHORS = {
    "algorithm": "algorithm",
    "data": "data-sets",
    "partition": "partitions",
    "model": "models",
    "init": "initial-models",
    "delay": "delay-models",
    "availability": "availability-models",
}


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


def _text(value: Any) -> str:
    if value is dataclasses.MISSING:
        return "required"
    if dataclasses.is_dataclass(value):
        name = getattr(value, "name", "")
        return f"`{name}`" if name else ""
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


# -- the command line --------------------------------------------------------------------------------------------------
def commands() -> str:
    """Every command of `mpifl`, from its definition."""
    parts = []
    for name, command in cli.COMMANDS.items():
        text = f"## `mpifl {name}`\n\n```text\nmpifl {name} {command.usage}\n```\n\n{capitalised(command.help)}."
        rows = [
            (f"`{' '.join(filter(None, [option, how.get('metavar')]))}`", how.get("help", "").replace("%%", "%"))
            for option, how in command.options.items()
        ]
        if rows:
            text += f"\n\n{_table(('option', 'meaning'), rows)}"
        parts.append(text)
    return "\n\n".join(parts)


# -- the checkpoint format ---------------------------------------------------------------------------------------------
def server_snapshot() -> str:
    """Groups, attributes and datasets of the server's part."""
    return _columns(_members(ServerSnapshot, ""))


def update_snapshot() -> str:
    """The columns of /update."""
    kinds = {name: "int64" if kind == "i8" else "float64" for name, kind in SCALARS.items()} | {"refused": "text"}
    return _columns((name, kinds[name], text) for name, text in meanings(UpdateSnapshot).items() if name in kinds)


def _members(cls: type, path: str) -> Iterator[tuple[str, str, str]]:
    """Path, kind and meaning of every field, those of records in it included."""
    for name, hint in typing.get_type_hints(cls).items():
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        optional = type(None) in typing.get_args(hint)
        hint = kinds[0] if optional else hint
        kind, meaning = _kind(hint, typing.get_args(hint)), meanings(cls)[name]
        yield (
            f"{path}/{name}" if path or cls is ServerSnapshot else name,
            f"{kind}, optional" * optional or kind,
            meaning,
        )
        item = typing.get_args(hint)[0] if typing.get_origin(hint) is list else hint
        if dataclasses.is_dataclass(item):
            yield from _members(typing.cast(type, item), f"{path}/{name}" + ("" if item is hint else "/0"))


def _kind(hint: Any, items: Any) -> str:
    names = {int: "integer", float: "float64", str: "text", bool: "boolean"}
    if hint in names:
        return f"{names[hint]}, attribute"
    if dataclasses.is_dataclass(hint):
        return "group"
    if typing.get_origin(hint) is list and not dataclasses.is_dataclass(items[0]):
        return f"dataset, {'int64' if items[0] is int else names[items[0]]}"
    if typing.get_origin(hint) is dict:
        return "group of datasets" if items[1] is np.ndarray else f"group of attributes, {names[items[1]]}"
    return "dataset" if hint is np.ndarray else "group of " + ("groups `0`, `1`, ..." if items else "")


def _columns(rows: Iterable[tuple[str, str, str]]) -> str:
    return _table(("name", "kind", "meaning"), ((f"`{path}`", kind, _cell(meaning)) for path, kind, meaning in rows))


# -- the run file ------------------------------------------------------------------------------------------------------
def run_file_attributes() -> str:
    """Every root attribute."""
    names = {str: "text", int: "integer", float: "float64"}
    rows = ((f"`{name}`", names[each.kind], each.meaning) for name, each in runfile_tables.ATTRIBUTES.items())
    return _table(("attribute", "type", "meaning"), rows)


def run_file_columns() -> str:
    """Every column of every table."""
    rows: list[Row] = []
    others = {"clients": runfile_tables.CLIENTS, "checksums": runfile_tables.CHECKSUMS}
    for name, table in (runfile_tables.TABLES | others).items():
        rows.append((f"**/{name}**", "", "", str(table.row.__doc__)))
        texts = meanings(table.row)
        for field, column in table.columns.items():
            rows.append((f"`/{name}/{field}`", _spelled(column.dtype), column.unit, texts[field]))
    return _table(("dataset", "dtype", "unit", "meaning"), rows)


def _spelled(dtype: str) -> str:
    kind, size = dtype[0], int(dtype[1:])
    return f"text, {size} bytes" if kind == "S" else {"f": "float", "i": "int"}[kind] + str(8 * size)


# -- Markdown ----------------------------------------------------------------------------------------------------------
def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (headings, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(headings), *lines[1:]])


def _keys(rows: Iterable[Row]) -> str:
    cells = ([_cell(cell) for cell in (f"`{key}`", *rest)] for key, *rest in rows)
    return _table(("key", "value", "default", "meaning"), cells)


def _cell(text: str) -> str:
    """Text for a table's cell."""
    return prose(" ".join(text.replace("|", "\\|").split()))


def _summary(thing: Any) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split()).replace("<", "&lt;")
