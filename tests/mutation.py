"""Do the tests notice a mistake? Draws small mutations of the package at random and runs the tests against each.

    python -m tests.mutation --count 60 --seed 0      prints a Markdown table, row by row

A mutation swaps an operator, a comparison or two arguments, negates a condition, changes a number or a truth value, or
removes a statement. The packages take turns, so that a small one has as many as a large one. Each mutation is made in a
copy of the repository; the tests of the package that it is in come first, then the rest of the short tier, until a test
fails. What the short tier lets pass is run against the long tier.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).parents[1]
TIMEOUT = 1200.0  # s for one run of the tests: a mutation may make a run endless
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """What replaces the text of a node."""

    file: str
    line: int
    start: int  # of the text in the file, in bytes
    end: int
    was: str
    new: str

    @property
    def package(self) -> str:
        folders = self.file.split("/")
        return folders[2 if folders[1] == "tools" else 1].removesuffix(".py")

    def apply(self, root: Path) -> None:
        path = root / self.file
        source = path.read_bytes()
        path.write_bytes(source[: self.start] + self.new.encode() + source[self.end :])


def changed(node: ast.AST, **fields: Any) -> str:
    """The code of a node with other values of some fields."""
    return ast.unparse(type(node)(**{**vars(node), **fields}))


def mistakes(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Nodes, this one or its condition, and what may stand in their place, each with one mistake."""
    match node:
        case ast.Compare():
            for k, operator in enumerate(node.ops):
                ops = [*node.ops[:k], SWAPPED[type(operator)](), *node.ops[k + 1 :]]
                yield node, f"({changed(node, ops=ops)})"
        case ast.BinOp() | ast.BoolOp() if type(node.op) in SWAPPED:
            yield node, f"({changed(node, op=SWAPPED[type(node.op)]())})"
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node, f"({ast.unparse(node.operand)})"
        case ast.Constant(value=bool() as value):
            yield node, str(not value)
        case ast.Constant(value=int() as value):
            yield node, str(value + 1)
        case ast.Constant(value=float() as value):
            yield node, repr(value * 2 or 1.0)
        case ast.Call(args=[one, other, *rest]) if ast.unparse(one) != ast.unparse(other):
            if not any(isinstance(each, ast.Starred) for each in (one, other)):
                yield node, changed(node, args=[other, one, *rest])
        case ast.If() | ast.While() | ast.IfExp() if not isinstance(node.test, ast.UnaryOp):
            yield node.test, f"(not ({ast.unparse(node.test)}))"
        case ast.AugAssign():
            yield node, "pass"
            if type(node.op) in SWAPPED:
                yield node, changed(node, op=SWAPPED[type(node.op)]())
        case ast.Assign() if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            yield node, "pass"
        case ast.Raise():
            yield node, "pass"
        case ast.Expr() if not isinstance(node.value, ast.Yield | ast.YieldFrom):
            yield node, "pass"


def mutated(node: ast.AST) -> Iterator[ast.AST]:
    """A node and those below it; not annotations, docstrings, messages, assertions, or what only type checkers read."""
    match node:
        case ast.JoinedStr() | ast.Assert() | ast.Expr(value=ast.Constant()) | ast.arg():
            return
        case ast.If(test=test) if "TYPE_CHECKING" in ast.unparse(test):
            return
        case ast.Raise():  # and not what it says
            yield node
            return
        case ast.AnnAssign(value=value):
            below = [value] if value else []
        case ast.FunctionDef(args=args, body=body):
            below = [args, *body]
        case _:
            yield node
            below = [*ast.iter_child_nodes(node)]
    for child in below:
        yield from mutated(child)


def sites(file: str, source: bytes) -> Iterator[Mutation]:
    """All mutations of a file."""
    begins = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]  # of lines
    for node in mutated(ast.parse(source)):
        for place, new in mistakes(node):
            start = begins[place.lineno - 1] + place.col_offset
            end = begins[place.end_lineno - 1] + place.end_col_offset
            yield Mutation(file, place.lineno, start, end, source[start:end].decode(), new)


def draw(count: int, seed: int) -> list[Mutation]:
    """As many mutations of each package as of another, at random."""
    packages: dict[str, list[Mutation]] = {}
    for path in sorted((ROOT / "mpifl").rglob("*.py")):
        for mutation in sites(str(path.relative_to(ROOT)), path.read_bytes()):
            packages.setdefault(mutation.package, []).append(mutation)
    random = Random(seed)
    for sites_of_package in packages.values():
        random.shuffle(sites_of_package)
    folders = [name for name in packages if any((ROOT / "mpifl" / where / name).is_dir() for where in (".", "tools"))]
    single = sorted(set(packages) - set(folders))  # modules beside the packages count as one
    groups = [packages[name] for name in folders]
    groups.append([packages[name].pop() for _ in range(count) for name in single if packages[name]])
    drawn = [group[k] for k in range(count) for group in groups if k < len(group)]
    return drawn[:count]


def copied(to: Path) -> Path:
    """The files that git knows, as they are now, in a folder of their own."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    return to


def likely(mutation: Mutation) -> list[str]:
    """The test files that are likely to notice it: those named like its module, then those of its package."""
    named = sorted((ROOT / "tests").rglob(f"test_{Path(mutation.file).stem}*.py"))
    files = [*named, *sorted((ROOT / "tests" / mutation.package).glob("test_*.py"))]
    return list(dict.fromkeys(str(path.relative_to(ROOT)) for path in files))


def first_failure(place: Path, marks: str, paths: list[str], ignored: list[str]) -> str:
    """The first test that fails, "timeout", or "" where all pass."""
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", "-m", marks]
    words += paths or ["-n", "2", *(f"--ignore={path}" for path in ignored)]
    env = {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(words, cwd=place, env=env, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return "timeout"
    if done.returncode in (0, 5):  # 5: no test of that tier is in these files
        return ""
    named = re.search(r"^(?:FAILED|ERROR) (\S+?)(?:\[.*)?(?: - .*)?$", done.stdout, flags=re.MULTILINE)
    return named[1] if named else f"exit code {done.returncode}"


def verdict(mutation: Mutation, place: Path, long: bool) -> tuple[str, str]:
    """The tier that notices a mutation that has been made, and its first test that fails."""
    near = likely(mutation)
    for tier, marks in (("short", "not long"), ("long", "long"))[: 1 + long]:
        if near and (failed := first_failure(place, marks, near, [])):
            return tier, failed
        if failed := first_failure(place, marks, [], near):
            return tier, failed
    return "survived", ""


def rows(mutations: list[Mutation], long: bool) -> Iterator[str]:
    """A table row for each mutation, as soon as it is known."""
    yield "| file | line | was | became | noticed by | first test that fails | s |\n|---|---:|---|---|---|---|---:|"
    for mutation in mutations:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
            place = copied(Path(folder))
            mutation.apply(place)
            was, became = (" ".join(text.split()).replace("|", "\\|") for text in (mutation.was, mutation.new))
            tier, test = verdict(mutation, place, long)
        seconds = time.monotonic() - begin
        yield f"| {mutation.file} | {mutation.line} | `{was}` | `{became}` | {tier} | {test} | {seconds:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs the tests against random mutations of the package.")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first mutation that is tried")
    parser.add_argument("--short", action="store_true", help="not against the long tier")
    parser.add_argument("--package", help="the mutations of one package alone, as it has them among all drawn")
    parser.add_argument("--no-control", action="store_true", help="not first the short tier without a mutation")
    parser.add_argument("--list", action="store_true", help="prints the mutations only")
    arguments = parser.parse_args()
    mutations = draw(arguments.count, arguments.seed)[arguments.first :]
    if arguments.package:
        mutations = [mutation for mutation in mutations if mutation.package == arguments.package]
    if arguments.list:
        for mutation in mutations:
            print(mutation)
        return
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:  # else every mutation seems to be noticed
        if not arguments.no_control and (failed := first_failure(copied(Path(folder)), "not long", [], [])):
            sys.exit(f"without a mutation: {failed}")
    for row in rows(mutations, not arguments.short):
        print(row, flush=True)


if __name__ == "__main__":
    main()
