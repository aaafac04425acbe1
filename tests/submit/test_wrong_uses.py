"""What a user of a computing centre gets wrong: one line, exit code 2, nothing written, nothing submitted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mpifl.cli import main
from tests.studies.conftest import BASE

JOB = BASE.replace("clients: 6", "clients: 7")  # seven clients and a server: the eight ranks of a site's default
STUDY = "{name: s, job: job.yaml, axes: {algorithm.step_size: [1, 2]}, trials: 1}"
SEARCH = "{name: s, job: job.yaml, axes: {algorithm.step_size: [1, 2, 3, 4]}, trials: 1, search: {eta: 2}, " + (
    "select: {over: algorithm.step_size}, set: {evaluate.every: 0.25}}"
)
REFUSES = '#!/bin/bash\ncat > /dev/null\necho "sbatch: error: {answer}" >&2\nexit 1\n'
ACCEPTS = "#!/bin/bash\ncat > {folder}/submitted\n"


@pytest.fixture
def centre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a job and a study, on a machine with sbatch."""
    (tools := tmp_path / "tools").mkdir()
    (folder := tmp_path / "experiment").mkdir()
    (tools / "sbatch").write_text(ACCEPTS.format(folder=tmp_path))
    (tools / "sbatch").chmod(0o755)
    for name in [name for name in os.environ if name.startswith(("SLURM_", "MPIFL_", "OMPI_", "PMI"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("mpifl.tools.submit.script.NODE_LOCAL", ())  # the tests may lie in /tmp
    monkeypatch.chdir(folder)
    (folder / "job.yaml").write_text(JOB)
    (folder / "study.yaml").write_text(STUDY)
    (folder / "search.yaml").write_text(SEARCH)
    return folder


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The line that a command is refused with; no file has changed, and nothing was submitted."""
    before = {path: path.stat().st_mtime_ns for path in Path.cwd().rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and err.startswith("mpifl: "), err
    assert {path: path.stat().st_mtime_ns for path in Path.cwd().rglob("*") if path.is_file()} == before
    assert not Path.cwd().with_name("submitted").exists()
    return err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        # the site
        ("submit job.yaml site.scheduler=torque", "torque: not valid; expected one of slurm, pbs, flux, lsf"),
        ("submit job.yaml site.partitoin=long", "site.partitoin=long: no such key; the nearest is partition"),
        ("submit job.yaml --site none.yaml", "site=none.yaml: no such file"),
        ("submit job.yaml site.container=none.sif", "site.container=none.sif: no such image"),
        ("submit job.yaml --time 90", "site.time=90: not a duration; expected [days-]hours:minutes:seconds, as in"),
        ("submit job.yaml --time 1:30", "site.time=1:30: not a duration"),
        ("submit job.yaml --time 0:02:00", "site.warning=120: the time limit is 120 s; expected less"),
        ("submit job.yaml site.options=[--ntasks=16]", "--ntasks=16: mpifl submit sets it itself; expected"),
        ("submit job.yaml site.options=[--array=0-19]", "--array=0-19: mpifl submit sets it itself; expected another"),
        ("submit job.yaml site.options=[mem=4G]", "site.options=mem=4G: it does not begin with -"),
        ("submit job.yaml site.scheduler=pbs site.options=[-q,long]", "site.options=-q: mpifl submit sets it itself"),
        ("submit job.yaml site.launcher=aprun", "site.launcher=aprun: not valid; expected one of mpirun, mpiexec,"),
        ("submit job.yaml site.nodes=0", "site.nodes=0: not valid; expected an integer of at least 1"),
        ("submit job.yaml site.setup=module", "site.setup=module: not valid; expected a list of texts"),
        # the job
        ("submit", "submit='': no file; expected a STUDY.yaml or JOB.yaml first, then key=value"),
        ("submit job.yml", "submit=job.yml: no such file"),
        ("submit job.yaml output=job.yaml/run.h5", "output="),
        ("submit job.yaml output=.", "output=.: it does not end in NAME.h5; expected the path of a file that ends in"),
        ("submit job.yaml --seeds 0..19", "--seeds=0..19: not a list of seeds; expected seeds such as 0-19 or 0,3,5-7"),
        ("submit job.yaml --seeds 3-1", "--seeds=3-1: 3-1 falls, or is too long; expected ranges that rise, of at"),
        ("submit job.yaml --seeds 1,1", "--seeds=1,1: a seed occurs twice; expected distinct seeds"),
        ("submit job.yaml --seeds", "argument --seeds: expected one argument"),
        ("submit job.yaml --tasks 4", "--tasks=4: job.yaml is a job; expected a study"),
        ("submit study.yaml --tasks 0", "argument --tasks: 0: an integer of at least 1"),
        ("submit search.yaml --tasks 4", "--tasks=4: a search compares all runs of a rung, so it cannot be split"),
        ("submit search.yaml --runs 1", "--runs=1: a search compares all runs of a rung, so it cannot be split"),
        ("submit job.yaml site.requeues=-1", "site.requeues=-1: not valid; expected an integer of at least 0"),
        ("submit study.yaml --tasks 2 --runs 2", "--runs=2: --tasks is given too; expected one of the two"),
        ("submit study.yaml --seeds 0-19", "--seeds=0-19: study.yaml is a study, which has its seeds in the key"),
        ("submit study.yaml ranks=3 site.ranks_per_node=3", "ranks=3: a task has 3 ranks (site.nodes ×"),
        ("submit study.yaml ranks=64", "ranks=64: the clients of a run take at most 7 ranks, and the server one more"),
        # a seed from the environment of an array's task
        ("run job.yaml seed=", "seed=None: not valid; expected an integer from 0 to 2**63 - 1"),
        ("run job.yaml seed='2'", "seed='2': this is text; expected an integer from 0 to 2**63 - 1"),
        ("run job.yaml seed=${SLURM_ARRAY_TASK_ID}", "is the shell's: seed=$SLURM_ARRAY_TASK_ID"),
        ("run job.yaml seed=0-19", "seed=0-19: not valid; expected an integer from 0 to 2**63 - 1"),
    ],
)
def test_wrong_words_are_refused(centre: Path, capsys: pytest.CaptureFixture[str], line: str, says: str) -> None:
    assert says in refused(capsys, *line.split())


def test_submit_without_sbatch_is_refused(
    centre: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(centre))
    says = "site.scheduler=slurm: this machine has no sbatch; expected a machine with it"
    assert says in refused(capsys, "submit", "job.yaml")


def test_what_the_batch_system_refuses(centre: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own words; `tests/slurm` has them from SLURM."""
    answer = "Batch job submission failed: Requested node configuration is not available"
    (centre.parent / "tools" / "sbatch").write_text(REFUSES.format(answer=answer))
    expected = f"mpifl: submit=sbatch: its answer: {answer}; expected a script that it accepts\n"
    assert refused(capsys, "submit", "job.yaml") == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [('partition: "a\\nb"', "site.partition='a\\nb': several lines; expected one line"), ("[a]", "site=")],
)
def test_a_wrong_file_of_settings(centre: Path, capsys: pytest.CaptureFixture[str], text: str, says: str) -> None:
    Path("mpifl-site.yaml").write_text(text)
    assert says in refused(capsys, "submit", "job.yaml", "--dry-run")


def test_a_run_file_that_exists(centre: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless it is that of an interrupted run of the same job with a checkpoint, which continues."""
    assert main(["run", "job.yaml", "stop.time=0.5", "-q"]) == 0
    for words in ([], ["stop.time=0.5"], ["stop.time=0.5", "site.nodes=2"]):
        line = refused(capsys, "submit", "job.yaml", *words)
        assert "the file exists; choose another name, or overwrite=true" in line
    shutil.copy(centre / "results" / "base.h5", centre / "results" / "base-seed-3.h5")
    assert "base-seed-3.h5: the file exists" in refused(capsys, "submit", "job.yaml", "--seeds", "2-4")
    assert main(["submit", "job.yaml", "overwrite=true"]) == 0
    assert "|| [ -e" not in (centre.parent / "submitted").read_text()


@pytest.mark.long
def test_an_interrupted_run_continues(centre: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [sys.executable, "-m", "mpifl", "run", "job.yaml", "clock.mode=real", "stop.time=60"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr
        for line in run.stderr:
            if "output: " in line:
                run.terminate()
    assert run.returncode == 143
    same = ["clock.mode=real", "stop.time=60"]
    assert "the file exists" in refused(capsys, "submit", "job.yaml", "clock.mode=real", "stop.time=61")
    assert main(["submit", "job.yaml", *same]) == 0
    script = (centre.parent / "submitted").read_text()
    assert f'if [ "$restarts" != 0 ] || [ -e {centre}/results/base.h5 ]; then' in script


def test_a_study_that_is_complete(centre: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "study.yaml", "set.stop.time=0.5", "--processes", "1"]) == 0
    line = refused(capsys, "submit", "study.yaml", "set.stop.time=0.5")
    assert "all 2 runs are completed; expected a study with runs to do" in line


def test_more_than_there_is_to_do(centre: Path, printed: Callable[..., Any]) -> None:
    for line, says in (
        ("study.yaml --tasks 100", "--tasks=100: one task for each of the study's 2 runs"),
        ("study.yaml ranks=4", "3 of 8 ranks of a task will be idle: a run has 4, and one only dispatches runs"),
        ("job.yaml site.nodes=4", "24 of 32 ranks will be idle: the job has 7 clients"),
    ):
        assert printed("submit", *line.split(), "--dry-run").err == f"mpifl: {says}\n"


# -- permissions -------------------------------------------------------------------------------------------------------
@pytest.fixture
def nobody(centre: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """A folder that others may enter; called, the process has the rights of `nobody`, where it has those of root."""
    with tempfile.TemporaryDirectory(prefix="mpifl-centre-") as name:
        os.chmod(name, 0o755)
        for file in ("job.yaml", "study.yaml"):
            shutil.copy(centre / file, name)
        tools = shutil.copytree(centre.with_name("tools"), Path(name) / "tools")
        monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
        monkeypatch.setenv("XDG_CONFIG_HOME", name)
        monkeypatch.chdir(name)
        root = os.geteuid() == 0
        main(["submit", "job.yaml", "--dry-run"])  # imports what it needs while it may read it
        yield lambda: os.seteuid(65534) if root else None
        if root:
            os.seteuid(0)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("submit job.yaml --site private.yaml", "site=private.yaml: cannot be read: Permission denied"),
        ("submit private.yaml", "submit=private.yaml: cannot be read: Permission denied"),
        ("run private.yaml", "job=private.yaml: cannot be read: Permission denied"),
        ("submit job.yaml", "results: cannot be written: Permission denied"),
        ("submit job.yaml output=closed/run.h5", "closed: cannot be written: Permission denied"),
        ("submit study.yaml", "logs: cannot be written: Permission denied"),
        ("run job.yaml output=closed/run.h5", "output=closed/run.h5: cannot be written: Permission denied"),
    ],
)
def test_files_and_folders_without_permission_are_named(
    nobody: Callable[[], None], capsys: pytest.CaptureFixture[str], line: str, says: str
) -> None:
    shutil.copy("job.yaml", "private.yaml")
    Path("private.yaml").chmod(0)
    Path("closed").mkdir(mode=0o555)
    if os.geteuid():
        Path().chmod(0o555)
    try:
        nobody()
        assert says in refused(capsys, *line.split())
    finally:
        if os.getuid():
            Path().chmod(0o755)
