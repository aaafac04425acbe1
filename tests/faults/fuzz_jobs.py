"""Malformed job files: every section and key, with values of every wrong kind, and text that is hardly YAML."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

from tests.mpi.cases import CASES

JOBS = [CASES[name] for name in ("area-before", "fedbuff", "fedavg-samples", "asypfl", "feddane")]
STOP = {"stop": {"updates": 6, "time": 1.0e3}, "evaluate": {"updates": 3}}
BOUNDED = ["stop={updates: 3}", "evaluate={updates: 2}", "clock.mode=virtual", "output=results/out.h5"]

SMALL: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 1.5, -0.0, float("nan"), float("inf"), float("-inf"), 1e-320, 1e308, "", " ", "3",
    "1e3", "nan", "null", "a b", "../x", "/", "a/b", ".", "..", "~", "???", "name", "json:loads", "os:system", "a:b:c",
    "x" * 300, "\u202e\u2066", "\ud800", "\0", "\x1b[2J", "é\u0301", "\U0001f600", "一" * 100, "\n\n", "${name}",
    "${problem}", "${oc.env:HOME}", "${no.such}", "${", "${a:b}", "$", "%s", "{}", "[]", [], {}, [[]], [1, 2], ["a"],
    [None], [float("nan")], {"name": None}, {"name": 7}, {"name": ["a"]}, {"name": {}}, {"a": 1}, {"": 1}, [{}],
    {"name": "none"}, {"name": "area"}, {"name": "digits"}, {"every": 1, "updates": 1},
)  # fmt: skip
HUGE: tuple[Any, ...] = (
    2**31, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, -(10**400), [0] * 10000, "9" * 5000, 1.7e308,
)  # fmt: skip


def prepare(folder: Path) -> None:
    """One job after the other, all keys filled in as `mpifl check` prints them."""
    from mpifl.config import read

    for k, job in enumerate(JOBS):
        full = read.job_to_dict(read.job_from_dict({"name": "a", "seed": 1, "output": "a.h5", **job, **STOP}))
        (folder / f"{k}.json").write_text(json.dumps(full))
        (folder / f"job{k}.yaml").write_text(read.to_yaml(read.job_from_dict(full)))


def values(folder: Path, random: Random) -> list[str]:
    """Wrong values, absurd numbers among them, and overrides that keep the run short where they are taken after all."""
    k = random.randrange(len(JOBS))
    job = json.loads((folder / f"{k}.json").read_text())
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        mutate(job, random, SMALL + HUGE)
    text = json.dumps(job)  # which is YAML, but for the numbers that JSON has no word for
    text = text.replace("NaN", ".nan").replace("-Infinity", "-.inf").replace("Infinity", ".inf")
    (folder / f"job{k}.yaml").write_text(text)
    return [f"job{k}.yaml", *BOUNDED]


def mutate(job: dict[str, Any], random: Random, pool: tuple[Any, ...]) -> None:
    """Another value at any depth, a key too many, too few, renamed, or in the wrong place."""
    node, key = random.choice(list(_places(job)))
    chance = random.random()
    if chance < 0.7:
        node[key] = deepcopy(random.choice(pool))
    elif chance < 0.78:
        del node[key]
    elif chance < 0.86 and isinstance(node, dict):
        node[random.choice((f"{key}s", str(key)[:-1], "nmae", "7", "", "a.b", "é", "x" * 200))] = 1
    elif chance < 0.93:
        other, place = random.choice(list(_places(job)))
        node[key] = deepcopy(other[place])
    else:
        node[key] = _deep(random.choice((3, 30, 90)), deepcopy(random.choice(pool)))


def _places(node: Any) -> Any:
    """Every (container, key) of the tree."""
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], (dict, list)):
            yield from _places(node[key])


def _deep(levels: int, value: Any) -> Any:
    for k in range(levels):
        value = {"name": value} if k % 2 else [value]
    return value


def text(folder: Path, random: Random) -> list[str]:
    """Text that YAML has traps for, put into a job file."""
    file = folder / f"job{random.randrange(len(JOBS))}.yaml"
    lines = file.read_text().splitlines()
    for _ in range(random.choice((1, 1, 2))):
        k = random.randrange(len(lines))
        how = random.choice(("insert", "insert", "value", "double", "drop", "indent", "move"))
        if how == "insert":
            lines.insert(k, random.choice(TRAPS))
        elif how == "value":
            lines[k] = f"{lines[k].partition(':')[0]}: {random.choice(TRAPS)}"
        elif how == "double":
            lines.insert(random.randrange(len(lines)), lines[k])
        elif how == "drop":
            del lines[k]
        elif how == "indent":
            lines[k] = random.choice(("  ", "\t", " ")) + lines[k]
        else:
            lines.insert(random.randrange(len(lines)), lines.pop(k))
    encoding = random.choice(("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"))
    file.write_bytes("\n".join(lines).encode(encoding, "replace"))
    return [file.name]


TRAPS = (
    "self: &s [*s]", "self: &s {a: *s}",
    "[" * 500, "[" * 20000, "{a: " * 500, "- " * 3000, "? " * 300, "'" + "x" * 100000, "x" * 100000 + ": 1",
    "&a a: *b", "*none", "<<: {seed: 3}", "<<: [1]", "<<: *a", "<<: 3", "!!python/object/apply:os.system [id]",
    "!!python/name:os.system x", "!!binary aGVsbG8=", "!!set {a, b}", "!!omap [a: 1]", "!!timestamp 2024-01-01",
    "!!int x", "!!float x", "!!int 0x", "!!bool 3", "!!null x", "!unknown 3", "!!str 3", "!!map 3", "!!seq {}",
    "%YAML 1.2", "%TAG ! x", "---", "...", "--- |", "? [a, b]\n: 3", "? {a: 1}\n: 3", "3: 4", "null: 1", "true: 1",
    "1.5: 1", "2024-01-01: 1", "~: 1", "2024-01-01", "2024-99-99", "12:30:45", "0x1F", "0o17", "1_000", "0b11", ".inf",
    ".NaN", "1e999", "-1e999", "1" * 5000, "1." + "0" * 5000, "1:" * 500 + "1", "=", "|", ">", "@x", "`x`", "%", "\t",
    "\0", "\x07", "\x85", "\u2028", "\ufeff", "\ud7ff\ue000", "\uffff", '"\\ud800"', '"\\x00"', '"\\u0000"', '"\\z"',
    "${name}", "${.}", "${..name}", "${seed", "${oc.env:PATH}", "${oc.env:NO_SUCH_NAME}", "${oc.create:{a: 1}}",
    "${oc.decode:'['}", "a: ${a}", "a: ${b}\nb: ${a}", "${" * 200, "${a." * 200, "\\${name}", "${oc.dict.keys:problem}",
)  # fmt: skip


KEYS = (
    "seed", "name", "problem", "problem.clients", "problem.model.dim", "problem.data", "algorithm", "algorithm.trigger",
    "algorithm.step_size", "algorithm.trigger.every", "clock.delay", "stop.updates", "evaluate", "faults.patience",
    "nmae", "a.b.c", "", ".", "problem.", ".problem", "problem..data", "é", "-x", "--x", "a b", "7",
)  # fmt: skip


def overrides(folder: Path, random: Random) -> list[str]:
    """Words of the command line that are wrong in the key, the equals sign or the value."""
    words = [f"job{random.randrange(len(JOBS))}.yaml"]
    for _ in range(random.choice((1, 1, 2, 3))):
        value = random.choice(SMALL + HUGE + TRAPS)
        given = value if isinstance(value, str) else json.dumps(value)
        words.append(random.choice(KEYS) + random.choice(("=", "=", "=", "=", "==", ":", "", " = ")) + given)
    return [word.replace("\0", "").replace("\ud800", "\udc80") for word in words]  # what a command line can hold
