"""The recipes in packaging/: their dependencies are the package's, their files parse, and their steps work here."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from mpifl.version import UNTAGGED
from tests.packaging.conftest import build
from tests.test_repository import project, requirement

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "packaging"
TABLE = tomllib.loads((ROOT / "pyproject.toml").read_text())


def listed(lines: list[str]) -> dict[str, str]:
    return {name: rest.removeprefix(">=") for name, rest in map(requirement, lines)}


def required(*groups: str) -> dict[str, str]:
    """Names and the least versions of the package's requirements."""
    return {name: rest for group in groups for name, rest in listed(project()[group]).items()}


# -- conda and Spack ---------------------------------------------------------------------------------------------------
def test_the_conda_recipe_requires_what_the_package_requires() -> None:
    text = (FOLDER / "conda" / "meta.yaml").read_text()
    (version,) = re.findall(r'{% set version = "(.*)" %}', text)
    (python,) = yaml.safe_load((FOLDER / "conda" / "conda_build_config.yaml").read_text())["python_min"]
    for name, value in (("version", version), ("python_min", python), ("PYTHON", "python")):
        text = text.replace(f"{{{{ {name} }}}}", value)
    found = yaml.safe_load(re.sub(r"{% set .* %}", "", text))
    assert found["package"] == {"name": "mpifl", "version": UNTAGGED} and found["build"]["noarch"] == "python"
    run, optional = (listed(found["requirements"][key]) for key in ("run", "run_constrained"))
    run["matplotlib"] = run.pop("matplotlib-base")  # conda-forge's name without a graphical interface
    assert f">={run.pop('python')}" == TABLE["project"]["requires-python"]
    assert run == required("dependencies")
    optional["torch"] = optional.pop("pytorch")
    assert optional == required("torch", "export")
    (setuptools,) = (line for line in found["requirements"]["host"] if line.startswith("setuptools"))
    assert setuptools.replace(" ", "") == TABLE["build-system"]["requires"][0]
    assert found["build"]["entry_points"] == [f"{k} = {v}" for k, v in TABLE["project"]["scripts"].items()]


def test_the_spack_recipe_requires_what_the_package_requires() -> None:
    text = (FOLDER / "spack" / "spack_repo" / "mpifl" / "packages" / "py_mpifl" / "package.py").read_text()
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    called = [(node.func.id, node.args[0].value) for node in calls if isinstance(node.func, ast.Name)]
    specs = [spec for name, spec in called if name == "depends_on"]
    found = dict(re.fullmatch(r"(?:py-)?([\w-]+)@([\d.]+):.*", spec).groups() for spec in specs)  # type: ignore[union-attr]
    assert f">={found.pop('python')}" == TABLE["project"]["requires-python"]
    assert f"setuptools>={found.pop('setuptools')}" == TABLE["build-system"]["requires"][0]
    assert found == required("dependencies", "torch", "export")
    assert [version for name, version in called if name == "version"] == [UNTAGGED]


# -- module files ------------------------------------------------------------------------------------------------------
LUA = """
for _, name in ipairs({"help", "whatis", "depends_on", "prepend_path", "setenv"}) do
    _G[name] = function(...) print(name, ...) end
end
function myModuleVersion() return "1.2.3" end
function pathJoin(...) return (table.concat({...}, "/"):gsub("//+", "/")) end
dofile(arg[1])
"""
TCL = """
foreach name {module-whatis module prepend-path setenv} {
    proc $name args "puts \\"$name \\[join \\$args]\\""
}
proc module-info what { return mpifl/1.2.3 }
source [lindex $argv 0]
"""


@pytest.mark.parametrize(
    ("program", "stub", "file"), [("lua", LUA, "mpifl.lua"), ("tclsh", TCL, "mpifl.tcl")], ids=["lmod", "tcl"]
)
def test_the_module_files_set_the_path_and_load_mpi(program: str, stub: str, file: str, tmp_path: Path) -> None:
    """In the interpreter of their language, with the commands of the module system replaced by printing ones."""
    if shutil.which(program) is None:
        pytest.skip(f"no {program}")
    (tmp_path / "stub").write_text(stub)
    command = [program, str(tmp_path / "stub"), str(FOLDER / "modulefiles" / file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert {"whatis Version: 1.2.3", "module-whatis Version: 1.2.3"} & {*lines}
    assert {"prepend_path PATH /apps/mpifl/1.2.3/bin", "prepend-path PATH /apps/mpifl/1.2.3/bin"} & {*lines}
    assert {"depends_on openmpi/5.0", "module load openmpi/5.0"} & {*lines}


# -- containers --------------------------------------------------------------------------------------------------------
def dockerfile() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, comments and line breaks removed."""
    text = re.sub(r"^#.*\n", "", (FOLDER / "containers" / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    lines = (line.split(None, 1) for line in text.splitlines() if line.strip())
    return [(word, " ".join(rest.split())) for word, rest in lines]


def definition() -> dict[str, str]:
    """The sections of the Apptainer definition; "" is its header."""
    parts = re.split(r"^%(\w+).*\n", (FOLDER / "containers" / "mpifl.def").read_text(), flags=re.M)
    return {"": re.sub(r"^#.*\n", "", parts[0], flags=re.M), **dict(zip(parts[1::2], parts[2::2], strict=True))}


def test_the_container_files_parse() -> None:
    """They have the instructions and sections that they should have, and their scripts are valid for `sh`."""
    found, other = dockerfile(), definition()
    assert {word for word, _ in found} == {"FROM", "RUN", "ARG", "COPY", "ENV", "USER", "WORKDIR", "CMD"}
    assert {*other} - {""} == {"arguments", "files", "post", "environment", "test", "runscript", "labels", "help"}
    header = dict(line.split(": ", 1) for line in other[""].strip().splitlines())
    assert found[0] == ("FROM", header["From"]) and header["Bootstrap"] == "docker"
    for script in (*(text for word, text in found if word == "RUN"), *map(other.get, ("post", "test", "environment"))):
        subprocess.run(["sh", "-n"], input=script, text=True, check=True)
    for name in re.findall(r"[\w.]+\.txt", " ".join(text for word, text in found if word == "COPY")):
        assert (ROOT / name).is_file()


def steps(kind: str) -> Iterator[str]:
    """The shell commands that make an image, in order; those for the whole machine (packages, users) are left out."""
    if kind == "docker":
        lines = [text for word, text in dockerfile() if word == "RUN"]
    else:
        lines = [line for part in ("post", "test") for line in definition()[part].splitlines() if line.strip()]
    for line in lines:
        if not line.split()[0].startswith(("apt-get", "useradd")) and "/var/lib" not in line:
            yield line.replace("{{ EXTRAS }}", "$EXTRAS")


@pytest.mark.long
@pytest.mark.timeout(580)
@pytest.mark.parametrize(("kind", "extras"), [("docker", "[mpi]"), ("apptainer", "")], ids=["docker", "apptainer"])
def test_the_steps_of_an_image_work_one_by_one(kind: str, extras: str, source: Path, tmp_path: Path) -> None:
    """In folders below tmp_path instead of /opt and /tmp; packages come from the index that pip has.

    Of Apptainer's image the variant without an MPI.
    """
    pip = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--no-deps", "--ignore-installed", "tabulate"]
    if subprocess.run(pip, capture_output=True, timeout=60).returncode:
        pytest.skip("pip reaches no package index")
    temporary, prefix = tmp_path / "tmp", tmp_path / "opt"
    temporary.mkdir()
    shutil.copy(ROOT / "constraints.txt", temporary)
    build("wheel", source, temporary)
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    kept |= {"EXTRAS": extras, "PATH": f"{prefix / 'bin'}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = 0
    for step in steps(kind):
        command = step.replace("/tmp/mpifl", str(temporary)).replace("/opt/mpifl", str(prefix))
        command = re.sub(r"--folder /tmp\b", f"--folder {shlex.quote(str(tmp_path))}", command)
        run = subprocess.run(
            ["sh", "-ec", command], cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=500
        )
        assert run.returncode == 0, f"{command}\n{run.stdout}\n{run.stderr}"
        done += 1
    assert done >= 2 and (prefix / "bin" / "mpirun").exists() == (extras != "") and not temporary.exists()
