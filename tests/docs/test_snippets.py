"""Every command and snippet of the README and of the documentation works, and does what its page says."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

from mpifl.algorithms.participation import Trigger
from mpifl.cli import COMMANDS
from mpifl.config import read, yaml_io
from mpifl.tools.reproduce.items import JOBS, load_items, read_paper
from mpifl.tools.studies.study import load_study
from mpifl.tools.submit.site import Site, load_site
from tests import quadratic_runs
from tests.docs.pages import PAGES, ROOT, Block, blocks, name

BLOCKS = [block for page in PAGES for block in blocks(page)]
ACTIONS = {"": False, "file": True, "exit": True, "long": False, "skip": True}  # whether it has an argument
LAUNCHED = re.compile(r"^mpirun (?:--?[\w-]+ (?:[:\w]+ )?)*?-n \d+ ", re.M)  # mpirun with its options
BUDGET = 300  # s for a block


def runs(page: Path) -> bool:
    return any(b.language in ("sh", "python") and b.action not in ("skip", "file") for b in blocks(page))


ELSEWHERE = ROOT / "examples" / "README.md"  # tests/test_examples.py runs that one, in two folders
RUN = [page for page in PAGES if runs(page) and page != ELSEWHERE]
SHORT = [ROOT / "README.md", ROOT / "docs" / "reference" / "run-file.md"]  # what make test runs


# -- running -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The working directory of a reader before the first command of a page: the repository's folder, without its
    package."""
    for entry in ("jobs", "examples", "run_mpi.py", "environment.yml"):
        (tmp_path / entry).symlink_to(ROOT / entry)
    return tmp_path


def environment() -> dict[str, str]:
    """The environment of a laptop: nothing is set for MPI, except that Open MPI runs as root in a container."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PRTE_", "OMPI_", "PMIX_"))}
    if os.getuid() == 0:
        kept |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}


def do(block: Block, folder: Path, text: str) -> None:
    """Runs a block, or writes it to a file."""
    if block.action == "file":
        path = folder / block.argument
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    command = ["bash", "-euo", "pipefail", "-c", text] if block.language == "sh" else [sys.executable, "-c", text]
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=BUDGET, check=False
    )
    expected = int(block.argument) if block.action == "exit" else 0
    assert done.returncode == expected, f"{block}\n{text}\n{done.stdout}\n{done.stderr}"
    if block.action == "exit":  # the page shows the line as well
        assert done.stderr.strip() in block.page.read_text(encoding="utf-8")


def run_page(page: Path, folder: Path, short: bool) -> None:
    """All blocks of a page in order; short: in one process instead of under mpirun, and for half a second."""
    for block in blocks(page):
        if block.action == "file" or (block.language in ("sh", "python") and block.action != "skip"):
            if short and block.action == "long":
                continue
            text = re.sub(r"stop\.time=\d+", "stop.time=0.5", LAUNCHED.sub("", block.text)) if short else block.text
            do(block, folder, text)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("page", SHORT, ids=name)
def test_a_page_runs_in_one_process(page: Path, folder: Path) -> None:
    run_page(page, folder, short=True)


@pytest.mark.long
@pytest.mark.mpi
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", RUN, ids=name)
def test_a_page_runs_as_written(page: Path, folder: Path) -> None:
    """With mpirun where the page has it, and an environment that a reader has."""
    if any("torch" in block.text for block in blocks(page)):
        pytest.importorskip("torch")
    if "mpich" in os.environ.get("MPIFL_MPIEXEC", ""):
        pytest.skip("the pages' commands are Open MPI's")
    run_page(page, folder, short=False)


@pytest.mark.mpi
@pytest.mark.timeout(60)
def test_the_answer_to_not_enough_slots(folder: Path) -> None:
    """Open MPI's own message is in the README, and the line below it makes the command work."""
    if "mpich" in os.environ.get("MPIFL_MPIEXEC", ""):
        pytest.skip("the message is Open MPI's")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (export,) = re.findall(
        r"^export PRTE_MCA_rmaps.*$", readme.partition("There are not enough slots available")[2], re.M
    )
    command = f"mpirun -n {(os.cpu_count() or 1) + 1} true"
    run = partial(subprocess.run, cwd=folder, env=environment(), capture_output=True, text=True, timeout=50)
    done = [run(["bash", "-c", text]) for text in (command, f"{export}; {command}")]
    assert done[0].returncode != 0 and "There are not enough slots available" in done[0].stderr
    assert done[1].returncode == 0, done[1].stderr


def test_the_algorithm_in_one_file_finds_the_optimum_of_equal_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's class is a complete file: nothing else is defined for it."""
    (block,) = (block for block in blocks(ROOT / "README.md") if "class Mean" in block.text)
    module = ModuleType("mean")
    monkeypatch.setitem(sys.modules, "mean", module)  # where the types of its fields are looked up
    exec(block.text, vars(module))
    algorithm = module.Mean(step_size=0.5, trigger=Trigger(every=2))
    log = quadratic_runs.run(algorithm, quadratic_runs.quadratics((1, 1), (3, 3)), [0, 1] * 200)
    np.testing.assert_allclose(log.server.x, 3, atol=1e-12)


def test_the_tutorial_on_data_ends_as_it_says(folder: Path) -> None:
    page = ROOT / "docs" / "tutorials" / "own-problem.md"
    for block in blocks(page):
        if (block.action, block.argument) in (("file", "make_data.py"), ("file", "hospitals.yaml")):
            do(block, folder, block.text)
    ends = r"([\d,]+) updates, and ends with a test accuracy of ([\d.]+\d)"
    ((updates, accuracy),) = re.findall(ends, page.read_text())
    for command in (["make_data.py"], ["-m", "mpifl", "run", "hospitals.yaml"]):
        done = subprocess.run([sys.executable, *command], cwd=folder, env=environment(), capture_output=True, text=True,
                              check=True)  # fmt: skip
    assert f"{updates} updates" in done.stdout
    assert f"test accuracy {100 * float(accuracy):.1f}" in done.stdout


# -- what is not run ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_has_a_known_mark_and_parses(block: Block) -> None:
    """Run or not: code parses, and the commands, scripts, make targets and paths of a block for the shell exist."""
    assert block.action in ACTIONS and bool(block.argument) == ACTIONS[block.action]
    if block.language == "python":
        ast.parse(block.text)
    elif block.language == "json":
        decoder, text = json.JSONDecoder(), block.text.strip()
        while text:  # one object, or one a line
            text = text[decoder.raw_decode(text)[1] :].lstrip()
    elif block.language == "sh":
        subprocess.run(["bash", "-n", "-c", block.text], check=True)
        shown = re.findall(r"(?:^|[ \"(])(?:python -m )?mpifl (\w[\w-]*)", re.sub(r"\s#.*", "", block.text), re.M)
        assert set(shown) <= set(COMMANDS)
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert set(re.findall(r"^make ([\w-]+)", block.text, re.M)) <= set(targets)
        folders = "jobs|examples|tests|benchmarks|docs"
        for path in re.findall(rf"\b(?:{folders})/[\w/.-]+\.(?:yaml|py|sbatch|sh)", block.text):
            assert (ROOT / path).is_file(), path


BASE: dict[str, Any] = {
    "name": "fragment", "seed": 0, "problem": {"data": "digits", "clients": 128, "model": "logistic", "batch_size": 2},
    "algorithm": {"name": "area", "step_size": 1}, "clock": {"mode": "virtual", "delay": {"name": "exponential"}},
    "stop": {"time": 1},
}  # fmt: skip


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "yaml"], ids=str)
def test_yaml_is_a_job_or_a_part_of_one(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole job or study is valid as it stands; sections are valid in place of those of a plain job."""
    monkeypatch.syspath_prepend(tmp_path)
    for other in blocks(block.page):  # modules that the job may name
        if other.action == "file" and other.language == "python":
            (tmp_path / other.argument).write_text(other.text)
    values = yaml_io.parse(block.text)
    if block.argument == "mpifl-site.yaml":
        (tmp_path / block.argument).write_text(block.text)
        assert load_site(tmp_path / block.argument)[0] != Site()
        return
    if "items" in values:  # the defaults of a paper's pages: tests/reproduce reads one
        return
    if "axes" in values:
        (tmp_path / values["job"]).parent.mkdir(exist_ok=True)
        own = [other.text for other in blocks(block.page) if other.argument == values["job"]]
        (tmp_path / values["job"]).write_text(own[0] if own else yaml.safe_dump(BASE))
        (tmp_path / "study.yaml").write_text(block.text)
        assert load_study(tmp_path / "study.yaml").runs
        return
    job = values if "name" in values else {**BASE, **values}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    read.load(tmp_path / "job.yaml")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_modules_and_files_that_pages_name_exist(page: Path) -> None:
    """Paths in backticks, from the repository's root, from the package, or as a module."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for path in re.findall(r"`((?:mpifl|jobs|tests|docs|benchmarks|examples)/[\w/.-]+)`", text):
        if not re.search(r"NAME|my_method|JOBID", path):
            assert (ROOT / path).exists() or list(ROOT.glob(path)), path
    for module in re.findall(r"`(mpifl(?:\.\w+)+)`", text):
        path = ROOT / module.replace(".", "/")
        parents = (path, path.with_suffix(".py"), path.parent.with_suffix(".py"), path.parent / "__init__.py")
        assert any(p.exists() for p in parents), module


# -- the pages of the papers -------------------------------------------------------------------------------------------
RESULTS = ROOT / "docs" / "results"
PAPERS = ("AREA", "FedDANE", "FedDR", "AsyPFL", "FedPD")
CLAIMS = re.compile(r"^Claims that hold: (\d+); that do not: (\d+); not decided: (\d+)\.", re.MULTILINE)
CELLS = re.compile(r"^(\d+) of (\d+) published rows are met\.", re.MULTILINE)


def sums(pattern: re.Pattern[str], text: str) -> list[int]:
    return [sum(map(int, column)) for column in zip(*pattern.findall(text), strict=True)]


def own_pages() -> list[str]:
    """The names of the papers' items with pages of their own, PAPER-ITEM."""
    return [f"{paper.lower()}-{name}" for paper in PAPERS for name in read_paper(JOBS / paper.lower())[0].own_pages]


@pytest.mark.parametrize("page", [*map(str.lower, PAPERS), "exposure", "theory", *own_pages()])
def test_the_overview_has_the_counts_of_the_pages(page: str) -> None:
    """An item whose runs have not been made has no page: its paper's page says so."""
    overview, path = (RESULTS / "index.md").read_text(encoding="utf-8"), RESULTS / f"{page}.md"
    if not path.exists():
        paper, _, name = page.partition("-")
        assert f"`mpifl reproduce {paper}/{name}`" in read_paper(JOBS / paper)[0].missing
        return
    text = path.read_text(encoding="utf-8").partition("\n## ")[2]  # without a summary of the sections
    cells = "{} of {}".format(*met) if (met := sums(CELLS, text)) else "-"
    counts = sums(CLAIMS, text) or ["-"] * 3
    assert f"]({page}.md) | {' | '.join([cells, *map(str, counts)])} |" in overview


@pytest.mark.parametrize("page", sorted(RESULTS.glob("*.md")), ids=lambda page: page.stem)
def test_claims_that_do_not_hold_have_a_reason(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    failed = sum(int(counts[1]) for counts in CLAIMS.findall(text))
    assert not failed or "\n## Why not met\n" in text


@pytest.mark.parametrize("paper", [paper.lower() for paper in PAPERS])
def test_a_page_has_every_item_and_ends_with_what_is_missing(paper: str) -> None:
    """Its first and last sections are those of paper.yaml, and each item's heading and text stand between them."""
    text = (RESULTS / f"{paper}.md").read_text(encoding="utf-8")
    options, items = load_items(paper, ["trials=2"])
    assert "## Missing\n" in options.missing and "## Why not met\n" in options.missing
    assert text.startswith(f"# {options.title}\n\n{options.about.strip()}\n\n")
    assert text.endswith(f"\n\n{options.missing.strip()}\n")
    for item in items:
        if item.path.stem in options.own_pages:
            own = RESULTS / f"{paper}-{item.path.stem}.md"
            if own.exists():
                page = own.read_text(encoding="utf-8")
                assert page.startswith(f"# {item.page.title}\n\n{item.page.about.strip()}\n\n")
                assert page.endswith(f"{item.page.missing.strip()}\n")
            continue
        assert f"\n\n## {item.page.title}\n\n{item.page.about.strip()}\n\n" in text, item.name
    assert JOBS.joinpath(paper).is_dir()
