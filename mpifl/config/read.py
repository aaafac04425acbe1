"""Reads a job from a YAML file or a dict, and writes it back.

Rank 0 reads with `load`; the other ranks receive `job_to_dict` and build an equal job without a YAML library.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mpifl.config.job import Job
from mpifl.config.packaged import find_file
from mpifl.config.registry import FAMILIES
from mpifl.config.schema import Reader, dump
from mpifl.config.trust import check_trusted, split_overrides
from mpifl.errors import ConfigError
from mpifl.safe_input import MAX_TEXT, MAX_VALUES, read_text_file
from mpifl.user_code import import_name

MAX_DEPTH = 50  # references in a chain
MAX_BITS = 4096  # bits of an integer; Python refuses to print much longer ones
REFERENCE = re.compile(r"\$\{([^${}]*)\}")


def job_from_dict(values: Mapping[str, Any]) -> Job:
    """The job of a plain dict (of `job_to_dict`, or a resolved YAML file). Raises ConfigError."""
    return Reader(Job, values, FAMILIES).read()


def job_to_dict(job: Job, defaults: bool = True) -> dict[str, Any]:
    """The job as dicts, lists, text and numbers; defaults: whether keys that have their default value are included."""
    return dump(job, FAMILIES, defaults=defaults)


def replayed(
    config: Mapping[str, Any], output: Path, overrides: Sequence[str] = (), keys: Mapping[str, Any] | None = None,
    threads: int | None = None, source: Path = Path(), trust: bool = False,
) -> Job:  # fmt: skip
    """The job of the `config` of the run file `source`, replayed into `output`; only where to write, its use
    of memory and the ranks of a client may be changed.

    trust    import code outside mpifl that the file names, and the overrides do not
    threads  of torch, on the ranks of that run. Clients are computed one by one, so that the replay's bits do not
    depend on its ranks; they are those of the run if its clients were computed one by one too.
    """
    values = {**_plain(config), "output": str(output), "overwrite": False, "output_tensorboard": False}
    problem = values.get("problem")
    if isinstance(problem, Mapping) and isinstance(torch := problem.get("torch"), Mapping):
        repeatable = {"batched": False, "deterministic": True, "threads": torch.get("threads") or threads}
        values["problem"] = {**problem, "torch": {**torch, **repeatable}}
    given = [*map(parse_override, overrides), *_plain(keys or {}).items()]
    named, others = split_overrides(config, source, given)
    for key, value in others:
        if key not in ("output", "overwrite", "ranks_per_client") and key.partition(".")[0] != "memory":
            wrong = "a replay is the recorded job, and has no such option"
            raise ConfigError(key, value, wrong, "output, overwrite, ranks_per_client or memory")
        set_key(values, key, value)
    check_trusted(config, source, "replay", named, trust)
    return job_from_dict(values)


def load(
    source: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), keys: Mapping[str, Any] | None = None
) -> Job:
    """The job of a YAML file or a dict, changed by overrides, then by keys, then ${...} resolved. Raises ConfigError.

    A `key=value` override replaces the value of its key: `stop={updates: 9}` replaces the section, while
    `stop.updates=9` adds to it. `keys` set top-level keys to plain values.
    """
    values = _plain(source) if isinstance(source, Mapping) else read_yaml(find_file(source), "job")
    if all(value is None for value in values.values()):
        shown, what = ("{}", "a dict") if isinstance(source, Mapping) else (source, "a YAML file")
        raise ConfigError("job", shown, "empty", f"{what} with name, seed, problem, algorithm, stop")
    if "axes" in values and "problem" not in values:
        raise ConfigError("job", source, "this is a study", "a job file", "use mpifl sweep and mpifl report")
    for override in overrides:
        set_key(values, *parse_override(override))
    values |= _plain(keys or {})
    resolved = _resolved(values)
    try:
        return job_from_dict({"output": f"results/{resolved.get('name')}.h5", **resolved})
    except ConfigError as error:
        raise _left_over(error, dict(map(parse_override, overrides))) from None


def _left_over(error: ConfigError, overrides: Mapping[str, Any]) -> ConfigError:
    """The error, with a hint if it is about an option of the file, and an override names another class."""
    section = error.key.rpartition(".")[0]
    name = overrides.get(f"{section}.name")
    if name is None or any(f"{error.key}.".startswith(f"{key}.") for key in overrides):
        return error
    hint = f"{section}={name} replaces the whole section, {section}.name={name} only its name"
    return ConfigError(
        error.key, error.value, error.wrong, error.expected, "; ".join(filter(None, [error.remedy, hint]))
    )


def _plain(value: Any, key: str = "") -> Any:
    """A copy of dicts and lists in which paths are text, functions and classes their names, and NumPy's numbers
    Python's. Raises ConfigError for a function or class without a name that leads to it; key: of the value."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each, f"{key}.{name}" if key else str(name)) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, key) for each in value]
    if callable(value):
        return import_name(key, value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def to_yaml(job: Job) -> str:
    """The resolved configuration; loads again to an equal job."""
    from mpifl.config import yaml_io

    return yaml_io.dump(job_to_dict(job))


# -- reading YAML ------------------------------------------------------------------------------------------------------
def read_yaml(path: Path, kind: str) -> dict[str, Any]:
    """The sections of a YAML file; ${...} are left as they are. Raises ConfigError; kind: of the file, its key."""
    return _parsed(kind, str(path), _text(kind, path))


def _text(kind: str, path: Path) -> str:
    try:
        raw = read_text_file(path)
    except FileNotFoundError:
        raise ConfigError(kind, path, "no such file", f"an existing {kind} file") from None
    except OSError as error:
        raise ConfigError(kind, path, f"cannot be read: {error.strerror or error}", f"a readable {kind} file") from None
    except ValueError as error:
        raise ConfigError(kind, path, str(error), f"a {kind} file") from None
    if raw.startswith(b"\x89HDF\r\n"):
        raise ConfigError(kind, path, "this is HDF5", "a YAML file", "mpifl show and mpifl replay take a run file")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ConfigError(kind, path, "this is not text", "a YAML file")
    return text


def _parsed(kind: str, name: str, text: str) -> dict[str, Any]:
    """YAML to a dict of dicts, lists, text and numbers; ${...} are left as they are."""
    import yaml

    from mpifl.config import yaml_io

    expected = "a YAML file of sections"
    try:
        values = yaml_io.parse(text)
        if values is None or isinstance(values, str):  # the file is empty, or prose
            return {}
        if not isinstance(values, dict):
            raise ConfigError(kind, name, "it has no keys", expected)
        return _section(values)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(kind, name, f"not valid YAML: {where}{error.problem or error.context}", expected) from None
    except ConfigError:
        raise
    except Exception as error:  # YAML's constructors raise nearly anything at a wrong !!tag
        raise ConfigError(kind, name, f"not valid YAML: {error}", expected) from None


def _section(values: dict[Any, Any]) -> dict[str, Any]:
    """The section with text as keys. Raises ValueError."""
    section = {str(key): _checked(value) for key, value in values.items()}
    if len(section) < len(values):
        raise ValueError("a key that is there twice, as text and as a number")
    return section


def _checked(value: Any) -> Any:
    """The value with text as keys. Raises ValueError for what is neither a section, a list, text nor a number."""
    if isinstance(value, dict):
        return _section(value)
    if isinstance(value, list):
        return [_checked(each) for each in value]
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ValueError(f"an integer of {value.bit_length()} bits")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"a value of type {type(value).__name__}")


def parse_override(text: str) -> tuple[str, Any]:
    """`key=value` as the key and the value that YAML makes of it."""
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", key):
        raise ConfigError("override", text, "not key=value", "key=value, as in algorithm.step_size=0.1")
    try:
        values = _parsed("override", text, f"value: {value}")
    except ConfigError as error:
        raise error.of(key, value) from None
    if len(values) > 1:
        raise ConfigError(key, value, "further keys follow the value", "one value", "give each key an override")
    return key, values["value"]


def set_key(values: dict[str, Any], key: str, value: Any) -> None:
    """Sets the value of a dotted key; sections that are missing are made. Raises ConfigError."""
    *path, last = key.split(".")
    node = values
    for depth, part in enumerate(path):
        below = node.get(part)
        if isinstance(below, str):  # `partition: iid` is short for `partition: {name: iid}`
            below = {"name": below}
        if not isinstance(below, dict | None):
            raise ConfigError(key, value, f"{'.'.join(path[: depth + 1])} is not a section", "a key that exists")
        node[part] = node = below or {}
    node[last] = value


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens {"a": {"b": 1}} to {"a.b": 1}; lists become their JSON text."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = json.dumps(value) if isinstance(value, list) else value
    return flat


# -- ${...} ------------------------------------------------------------------------------------------------------------
def _resolved(values: dict[str, Any]) -> dict[str, Any]:
    """The values with every ${key} replaced by the value of that key of the job. Raises ConfigError."""
    count = characters = 0  # size of the job with its references resolved: a few lines of them could fill the memory

    def counted(key: str, text: object, depth: int) -> None:
        nonlocal count, characters
        count, characters = count + 1, characters + (len(text) if isinstance(text, str) else 0)
        if count > MAX_VALUES or characters > MAX_TEXT or depth > MAX_DEPTH:
            most = f"at most {MAX_VALUES} values or {MAX_TEXT} characters, at most {MAX_DEPTH} references in a chain"
            raise ConfigError(key, "${...}", "the references stand for too much", most)

    def resolve(value: Any, key: str, users: tuple[str, ...]) -> Any:
        """users: the keys whose values refer to this one, directly or not."""
        counted(key, value, len(users))
        if isinstance(value, dict):
            return {k: resolve(each, f"{key}.{k}", users) for k, each in value.items()}
        if isinstance(value, list):
            return [resolve(each, f"{key}[{k}]", users) for k, each in enumerate(value)]
        if not isinstance(value, str) or "${" not in value:
            return value
        if "${" in REFERENCE.sub("", value):
            raise ConfigError(key, value, "a reference that does not end", "${, a key and }, as in ${problem.clients}")
        if whole := REFERENCE.fullmatch(value):  # the value keeps its type: a number, a section, a list
            return look_up(whole[1], key, value, users)

        def text_of(found: re.Match[str]) -> str:
            text = str(look_up(found[1], key, value, users))
            counted(key, text, len(users))
            return text

        return REFERENCE.sub(text_of, value)

    def look_up(target: str, key: str, text: str, users: tuple[str, ...]) -> Any:
        """The resolved value of the dotted key `target`, which the value `text` of `key` refers to."""
        if key in users:
            raise ConfigError(key, text, f"it refers to itself, by {' -> '.join(users)} -> {key}", "another reference")
        node: Any = values
        for part in target.split("."):
            if isinstance(node, str):
                node = resolve(node, target, (*users, key))
            if isinstance(node, list) and part.isdecimal() and int(part) < len(node):
                node = node[int(part)]
            elif isinstance(node, dict) and part in node:
                node = node[part]
            else:
                hint = f"a variable of the environment is the shell's: {key}=${target}" if target.isupper() else ""
                wrong = f"there is no {target or 'key without a name'}"
                raise ConfigError(key, text, wrong, "${...} of a key of this job", hint)
        return resolve(node, target, (*users, key))

    return {key: resolve(value, key, ()) for key, value in values.items()}
