"""Checkpoints of a run: sets of files in the folder NAME.ckpt beside NAME.h5.

    000012.rank0, 000012.rank1, ...   the parts of checkpoint 12, HDF5 files, each written by its rank (`PartWriter`)
    000012.json                       its manifest, written last by rank 0 (`commit`): this makes the set valid

Names that begin with a dot are temporary. The last two complete sets are kept.

A run that resumes from checkpoint k writes k + 1 next. Sets with a higher number belong to the undone part of
the run: `undo` removes their manifests.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpifl.errors import ConfigError
from mpifl.storage.checkpoint import (
    FORMAT,
    ClientSnapshot,
    ServerSnapshot,
    Unusable,
    check_part,
    other_format,
    read_clients,
    read_server,
    regular,
)
from mpifl.storage.checkpoint_part import part_name
from mpifl.storage.durable import checksum, error_text, sync_folder, write_durably

MANIFEST = re.compile(r"(\d{6,})\.json")
FILE = re.compile(r"\.?(\d{6,})\.(?:rank\d+|json)(?:\.[0-9a-f]{8}\d*)?")  # of a set, temporary or not


def folder_of(run_file: Path) -> Path:
    """Where the checkpoints of a run file are: NAME.ckpt beside NAME.h5."""
    name = run_file.name.removesuffix(".h5")
    return run_file.with_name(f"{name}.ckpt")


@dataclass(frozen=True)
class Manifest:
    """What makes a set valid: the names of all its files follow from number and rank, these are their contents."""

    number: int
    run: str  # id of the run
    session: str  # id of the process that wrote it
    parts: Mapping[int, tuple[int, int]]  # rank: bytes and CRC-32 of its part


class Checkpoint:
    """A complete set."""

    def __init__(self, folder: Path, number: int) -> None:
        """Reads the manifest. Raises Unusable."""
        self.number = number
        self._folder = folder
        self.manifest = _manifest(folder / _manifest_name(number), number)
        self._parts = self.manifest.parts

    def server(self) -> ServerSnapshot:
        """The server's part. Raises ConfigError("checkpoint", ...)."""
        with self._part(0) as path:
            return read_server(path)

    def clients(self, rank: int, wanted: Iterable[int] | None = None) -> dict[int, ClientSnapshot]:
        """The snapshots of these clients (None: all) in the part of a rank. Raises ConfigError("checkpoint", ...)."""
        with self._part(rank) as path:
            return read_clients(path, wanted)

    @contextlib.contextmanager
    def _part(self, rank: int) -> Iterator[Path]:
        path = self._folder / part_name(self.number, rank)
        if rank not in self._parts:
            raise ConfigError("checkpoint", path, f"a part of checkpoint {self.number}, which has none of rank {rank}")
        with _config_error(path):
            self._check_size(rank)
            yield path

    @property
    def ranks(self) -> list[int]:
        """The ranks that saved a part, in order."""
        return sorted(self._parts)

    def check(self) -> None:
        """Reads every part: first all checksums, then the contents. Raises Unusable."""
        for rank in self.ranks:
            self._check_size(rank)
            name = part_name(self.number, rank)
            try:
                with (self._folder / name).open("rb") as file:
                    found = checksum(file)
            except OSError as error:
                raise Unusable(f"cannot be read: {name}: {error_text(error)}") from error
            if found != self._parts[rank]:
                raise Unusable(f"is damaged: {name} has other bytes than were written")
        for rank in self.ranks:
            check_part(self._folder / part_name(self.number, rank), self.number, rank)

    def check_sizes(self) -> None:
        """Raises Unusable where a part is not there or not whole."""
        for rank in self.ranks:
            self._check_size(rank)

    def _check_size(self, rank: int) -> None:
        name, size = part_name(self.number, rank), self._parts[rank][0]
        try:
            found = regular(self._folder / name)
        except FileNotFoundError:
            raise Unusable(f"is damaged: {name} is missing") from None
        except OSError as error:
            raise Unusable(f"cannot be read: {name}: {error_text(error)}") from error
        if found != size:
            raise Unusable(f"is damaged: {name} has {found} bytes instead of {size}")


def commit(
    folder: Path, number: int, parts: Mapping[int, tuple[int, int]], *, run: str, session: str, resumed_from: int
) -> None:  # fmt: skip
    """Makes checkpoint `number` valid, then removes what it replaces: all sets but this and the complete one before.

    parts   rank: (bytes, crc), as `PartWriter.done` reports
    others  as in `ServerSnapshot`
    Raises OSError; the set is then not valid.
    """
    for rank, (size, _) in parts.items():
        path = folder / part_name(number, rank)
        if regular(path) != size:
            raise OSError(errno.EIO, f"{path.name} does not have its {size} bytes", path)
    manifest = Manifest(number, run, session, parts)
    write_durably(folder / _manifest_name(number), _encode(manifest))
    with contextlib.suppress(OSError):  # the folder's own name; the parent may not be ours to open
        sync_folder(folder.parent)
    with contextlib.suppress(OSError):  # the set is valid; the next commit removes what remains
        _tidy(folder, manifest, resumed_from)


def belongs(manifest: Manifest, run: str, session: str | None, resumed_from: int) -> bool:
    """Whether a checkpoint continues the rows of a run file, and is not of a part of the run that was undone.

    run, session, resumed_from  of the file: its run, its writer, the checkpoint that this one resumed from
    """
    return manifest.run == run and (manifest.number <= resumed_from or manifest.session == session)


def discard(folder: Path, number: int) -> None:
    """Removes the parts of set `number`, unless it is valid: an abandoned checkpoint must not fill the disk."""
    with contextlib.suppress(OSError):  # the next commit removes what remains
        if number not in _numbers(folder):
            for path in folder.glob(f"{number:06d}.rank*"):
                path.unlink(missing_ok=True)


def newest(
    folder: Path, run: str, mismatch: Callable[[Manifest], str] = lambda manifest: ""
) -> tuple[Checkpoint | None, list[str]]:
    """The newest complete checkpoint of `run` whose files all match its manifest, or None.

    Also returns a clause for each newer one that was passed over: "checkpoint 12 is damaged: 000012.rank3 is missing".
    mismatch  returns why a set of the run cannot be used, "is ...", or ""
    """
    try:
        numbers = _numbers(folder)
    except FileNotFoundError:
        return None, []
    except OSError as error:
        return None, [f"{folder} cannot be read: {error_text(error)}"]
    passed: list[str] = []
    for number in reversed(numbers):
        try:
            checkpoint = Checkpoint(folder, number)
            if why := mismatch(checkpoint.manifest) if checkpoint.manifest.run == run else "is of another run":
                raise Unusable(why)
            checkpoint.check()
            return checkpoint, passed
        except Unusable as error:
            passed.append(f"checkpoint {number} {error}")
    return None, passed


def open_set(folder: Path, number: int) -> Checkpoint:
    """A checkpoint that rank 0 has checked: no part is read. Raises ConfigError("checkpoint", ...)."""
    with _config_error(folder / _manifest_name(number)):
        return Checkpoint(folder, number)


def sets(folder: Path) -> list[int]:
    """The numbers of the sets that have a manifest, of whichever run; none where there is no folder. OSError."""
    try:
        return _numbers(folder)
    except FileNotFoundError:
        return []


def undo(folder: Path, number: int) -> None:
    """Removes the manifests of all sets above `number`, of whichever run. OSError."""
    undone = [k for k in sets(folder) if k > number]
    for k in reversed(undone):
        (folder / _manifest_name(k)).unlink()
    if undone:
        sync_folder(folder)


def remove(folder: Path) -> None:
    """Removes all sets, of whichever run, and the folder if nothing else is in it. OSError.

    Of a link to a folder that holds sets only the link is removed: what it leads to may belong to somebody else.
    """
    with contextlib.suppress(FileNotFoundError):
        if folder.is_symlink():
            if _numbers(folder):
                folder.unlink()
            return
        for path in _files(folder):
            path.unlink(missing_ok=True)
        sync_folder(folder)
        with contextlib.suppress(OSError):
            folder.rmdir()


# -- the folder --------------------------------------------------------------------------------------------------------
def _manifest_name(number: int) -> str:
    return f"{number:06d}.json"


def _numbers(folder: Path) -> list[int]:
    """The numbers of the manifests, in order."""
    found = (MANIFEST.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in found if match and match[0] == _manifest_name(int(match[1])))


def _files(folder: Path) -> list[Path]:
    """All that belongs to a set, the manifests first: no set is valid that lacks a part."""
    files = [path for path in folder.iterdir() if FILE.fullmatch(path.name)]
    return sorted(files, key=lambda path: (not MANIFEST.fullmatch(path.name), path.name))


def _tidy(folder: Path, manifest: Manifest, resumed_from: int) -> None:
    """Removes all but this set and the last complete one before it that belongs to the same run.

    Parts of higher numbers stay, as they may be the next checkpoint's. Every writer of this set has finished what it
    began before, so temporary files up to its number are those of killed processes.
    """
    number, parts = manifest.number, {part_name(manifest.number, rank) for rank in manifest.parts}

    def complete(k: int) -> bool:
        try:
            checkpoint = Checkpoint(folder, k)
            checkpoint.check_sizes()
        except Unusable:
            return False
        return belongs(checkpoint.manifest, manifest.run, manifest.session, resumed_from)

    before = next((k for k in reversed(_numbers(folder)) if k < number and complete(k)), None)
    for path in _files(folder):
        if _superfluous(path.name, number, before, parts):
            with contextlib.suppress(OSError):
                path.unlink()


def _superfluous(name: str, number: int, before: int | None, parts: set[str]) -> bool:
    found = FILE.fullmatch(name)
    k, manifest = int(found[1]) if found else number, MANIFEST.fullmatch(name) is not None
    if k > number:
        return manifest
    if name.startswith("."):
        return True
    return k != before if k < number else not (manifest or name in parts)


@contextlib.contextmanager
def _config_error(path: Path) -> Iterator[None]:
    """Turns Unusable into ConfigError."""
    try:
        yield
    except Unusable as error:
        raise ConfigError("checkpoint", path, f"one that can be read; this one {error}") from error


# -- the manifest ------------------------------------------------------------------------------------------------------
BROKEN = (ValueError, TypeError, KeyError, OverflowError, RecursionError, AttributeError)  # of JSON of any kind


def _encode(manifest: Manifest) -> bytes:
    """The canonical encoding: a manifest that differs from it is damaged."""
    files = {
        str(rank): {"name": part_name(manifest.number, rank), "bytes": size, "crc32": crc}
        for rank, (size, crc) in sorted(manifest.parts.items())
    }
    rest = {"format": FORMAT, "number": manifest.number, "run": manifest.run, "session": manifest.session}
    rest |= {"files": files}
    return _json({"crc32": zlib.crc32(_json(rest)), **rest}) + b"\n"


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _manifest(path: Path, number: int) -> Manifest:
    """Raises Unusable."""
    damaged = Unusable(f"is damaged: {path.name} is not what was written")
    try:
        regular(path)
        data = path.read_bytes()
        content = json.loads(data)
        if type(content["format"]) is int and content["format"] != FORMAT:
            raise other_format(path.name, content["format"])
        parts = {int(rank): (part["bytes"], part["crc32"]) for rank, part in content["files"].items()}
        manifest = Manifest(number, content["run"], content["session"], parts)
        texts = type(manifest.run) is str and type(manifest.session) is str
        sizes = all(type(value) is int and value >= 0 for part in parts.values() for value in part)
        if not texts or not sizes or data != _encode(manifest):
            raise damaged
    except OSError as error:
        raise Unusable(f"cannot be read: {path.name}: {error_text(error)}") from error
    except BROKEN as error:
        raise damaged from error
    return manifest
