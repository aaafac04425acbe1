"""`mpifl list` and `mpifl check`: each option's default, allowed values and meaning, from the dataclasses."""

from __future__ import annotations

import dataclasses
import inspect
import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tabulate import tabulate

from mpifl.algorithms import Clients
from mpifl.algorithms.base import NEEDS
from mpifl.algorithms.participation import Trigger
from mpifl.config.job import NOT_NEEDED, Checkpoint, Clock, Evaluate, Faults, Job, Keep, MemoryUse, Stop
from mpifl.config.packaged import find_jobs
from mpifl.config.read import job_to_dict
from mpifl.config.registry import FAMILIES, import_class
from mpifl.config.schema import default_of, fields_of, meanings, variants
from mpifl.config.types import describe, has_bounds, hints, members
from mpifl.errors import ConfigError
from mpifl.problems import Problem
from mpifl.problems.problem_section import ProblemConfig

Row = tuple[str, str, str]  # key, default value, meaning with the allowed values


def overview() -> str:
    """Everything that a job can name, with a line each."""
    parts = [f"{name}\n{textwrap.indent(kind.overview(), '  ')}" for name, kind in KINDS.items()]
    return "\n\n".join([*parts, "mpifl list KIND [NAME] prints the options, for example: mpifl list algorithms area"])


def algorithms(name: str | None = None) -> str:
    """All algorithms with a line each, or one with its options."""
    family = FAMILIES["algorithm"]
    if name is None:
        own = {each: _summary(inspect.getmodule(family.find(each))) for each in family.names()}
        others = {each: f"{alias.summary} ({alias})" for each, alias in family.aliases.items()}
        return _table(sorted((own | others).items()))
    cls, about = family.find(name), ""
    if alias := family.aliases.get(name):
        about, name = f"{name}: {alias.summary} ({alias})\n", alias.name
    return f"{about}{name}: {_summary(inspect.getmodule(cls))}\n{_summary(cls)}\n\n{_options(cls)}"


def own_training() -> str:
    """The algorithms that work with clients with custom training loops, and what the others need of a client."""
    family, work, lack = FAMILIES["algorithm"], [], []
    for name in sorted([*family.names(), *family.aliases]):
        needs = family.find(name)().client_needs()
        options = ", ".join(f"{option}: {NOT_NEEDED.get(option, 0)}" for option in needs.values() if option)
        if always := [need for need, option in needs.items() if not option]:
            lack.append((name, ", ".join(always), " or ".join(NEEDS[always[0]]), options and f"with {options}"))
        else:
            work.append((name, f"with {options}" if options else "", _summary(family.find(name))))
    heads = ("clients with fit", "clients that offer more: what the algorithm needs, and the hook that meets it")
    return f"{heads[0]}\n{textwrap.indent(_table(work), '  ')}\n\n{heads[1]}\n{textwrap.indent(_table(lack), '  ')}"


def data(name: str | None = None) -> str:
    """The data sets, their partitions over clients, and the other options of a problem."""
    parts = _families({"data": "data sets", "partition": "partitions"}, name)
    return parts if name else f"{parts}\n\nproblems (problem.KEY)\n{_options(ProblemConfig)}"


def jobs(name: str | None = None) -> str:
    """The job files with the first comment line of each; studies are left out. Raises ConfigError for no such file."""
    found = [(key, _comment(path)) for key, path in find_jobs().items() if name in (None, path.stem)]
    if name is not None and not found:
        raise ConfigError("name", name, "no such job file", "one that mpifl list jobs prints, such as quickstart")
    return _table(found)


def section(key: str, cls: type, name: str | None = None) -> str:
    """The options of a section that has one class, or the one of this name. Raises ConfigError for no such option."""
    if key in FAMILIES and name and ":" in name:  # a user's own class
        return _section(key, name)
    rows = list(_rows(cls))
    if name is None:
        return f"{key}: {_summary(cls)}\n" + textwrap.indent(_table(rows), "  ")
    found = [row for row in rows if row[0] == name.removeprefix(f"{key}.")]
    if not found:
        raise ConfigError("name", name, "no such name", f"one of {', '.join(row[0] for row in rows)}")
    return _table(found)


def annotated_yaml(job: Job, problem: Problem | None = None, notes: Sequence[str] = ()) -> str:
    """A job as YAML, with the allowed values and bounds of each option in a comment.

    Comments at the end: with `problem`, what its data holds; the effective step of a client, where it has one; `notes`.
    """
    notes = [*([data_note(problem)] if problem else []), step_note(job, problem), *notes]
    return "".join([*_annotated(job, job_to_dict(job), ""), *(f"# {note}\n" for note in notes if note)])


def data_note(problem: Problem) -> str:
    """The numbers of rows, clients and parameters of a problem, in one line."""
    least, most = int(problem.samples.argmin()), int(problem.samples.argmax())
    smallest, largest = (f"{problem.samples[i]:,} (client {i})" for i in (least, most))
    rows, clients = f"{problem.samples.sum():,} training rows", f"{problem.clients:,} clients"
    return f"data: {rows} of {clients}, from {smallest} to {largest}; model: {problem.d:,} parameters (d)"


def step_note(job: Job, problem: Problem | None = None) -> str:
    """A line on how far a local step of a client moves the global model; "" where that is not defined."""
    text = "effective step: one local step of a client moves the global model by {} times its gradient"
    if problem is None and job.problem.clients is None:
        known = job.algorithm.effective_steps(Clients(np.ones(2))) is not None
        return "effective step: --data prints it, since the number of clients is in the data" if known else ""
    samples = problem.samples if problem else np.ones(job.problem.clients or 1)
    steps = job.algorithm.effective_steps(Clients(samples, seed=job.seed))
    if steps is None:
        return ""
    least, most = int(steps.argmin()), int(steps.argmax())
    if problem and steps[least] < steps[most]:
        return text.format(f"{steps[least]:.4g} (client {least}) to {steps[most]:.4g} (client {most})")
    size: float = getattr(job.algorithm, "step_size", steps[0])
    line = f"{text.format(f'{steps[0]:.4g}')}, step_size {size:.4g} times {steps[0] / size:.4g}"
    unequal = job.algorithm.effective_steps(Clients(np.arange(1.0, len(samples) + 1)))
    if problem or unequal is None or np.allclose(unequal, unequal[0]):
        return line
    return f"{line}, for a client with the mean number of rows (--data reads the numbers)"


def _annotated(section: Any, values: dict[str, Any], indent: str) -> Iterator[str]:
    from mpifl.config import yaml_io

    for key, value in values.items():
        own = getattr(section, key, None)
        if isinstance(value, dict) and value and dataclasses.is_dataclass(own):
            yield f"{indent}{key}:\n"
            yield from _annotated(own, value, indent + "  ")
            continue
        first, *rest = yaml_io.dump({key: value}).splitlines()
        cls: type = type(section)
        hint = hints(cls).get(key)
        allowed = describe(hint) if has_bounds(hint) else ""
        yield f"{indent}{first}{f'  # {allowed}' if allowed else ''}\n"
        yield from (f"{indent}{line}\n" for line in rest)


def _families(families: dict[str, str], name: str | None = None) -> str:
    """All members of some families, or the one of this name."""
    if name is None:
        return "\n\n".join(
            f"{title} ({key}: NAME)\n" + "\n".join(_section(key, each) for each in FAMILIES[key].names())
            for key, title in families.items()
        )
    keys = list(families)
    if ":" in name:  # the family of a user's own class is that of its base class
        found = import_class(name, object)
        keys = [key for key in keys if issubclass(found, FAMILIES[key].base or object)] or keys
    return _section(next((key for key in keys if name in FAMILIES[key].names()), keys[0]), name)


def _section(key: str, name: str) -> str:
    """A class of a family, with its options."""
    cls = FAMILIES[key].find(name)
    options = _options(cls)
    return f"{name}: {_summary(cls)}" + (f"\n{options}" if options else "")


def _options(cls: type) -> str:
    return textwrap.indent(_table(list(_rows(cls))), "  ")


def _rows(cls: type, default: Any = None, path: str = "") -> Iterator[Row]:
    """Key, default, meaning and allowed values of every field, those of plain nested sections included."""
    for name, field in fields_of(cls).items():
        if name == "name":
            continue
        value = getattr(default, name) if default is not None else default_of(field)
        text = meanings(cls).get(name, "")
        kinds = members(hints(cls)[name])
        choices = variants(kinds)
        allowed = f" [{describe(hints(cls)[name])}]" if has_bounds(hints(cls)[name]) else ""
        yield f"{path}{name}", _text(value), text + allowed
        shared: dict[Row, list[str]] = {}  # an option that several choices have is one row
        for kind, choice in choices.items() if name not in FAMILIES else ():
            for row in _rows(choice, None, f"{path}{name}."):
                shared.setdefault(row, []).append(kind)
        yield from ((*row[:2], f"{', '.join(names)}: {row[2]}") for row, names in shared.items())
        if not choices:
            for section in filter(dataclasses.is_dataclass, kinds):
                own = value if isinstance(value, section) else None  # type: ignore[arg-type]
                yield from _rows(section, own, f"{path}{name}.")  # type: ignore[arg-type]


def _text(value: Any) -> str:
    if value is dataclasses.MISSING:
        return "required"
    if dataclasses.is_dataclass(value):
        return str(getattr(value, "name", ""))
    return str(value) if isinstance(value, str) else json.dumps(value)  # null, true and false are as in YAML


def _table(rows: list[Any]) -> str:
    return tabulate(rows, tablefmt="plain", disable_numparse=True)


def _summary(thing: Any) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


def _comment(path: Path) -> str:
    lines = path.read_text("utf-8", "replace").splitlines()
    return next((line.lstrip("# ") for line in lines if line.startswith("#")), "")


class Kind(NamedTuple):
    """One kind of thing that a job can name."""

    overview: Callable[[], str]  # everything of this kind, a line each
    show: Callable[[str | None], str]  # the options of everything of this kind, or of what has this name


def _classes(**families: str) -> Kind:
    """The kind of classes that a section selects by `name`: their families, with a title each."""
    return Kind(partial(_names, *families), partial(_families, families))


def _plain_section(key: str, cls: type) -> Kind:
    """The kind of a section that has one class."""
    return Kind(lambda: _table([(f"{key}.{name}", *row) for name, *row in _rows(cls)]), partial(section, key, cls))


def _names(*keys: str) -> str:
    """The names of some families with a line each."""
    families = [(key, FAMILIES[key]) for key in keys]
    return _table([(f"{key}: {each}", _summary(own.find(each))) for key, own in families for each in own.names()])


KINDS: dict[str, Kind] = {
    "algorithms": Kind(algorithms, algorithms),
    "data": Kind(partial(_names, "data"), data),
    "partitions": _classes(partition="partitions"),
    "models": _classes(model="models", init="initial models"),
    "clocks": _plain_section("clock", Clock),
    "delays": _classes(delay="delay models"),
    "availability": _classes(availability="availability models"),
    "triggers": _plain_section("trigger", Trigger),
    "stop": _plain_section("stop", Stop),
    "evaluate": _plain_section("evaluate", Evaluate),
    "checkpoint": _plain_section("checkpoint", Checkpoint),
    "keep": _plain_section("keep", Keep),
    "faults": _plain_section("faults", Faults),
    "memory": _plain_section("memory", MemoryUse),
    "jobs": Kind(jobs, jobs),
}
