"""The lines that errors are reported in."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from mpifl.errors import first_and_last_line, format_client_error, lack_of_memory, shortened


def test_a_clients_error_in_one_line_names_its_rank_and_the_error() -> None:
    try:
        raise ValueError("a gradient of shape (3,)")
    except ValueError as error:
        text = format_client_error(2, error)
    assert len(text.splitlines()) > 2
    line = first_and_last_line(text)
    assert line.startswith("raised on rank 2 on ")
    assert line.endswith("): ValueError: a gradient of shape (3,)")


def test_a_clients_error_is_cut_to_its_first_and_last_part() -> None:
    """A line to 1000 characters and 28 for the mark, the text to 8000; what cannot be printed is escaped."""
    for message in ("first" + "x" * 10_000_000 + "last", "first\n" + "x\n" * 10_000_000 + "last"):
        try:
            raise ValueError(message)
        except ValueError as error:
            text = format_client_error(2, error)
        assert len(text) < 8200 and text.startswith("raised on rank 2 on ")
        assert "ValueError: first" in text and text.endswith("last")
    try:
        raise ValueError("\ud800 \x1b[31m")
    except ValueError as error:
        assert format_client_error(2, error).endswith("ValueError: \\ud800 \\x1b[31m")
    assert shortened("abcdefgh", 8) == "abcdefgh" and shortened("abcdefghi", 4) == "ab [5 characters] hi"


def test_a_line_alone_is_not_repeated() -> None:
    assert first_and_last_line("rank 3 was lost") == "rank 3 was lost"
    assert first_and_last_line("") == ""


@pytest.mark.parametrize(
    ("error", "clause"),
    [
        (MemoryError("Unable to allocate 8 GiB"), "out of memory (Unable to allocate 8 GiB)"),
        (MemoryError(), "out of memory (MemoryError)"),
        (RuntimeError("can't start new thread"), "out of memory or threads (can't start new thread)"),
        (ImportError("advice\nlibhdf5.so: failed to map segment from shared object"),
         "out of memory (libhdf5.so: failed to map segment from shared object)"),
        (OSError(12, "Cannot allocate memory"), "out of memory ([Errno 12] Cannot allocate memory)"),
        (RuntimeError("a rule of the user's own"), ""),
        (OSError(28, "No space left on device"), ""),
        (ValueError("can't start new thread"), ""),
    ],
)  # fmt: skip
def test_errors_that_say_that_a_process_gets_no_more_memory(error: Exception, clause: str) -> None:
    assert lack_of_memory(error) == clause


@pytest.mark.long
@pytest.mark.parametrize("model", ["logistic", "torch-mlp"])
def test_a_limit_of_the_address_space_is_one_line(model: str, tmp_path: Path) -> None:
    """`ulimit -v`, from one that Python alone needs to one that is enough: a run ends well or with one line."""
    quickstart = Path(__file__).parents[1] / "jobs" / "quickstart.yaml"
    words = ["run", "-q", str(quickstart), "clock.mode=virtual", "stop.time=0.1", f"problem.model={model}"]
    codes = []
    for megabytes in [*range(80, 200, 10), *range(200, 900, 100), 3000]:

        def limit(size: int = megabytes << 20) -> None:
            resource.setrlimit(resource.RLIMIT_AS, (size, size))

        command = [sys.executable, "-m", "mpifl", *words, "overwrite=true"]
        done = subprocess.run(
            command, cwd=tmp_path, preexec_fn=limit, capture_output=True, text=True, timeout=100
        )  # fmt: skip
        codes.append(done.returncode)
        assert "Traceback" not in done.stderr, (megabytes, done.stderr)
        if done.returncode == 3:  # else it has ended well, or a library in C has ended the process
            line = done.stderr
            assert line.startswith("mpifl: ") and line.count("\n") == 1 and "out of memory" in line, (megabytes, line)
    assert 3 in codes and codes[-1] == 0
