"""Plain dicts to frozen dataclasses and back; the fields' types are the schema, their docstrings the help.

A section is a dataclass. Where several classes fit, its key `name` selects one: `partition: {name: iid}`, in short
`partition: iid`. They come from a family (a field that is called like one), or from the members of the field's type.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import math
import textwrap
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from mpifl.config.registry import Family, table
from mpifl.config.types import check_fields, describe, hints, members, plain_type, wrong_value
from mpifl.errors import ConfigError, inside

MISSING = "???"  # marks a value that must still be given
PACES = {  # an algorithm's pace in errors: what is said of one, and the name of all with this pace
    "asynchronous": ("is asynchronous", "asynchronous methods"),
    "synchronous": ("works in rounds", "methods with rounds"),
}
SCALARS = (int, float, bool, str, type(None))


# -- reading -----------------------------------------------------------------------------------------------------------
class Reader:
    """Builds one dataclass out of `values`; every error is a ConfigError with the full key."""

    def __init__(self, cls: type, values: Mapping[str, Any], families: Mapping[str, Family]) -> None:
        self.cls, self.values, self.families = cls, values, families

    def read(self) -> Any:
        return self._build(self.cls, self.values, "")

    def _build(self, cls: type, values: Mapping[str, Any], path: str, family: Family | None = None) -> Any:
        """family: the classes that the section at `path` could have, where it has a choice."""
        fields, types_ = fields_of(cls), hints(cls)
        given = {}
        for key, value in values.items():
            if key in fields and value != MISSING:
                given[key] = self._convert(_join(path, key), types_[key], value)
            elif key not in fields and key != "name":
                raise (family and _other_members(family, cls, path, key, value)) or self._unknown(path, key, value)
        for key, field in fields.items():
            if key not in given and field.default is field.default_factory is dataclasses.MISSING:
                raise ConfigError(_join(path, key), MISSING, "required", self._expected(key, types_[key]))
        try:
            check_fields(cls, given)  # a class that is not a `Config` does not check its fields
            return cls(**given)
        except ConfigError as error:
            raise _placed(error, path) from None

    def _convert(self, key: str, hint: Any, value: Any) -> Any:
        field = key.rpartition(".")[2]
        kinds = members(hint)
        if value is None and type(None) in kinds:
            return None
        if isinstance(value, str) and "\0" in value:
            raise ConfigError(key, ascii(_short(value))[1:-1], "it has a NUL character", "text without one")
        if is_section(kinds):
            one = self._one(field, kinds)
            section = {"name": value} if isinstance(value, str) and not one and str not in kinds else value
            if isinstance(section, Mapping):
                if field in self.families:
                    with inside(key):
                        section = self.families[field].expand(section)
                cls = self._class(key, kinds, section)
                if one and "name" in section and "name" not in fields_of(cls):
                    raise self._unknown(key, "name", section["name"])
                if field in self.families:  # the name has chosen the class; a field `name` keeps its default
                    section = {k: v for k, v in section.items() if k != "name"}
                return self._build(cls, section, key, None if one else self._family(field, kinds))
        wrong = None
        for kind in sorted(map(plain_type, kinds), key=lambda kind: kind is str):  # "1e-3" is a number before text
            if typing.get_origin(kind) in (tuple, list) and isinstance(value, (list, tuple)):
                try:
                    return self._items(key, kind, value)
                except ConfigError as error:
                    wrong = error  # the last kind of list decides what the error says
            if kind is Any:
                return value
            if kind in SCALARS and (found := _scalar(kind, value)) is not None:
                return found
        raise wrong or wrong_value(key, value, _short(value), self._expected(field, hint))

    def _items(self, key: str, hint: Any, value: list[Any] | tuple[Any, ...]) -> Any:
        kind, args = typing.get_origin(hint), typing.get_args(hint)
        if kind is tuple and args[-1] is not Ellipsis and len(args) != len(value):
            raise ConfigError(key, _short(value), f"there are {len(value)} values", f"a list of {len(args)}")
        each = args if kind is tuple and args[-1] is not Ellipsis else [args[0]] * len(value)
        return kind(self._convert(f"{key}[{k}]", h, v) for k, (h, v) in enumerate(zip(each, value, strict=True)))

    # -- sections --------------------------------------------------------------------------------------------------
    def _one(self, field: str, members: list[Any]) -> bool:
        """Whether the section has no choice of classes."""
        return field not in self.families and not variants(members)

    def _family(self, field: str, members: list[Any]) -> Family:
        return self.families.get(field) or table(None, variants(members))

    def _class(self, key: str, members: list[Any], section: Mapping[str, Any]) -> type:
        field = key.rpartition(".")[2]
        if self._one(field, members):
            return next(m for m in members if isinstance(m, type) and dataclasses.is_dataclass(m))
        family = self._family(field, members)
        name = section.get("name", MISSING)
        if name == MISSING and family.default:
            return family.default
        if not isinstance(name, str) or name == MISSING:
            wanted = f"one of {', '.join(family.names())}" if family.names() else "package.module:Class"
            raise ConfigError(f"{key}.name", name, "required" if name == MISSING else "not a name", wanted)
        with inside(key):
            return family.find(name)

    # -- errors ----------------------------------------------------------------------------------------------------
    def _expected(self, field: str, hint: Any) -> str:
        kinds, section = members(hint), ""
        if is_section(kinds):
            names = self._family(field, kinds).names()
            keys = [k for m in kinds if dataclasses.is_dataclass(m) for k in fields_of(m)]
            section = f"one of {', '.join(names)}" if names else f"a section with {', '.join(keys)}"
        return " or ".join(filter(None, [section, describe(hint)])) or "another type of value"

    def _unknown(self, path: str, key: str, value: Any) -> ConfigError:
        """Names the nearest key of the same section, or of another one, first below it, where it is nearly the same."""

        def likeness(known: str) -> float:
            section, _, leaf = known.rpartition(".")
            ratio = difflib.SequenceMatcher(None, key[:80], leaf).ratio()
            below = 0.05 if section.startswith(f"{path}.") else 0.0
            return ratio if section == path else ratio - (0.1 if ratio > 0.8 else 1) + below

        known = [*self._keys(self.cls, self.values, "")]
        if _join(path, key) in known:  # a key with a dot, as studies and the command line take it
            nested = f"{key.replace('.', ': {')}: ...{'}' * key.count('.')}"
            remedy = f"write it into its section, {nested}"
            return ConfigError(_join(path, key), _short(value), "no key of this section", remedy=remedy)
        nearest = max(known, key=likeness)
        return ConfigError(_join(path, key), _short(value), "no such key", remedy=f"the nearest is {nearest}")

    def _keys(self, cls: type, values: Mapping[str, Any], path: str) -> Iterator[str]:
        """Every key that may stand beside those given."""
        for name, hint in hints(cls).items():
            key, kinds, value = _join(path, name), members(hint), values.get(name, {})
            if name not in fields_of(cls):
                continue
            yield key
            if is_section(kinds):
                section = value if isinstance(value, Mapping) else {"name": value}
                if not self._one(name, kinds):
                    yield f"{key}.name"
                try:
                    yield from self._keys(self._class(key, kinds, section), section, key)
                except ConfigError:
                    continue  # an unknown class has no known keys


# -- writing -----------------------------------------------------------------------------------------------------------
def dump(value: Any, families: Mapping[str, Family], field: str = "", defaults: bool = True) -> Any:
    """A dataclass as a plain dict of dicts, lists and scalars that `Reader` reads back to an equal one.

    defaults: Whether fields that have their default value are included.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = fields_of(type(value))
        inside = {
            name: dump(getattr(value, name), families, name, defaults)
            for name in fields
            if defaults or name == "name" or getattr(value, name) != default_of(fields[name])
        }
        name = families[field].name_of(type(value)) if field in families else inside.get("name")
        inside.pop("name", None)
        return {"name": name, **inside} if name else inside
    if isinstance(value, (list, tuple)):
        return [dump(item, families, defaults=defaults) for item in value]
    return value


def default_of(field: dataclasses.Field[Any]) -> Any:
    """A field's default value; MISSING where it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


# -- fields and docstrings ---------------------------------------------------------------------------------------------
def fields_of(cls: Any) -> dict[str, dataclasses.Field[Any]]:
    """The fields that a configuration may set."""
    return {f.name: f for f in dataclasses.fields(cls) if f.init}


def is_section(kinds: list[Any]) -> bool:
    """Whether a value of these types is a section."""
    return any(map(dataclasses.is_dataclass, kinds))


def variants(kinds: list[Any]) -> dict[str, type]:
    """The dataclasses among a field's types, and their subclasses, by the default of their field `name`."""
    found: dict[str, type] = {}
    for member in kinds:
        if dataclasses.is_dataclass(member):
            for cls in (member, *typing.cast(type, member).__subclasses__()):
                name = fields_of(cls).get("name")
                if name and isinstance(name.default, str):
                    found[name.default] = typing.cast(type, cls)
    return found


@functools.cache
def meanings(cls: type) -> dict[str, str]:
    """Each field's docstring: the bare string literal below it, on one line; those of base classes included."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base) and not hasattr(base, "_fields"):  # nor a NamedTuple
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        body = getattr(tree, "body", [])
        for line, below in itertools.pairwise(body):
            text = getattr(below.value, "value", None) if isinstance(below, ast.Expr) else None
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(text, str):
                found[line.target.id] = " ".join(text.split())
    return found


def _other_members(family: Family, cls: type, path: str, key: str, value: object) -> ConfigError | None:
    """The error for an option that other classes of the family have, or that this one fixes; None for any other."""
    name = family.name_of(cls)
    for field in dataclasses.fields(cls):
        if field.name == key and field.default is not dataclasses.MISSING:  # an `init=False` field is not an option
            fixed = "null" if field.default is None else getattr(field.default, "name", field.default)
            remedy = f"{key} is always {fixed} in {name}"
            return ConfigError(_join(path, key), _short(value), "no such key", remedy=remedy)
    others = {other: family.find(other) for other in family.names() if key in fields_of(family.find(other))}
    if not others:
        return None
    pace, paces = getattr(cls, "pace", ""), {getattr(other, "pace", "") for other in others.values()} - {"either"}
    if pace in PACES and len(paces) == 1 and pace not in paces:
        wrong = f"{name} has no {key}, as it {PACES[pace][0]}"
        remedy = f"{PACES[paces.pop()][1]} have it: {_enumerated([*others])}"
    else:
        wrong, remedy = f"{name} has no {key}", f"{_enumerated([*others])} {'have' if len(others) > 1 else 'has'} it"
    return ConfigError(_join(path, key), _short(value), wrong, remedy=remedy)


# -- small parts -------------------------------------------------------------------------------------------------------
def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _enumerated(names: list[str]) -> str:
    """Names as text, at most four of them: a, b and c; a, b, c and 5 others."""
    shown = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} others"]
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


def _placed(error: ConfigError, path: str) -> ConfigError:
    """The error with its full key; a class may name its own section first (`trigger.every`) or leave that out."""
    parent, _, last = path.rpartition(".")
    own = last and (error.key == last or error.key.startswith(f"{last}."))
    section = parent if own else path
    return error.under(section) if section else error


def _scalar(kind: type, value: Any) -> Any:
    """`value` as an int, float, bool or str, or None where it is none: an integer is a number, a truth value is not."""
    if kind is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            return None
        return number if math.isfinite(number) else None
    return value if type(value) is kind else None


def _short(value: object) -> object:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:76]} ..."
