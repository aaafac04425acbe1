"""`mpifl list`: what there is, and each option's default and meaning, out of the dataclasses themselves."""

from __future__ import annotations

import dataclasses
import inspect
import json
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tabulate import tabulate

from mpifl.config.job import FAMILIES
from mpifl.config.schema import Family, fields_of, meanings, variants
from mpifl.config.types import hints, members
from mpifl.problems import ProblemConfig

Row = tuple[str, str, str]


def algorithms(name: str | None = None) -> str:
    """All algorithms with a line each, or one with its options."""
    family = FAMILIES["algorithm"]
    if name is None:
        return _table([(each, _summary(inspect.getmodule(family.find(each)))) for each in family.names()])
    cls = family.find(name)
    return f"{name}: {_summary(inspect.getmodule(cls))}\n{_summary(cls)}\n\n{_options(cls)}"


def data(name: str | None = None) -> str:
    """The data sets, the ways to deal them to clients, and what else makes a problem."""
    parts = _parts({"data": "data sets", "partition": "partitions"}, name)
    return parts if name else f"{parts}\n\nproblems (problem.KEY)\n{_options(ProblemConfig)}"


def models(name: str | None = None) -> str:
    """The models and the laws of their initial point."""
    return _parts({"model": "models", "init": "initial models"}, name)


def jobs(name: str | None = None) -> str:
    """The job files with the first comment line of each."""
    folder = Path("jobs") if Path("jobs").is_dir() else Path(__file__).parents[2] / "jobs"
    found = [(str(path), _comment(path)) for path in sorted(folder.rglob("*.yaml")) if name in (None, path.stem)]
    return _table(found) if found else f"no job files in {folder}"


KINDS: dict[str, Callable[[str | None], str]] = {"algorithms": algorithms, "data": data, "models": models, "jobs": jobs}


def _parts(families: dict[str, str], name: str | None) -> str:
    known = {key: FAMILIES[key] for key in families}
    if name is not None:
        family = next((f for f in known.values() if name in f.names()), next(iter(known.values())))
        return _part(family, name)
    return "\n\n".join(
        f"{title} ({key}: NAME)\n" + "\n".join(_part(known[key], each) for each in known[key].names())
        for key, title in families.items()
    )


def _part(family: Family, name: str) -> str:
    cls = family.find(name)
    options = _options(cls)
    return f"{name}: {_summary(cls)}" + (f"\n{options}" if options else "")


def _options(cls: type) -> str:
    return textwrap.indent(_table(list(_rows(cls))), "  ")


def _rows(cls: type, default: Any = None, path: str = "") -> Iterator[Row]:
    """Key, default and meaning of every field, those of plain nested sections included."""
    for name, field in fields_of(cls).items():
        if name == "name":
            continue
        value = getattr(default, name) if default is not None else _default(field)
        text = meanings(cls).get(name, "")
        kinds = members(hints(cls)[name])
        choices = variants(kinds)
        yield f"{path}{name}", _text(value), text
        shared: dict[Row, list[str]] = {}  # an option that several choices have is one row
        for kind, choice in choices.items() if name not in FAMILIES else ():
            for row in _rows(choice, None, f"{path}{name}."):
                shared.setdefault(row, []).append(kind)
        yield from ((key, given, f"{', '.join(kinds)}: {say}") for (key, given, say), kinds in shared.items())
        if not choices:
            for section in filter(dataclasses.is_dataclass, kinds):
                own = value if isinstance(value, section) else None  # type: ignore[arg-type]
                yield from _rows(section, own, f"{path}{name}.")  # type: ignore[arg-type]


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _text(value: Any) -> str:
    if value is dataclasses.MISSING:
        return "required"
    if dataclasses.is_dataclass(value):
        return str(getattr(value, "name", ""))
    return str(value) if isinstance(value, str) else json.dumps(value)  # null, true, false as in YAML


def _table(rows: list[Any]) -> str:
    return tabulate(rows, tablefmt="plain", disable_numparse=True)


def _summary(thing: Any) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


def _comment(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line.lstrip("# ") for line in lines if line.startswith("#")), "")
