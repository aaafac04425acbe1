"""The lines that errors are reported in."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import mpifl
from mpifl.errors import ConfigError, first_and_last_line, format_client_error, lack_of_memory, shortened


def raised(message: str) -> str:
    """How an error that a client has raised on rank 2 is reported."""
    try:
        raise ValueError(message)
    except ValueError as error:
        return format_client_error(2, error)


def test_a_clients_error_in_one_line_names_its_rank_and_the_error() -> None:
    text = raised("a gradient of shape (3,)")
    line = first_and_last_line(text)
    assert len(text.splitlines()) > 2 and line.startswith("raised on rank 2 on ")
    assert line.endswith("): ValueError: a gradient of shape (3,)")
    assert [first_and_last_line(line) for line in ("rank 3 was lost", "")] == ["rank 3 was lost", ""]


def test_a_clients_error_is_cut_to_its_first_and_last_part() -> None:
    """A line to 1000 characters and 28 for the mark, the text to 8000; what cannot be printed is escaped."""
    for message in ("first" + "x" * 10_000_000 + "last", "first\n" + "x\n" * 10_000_000 + "last"):
        text = raised(message)
        assert len(text) < 8200 and text.startswith("raised on rank 2 on ")
        assert "ValueError: first" in text and text.endswith("last")
    assert raised("\ud800 \x1b[31m").endswith("ValueError: \\ud800 \\x1b[31m")
    assert shortened("abcdefgh", 8) == "abcdefgh" and shortened("abcdefghi", 4) == "ab [5 characters] hi"


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


@pytest.mark.parametrize(("limit", "clause"), [(resource.RLIM_INFINITY, ""), (1 << 27, "out of memory (no exception)")])
def test_a_system_error_under_a_limit_of_memory_is_a_lack_of_it(
    limit: int, clause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's imports end with one where code in C has not checked an allocation."""
    monkeypatch.setattr(resource, "getrlimit", lambda what: (limit, limit))
    assert lack_of_memory(SystemError("no exception")) == clause


@pytest.mark.long
@pytest.mark.parametrize("model", ["logistic", "torch-mlp"])
def test_a_limit_of_the_address_space_is_one_line(model: str, tmp_path: Path) -> None:
    """`ulimit -v`, from one that Python alone needs to one that is enough: a run ends well or with one line."""
    root = Path(__file__).parents[1]
    quickstart = root / "jobs" / "quickstart.yaml"
    # As installed: Python's compiler itself reports a lack of memory as errors of many kinds.
    subprocess.run([sys.executable, "-m", "compileall", "-q", root / "mpifl"], check=True)
    words = ["run", "-q", str(quickstart), "clock.mode=virtual", "stop.time=0.1", f"problem.model={model}"]
    codes = []
    for megabytes in [*range(80, 200, 10), *range(200, 900, 100), 3000]:

        def limit(size: int = megabytes << 20) -> None:
            resource.setrlimit(resource.RLIMIT_AS, (size, size))

        command = [sys.executable, "-m", "mpifl", *words, "overwrite=true"]
        done = subprocess.run(command, cwd=tmp_path, preexec_fn=limit, capture_output=True, text=True, timeout=100)
        codes.append(done.returncode)
        assert "Traceback" not in done.stderr, (megabytes, done.stderr)
        if done.returncode == 3:  # else it has ended well, or a library in C has ended the process
            line = done.stderr
            assert line.startswith("mpifl: ") and line.count("\n") == 1 and "out of memory" in line, (megabytes, line)
    assert 3 in codes and codes[-1] == 0


# Functions that make one -> arguments before what is wrong.
CONSTRUCTORS = {"ConfigError": 2, "UnreadableRun": 2, "DamagedRun": 2, "LaunchError": 2, "entry_error": 1, "_wrong": 1,
                "_bad": 1, "_damaged": 1, "_unreadable": 1}  # fmt: skip


def test_every_refusal_says_what_is_wrong_and_what_would_be_right() -> None:
    """At every place that makes one. The texts are checked where tests provoke them."""
    found = 0
    for path in sorted(Path(mpifl.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if name in CONSTRUCTORS and not any(isinstance(each, ast.Starred) for each in node.args):
                given = {each.arg: each.value for each in node.keywords}
                given |= dict(zip(("wrong", "expected", "remedy"), node.args[CONSTRUCTORS[name] :], strict=False))
                assert "wrong" in given and ("expected" in given or "remedy" in given), f"{path}:{node.lineno}"
                found += 1
    assert found > 400


def test_a_refusal_in_one_line() -> None:
    whole = ConfigError("a", 1, "too\nlarge", "at most 0", "or leave it out")
    assert str(whole) == "a=1: too large; expected at most 0; or leave it out"
    assert str(ConfigError("a", 1, "the file exists", remedy="b")) == "a=1: the file exists; b"
    error = ConfigError("a", 1, "wrong", "right", "do").under("section")
    assert (error.key, error.wrong, error.expected, error.remedy) == ("section.a", "wrong", "right", "do")
    assert ConfigError(*error.args).text == error.text == "wrong; expected right; do"
