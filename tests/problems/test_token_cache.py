"""The cache of tokenised text: where it is, when it is rebuilt, and what happens when several processes build it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from mpifl.errors import ConfigError
from mpifl.problems.data.cache import Arrays, cached
from tests.problems.conftest import refusal

ARRAYS = {"tokens": np.arange(1000, dtype=np.uint16), "ends": np.array([400, 1000])}
Make = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def made() -> list[str]:
    return []


@pytest.fixture
def make(tmp_path: Path, made: list[str]) -> Make:
    """Returns the folder of ARRAYS, from a source file with the text `content`."""

    def build() -> Arrays:
        made.append("once")
        return ARRAYS

    def call(name: str = "text", content: str = "a", **options: int) -> Path:
        source = tmp_path / f"source-{content}"
        source.write_text(content)
        place = cached(name, options, [source], build)
        assert {file.stem: np.load(file).tolist() for file in place.glob("*.npy")} == {
            name: array.tolist() for name, array in ARRAYS.items()
        }
        return place

    return call


def test_made_once_for_the_same_content_and_options(make: Make, made: list[str], cache: Path) -> None:
    place = make(words=3)
    assert place.parent == cache / "tokens" and re.fullmatch("text-[0-9a-f]{16}", place.name)
    assert make(words=3) == place and len(made) == 1
    others = [make(words=4), make(content="b", words=3), make(name="other", words=3), make(words=3, window=2)]
    assert len({place, *others}) == 5 and len(made) == 5
    assert sorted(file.name for file in (cache / "tokens").iterdir()) == sorted(p.name for p in (place, *others))
    tokens = np.load(place / "tokens.npy", mmap_mode="r")
    assert isinstance(tokens, np.memmap) and tokens.dtype == np.uint16
    place = make()
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=place, check=True)
    assert len((place / "SHA256SUMS").read_text().splitlines()) == len(ARRAYS)


def changed(file: Path, content: bytes) -> None:
    file.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "truncated": lambda place: changed(place / "tokens.npy", (place / "tokens.npy").read_bytes()[:-1]),
    "one byte": lambda place: changed(place / "ends.npy", (place / "ends.npy").read_bytes()[:-1] + b"\1"),
    "array missing": lambda place: (place / "ends.npy").unlink(),
    "sums missing": lambda place: (place / "SHA256SUMS").unlink(),
    "sums of one": lambda place: changed(
        place / "SHA256SUMS", (place / "SHA256SUMS").read_bytes().splitlines(keepends=True)[0]
    ),
    "sums of nothing": lambda place: (
        [file.unlink() for file in place.glob("*.npy")] and changed(place / "SHA256SUMS", b"")
    ),
    "no text": lambda place: changed(place / "SHA256SUMS", b"\xff\xfe\n"),
    "empty folder": lambda place: [file.unlink() for file in place.iterdir()] and None,
    "a file": lambda place: shutil.rmtree(place) or place.touch(),  # type: ignore[func-returns-value]
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_is_made_again(make: Make, made: list[str], kind: str) -> None:
    place = make()
    DAMAGE[kind](place)
    for _ in range(2):
        assert make() == place and len(made) == 2
    assert [file.name for file in place.parent.iterdir()] == [place.name]  # nothing is left over


@pytest.mark.parametrize("damaged", [False, True])
def test_several_at_once(tmp_path: Path, cache: Path, damaged: bool) -> None:
    """Six processes find nothing complete, build at the same time and store the result: all succeed, with one
    folder."""
    source, together = tmp_path / "source", threading.Barrier(6)
    source.write_text("x")

    def build(wait: bool = True) -> Arrays:
        if wait:
            together.wait(timeout=60)
        return ARRAYS

    if damaged:
        DAMAGE["truncated"](cached("text", {}, [source], lambda: build(False)))
    with ThreadPoolExecutor(6) as pool:
        places = list(pool.map(lambda _: cached("text", {}, [source], build), range(6)))
    assert len({*places}) == 1 and [file.name for file in (cache / "tokens").iterdir()] == [places[0].name]
    assert (np.load(places[0] / "tokens.npy") == ARRAYS["tokens"]).all()


def test_a_build_that_fails_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    source = tmp_path / "source"
    source.write_text("x")
    with refusal(r"^data file=bad: bad; expected good$"):
        cached("text", {}, [source], lambda: (_ for _ in ()).throw(ConfigError("data file", "bad", "bad", "good")))
    with pytest.raises(ValueError, match="allow_pickle"):
        cached("text", {}, [source], lambda: {**ARRAYS, "things": np.array([{}])})
    assert not cache.exists() or not list((cache / "tokens").iterdir())
    with refusal(
        f"^data file={tmp_path / 'gone'}: cannot be read: No such file or directory; expected a readable file$"
    ):
        cached("text", {}, [tmp_path / "gone"], lambda: ARRAYS)


def test_where_it_is(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MPIFL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert make().parent == tmp_path / "xdg/mpifl/tokens"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert make().parent == tmp_path / "home/.cache/mpifl/tokens"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPIFL_CACHE", "here")
    assert make().parent == tmp_path / "here/tokens"  # absolute: a rank may stand elsewhere
    monkeypatch.setenv("MPIFL_CACHE", "~nobody-of-this-name")
    assert make().parent == tmp_path / "~nobody-of-this-name/tokens"  # no user has this name: as in a shell
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MPIFL_CACHE", str(tmp_path / "file"))
    with refusal(f"^MPIFL_CACHE={tmp_path / 'file'}: cannot be written: Not a directory; expected a folder "):
        make()


def test_a_killed_build_is_no_obstacle(make: Make, cache: Path, tmp_path: Path) -> None:
    code = """
import os, sys, numpy as np
from pathlib import Path
from mpifl.problems.data import cache
cache._move = lambda *_: os.kill(os.getpid(), 9)
cache.cached("text", {}, [Path(sys.argv[1])], lambda: {"tokens": np.zeros(9)})
"""
    (tmp_path / "source-a").write_text("a")
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "source-a")]).returncode == -9
    left = [file.name for file in (cache / "tokens").iterdir()]
    assert len(left) == 1 and left[0].startswith(".text-")
    assert make().is_dir()
