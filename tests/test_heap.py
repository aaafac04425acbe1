"""The heap in huge pages: new vectors are, also those in gaps between older objects; what is unused is not occupied.
And the thresholds of Python's garbage collector.
"""

from __future__ import annotations

import gc
import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpifl import heap
from mpifl.heap import rare_full_collections

# Makes gaps in the heap if argv[1] is "gaps", asks for huge pages if argv[2] is "ask", makes 20 vectors of 400 KB, and
# prints the memory in huge pages and all memory (bytes), before this and afterwards.
PROGRAM = """
import json, sys
import numpy as np
from mpifl.heap import keep_freed_memory, use_huge_pages

def memory():
    lines = (line.split() for line in open("/proc/self/smaps_rollup"))
    kilobytes = {words[0]: int(words[1]) for words in lines if words[-1] == "kB"}
    return kilobytes["AnonHugePages:"] << 10, kilobytes["Rss:"] << 10

keep_freed_memory()
vectors = lambda count: [np.ones(100_000, np.float32) for _ in range(count)]
kept, freed = [], []
if sys.argv[1] == "gaps":
    for _ in range(20):
        kept.append(np.ones(25_000, np.float32))
        freed += vectors(1)
    del freed[:]
before = memory()
if sys.argv[2] == "ask":
    use_huge_pages()
made = vectors(20)
print(json.dumps([before, memory()]))
"""
VECTORS = 20 * 400_000  # bytes


def huge_pages() -> str:
    """Whether programs get huge pages: always, madvise (if they ask) or never."""
    try:
        if int(Path(heap.HUGE_PAGES, "hpage_pmd_size").read_text()) != heap.HUGE_PAGE:
            return "never"
        words = Path(heap.HUGE_PAGES, "enabled").read_text().split()
    except OSError:
        return "never"
    return next(word.strip("[]") for word in words if word.startswith("["))


asked = pytest.mark.skipif(huge_pages() != "madvise", reason="this system does not give huge pages to those who ask")


def run(before: str, ask: str) -> tuple[int, int]:
    """By how many bytes the memory in huge pages grows, and all memory."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, before, ask], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (huge, all), (huge_after, all_after) = json.loads(done.stdout)
    return huge_after - huge, all_after - all


@asked
def test_new_vectors_are_in_huge_pages() -> None:
    huge, all = run("nothing", "ask")
    assert huge >= VECTORS - 2 * heap.HUGE_PAGE
    assert all <= VECTORS + 4 * heap.HUGE_PAGE  # the heap's reserve is not occupied


@asked
def test_without_asking_they_are_not() -> None:
    huge, _ = run("nothing", "not")
    assert huge == 0


@asked
@pytest.mark.skipif(
    tuple(map(int, platform.release().split(".")[:2])) < (6, 1), reason="only Linux 6.1 and later move what is there"
)
def test_vectors_in_gaps_are_in_huge_pages() -> None:
    huge, all = run("gaps", "ask")
    assert huge >= VECTORS - 2 * heap.HUGE_PAGE
    assert all <= 4 * heap.HUGE_PAGE


@pytest.mark.parametrize(
    "files",
    [
        {"hpage_pmd_size": "536870912\n", "enabled": "always [madvise] never\n"},  # that of hosts with pages of 64 KiB
        {"hpage_pmd_size": "2097152\n", "enabled": "always madvise [never]\n"},
        {},
    ],
    ids=["another size", "never", "none"],
)
def test_a_system_without_such_pages_is_left_alone(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(heap, "HUGE_PAGES", str(tmp_path))
    monkeypatch.setattr(heap, "_heap", lambda: pytest.fail("looks at the heap"))
    heap.use_huge_pages.__wrapped__()


# -- the garbage collector ---------------------------------------------------------------------------------------------
@pytest.fixture
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 12)
    yield (700, 10, 12)
    gc.set_threshold(*before)


def test_overlapping_runs_leave_the_garbage_collector_as_it_was(thresholds: tuple[int, int, int]) -> None:
    """Two runs in threads, of which the first to begin is the first to end."""
    first, second = rare_full_collections(), rare_full_collections()
    for step in (first.__enter__, second.__enter__):
        step()
        assert gc.get_threshold() == (700, 10, 1200)
    first.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 1200)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == thresholds and gc.get_freeze_count() == 0


@pytest.mark.parametrize("old", [0, 2**31 - 1])
def test_any_threshold_of_the_garbage_collector(thresholds: tuple[int, int, int], old: int) -> None:
    gc.set_threshold(700, 10, old)
    with rare_full_collections():
        assert gc.get_threshold() == (700, 10, old)
    assert gc.get_threshold() == (700, 10, old)
