"""Checkpoints of a run: sets of files in the folder NAME.ckpt (`checkpoint_folder` has their names).

Each rank writes its part (`PartWriter`), rank 0 also the rows (`extend_segments`) and, last, the manifest (`commit`),
which makes the set valid. The last two complete sets are kept.

A run that resumes from checkpoint k writes k + 1 next. Sets with a higher number belong to the undone part of
the run: `checkpoint_folder.undo` removes their manifests.
"""

from __future__ import annotations

import contextlib
import errno
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpifl.checkpoint.segments import ReadRows, Segment, keep_segments, opened_segment, read_segment, row_counts
from mpifl.checkpoint.snapshot import (
    FORMAT,
    ClientSnapshot,
    ServerSnapshot,
    Unusable,
    check_part,
    other_format,
    read_clients,
    read_server,
)
from mpifl.errors import ConfigError, error_text
from mpifl.runfile.checkpoint_folder import FILE, SEGMENT, files, manifest_name, part_name, sets
from mpifl.runfile.durable import checksum, sync_folder, write_durably
from mpifl.runfile.tables import TABLES, RowBlock
from mpifl.safe_input import open_regular, parse_json, read_file, regular_size


@dataclass(frozen=True)
class Manifest:
    """What makes a set valid: its files and their contents."""

    number: int
    run: str  # id of the run
    session: str  # id of the process that wrote it
    resumed_from: int  # number of the checkpoint that this process resumed from; 0: none
    resumes: int  # how many times the run was resumed before
    parts: Mapping[int, tuple[int, int]]  # rank: bytes and CRC-32 of its part
    segments: Sequence[Segment]  # the rows up to the checkpoint, in order

    def files(self) -> dict[str, tuple[int, int]]:
        """Bytes and CRC-32 of each file of the set, by name."""
        parts = {part_name(self.number, rank): part for rank, part in sorted(self.parts.items())}
        return parts | {segment.name: (segment.bytes, segment.crc) for segment in self.segments}


class Checkpoint:
    """A complete set."""

    def __init__(self, folder: Path, number: int) -> None:
        """Reads the manifest. Raises Unusable."""
        self.number = number
        self.folder = folder
        self.manifest = _manifest(folder / manifest_name(number), number)
        self._files = self.manifest.files()

    def server(self) -> ServerSnapshot:
        """The server's part. Raises ConfigError("checkpoint", ...)."""
        with self._part(0) as path:
            return read_server(path)

    def clients(self, rank: int, wanted: Iterable[int] | None = None) -> dict[int, ClientSnapshot]:
        """The snapshots of these clients (None: all) in the part of a rank. Raises ConfigError("checkpoint", ...)."""
        with self._part(rank) as path:
            return read_clients(path, wanted)

    def rows(self) -> Iterator[RowBlock]:
        """The rows of the run up to the checkpoint, block by block in order. Raises ConfigError("checkpoint", ...)."""
        for segment, first in self._segments():
            path = self.folder / segment.name
            with _config_error(path):
                self._check_size(segment.name)
                rows = read_segment(path, segment, first)
            yield rows

    @contextlib.contextmanager
    def _part(self, rank: int) -> Iterator[Path]:
        path = self.folder / part_name(self.number, rank)
        if rank not in self.manifest.parts:
            raise ConfigError(
                "checkpoint", path, f"checkpoint {self.number} has no part of rank {rank}", "one of its parts"
            )
        with _config_error(path):
            self._check_size(path.name)
            yield path

    def _segments(self) -> Iterator[tuple[Segment, dict[str, int]]]:
        """Each segment with the number of its first row in each table."""
        segments = self.manifest.segments
        for k, segment in enumerate(segments):
            yield segment, row_counts(segments[:k])

    @property
    def ranks(self) -> list[int]:
        """The ranks that saved a part, in order."""
        return sorted(self.manifest.parts)

    def check(self) -> None:
        """Reads every file: first all checksums, then the contents. Raises Unusable."""
        for name in self._files:
            self._check_file(name)
        for rank in self.ranks:
            check_part(self.folder / part_name(self.number, rank), self.number, rank)
        for segment, first in self._segments():
            with opened_segment(self.folder / segment.name, segment, first):
                pass

    def keep_segments(self, read: ReadRows) -> None:
        """Keeps its segments of rows (`segments.keep_segments`). Raises Unusable.

        If one has to be written again, the other files are checked first: a resume that is refused writes nothing.
        """
        absent = {segment.name for segment in self.manifest.segments if not self._is_whole(segment.name)}
        for name in self._files.keys() - absent if absent else ():
            self._check_file(name)
        with contextlib.suppress(ConfigError, OSError, TypeError, ValueError):  # `check` names what is missing
            keep_segments(self.folder, self.manifest.segments, read)

    def _is_whole(self, name: str) -> bool:
        try:
            self._check_size(name)
        except Unusable:
            return False
        return True

    def _check_file(self, name: str) -> None:
        """Raises Unusable for a file that does not have its size and checksum."""
        self._check_size(name)
        try:
            with open_regular(self.folder / name, follow_links=False) as file:
                found = checksum(file)
        except OSError as error:
            raise Unusable(f"cannot be read: {name}: {error_text(error)}") from error
        if found != self._files[name]:
            raise Unusable(f"is damaged: {name} has other bytes than were written")

    def check_sizes(self) -> None:
        """Raises Unusable where a file is not there or not whole."""
        for name in self._files:
            self._check_size(name)

    def _check_size(self, name: str) -> None:
        size = self._files[name][0]
        try:
            found = regular_size(self.folder / name, follow_links=False)
        except FileNotFoundError:
            raise Unusable(f"is damaged: {name} is missing") from None
        except OSError as error:
            raise Unusable(f"cannot be read: {name}: {error_text(error)}") from error
        if found != size:
            raise Unusable(f"is damaged: {name} has {found} bytes instead of {size}")


def commit(folder: Path, manifest: Manifest) -> None:
    """Makes a checkpoint valid, then removes what it replaces: all sets but this and the complete one before.

    Its files must be durable; their names need not be. Raises OSError; the set is then not valid.
    """
    for name, (size, _) in manifest.files().items():
        if regular_size(folder / name, follow_links=False) != size:
            raise OSError(errno.EIO, f"{name} does not have its {size} bytes", folder / name)
    sync_folder(folder)
    with contextlib.suppress(PermissionError):  # the folder's own name; the parent may not be ours to open
        sync_folder(folder.parent)
    write_durably(folder / manifest_name(manifest.number), _encode(manifest))
    with contextlib.suppress(OSError):  # the set is valid; the next commit removes what remains
        _tidy(folder, manifest)


def belongs(manifest: Manifest, run: str, session: str | None, resumed_from: int) -> bool:
    """Whether a checkpoint continues the rows of a run file, and is not of a part of the run that was undone.

    run, session, resumed_from  of the file: its run, its writer, the checkpoint that this one resumed from
    """
    return manifest.run == run and (manifest.number <= resumed_from or manifest.session == session)


def discard(folder: Path, number: int) -> None:
    """Removes the files of set `number`, unless it is valid: an abandoned checkpoint must not fill the disk.

    Rows that were written with it stay where another set needs them.
    """
    with contextlib.suppress(OSError):  # the next commit removes what remains
        if number not in (numbers := sets(folder)):
            needed = {name for k in numbers for name in _files_of(folder, k)}
            for path in folder.glob(f"{number:06d}.r*"):
                if path.name not in needed:
                    path.unlink(missing_ok=True)


def newest(
    folder: Path, run: str | None, is_undone: Callable[[Manifest], bool] = lambda manifest: False,
    read: ReadRows | None = None,
) -> tuple[Checkpoint | None, list[str]]:  # fmt: skip
    """The newest complete checkpoint of `run` whose files all match its manifest, or None.

    Also returns a clause for each newer one that was passed over: "checkpoint 12 is damaged: 000012.rank3 is missing".
    run        None: not known; that of the newest manifest
    is_undone  whether a set of the run is of a part of it that was undone
    read       returns rows of the run file, from which missing segments are written again
    """
    try:
        numbers = sets(folder)
    except OSError as error:
        return None, [f"{folder} cannot be read: {error_text(error)}"]
    passed: list[str] = []
    for number in reversed(numbers):
        try:
            checkpoint = Checkpoint(folder, number)
            run = checkpoint.manifest.run if run is None else run
            if checkpoint.manifest.run != run:
                raise Unusable("is of another run")
            if is_undone(checkpoint.manifest):
                raise Unusable("is of a part of the run that was undone")
            if read is not None:
                checkpoint.keep_segments(read)
            checkpoint.check()
            return checkpoint, passed
        except Unusable as error:
            passed.append(f"checkpoint {number} {error}")
    return None, passed


def open_set(folder: Path, number: int) -> Checkpoint:
    """A checkpoint that rank 0 has checked: no part is read. Raises ConfigError("checkpoint", ...)."""
    with _config_error(folder / manifest_name(number)):
        return Checkpoint(folder, number)


def undone(folder: Path, manifest: Manifest) -> bool:
    """Whether a later process resumed the run from a checkpoint before this one, as far as the other manifests show."""
    for number in sets(folder):
        with contextlib.suppress(Unusable):
            other = Checkpoint(folder, number).manifest
            if other.run == manifest.run and other.resumes > manifest.resumes and other.resumed_from < manifest.number:
                return True
    return False


# -- the folder --------------------------------------------------------------------------------------------------------
def _files_of(folder: Path, number: int) -> set[str]:
    """The names of the files of a set, its manifest included; none where that is damaged."""
    try:
        return {manifest_name(number), *Checkpoint(folder, number).manifest.files()}
    except Unusable:
        return set()


def _tidy(folder: Path, manifest: Manifest) -> None:
    """Removes all but this set and the last complete one before it that belongs to the same run.

    Parts of higher numbers stay, as they may be the next checkpoint's. Every writer of this set has finished what it
    began before, so temporary files up to its number are those of killed processes.
    """
    number = manifest.number

    def complete(k: int) -> bool:
        try:
            checkpoint = Checkpoint(folder, k)
            checkpoint.check_sizes()
        except Unusable:
            return False
        return belongs(checkpoint.manifest, manifest.run, manifest.session, manifest.resumed_from)

    before = next((k for k in reversed(sets(folder)) if k < number and complete(k)), None)
    kept = _files_of(folder, number) | (set() if before is None else _files_of(folder, before))
    for path in files(folder):
        found = FILE.fullmatch(path.name)
        next_part = found and int(found[1]) > number and "rank" in path.name
        if path.name not in kept and not next_part:
            with contextlib.suppress(OSError):
                path.unlink()


@contextlib.contextmanager
def _config_error(path: Path) -> Iterator[None]:
    """Turns Unusable into ConfigError."""
    try:
        yield
    except Unusable as error:
        raise ConfigError("checkpoint", path, str(error), "one that can be read") from error


# -- the manifest ------------------------------------------------------------------------------------------------------
# Errors that JSON of any content may lead to.
BROKEN = (ValueError, TypeError, KeyError, OverflowError, RecursionError, AttributeError)


def _encode(manifest: Manifest) -> bytes:
    """The canonical encoding: a manifest that differs from it is damaged."""
    files = {
        str(rank): {"name": part_name(manifest.number, rank), "bytes": size, "crc32": crc}
        for rank, (size, crc) in sorted(manifest.parts.items())
    }
    rows = [
        {"name": segment.name, "bytes": segment.bytes, "crc32": segment.crc, "rows": dict(segment.rows)}
        for segment in manifest.segments
    ]
    rest = {"format": FORMAT, "number": manifest.number, "run": manifest.run, "session": manifest.session}
    rest |= {"resumed_from": manifest.resumed_from, "resumes": manifest.resumes, "files": files, "rows": rows}
    return _json({"crc32": zlib.crc32(_json(rest)), **rest}) + b"\n"


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _manifest(path: Path, number: int) -> Manifest:
    """Raises Unusable."""
    damaged = Unusable(f"is damaged: {path.name} is not what was written")
    try:
        data = read_file(path, follow_links=False)
        content = parse_json(data)
        if type(content["format"]) is int and content["format"] != FORMAT:
            raise other_format(path.name, content["format"])
        parts = {int(rank): (part["bytes"], part["crc32"]) for rank, part in content["files"].items()}
        segments = [Segment(s["name"], s["bytes"], s["crc32"], s["rows"]) for s in content["rows"]]
        facts = {name: content[name] for name in ("run", "session", "resumed_from", "resumes")}
        manifest = Manifest(number, **facts, parts=parts, segments=segments)
        numbers = [value for part in parts.values() for value in part] + [manifest.resumed_from, manifest.resumes]
        numbers += [value for s in segments for value in (s.bytes, s.crc, *s.rows.values())]
        texts = type(manifest.run) is str and type(manifest.session) is str
        named = all(SEGMENT.fullmatch(s.name) and s.rows.keys() == TABLES.keys() for s in segments)
        if not texts or not named or not all(type(value) is int and value >= 0 for value in numbers):
            raise damaged
        if data != _encode(manifest):
            raise damaged
    except OSError as error:
        raise Unusable(f"cannot be read: {path.name}: {error_text(error)}") from error
    except BROKEN as error:
        raise damaged from error
    return manifest
