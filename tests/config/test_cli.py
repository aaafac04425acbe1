"""The command line in one process: exit codes, and one line on stderr for each mistake."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import h5py
import pytest

from mpifl import __version__
from mpifl.cli import COMMANDS, main
from mpifl.config.job import Job
from mpifl.config.listing import KINDS
from mpifl.config.registry import FAMILIES
from mpifl.config.types import hints

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "jobs" / "quickstart.yaml"
STUDY = ROOT / "jobs" / "area" / "table3.yaml"

WRONG = [
    ("", r"command='': no such command"),
    ("shwo", "command=shwo: .*did you mean show"),
    ("resume", r"resume='': no file; expected one RUN.h5"),
    ("resume a.h5 b.h5", r"resume=a.h5 b.h5: more than one file; expected one RUN.h5"),
    ("resume x.h5", r"resume=x.h5: cannot be read: No such file .*; there is no complete checkpoint in x.ckpt"),
    ("--frobnicate", r"command=--frobnicate: no such command"),
    ("run", r"run='': no file; expected a JOB.yaml first, then key=value"),
    ("run seed=3", r"run=seed=3: no file; expected a JOB.yaml first, then key=value"),
    ("run no.yaml", "job=no.yaml: no such file"),
    ("run {job} other.yaml", r"run=other.yaml: not key=value; expected key=value after the JOB.yaml"),
    ("run {job} --loud", r"option=--loud: mpifl run has none; expected one of --help, -v, --verbose, -q, --quiet"),
    ("run {study}", r"job=[^:]*jobs/area/table3.yaml: this is a study; expected a job file"),
    ("sweep {job}", r"study=[^:]*jobs/quickstart.yaml: this is a job"),
    ("sweep {study} axis=3", "axis=3: no such key; the nearest is axes"),
    ("check", r"check='': no file; expected a JOB.yaml first, then key=value"),
    ("list faults los", r"name=los: no such name; expected one of lost, norm, refusals, patience, grace"),
    ("list jobs quikstart", r"name=quikstart: no such job file; expected one that mpifl list jobs prints, such as"),
    ("list algorithm", r"list=algorithm: no such list"),
    ("list data mnsit", r"name=mnsit: no such name; did you mean mnist\?"),
    ("show", r"show='': no path; expected one RUN.h5, one folder of run files"),
    ("show a.h5 b.h5", r"show=a.h5 b.h5: more than one path; expected one RUN.h5, one folder of run files"),
    ("show --folow a.h5", r"option=--folow: mpifl show has none; expected one of --help, --follow"),
    ("report", r"report='': nothing to report; expected at least one RUN.h5, a folder of run files, or one STUDY.yaml"),
    ("report a.h5 --out", "command line=mpifl report: argument --out"),
    ("replay", r"replay='': no file; expected a RUN.h5 first, then key=value"),
    ("replay no.h5", "no.h5"),
    ("replay {job}", "quickstart.yaml"),
]


LONG = "a" * 300


@pytest.mark.parametrize("command", ["run", "show", "report", "resume", "replay", "verify", "sweep"])
def test_a_path_that_is_empty_or_too_long_is_refused(command: str, refused: Callable[..., str]) -> None:
    """An empty one, as of an unset variable, would be the working directory."""
    assert refused(command, "") == "mpifl: argument='': it is empty; expected a path, a name or key=value\n"
    assert "File name too long" in refused(command, f"{LONG}.h5")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (f"output={LONG}.h5", "the path is too long; expected at most 4095 bytes, and 255 in each name"),
        (f"output={LONG}/a.h5", "the path is too long"),
        (f"output={'a/' * 2100}a.h5", "the path is too long"),
        ('output="a\\0b.h5"', r"output=a\x00b.h5: it has a NUL character; expected text without one"),
        (f"problem={{data: {{name: folder, path: {LONG}}}}}", "there is no such folder"),
        ('problem={data: {name: folder, path: "a\\0b"}}', r"problem.data.path=a\x00b: it has a NUL character"),
    ],
)
def test_a_path_in_a_job_that_no_file_can_have(
    given: str, says: str, refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # no other run is in the way
    assert says in refused("run", QUICKSTART, given)


@pytest.mark.parametrize(("line", "says"), WRONG, ids=[w[0] for w in WRONG])
def test_wrong_commands_are_refused(line: str, says: str, refused: Callable[..., str]) -> None:
    assert re.search(says, refused(*line.format(job=QUICKSTART, study=STUDY).split()))


def but_memory(out: str) -> list[str]:
    """The lines that `mpifl check` prints but the last, which is on the memory that this process has now."""
    *lines, last = out.splitlines()
    assert last.startswith("# memory: ")
    return lines


def test_check_prints_a_job_and_with_data_what_it_has(
    printed: Callable[..., Any], refused: Callable[..., str], tmp_path: Path
) -> None:
    """What is printed is a job again; rows, clients, parts and parameters are below it. Data may be missing."""
    found = "1,497 training rows of 128 clients, from 2 (client 3) to 463 (client 127); model: 640 parameters (d)"
    for data in ([], ["--data"]):
        first = printed("check", QUICKSTART, "stop.time=3", *data).out
        assert "time: 3" in first and (f"# data: {found}\n" in first) == bool(data)
        (tmp_path / "again.yaml").write_text(first)
        assert but_memory(printed("check", tmp_path / "again.yaml", *data).out) == but_memory(first)
    mnist = f"problem={{data: mnist, root: {tmp_path}, clients: 4}}"
    assert str(tmp_path) in refused("check", QUICKSTART, mnist, "--data")


@pytest.mark.parametrize(
    ("changes", "says"),
    [  # quickstart: area, n = 128 clients, step_size 100; 1,497 rows in near-iid parts of 2 to 463
        ("", "0.006104 times its gradient, step_size 100 times 6.104e-05, for a client with the mean number of rows"),
        ("--data", f"{100 * 2 / 1497 / 128:.4g} (client 3) to {100 * 463 / 1497 / 128:.4g} (client 127) times"),
        ("algorithm.step_weights=one --data", f"{100 / 128:.4g} times its gradient, step_size 100 times 0.007812\n"),
        ("algorithm={name:async-sgd,step_size:3}", "3 times its gradient, step_size 3 times 1\n"),
    ],
)
def test_check_prints_the_effective_step(changes: str, says: str, printed: Callable[..., Any]) -> None:
    arguments = [part.replace(":", ": ").replace(",", ", ") for part in changes.split()]
    step = "# effective step: one local step of a client moves the global model by "
    assert f"{step}{says}" in printed("check", QUICKSTART, *arguments).out


def test_check_prints_no_step_where_there_is_none(printed: Callable[..., Any]) -> None:
    assert "effective step" not in printed("check", QUICKSTART, "algorithm=fedpd").out
    out = printed("check", QUICKSTART, "problem={data: leaf}").out
    assert "--data prints it, since the number of clients is in the data" in out


def test_help_lists_what_there_is(printed: Callable[..., Any]) -> None:
    out = printed("--help").out
    assert "not enough slots" in out and "mpirun --map-by :oversubscribe -n RANKS" in out
    listed = out.partition("  --version")[0].splitlines()
    assert [line.split()[0] for line in listed if line.startswith("  ")] == [*COMMANDS]
    assert all(f"usage: mpifl {command} " in printed(command, "--help").out for command in COMMANDS)
    version = printed("--version").out
    assert version.startswith(f"mpifl {__version__}; Python ") and f"HDF5 {h5py.version.hdf5_version}\n" in version


@pytest.mark.parametrize(
    ("line", "holds"),
    [
        ("list algorithms area", "trigger.every "),
        ("list algorithms fedadam", "fedadam: FedAvg with the server optimiser Adam (name: fedavg, optimizer: adam)"),
        ("list algorithms fadas", "delay_threshold "),
        ("list data digits", "digits: "),
        ("list data", "  test_split "),
        ("list models constant", "value  1.0 "),
        ("list partitions dirichlet", "alpha "),
        ("list clocks mode", "real: as updates arrive"),
        ("list faults patience", "seconds of wall time"),
    ],
)
def test_list_prints_what_it_is_asked_for(line: str, holds: str, printed: Callable[..., Any]) -> None:
    assert holds in printed(*line.split()).out


def test_list_without_a_kind_lists_everything(capsys: pytest.CaptureFixture[str]) -> None:
    """Every kind with a heading, and every class that a section of a job can name, with a line each."""
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line for line in lines if line and not line.startswith((" ", "mpifl list"))} == {*KINDS}
    for kind in KINDS:
        assert main(["list", kind]) == 0 and len(capsys.readouterr().out.splitlines()) >= 2
    said = {line.strip().split("  ")[0] for line in lines}
    for key, family in FAMILIES.items():
        assert {name if key == "algorithm" else f"{key}: {name}" for name in family.names()} <= said, key
    options = {"clock.mode", "clock.delay", "trigger.every", "trigger.bernoulli", "faults.lost", "stop.accuracy"}
    assert options <= said and "jobs/quickstart.yaml" in said
    sections = {key for key, hint in hints(Job).items() if is_dataclass(hint)} - {"problem", "algorithm"}
    assert {name.split(".")[0] for name in said if "." in name} >= sections >= {"clock", "keep"}


def test_list_tells_options_of_the_choices_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """An option has its own row, with the choices that have it; choices with the same option share a row."""
    assert main(["list", "algorithms", "feddr"]) == 0
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    text = "local solver: sgd, gd (full gradients), svrg or sarah (variance-reduced), torch (a torch optimiser)"
    assert ["solver", "sgd", text] in lines
    rows = {key: say for key, _, say in lines}
    assert len(rows) == len(lines), "no option is there twice"
    assert rows["regulariser.tau"].startswith("l1, l2, l2sq: ") and rows["regulariser.low"].startswith("box: ")
    assert rows["solver.momentum"].startswith("sgd, gd: ")


def test_without_a_job_the_script_takes_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["seed=x"], default_job=str(QUICKSTART)) == 2
    assert capsys.readouterr().err == "mpifl: seed=x: not valid; expected an integer from 0 to 2**63 - 1\n"
    assert main(["--version"], default_job=str(QUICKSTART)) == 0
    assert main(["no.yaml"], default_job=str(QUICKSTART)) == 2
    assert "job=no.yaml: no such file" in capsys.readouterr().err


def test_threads_are_set_before_numpy_is_there() -> None:
    code = (
        "import sys, os, mpifl.cli; assert 'numpy' not in sys.modules; mpifl.cli.main(['list', 'clocks']);"
        "print(*(os.environ[f'{n}_NUM_THREADS'] for n in ('OMP', 'OPENBLAS', 'MKL')))"
    )
    for given, seen in (({}, "1 1 1"), ({"OMP_NUM_THREADS": "3"}, "3 1 1")):
        done = subprocess.run([sys.executable, "-c", code], env=given, cwd=ROOT, capture_output=True, text=True)
        assert done.stdout.splitlines()[-1] == seen, done.stderr


def test_a_reader_that_stops_early_is_no_error() -> None:
    shell = f"{sys.executable} -m mpifl list data | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(shell, shell=True, executable="/bin/bash", cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "0\n" and not done.stderr


@pytest.mark.parametrize(
    "encoding", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}]
)
def test_a_name_that_stdout_cannot_encode(tmp_path: Path, encoding: dict[str, str]) -> None:
    """It is escaped, in every command; a path that the file system cannot encode is refused in one line."""
    text = QUICKSTART.read_text()
    for old, new in (
        ("quickstart", "d\u00fcsseldorf"),
        ("mode: real", "mode: virtual"),
        ("{time: 10}", "{updates: 20}"),
    ):
        text = text.replace(old, new)
    (tmp_path / "job.yaml").write_text(text, encoding="utf-8")
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "MPIFL_LOG_LEVEL": "warning", **encoding}
    words = [["run", "job.yaml"], ["show", "results/d\u00fcsseldorf.h5"], ["check", "job.yaml"]]
    code = f"import sys; from mpifl.cli import main; sys.exit(max(main(each) for each in {words!a}))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, encoding="ascii")
    if "LC_ALL" in encoding:
        assert done.returncode == 2 and done.stderr.count("\n") == len(words), done
        assert done.stderr.startswith("mpifl: output=results/d\\xfcsseldorf.h5: this system's encoding, "), done
        return
    assert done.returncode == 0 and not done.stderr, done
    assert done.stdout.startswith("results/d\\xfcsseldorf.h5: completed, 20 updates in ")
    assert "\nname: d\\xfcsseldorf\n" in done.stdout
