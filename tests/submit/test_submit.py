"""The batch scripts of studies and jobs: what they contain, and how they are handed to the batch system."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from difflib import ndiff
from pathlib import Path
from typing import Any

import pytest

from mpifl import open_run
from mpifl.cli import main
from mpifl.config.read import parse_override
from mpifl.errors import ConfigError
from mpifl.tools.submit.site import Site, load_site
from tests.studies.conftest import BASE, write

__all__ = ["write"]
Write = Callable[..., Path]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """tools(name=script, ...): programs with these names are found first on the PATH; their folder."""

    def make(**scripts: str) -> Path:
        folder = tmp_path / "tools"
        folder.mkdir()
        for name, text in scripts.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        return folder

    return make


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder and a home without settings of the machine that runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("mpifl.tools.submit.script.NODE_LOCAL", ())
    monkeypatch.chdir(tmp_path)


def dry(capsys: pytest.CaptureFixture[str], *words: object) -> list[str]:
    """The lines of the script that --dry-run prints; bash finds no mistake in it."""
    assert main(["submit", *map(str, words), "--dry-run"]) == 0
    script = capsys.readouterr().out
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    return script.splitlines()


def test_the_script_of_a_study(write: Write, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mpifl-site.yaml").write_text("{time: '02:30:00', at_once: 3, processes: 2, warning: 300}")
    lines = dry(capsys, write(), "--account", "physics", "trials=3")
    for option in ("--array=0-11%3", "--account=physics", "--cpus-per-task=2", "--signal=B:USR1@300"):
        assert f"#SBATCH {option}" in lines  # 8 combinations, 3 trials: 24 runs, 2 at a time
    (command,) = (line for line in lines if " -m mpifl sweep " in line)
    assert f"{tmp_path}/study.yaml trials=3 output={tmp_path}/out/small --processes 2 --part" in command
    assert command.endswith('--part "$task/12")')
    assert not (tmp_path / "out").exists()
    for words, tasks in (("--tasks 5", "0-4%3"), ("--tasks 500", "0-15%3"), ("--runs 6", "0-2%3")):  # of 16 runs
        assert f"#SBATCH --array={tasks}" in dry(capsys, tmp_path / "study.yaml", *words.split())
    assert not [line for line in dry(capsys, tmp_path / "study.yaml", "--tasks", "1") if "--array" in line]


@pytest.mark.parametrize("name", ["a b", "a #1", "k: v", 'a"b', "it's", "50%j", "$HOME"])
def test_folders_with_any_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """SLURM reads its options, bash the command, and the command its overrides, as they were meant."""
    (folder := tmp_path / name).mkdir()
    monkeypatch.chdir(folder)
    (folder / "job.yaml").write_text(BASE)
    (folder / "study.yaml").write_text("{name: s, job: job.yaml, axes: {algorithm.step_size: [1, 2]}, trials: 1}")
    for file, output, log in (
        ("job.yaml", folder / "results/base.h5", "results/%x-%j.log"),
        ("study.yaml", folder / "results/s", "results/s/logs/%x-%A-%a.log"),
    ):
        lines = dry(capsys, file)
        options = [shlex.split(line.removeprefix("#SBATCH "), comments=True) for line in lines if "#SBATCH" in line]
        assert [f"--chdir={folder}"] in options
        assert [f"--output={tmp_path}/{name.replace('%', '%%')}/{log}"] in options
        (command,) = (line for line in lines if "mpifl run" in line or "mpifl sweep" in line)
        words = shlex.split(command.removeprefix("command=(").removesuffix(")"))
        assert str(folder / file) in words
        (override,) = (word for word in words if word.startswith("output="))
        assert parse_override(override) == ("output", str(output))


def test_ranks_are_started_by_srun_or_in_a_container(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(BASE)
    (tmp_path / "site.yaml").write_text("{launcher: srun, mpi: pmix}")
    lines = dry(capsys, "job.yaml", "seed=3", "--site", "site.yaml", "--time", "0:10:00")
    assert "#SBATCH --time=0:10:00" in lines
    assert "launch=(srun --mpi=pmix)" in lines and '"${launch[@]}" "${command[@]}" &' in lines
    (tmp_path / "mpifl.sif").touch()
    (tmp_path / "site.yaml").write_text("{container: mpifl.sif, gpus_per_node: 1}")
    text = "\n".join(dry(capsys, "job.yaml", "--site", "site.yaml"))
    assert "command=(apptainer exec --nv mpifl.sif python -m mpifl run " in text


def test_a_job_with_groups_of_ranks(printed: Callable[..., Any], refused: Callable[..., str], tmp_path: Path) -> None:
    """The ranks must form groups; what would be idle, on several nodes or share a GPU is said."""
    (tmp_path / "job.yaml").write_text(BASE)
    words = ["submit", "job.yaml", "problem.micro_batches=6", "ranks_per_client=3", "site.nodes=2", "--dry-run"]
    says = "the other 7 ranks cannot be divided into groups of 3; expected 1 or 7; or start 7 or 10 ranks"
    assert says in refused(*words, "site.ranks_per_node=4")
    out, err = printed(*words, "site.ranks_per_node=11", "site.gpus_per_node=2")
    assert "ranks_per_client=3" in out
    assert "3 of 22 ranks will be idle: the job has 6 clients, each of 3 ranks" in err
    assert "1 of 7 groups of 3 ranks will be on several nodes" in err and "a node has 2 GPUs for 11 ranks" in err


def test_a_script_is_submitted(
    write: Write, capsys: pytest.CaptureFixture[str], tmp_path: Path, tools: Callable[..., Path]
) -> None:
    """By sbatch, which reads it from its standard input; the folder of the logs is there before."""
    tools(sbatch=f"#!/bin/sh\ncat > {tmp_path}/received\nls -d {tmp_path}/out/small/logs\n")
    script = dry(capsys, write())
    assert main(["submit", str(tmp_path / "study.yaml")]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/out/small/logs\nlogs: {tmp_path}/out/small/logs\n"
    assert (tmp_path / "received").read_text().splitlines() == script


GOLDEN = Path(__file__).with_name("golden")
SITES = {
    "slurm": "setup: [module load openmpi/5], options: [--mem-per-cpu=1G]", "pbs": "setup: [module load openmpi/5]",
    "flux": "gpus_per_node: 4", "lsf": "container: docker://example.org/mpifl, gpus_per_node: 2",
}  # fmt: skip
Script = Callable[[str, str], str]
Notes = Callable[..., list[str]]


@pytest.fixture
def script(write: Write, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Script:
    """script(scheduler, kind): the script for a batch system, without the paths of this machine."""
    common = "partition: long, account: physics, time: '02:30:00', nodes: 2, ranks_per_node: 4, at_once: 5"
    words = {"study": [write(), "--runs", 2], "ranks": [tmp_path / "study.yaml", "ranks=3"],
             "job": ["base.yaml", "stop.time=2"], "seeds": ["base.yaml", "--seeds", "0-2,7"]}  # fmt: skip

    def printed(scheduler: str, kind: str) -> str:
        (tmp_path / "mpifl-site.yaml").write_text(f"{{scheduler: {scheduler}, {common}, {SITES[scheduler]}}}")
        text = "\n".join(dry(capsys, *words[kind])) + "\n"
        beside = {str(Path(sys.executable).with_name(name)): name for name in ("mpirun", "ompi_info")}
        for path, name in {**beside, sys.executable: "python", str(tmp_path): "/project"}.items():
            text = text.replace(path, name)
        return text

    return printed


@pytest.fixture
def notes(write: Write, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Notes:
    """notes(settings, *words): the warnings for a job of six clients, or for what the words name."""
    monkeypatch.setattr("mpifl.tools.submit.script.NODE_LOCAL", ("/dev/shm",))
    write()

    def printed(settings: str, *words: str) -> list[str]:
        (tmp_path / "mpifl-site.yaml").write_text(f"{{ranks_per_node: 7, {settings}}}")
        assert main(["submit", *(words or ("base.yaml",)), "--dry-run"]) == 0
        return [line.removeprefix("mpifl: ") for line in capsys.readouterr().err.splitlines()]

    return printed


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ("setup: [module load gcc/12 openmpi/5.0]", True),
        ("setup: [ml Intel-MPI]", True),
        ("setup: [module load mvapich2], launcher: mpirun", True),
        ("setup: [module load python/3.11]", False),
        ("setup: [module load openmpi/5.0], launcher: srun", False),
        ("setup: [module load openmpi/5.0], container: 'docker://example.org/mpifl'", False),
        ("setup: [export OMPI_MCA_btl=tcp]", False),
    ],
)
def test_the_mpirun_of_pip_beside_the_mpi_of_a_module(
    notes: Notes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: str, warned: bool
) -> None:
    """Each would start ranks that load the library of the other."""
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert notes(settings) == []
    (tmp_path / "mpirun").touch()
    assert [f"the script starts {tmp_path}/mpirun" in note for note in notes(settings)] == [True] * warned


def test_folders_of_one_node(notes: Notes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert notes("nodes: 1", "base.yaml", "output=/dev/shm/run/a.h5") == [
        "output=/dev/shm/run: /dev/shm is usually of one node alone, and the job runs on others; use a folder that "
        "they share"
    ]
    monkeypatch.setattr("mpifl.tools.submit.script.NODE_LOCAL", (str(tmp_path),))
    assert [note.partition("=")[0] for note in notes("python: /opt/python")] == ["output", "job", "folder"]
    assert [note.partition("=")[0] for note in notes("nodes: 1", "study.yaml")] == ["output", "study", "folder"]


SCONTROL = """#!/bin/sh
case "$2" in
    partition) echo "PartitionName=$3 AllowGroups=ALL DefMemPerNode={partition} MaxMemPerNode=UNLIMITED";;
    config) printf 'AccountingStorageType  = none\\nDefMemPerCPU           = {config}\\n';;
esac
"""


@pytest.mark.parametrize(
    ("partition", "config", "settings", "says"),
    [
        ("4000", "1024", "partition: long", "4000 MB a Node"),
        ("UNLIMITED", "1024", "partition: long", "1024 MB a CPU"),
        ("4000", "1024", "nodes: 1", "1024 MB a CPU"),
        ("UNLIMITED", "UNLIMITED", "partition: long", None),
        ("4000", "1024", "partition: long, options: [--mem-per-cpu=2G]", None),
        ("4000", "1024", "partition: long, scheduler: pbs", None),
    ],
)
def test_the_memory_of_a_job_that_does_not_ask_for_any(
    notes: Notes, tools: Callable[..., Path], partition: str, config: str, settings: str, says: str | None
) -> None:
    tools(scontrol=SCONTROL.format(partition=partition, config=config))
    start = "site.options has no --mem: this cluster then gives a job "
    assert [note.partition(";")[0] for note in notes(settings)] == ([start + says] if says else [])


WARNED = "#!/bin/bash\ntrap '' USR1\nkill -USR1 $PPID\nsleep 0.3\nexit 143\n"  # a run that the time limit ends
KILLED = "#!/bin/bash\nsleep 0.3\nkill -USR1 $PPID\nsleep 2\n"  # before it has set its signal handlers


@pytest.mark.parametrize(
    ("python", "restarts", "requeued"), [(WARNED, 0, True), (WARNED, 2, True), (WARNED, 3, False), (KILLED, 0, True)]
)
def test_a_task_is_requeued_as_often_as_the_site_says(
    notes: Notes, tmp_path: Path, tools: Callable[..., Path], capsys: pytest.CaptureFixture[str],
    python: str, restarts: int, requeued: bool,
) -> None:  # fmt: skip
    folder = tools(scontrol=f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n', python=python)
    notes(f"python: {folder}/python, requeues: 3", "study.yaml")
    script = "\n".join(dry(capsys, "study.yaml"))
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": str(restarts)}
    done = subprocess.run(["bash"], input=script, text=True, capture_output=True, env=environment, timeout=30)
    assert done.returncode == 143
    assert ("requeue 7" in (tmp_path / "called").read_text().splitlines()) == requeued
    assert ("put back into the queue 3 times (site.requeues): submit again to continue" in done.stderr) != requeued


def assert_golden(text: str, name: str) -> None:
    """The text is as a person has read it; MPIFL_WRITE_GOLDEN=1 writes it again."""
    if os.environ.get("MPIFL_WRITE_GOLDEN") == "1":
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text()


@pytest.mark.parametrize(("kind", "like"), [("study", ""), ("ranks", "study"), ("seeds", "study"), ("job", "seeds")])
def test_the_scripts_of_each_kind(script: Script, kind: str, like: str) -> None:
    text = script("slurm", kind)
    if not like:
        return assert_golden(text, f"{kind}.sh")
    lines = ndiff(script("slurm", like).splitlines(True), text.splitlines(True))
    assert_golden("".join(line for line in lines if line[0] in "+-"), f"{kind}.diff")


@pytest.mark.parametrize("scheduler", ["pbs", "flux", "lsf"])
def test_what_another_batch_system_has_of_its_own(script: Script, scheduler: str) -> None:
    """The lines of an array of jobs that SLURM's script does not have."""
    shared = set(script("slurm", "seeds").splitlines())
    own = [line for line in script(scheduler, "seeds").splitlines() if line not in shared]
    assert_golden("\n".join(own) + "\n", f"{scheduler}.txt")


@pytest.mark.parametrize(
    ("scheduler", "kind", "lines"),
    [
        ("pbs", "study", ["#PBS -l select=1:ncpus=1:mpiprocs=1", "#PBS -o /project/out/small/logs/", "#PBS -J 0-7%5"]),
        ("pbs", "job", ["#PBS -N base", "#PBS -l select=2:ncpus=4:mpiprocs=4", "#PBS -o /project/results/"]),
        ("flux", "study", ["# flux: --nslots=1", "# flux: --output=/project/out/small/logs/{{name}}-{{id}}.log"]),
        ("flux", "job", ["# flux: --job-name=base", "# flux: --nodes=2", "# flux: --nslots=2"]),
        ("lsf", "study", ['#BSUB -J "small[1-8]%5"', "#BSUB -n 1", '#BSUB -R "span[ptile=1]"']),
        ("lsf", "job", ["#BSUB -J base", "#BSUB -n 8", "#BSUB -o /project/results/base-%J.log"]),
    ],
)
def test_directives_are_those_of_the_batch_system(script: Script, scheduler: str, kind: str, lines: list[str]) -> None:
    assert set(lines) <= set(script(scheduler, kind).splitlines())


FAKE = """#!/bin/bash
# What SLURM does: runs the script as each task of its array; it was submitted through the standard input.
cat > {folder}/script.sh
for task in 0 1; do
    SLURM_ARRAY_TASK_ID=$task SLURM_ARRAY_JOB_ID=7 SLURM_JOB_ID=7 bash {folder}/script.sh || exit 1
done
"""


def test_an_array_over_seeds_runs(tools: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run files are named by seed, also in a folder whose name the shell would take apart."""
    (folder := tmp_path / "a $b 'c'").mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    mpiexec = '#!/bin/bash\nwhile [[ "$1" == -* ]]; do shift 2; done\nexec "$@"\n'
    tools(mpiexec=mpiexec, sbatch=FAKE.format(folder=tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    (folder / "mpifl-site.yaml").write_text("launcher: mpiexec")
    (folder / "base.yaml").write_text(BASE)
    assert main(["submit", "base.yaml", "stop.time=0.5", "--seeds", "3,5"]) == 0
    found = {}
    for path in (folder / "results").glob("*.h5"):
        with open_run(path) as run:
            found[path.name] = (run.attrs["seed"], run.attrs["name"], run.status)
    assert found == {f"base-seed-{k}.h5": (k, f"base-seed-{k}", "completed") for k in (3, 5)}


def test_flux_gets_one_job_a_task(
    write: Write, capsys: pytest.CaptureFixture[str], tmp_path: Path, tools: Callable[..., Path]
) -> None:
    tools(flux='#!/bin/sh\ncat > /dev/null\necho "$@"\n')
    (tmp_path / "mpifl-site.yaml").write_text("scheduler: flux")
    assert main(["submit", str(write()), "--tasks", "3"]) == 0
    assert capsys.readouterr().out.splitlines()[:3] == [f"batch --env=MPIFL_TASK={k}" for k in range(3)]


def test_an_image_may_be_one_that_setup_copies(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    site = ["site.container=/tmp/none.sif", "site.setup=[sbcast --force /apps/mpifl.sif /tmp/none.sif]"]
    out = "\n".join(dry(capsys, write(), *site))
    assert out.index("sbcast --force") < out.index("apptainer exec /tmp/none.sif python -m mpifl sweep")


def test_where_settings_are_found(tmp_path: Path) -> None:
    """The file that is named, else the project's, else the user's, else the defaults."""
    assert load_site() == (Site(), None)
    (user := tmp_path / "config" / "mpifl" / "site.yaml").parent.mkdir(parents=True)
    user.write_text("account: user")
    assert load_site() == (Site(account="user"), user)
    (tmp_path / "mpifl-site.yaml").write_text("account: project")
    assert load_site()[0] == Site(account="project")
    (tmp_path / "other.yaml").write_text("account: other")
    assert load_site(tmp_path / "other.yaml", {"time": "1:00:00"})[0] == Site(account="other", time="1:00:00")
    for text in ("2:30:00", "9000", "'2:30:00'"):
        (tmp_path / "other.yaml").write_text(f"time: {text}")
        assert load_site(tmp_path / "other.yaml")[0].time == "2:30:00"
    with pytest.raises(ConfigError, match=r"site\.account"):
        load_site(None, {"account": 3.5})
