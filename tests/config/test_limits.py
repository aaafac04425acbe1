"""Job files from elsewhere: references, aliases, sizes and numbers are bounded, in one line and in seconds."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mpifl.cli import main
from mpifl.config.read import load
from mpifl.errors import ConfigError

JOB = """name: a
seed: 0
stop: {updates: 3}
problem: {model: {name: quadratic, dim: 2}, clients: 2}
algorithm: {name: area, step_size: 0.1}
"""
LINES = "\n".join(f"z{k}: '{('${z' + str(k + 1) + '}') * 10}'" for k in range(9))
LEVELS = "\n".join("z%d: [%s]" % (k, ", ".join([f"'${{z{k + 1}}}'"] * 10)) for k in range(9))  # noqa: UP031
CHAIN = "\n".join(f"z{k}: ${{z{k + 1}}}" for k in range(5000))
ALIASES = "\n".join(f"a{k + 1}: &a{k + 1} [{', '.join([f'*a{k}'] * 10)}]" for k in range(9))
BOMBS = {
    "text references": (f"{LINES}\nz9: {'x' * 100_000}", "the references stand for too much; expected at most 50000"),
    "list references": (f"{LEVELS}\nz9: x", "the references stand for too much; expected at most 50000 values"),
    "chain": (f"{CHAIN}\nz5000: x", "at most 50 references in a chain"),
    "aliases": (f"a0: &a0 x\n{ALIASES}", "more than 50000 values"),
    "values": (f"z: [{'1,' * 300_000}]", "more than 50000 values"),
    "depth": (f"z: {'[' * 50_000}", "nested too deeply"),
    "size": (f"z: {'x' * 3_000_000}", "more than 2097152 bytes"),
    "number": (f"z: 0x{'f' * 100_000}", "an integer of 400000 bits"),
    "key": (f"? {'k' * 1_000_000}\n: 1", "no such key; the nearest is"),
    "name of a class": (f"clock: {{delay: {'k' * 1_000_000}}}", "clock.delay.name="),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_job_is_bounded(bomb: str, tmp_path: Path, refused: Callable[..., str]) -> None:
    text, says = BOMBS[bomb]
    (tmp_path / "job.yaml").write_text(f"{JOB}{text}\n")
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    line = refused("check", tmp_path / "job.yaml")
    assert says in line and len(line) < 9000
    assert time.process_time() - begin < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


@pytest.mark.timeout(30)
@pytest.mark.parametrize("command", ["run", "check", "sweep", "report", "submit"])
def test_a_pipe_that_nobody_writes_is_not_waited_for(tmp_path: Path, command: str, refused: Callable[..., str]) -> None:
    """Nor is a device read to its end."""
    os.mkfifo(tmp_path / "job.yaml")
    says = f"={tmp_path}/job.yaml: cannot be read: nothing came from this pipe; expected a readable "
    assert says in refused(command, tmp_path / "job.yaml")
    with pytest.raises(ConfigError, match="more than 2097152 bytes"):
        load("/dev/zero")


def test_a_job_comes_through_a_pipe(tmp_path: Path) -> None:
    """As from `mpifl run <(...)`, also where the process takes its time."""
    os.mkfifo(tmp_path / "job.yaml")
    ready = os.open(tmp_path / "job.yaml", os.O_RDWR)  # so that the writer need not wait for the reader

    def write() -> None:
        with open(tmp_path / "job.yaml", "w") as file:
            os.close(ready)
            time.sleep(0.2)
            file.write(JOB)

    writer = threading.Thread(target=write)
    writer.start()
    assert load(tmp_path / "job.yaml").name == "a"
    writer.join()


def test_what_jobs_have_is_within_the_limits(tmp_path: Path) -> None:
    """A list with a number for each of ten thousand clients; references that sections and texts use."""
    (tmp_path / "job.yaml").write_text(JOB)
    clock = {"mode": "virtual", "delay": {"name": "fixed", "seconds": [1.5] * 10_000}}
    changes = ["problem.clients=10000", "name=run-${seed}-${stop.updates}", f"clock={clock}"]
    job = load(tmp_path / "job.yaml", changes)
    assert job.name == "run-0-3" and len(job.clock.delay.seconds) == 10_000  # type: ignore[attr-defined]


def test_no_value_of_the_environment_gets_into_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    monkeypatch.setenv("MPIFL_DATA", str(tmp_path / "secret-folder"))
    path = tmp_path / "job.yaml"
    path.write_text(f"{JOB}output: {tmp_path}/a.h5\nclock: {{mode: virtual, delay: exponential}}\n")
    for text in ("${oc.env:SECRET}", "${env:SECRET}", "${SECRET}", "$SECRET", "~", "%SECRET%"):
        assert "hunter2" not in refused("check", path, f"name={text}")
    assert main(["run", str(path)]) == 0
    content = (tmp_path / "a.h5").read_bytes()
    assert b"hunter2" not in content and b"secret-folder" not in content
