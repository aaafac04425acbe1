"""The heap in huge pages: new vectors are, also those in gaps between older objects; what is unused is not occupied."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from mpifl import heap

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
        if int(Path(heap.HUGE_PAGE_FILE).read_text()) != heap.HUGE_PAGE:
            return "never"
        words = Path(heap.HUGE_PAGE_FILE).with_name("enabled").read_text().split()
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


@pytest.mark.parametrize("text", ["536870912\n", None])  # the size of huge pages where others have 64 KiB; none at all
def test_a_system_without_such_pages_is_left_alone(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hpage_pmd_size"
    if text:
        file.write_text(text)
    monkeypatch.setattr(heap, "HUGE_PAGE_FILE", str(file))
    monkeypatch.setattr(heap, "_heap", lambda: pytest.fail("looks at the heap"))
    heap.use_huge_pages.__wrapped__()
