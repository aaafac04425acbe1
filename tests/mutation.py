"""Do the tests notice a mistake? Draws one-line mutations of the package at random and runs the tests against each.

    python -m tests.mutation --count 60 --seed 0      prints a Markdown table, row by row

A mutation swaps an operator, a comparison or two arguments, negates a condition, changes a number or a truth value, or
removes a statement. The packages take turns, so that a small one has as many as a large one. Each mutation is made in a
copy of the repository; the tests of the package that it is in come first, then the rest of the short tier, until a test
fails. What the short tier lets pass is run against the long tier.
"""

from __future__ import annotations

import argparse
import ast
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

ROOT = Path(__file__).parents[1]
SWAPPED = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is", "in": "not in",
    "not in": "in", "+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*", "**": "*", "+=": "-=", "-=": "+=",
    "*=": "/=", "/=": "*=", "|=": "&=", "|": "&", "&": "|", "and": "or", "or": "and",
}  # fmt: skip
TIMEOUT = 1200.0  # s for one run of the tests: a mutation may make a run endless


@dataclass(frozen=True)
class Mutation:
    """What replaces the text between two columns of a line."""

    file: str
    line: int
    start: int
    end: int
    new: str

    @property
    def package(self) -> str:
        folders = self.file.split("/")
        return folders[2 if folders[1] == "tools" else 1].removesuffix(".py")

    def apply(self, root: Path) -> tuple[str, str]:
        """Changes the file; the line before and after."""
        path = root / self.file
        lines = path.read_text().splitlines(keepends=True)
        before = lines[self.line - 1]
        raw = before.encode()  # columns of `ast` count bytes
        lines[self.line - 1] = (raw[: self.start] + self.new.encode() + raw[self.end :]).decode()
        path.write_text("".join(lines))
        return before.strip(), lines[self.line - 1].strip()


class Sites(ast.NodeVisitor):
    """All mutations of a file. Not of annotations, docstrings, messages, or what only type checkers read."""

    def __init__(self, file: str, source: str) -> None:
        self.file, self.lines = file, source.splitlines()
        self.found: list[Mutation] = []
        self.visit(ast.parse(source))

    def add(self, line: int, start: int, end: int, new: str) -> None:
        self.found.append(Mutation(self.file, line, start, end, new))

    def text(self, node: ast.expr | ast.stmt) -> str:
        return self.lines[node.lineno - 1].encode()[node.col_offset : node.end_col_offset].decode()

    def replace(self, node: ast.expr | ast.stmt, new: str) -> None:
        if node.lineno == node.end_lineno and node.end_col_offset is not None:
            self.add(node.lineno, node.col_offset, node.end_col_offset, new)

    def between(self, one: ast.expr, other: ast.expr) -> None:
        """The operator between two operands."""
        if one.end_lineno == other.lineno and one.end_col_offset is not None:
            gap = self.lines[other.lineno - 1].encode()[one.end_col_offset : other.col_offset].decode()
            symbol = gap.strip(" ()")
            if symbol in SWAPPED:
                start = one.end_col_offset + gap.index(symbol)
                self.add(other.lineno, start, start + len(symbol), SWAPPED[symbol])

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self.between(node.left, node.right)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for one, other in zip(node.values, node.values[1:], strict=False):
            self.between(one, other)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for one, other in zip([node.left, *node.comparators], node.comparators, strict=False):
            self.between(one, other)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self.replace(node, f"({self.text(node)[3 if isinstance(node.op, ast.Not) else 1 :].strip()})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.replace(node, str(not node.value))
        elif isinstance(node.value, int):
            self.replace(node, str(node.value + 1))
        elif isinstance(node.value, float):
            self.replace(node, repr(node.value * 2 or 1.0))

    def visit_Call(self, node: ast.Call) -> None:
        if len(node.args) >= 2 and node.args[0].lineno == node.args[1].end_lineno:
            one, other = node.args[:2]
            texts = self.text(one), self.text(other)
            if texts[0] != texts[1] and not any(isinstance(a, ast.Starred) for a in (one, other)):
                middle = self.lines[one.lineno - 1].encode()[one.end_col_offset : other.col_offset].decode()
                assert other.end_col_offset is not None
                self.add(one.lineno, one.col_offset, other.end_col_offset, texts[1] + middle + texts[0])
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self.condition(node.test)
            self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self.condition(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.condition(node.test)
        self.generic_visit(node)

    def condition(self, test: ast.expr) -> None:
        if not isinstance(test, ast.UnaryOp):
            self.replace(test, f"(not ({self.text(test)}))")

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring, or `...`
            if not isinstance(node.value, ast.Yield | ast.YieldFrom):
                self.replace(node, "pass")
            self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.replace(node, "pass")
        self.between(node.target, node.value)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self.replace(node, "pass")
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(default)
        for statement in node.body:
            self.visit(statement)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.replace(node, "pass")

    def visit_Assert(self, node: ast.Assert) -> None:
        """Says what is known; no test breaks it."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """A message."""


def draw(count: int, seed: int) -> list[Mutation]:
    """As many mutations of each package as of another, at random."""
    packages: dict[str, list[Mutation]] = {}
    for path in sorted((ROOT / "mpifl").rglob("*.py")):
        sites = Sites(str(path.relative_to(ROOT)), path.read_text())
        for mutation in sites.found:
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
            was, became = (text.replace("|", "\\|") for text in mutation.apply(place))
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
