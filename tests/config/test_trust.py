"""Code that a run file names is imported only with `--trust`, or where the command line names it too."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import mpifl
from mpifl.cli import main
from mpifl.config.read import job_to_dict
from mpifl.config.trust import module_location, outside_code
from mpifl.errors import ConfigError
from mpifl.runfile.tables import UpdateRow
from mpifl.runfile.writer import RunWriter
from mpifl.server import start
from tests.config.test_own_classes import ALL, KEYS, OWN

BENIGN: dict[str, Any] = {
    "name": "benign", "seed": 0, "stop": {"updates": 6},
    "problem": {"model": {"name": "quadratic", "dim": 2}, "clients": 2},
    "algorithm": {"name": "area", "step_size": 0.1},
    "clock": {"mode": "virtual", "delay": {"name": "fixed", "seconds": 1.0}},
}  # fmt: skip
CANARY = """
from pathlib import Path
from mpifl.algorithms.area import Area
Path(__file__).with_name("executed").touch()
class Momentum(Area): pass
"""
Set = Callable[[str], Path]


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Set]:
    """An interrupted run with a checkpoint, the configuration of whose file names a module of the folder."""
    (tmp_path / "canary.py").write_text(CANARY)
    monkeypatch.chdir(tmp_path)
    before, appended = [*sys.path], RunWriter.append

    def append(writer: RunWriter, row: Any) -> None:
        """Interrupts the run at its third update."""
        appended(writer, row)
        if writer.counts()["updates"] == 3 and isinstance(row, UpdateRow):
            signal.raise_signal(signal.SIGTERM)

    def make(key: str) -> Path:
        path = tmp_path / "run.h5"
        *sections, last = key.split(".")

        def named(job: Any) -> str:
            """The job's configuration, with code where the key is."""
            config = job_to_dict(job)
            node = config
            for section in sections:
                node = node[section]
            if last == "entry":
                node.update(model={"name": "logistic"}, clients=None, data=None, partition=None)
                node["options"] = {"args": ["touch", "executed"]}
            node[last] = "subprocess:check_output" if last == "entry" else "canary:Momentum"
            return yaml.safe_dump(config)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(start, "to_yaml", named)
            patch.setattr(RunWriter, "append", append)
            mpifl.run(BENIGN, output=str(path)).close()
        return path

    yield make
    sys.modules.pop("canary", None)
    sys.path[:] = before


@pytest.mark.parametrize("command", ["replay", "resume"])
@pytest.mark.parametrize("key", [*KEYS.values(), "problem.entry"])
def test_a_file_that_names_code_is_refused_before_anything_is_imported(
    hostile: Set, command: str, key: str, refused: Callable[..., str], tmp_path: Path
) -> None:
    path = hostile(key)
    line = refused(command, path)
    assert line.startswith(f"mpifl: {command}={path}: ") and "--trust" in line
    if key == "problem.entry":
        assert f"subprocess:check_output ({key}, from {sys.modules['subprocess'].__file__})" in line
    else:
        assert f"canary:Momentum ({key}, from {tmp_path / 'canary.py'})" in line
    assert "canary" not in sys.modules and not (tmp_path / "executed").exists()
    with pytest.raises(ConfigError, match="trust"):
        getattr(mpifl, command)(path)
    assert "canary" not in sys.modules and not (tmp_path / "run-replay.h5").exists()


@pytest.mark.parametrize("words", [["--trust"], ["algorithm.name=canary:Momentum"], ["algorithm=canary:Momentum"]])
@pytest.mark.parametrize("command", ["replay", "resume"])
def test_code_that_is_trusted_is_named_and_run(
    hostile: Set, command: str, words: list[str], printed: Callable[..., Any], tmp_path: Path
) -> None:
    path = hostile("algorithm.name")
    out, err = printed(command, path, *words)
    assert err == f"mpifl: {path} names canary:Momentum (algorithm, from {tmp_path / 'canary.py'}): importing it\n"
    assert f"completed, {3 if command == 'replay' else 6} updates" in out and (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("algorithm.name=other:Momentum", "run.h5 names other code; expected canary:Momentum"),
        ("algorithm.name=area", "run.h5 names other code; expected canary:Momentum"),
        ("problem.model=canary:Momentum", ""),
        ("seed=3", ""),
    ],
)
@pytest.mark.parametrize("command", ["replay", "resume"])
def test_naming_other_code_trusts_nothing(
    hostile: Set, command: str, word: str, says: str, refused: Callable[..., str], tmp_path: Path
) -> None:
    hostile("algorithm.name")
    assert refused(command, "run.h5", word).startswith(f"mpifl: {word}: {says}")
    assert not (tmp_path / "executed").exists()


def test_in_python_trust_is_an_argument(hostile: Set, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    path = hostile("algorithm.name")
    assert len(mpifl.replay(path, trust=True).updates) == 3
    assert mpifl.resume(path, trust=True).status == "completed"


def test_reading_a_file_imports_nothing(hostile: Set, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = hostile("algorithm.name")
    assert main(["show", str(path)]) == main(["report", str(path)]) == 0
    assert mpifl.open_run(path).config["algorithm"]["name"] == "canary:Momentum"
    assert "canary" not in sys.modules and not (tmp_path / "executed").exists()


def test_a_file_without_code_of_its_own_needs_no_trust(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "run.h5"
    config = mpifl.run(BENIGN, output=str(path)).config
    assert outside_code(config) == {} and mpifl.replay(path).status == "completed" and not caplog.records


def test_every_kind_of_code_is_found() -> None:
    found = outside_code({**ALL, "problem": {**ALL["problem"], "entry": "m:f"}})
    assert found == {
        "algorithm": f"{OWN}:Slow", "algorithm.trigger": f"{OWN}:Fibonacci", "problem.data": f"{OWN}:Blobs",
        "problem.partition": f"{OWN}:Stripes", "problem.model": f"{OWN}:Scaled", "problem.model.init": f"{OWN}:Ones",
        "clock.delay": f"{OWN}:Steps", "clock.availability": f"{OWN}:Shifts", "problem.entry": "m:f",
    }  # fmt: skip
    assert outside_code({"algorithm": {"layers": [{"model": "mpifl.api:os.system"}]}}) == {
        "algorithm.layers[0].model": "mpifl.api:os.system"
    }, "an attribute of the package may be anything that it imports"


def test_where_a_module_lies_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "hostile_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "inner.py").write_text("raise SystemExit('imported')")
    assert module_location("hostile_package.inner") == str(package / "inner.py")
    assert module_location("hostile_package") == str(package / "__init__.py")
    assert module_location("hostile_package.missing") == module_location("") == "nowhere"
    assert module_location("hostile_package..inner") == module_location("a b") == "nowhere"
    assert re.search("built-in", module_location("sys"))


@pytest.mark.parametrize(
    ("change", "key", "expected"),
    [
        ({"clients": 10**9}, "clients", "that of its run, 2"),
        ({"model": {"name": "quadratic", "dim": 10**9}}, "model.dim", "at most its 2 parameters"),
        ({"model": {"name": "mlp", "hidden": [3, 10**9]}}, "model.hidden", "at most its 2 parameters"),
        ({"data": {"name": "fedpd-synthetic", "dim": 10**9}}, "data.dim", "at most its 2 parameters"),
    ],
)
def test_a_configuration_larger_than_its_run(tmp_path: Path, change: dict[str, Any], key: str, expected: str) -> None:
    path, larger = tmp_path / "run.h5", yaml.safe_dump({**BENIGN, "problem": {**BENIGN["problem"], **change}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "to_yaml", lambda job: larger)
        mpifl.run(BENIGN, output=str(path)).close()
    with pytest.raises(ConfigError, match=f"problem.{key} is 1000000000; expected {expected}"):
        mpifl.replay(path)


def test_an_option_that_the_job_does_not_use_is_no_size(tmp_path: Path) -> None:
    """Optima are given, in 2 dimensions: `dim`, 10 by default, says nothing."""
    model = {"name": "quadratic", "optima": [[0.0, 1.0], [1.0, 0.0]], "curvatures": [1.0, 2.0]}
    job = {**BENIGN, "problem": {**BENIGN["problem"], "model": model, "clients": 2}}
    with mpifl.run(job, output=str(tmp_path / "run.h5")) as run, mpifl.replay(tmp_path / "run.h5") as again:
        assert run.model.tolist() == again.model.tolist()
