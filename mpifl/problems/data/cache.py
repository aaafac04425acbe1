"""A cache of tokenised text on disk, keyed by options and source files, and mapped into memory by every rank.

The cache is the folder $MPIFL_CACHE, else $XDG_CACHE_HOME/mpifl, else ~/.cache/mpifl. An entry of the
data set NAME is its folder tokens/NAME-KEY with NumPy arrays and their checksums, by which damage is noticed. KEY is a
hash of the options and of the content of the source files, so an entry is never out of date.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from mpifl.errors import ConfigError, as_unwritable, error_text
from mpifl.safe_input import open_regular

FORMAT = 1  # version of the arrays' format; folders of an older one are no longer used
SUMS = "SHA256SUMS"  # a file in the format of sha256sum
TRIES = 10

Arrays = dict[str, np.ndarray]


def cached(name: str, options: Mapping[str, object], sources: Sequence[Path], build: Callable[[], Arrays]) -> Path:
    """Returns the folder with one ARRAY.npy for each array of `build()`; calls it only if no undamaged folder exists.

    `options` are what the arrays depend on besides the content of the sources. Raises ConfigError if a source cannot be
    read or the cache cannot be written.
    """
    cache = _folder()
    place = cache / "tokens" / f"{name}-{_key(options, sources)}"
    if not _is_intact(place):
        arrays = build()
        with as_unwritable("MPIFL_CACHE", cache):
            _store(arrays, place)
    return place


def _folder() -> Path:
    given, xdg = os.environ.get("MPIFL_CACHE"), os.environ.get("XDG_CACHE_HOME")
    return Path(os.path.expanduser(given or (f"{xdg}/mpifl" if xdg else "~/.cache/mpifl"))).absolute()


def _key(options: Mapping[str, object], sources: Sequence[Path]) -> str:
    key = hashlib.sha256(repr((FORMAT, sorted(options.items()))).encode())
    for source in sources:
        try:
            key.update(_checksum(source).encode())
        except OSError as error:
            raise ConfigError("data file", source, f"cannot be read: {error_text(error)}", "a readable file") from error
    return key.hexdigest()[:16]


def _checksum(file: Path) -> str:
    with open_regular(file) as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _is_intact(place: Path) -> bool:
    """Whether the folder holds exactly the arrays that its checksums name, with these checksums."""
    try:
        named = dict(line.split("  ", 1)[::-1] for line in (place / SUMS).read_text().splitlines())
        held = {file.name: _checksum(file) for file in place.glob("*.npy")}
    except (OSError, ValueError):
        return False
    return bool(named) and held == named


def _store(arrays: Arrays, place: Path) -> None:
    """Writes the arrays beside `place` and renames them in one step; an entry that another process wrote is kept."""
    from shutil import rmtree
    from tempfile import mkdtemp

    place.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        fresh = scratch / "new"
        fresh.mkdir()
        for name, array in arrays.items():
            with (fresh / f"{name}.npy").open("wb") as file:
                np.save(file, array, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
        with (fresh / SUMS).open("w") as sums:
            sums.writelines(f"{_checksum(file)}  {file.name}\n" for file in sorted(fresh.glob("*.npy")))
            sums.flush()
            os.fsync(sums.fileno())
        _move(fresh, place, scratch)
    finally:
        rmtree(scratch, ignore_errors=True)


def _move(fresh: Path, place: Path, scratch: Path) -> None:
    for k in range(TRIES):
        try:
            fresh.rename(place)
            return
        except OSError:  # there is a folder already
            if _is_intact(place):
                return  # another process has written it first
            if k == TRIES - 1:
                raise
            with suppress(FileNotFoundError):  # the folder is damaged; another process may be removing it too
                place.rename(scratch / f"damaged-{k}")
