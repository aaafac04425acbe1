"""A user's mistakes under mpirun: one line on stderr from one rank, exit code 2, and nothing written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi.cases import AREA, SMALL, job
from tests.mpi.conftest import MPIFL, RUN, Start, in_one_job, one_line, refused, write
from tests.tiers import long

pytestmark = [pytest.mark.mpi, pytest.mark.damaged, pytest.mark.timeout(120)]
IDX = "problem.data=mnist problem.model={name: logistic} problem.root="

# The command, and what its line holds; {job} is a good job, {run} its results. Of each kind of mistake one or two: what
# is wrong with single values is in tests/config.
WRONG = [
    ("run {job} algorithm.step_sise=1", "algorithm.step_sise=1: no such key; the nearest is algorithm.step_size"),
    ("resume {job}", "resume=good.yaml: no HDF5 file; there is no complete checkpoint in good.yaml.ckpt; expected"),
    ("run {job} clock.delay={name: fixed, seconds: [1, 2]}", "clock.delay.seconds=2 values"),
    ("run {job} clock.delay={name: trace, path: none.csv}", "clock.delay.path=none.csv"),
    ("run {job} algorithm=nowhere:Own", "algorithm.name=nowhere:Own"),
    ("run {job} algorithm={name: fedavg, cohort: 8}", "algorithm.cohort=8: there are 7 clients; expected at most 7"),
    (
        "run {job} algorithm.reply=deferred algorithm.trigger.every=9",
        "algorithm.trigger.every=9: replies are deferred, and there are 7 clients; expected at most 7",
    ),
    ("run {digits} problem.partition={name: dirichlet, alpha: 0.1, min_samples: 500}", "min_samples"),
    ("run {digits} " + IDX + "nowhere", "nowhere"),
    ("run {digits} " + IDX + "corrupt", "corrupt"),
    ("run {job} output=folder.h5", "output=folder.h5: this is a directory; expected the name of a file"),
    ("run {job} output=text.txt/x.h5", "output=text.txt/x.h5"),
    ("run {job} output={run}", "the file exists; choose another name, or overwrite=true"),
    ("run {run}", "this is HDF5"),
    ("run {job} {digits}", "key=value after the JOB.yaml"),
    ("replay text.txt", "no HDF5 file; expected a run file"),
    ("replay cut.h5", "cut.h5"),
    ("replay {run} output={run}", "the file exists; choose another name, or overwrite=true"),
    ("show text.txt", "text.txt"),
    ("", "command=''"),
]


def words(line: str) -> list[str]:
    """A command line's words: values in braces or brackets may hold blanks."""
    parts: list[str] = []
    for word in line.split():
        if parts and (parts[-1].count("{") > parts[-1].count("}")):
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    return parts


def prepare(folder: Path) -> dict[str, str]:
    """Makes good jobs, the results of one, and wrong files."""
    good = job(AREA, SMALL)
    digits = {**good, "problem": {"data": "digits", "clients": 4}}
    names = {"{job}": write(folder, "good", good).name, "{digits}": write(folder, "digits", digits).name}
    (reply,) = in_one_job(folder, 0, [["run", "good.yaml"]])
    assert reply.codes == [0] and reply.changed == ["results/good.h5"]
    names["{run}"] = "results/good.h5"
    (folder / "cut.h5").write_bytes((folder / "results/good.h5").read_bytes()[:3000])
    (folder / "text.txt").write_text("no job, no run, no trace\n")
    (folder / "folder.h5").mkdir()
    image = bytes([0, 0, 8, 3, 0, 0, 0, 60]) + bytes([0, 0, 0, 28] * 2) + bytes(60 * 28 * 28)
    (folder / "corrupt/mnist").mkdir(parents=True)
    for file in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (folder / "corrupt/mnist" / f"{file}-ubyte").write_bytes(b"\1\2" + image[2:])
    return names


def filled(line: str, names: dict[str, str]) -> list[str]:
    for name, value in names.items():
        line = line.replace(name, value)
    return words(line)


def test_every_mistake_is_one_line(tmp_path: Path) -> None:
    """All mistakes in one MPI job of 3 ranks, and then a good run, which finds all ranks ready."""
    names = prepare(tmp_path)
    commands = [filled(line, names) for line, _ in WRONG]
    *replies, good, again = in_one_job(tmp_path, 3, [*commands, ["run", "good.yaml", "output=g.h5"], ["list", "data"]])
    missed = [(line, reply) for (line, says), reply in zip(WRONG, replies, strict=True) if not one_line(reply, says)]
    assert not missed, "\n".join(map(str, missed))
    assert good.codes == [0] * 3 and good.changed == ["g.h5"]
    assert again.codes == [0] * 3 and "mnist" in again.out and not again.changed


@pytest.mark.parametrize(
    ("ranks", "line", "says"),
    [
        pytest.param(3, "run {job} algorithm.step_sise=1", "nearest is algorithm.step_size", marks=pytest.mark.smoke),
        long(5, "run {digits} problem.root=nowhere problem.data=mnist", "nowhere"),
        long(2, "run {job} output={run}", "the file exists; choose another name, or overwrite=true"),
        long(1, "run {job} problem.clients=0", "problem.clients=0"),
        (0, "run {job} problem.clients=0", "problem.clients=0"),
    ],
)  # fmt: skip
def test_the_launcher_passes_the_exit_code_on(run: Start, tmp_path: Path, ranks: int, line: str, says: str) -> None:
    names = prepare(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    done = run(ranks, *MPIFL, *filled(line, names))
    refused(done, says)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


@pytest.mark.long
def test_overwrite(run: Start, tmp_path: Path) -> None:
    """A run that begins replaces the results if asked to; the script takes overrides without a job."""
    prepare(tmp_path)
    first = (tmp_path / "results/good.h5").read_bytes()
    done = run(3, *RUN, "good.yaml", "overwrite=true", "seed=6", code=0)
    assert not done.err and (tmp_path / "results/good.h5").read_bytes() != first, str(done)
    done = run(2, *RUN, "stop={updates: 20}", "output=q.h5", "problem.clients=4", code=0)
    assert not done.err and (tmp_path / "q.h5").exists(), str(done)


TAGS = """
from types import SimpleNamespace
from mpifl.errors import ConfigError
from mpifl.transport.mpi import DATA, check_tags
comm = SimpleNamespace(Get_attr=lambda key: 32767)  # the least that MPI promises
check_tags(comm, 32767 - DATA)
try:
    check_tags(comm, 32767 - DATA + 1)
except ConfigError as error:
    print(error)
"""


def test_more_clients_than_message_tags() -> None:
    done = subprocess.run([sys.executable, "-c", TAGS], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith(
        "problem.clients=32752: this MPI has 32751 message tags for clients; expected at most 32751"
    ), done
