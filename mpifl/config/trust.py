"""Code that a run file names: found without importing it, and imported only where the user trusts the file.

A job counts as code, since the user who runs it chose its modules. A run file is data, often from somebody else: its
configuration may name any function of any module that can be imported, with any arguments.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mpifl.config.registry import FAMILIES
from mpifl.errors import ConfigError
from mpifl.user_code import find_own

log = logging.getLogger(__package__)
CODE_KEYS = {"name", "entry", *FAMILIES}  # keys whose value may be "package.module:Class" or ":function"
CODE_LISTS = ("evaluate.metrics",)  # keys whose value is a list of such names, built-in ones among them
SIZES = {"model": (), "data": ("dim",)}  # options of a problem's sections that are sizes; (): all options but seed


def outside_code(config: Mapping[str, Any]) -> dict[str, str]:
    """The names "package.module:Class" in a configuration by their keys, without the last `.name`."""
    return dict(_named(config, ""))


def _named(node: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            place = f"{path}.{key}" if path else str(key)
            if place == "problem.options":  # the arguments of `problem.entry`, which are never imported
                continue
            if key in CODE_KEYS and isinstance(value, str) and ":" in value:
                yield place.removesuffix(".name"), value
            elif place in CODE_LISTS and isinstance(value, list | tuple):
                yield from ((f"{place}[{k}]", each) for k, each in enumerate(value) if ":" in str(each))
            yield from _named(value, place)
    elif isinstance(node, list | tuple):
        for k, value in enumerate(node):
            yield from _named(value, f"{path}[{k}]")


def split_overrides(
    config: Mapping[str, Any], path: Path, overrides: Iterable[tuple[str, Any]]
) -> tuple[set[str], list[tuple[str, Any]]]:
    """The keys whose code the overrides name exactly as the configuration of the run file `path`; other overrides.

    Raises ConfigError for an override that names other code than the file.
    """
    found, named, others = outside_code(config), set[str](), []
    for key, value in overrides:
        section = key.removesuffix(".name")
        if key in CODE_LISTS and any(place.startswith(f"{key}[") for place in found):
            given = dict(_named({key: value}, ""))
            given = {place: name for place, name in given.items() if place in found}
            first, _, last = key.partition(".")
            if value != config[first][last]:
                raise ConfigError(key, value, f"{path.name} names other code", str(config[first][last]))
            named |= given.keys()
        elif section not in found:
            others.append((key, value))
        elif value != found[section]:
            raise ConfigError(key, value, f"{path.name} names other code", found[section])
        else:
            named.add(section)
    return named, others


def check_trusted(
    config: Mapping[str, Any], path: Path, command: str, named: Container[str], trust: bool | Mapping[str, str]
) -> None:
    """Raises ConfigError if the configuration of the run file `path` names code that the user does not trust.

    named  keys whose code the command line names too
    trust  whether all code is trusted, or the names that are, by key

    Logs what will be imported, and from where.
    """
    code = outside_code(config)
    places = {key: f"{name} ({key}, from {module_location(name.partition(':')[0])})" for key, name in code.items()}
    known = code if trust is True else trust or {}
    unknown = [place for key, place in places.items() if key not in named and known.get(key) != code[key]]
    if unknown:
        wrong, remedy = f"this file names code: {', '.join(unknown)}", "to import and run it, give --trust (trust=True)"
        raise ConfigError(command, path, wrong, remedy=remedy)
    if places:
        log.warning("%s names %s: importing it", path, ", ".join(places.values()))


def module_location(module: str) -> str:
    """The file that `import_own` would run, "built-in" or "nowhere". Imports nothing, not even its packages."""
    path, name = None, ""
    spec = None
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = _find(name, path) if part.isidentifier() else None
        if spec is None:
            return "nowhere"
        path = spec.submodule_search_locations
    origin = spec.origin if spec else None
    return origin or (", ".join(path) if path else "nowhere")


def _find(name: str, path: Any) -> Any:
    if path is None and (spec := find_own(name) or getattr(sys.modules.get(name), "__spec__", None)):
        return spec
    if path is not None and not list(path):
        return None
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, path)
        except Exception:  # another package has installed a finder that fails
            spec = None
        if spec is not None:
            return spec
    return None


HARMLESS = 10_000  # a size up to this takes little memory, and is accepted


def check_sizes(config: Mapping[str, Any], path: Path, clients: int, parameters: int) -> None:
    """Raises ConfigError where the problem of a run file is larger than the run that it holds.

    clients, parameters  of the recorded run; a configuration that claims more could take all memory
    """
    problem = config.get("problem")
    if not isinstance(problem, Mapping):
        return
    given = problem.get("clients")
    if isinstance(given, int) and given != clients:
        raise ConfigError("run file", path, f"problem.clients is {given}", f"that of its run, {clients}")
    for section, names in SIZES.items():
        options = problem.get(section)
        if not isinstance(options, Mapping) or ":" in str(options.get("name")):
            continue
        for key, value in options.items():
            sizes = value if isinstance(value, list) and key == "hidden" else [value]
            too_large = [size for size in sizes if isinstance(size, int) and size > max(parameters, HARMLESS)]
            if too_large and key != "seed" and (not names or key in names):
                wrong = f"problem.{section}.{key} is {too_large[0]}"
                raise ConfigError("run file", path, wrong, f"at most its {parameters} parameters")
