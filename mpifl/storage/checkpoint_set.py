"""Checkpoints of a run: sets of files in the folder NAME.ckpt beside NAME.h5.

    000012.rank0, 000012.rank1, ...   the parts of checkpoint 12, each written by its rank (`Part`)
    000012.json                       its manifest, written last by rank 0 (`commit`): this makes the set valid

The manifest has length and CRC-32 of every part, and of itself: {"crc", "format", "number", "facts", "parts"}. Names
that begin with a dot are temporary. The last two complete sets are kept.

A run that resumes from checkpoint k writes k + 1 next. What is there with a higher number then is of a future that
is undone: `undo` takes its manifests away.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mpifl.errors import ConfigError
from mpifl.storage.checkpoint_arrays import BROKEN, Saved, Unusable, dumps, newer, regular
from mpifl.storage.checkpoint_part import Part, Written, part_name
from mpifl.storage.durable import checksum, sync_folder, words, write_durably

__all__ = [
    "Checkpoint", "Part", "Saved", "Written", "belongs", "commit", "discard", "folder_of", "newest", "open_set",
    "remove", "undo",
]  # fmt: skip

FORMAT = 1
MANIFEST = re.compile(r"(\d{6,})\.json")
FILE = re.compile(r"\.?(\d{6,})\.(?:rank\d+|json)(?:\.[0-9a-f]{8}\d*)?")  # of a set, temporary or not


def folder_of(run_file: Path) -> Path:
    """Where the checkpoints of a run file are: NAME.ckpt beside NAME.h5."""
    name = run_file.name.removesuffix(".h5")
    return run_file.with_name(f"{name}.ckpt")


class Checkpoint:
    """A complete set.

    number  counts a run's checkpoints
    facts   of the manifest: what JSON can hold
    """

    number: int
    facts: dict[str, Any]

    def __init__(self, folder: Path, number: int) -> None:
        """Reads the manifest. Raises Unusable."""
        self.number = number
        self._folder = folder
        self.facts, self._parts = _manifest(folder / _manifest_name(number), number)

    def part(self, rank: int) -> Saved:
        """What rank `rank` saved. Raises ConfigError("checkpoint", ...)."""
        path = self._folder / part_name(self.number, rank)
        if rank not in self._parts:
            raise ConfigError("checkpoint", path, f"a part of checkpoint {self.number}, which has none of rank {rank}")
        with _told(path):
            self._check_size(rank)
            return Saved(path)

    @property
    def ranks(self) -> list[int]:
        """Those that saved a part, in order."""
        return sorted(self._parts)

    def check(self) -> None:
        """Reads all of every part. Raises Unusable where it is not what was written."""
        for rank in self.ranks:
            self._check_size(rank)
            name = part_name(self.number, rank)
            try:
                with (self._folder / name).open("rb") as file:
                    found = checksum(file)
            except OSError as error:
                raise Unusable(f"cannot be read: {name}: {words(error)}") from error
            if found != self._parts[rank]:
                raise Unusable(f"is damaged: {name} has other bytes than were written")
            Saved(self._folder / name)

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
            raise Unusable(f"cannot be read: {name}: {words(error)}") from error
        if found != size:
            raise Unusable(f"is damaged: {name} has {found} bytes instead of {size}")


def commit(folder: Path, number: int, facts: Mapping[str, Any], parts: Mapping[int, tuple[int, int]]) -> None:
    """Makes checkpoint `number` valid, then removes what it replaces: all sets but this and the complete one before.

    facts   what JSON can hold, by strings; those of `belongs` are asked for
    parts   rank: (bytes, crc), as `Part.done` told
    Raises OSError; the set is then not valid. TypeError or ValueError for facts that are no JSON.
    """
    for rank, (size, _) in parts.items():
        path = folder / part_name(number, rank)
        if regular(path) != size:
            raise OSError(errno.EIO, f"{path.name} does not have its {size} bytes", path)
    content = _encode(
        {"number": number, "facts": dict(facts), "parts": {str(rank): list(parts[rank]) for rank in sorted(parts)}}
    )
    if _encode(_rest(json.loads(content))) != content:
        raise ValueError("facts whose keys are not different strings")
    write_durably(folder / _manifest_name(number), content)
    with contextlib.suppress(OSError):  # the folder's own name; the parent may not be ours to open
        sync_folder(folder.parent)
    with contextlib.suppress(OSError):  # the set is valid; what stays now goes at the next commit
        _tidy(folder, number, facts, {part_name(number, rank) for rank in parts})


def belongs(checkpoint: Checkpoint, now: Mapping[str, Any]) -> bool:
    """Whether a checkpoint is of the run and of the part of it that is in its file, and not of one that was undone.

    now  run: its id; session: of the file's writer; resumed_from: the checkpoint that this one went on from
    """
    facts = checkpoint.facts
    followed = checkpoint.number <= now.get("resumed_from", 0) or facts.get("session") == now.get("session")
    return bool(facts.get("run") == now.get("run") and followed)


def discard(folder: Path, number: int) -> None:
    """Removes the parts of set `number`, unless it is valid: what was given up need not fill the disk."""
    with contextlib.suppress(OSError):  # what stays goes at the next commit
        if number not in _numbers(folder):
            for path in folder.glob(f"{number:06d}.rank*"):
                path.unlink(missing_ok=True)


def newest(
    folder: Path, run: str, unfit: Callable[[Checkpoint], str] = lambda checkpoint: ""
) -> tuple[Checkpoint | None, list[str]]:
    """The newest complete checkpoint of `run` all of whose files are what was written; None where there is none.

    And a clause for each newer one that was passed over: "checkpoint 12 is damaged: 000012.rank3 is missing".
    unfit  says why one of the run cannot be taken: "is ..."; "" where it can
    """
    try:
        numbers = _numbers(folder)
    except FileNotFoundError:
        return None, []
    except OSError as error:
        return None, [f"{folder} cannot be read: {words(error)}"]
    passed: list[str] = []
    for number in reversed(numbers):
        try:
            checkpoint = Checkpoint(folder, number)
            if why := unfit(checkpoint) if checkpoint.facts.get("run") == run else "is of another run":
                raise Unusable(why)
            checkpoint.check()
            return checkpoint, passed
        except Unusable as error:
            passed.append(f"checkpoint {number} {error}")
    return None, passed


def open_set(folder: Path, number: int) -> Checkpoint:
    """A checkpoint that rank 0 has checked: no part is read. Raises ConfigError("checkpoint", ...)."""
    with _told(folder / _manifest_name(number)):
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
    """Removes all sets, of whichever run, and the folder if nothing else is in it. OSError."""
    with contextlib.suppress(FileNotFoundError):
        for path in _files(folder):
            path.unlink(missing_ok=True)
        sync_folder(folder)
        with contextlib.suppress(OSError):
            folder.rmdir()


# -- the folder --------------------------------------------------------------------------------------------------------
def _manifest_name(number: int) -> str:
    return f"{number:06d}.json"


def _numbers(folder: Path) -> list[int]:
    """Of the manifests, in order."""
    found = (MANIFEST.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in found if match and match[0] == _manifest_name(int(match[1])))


def _files(folder: Path) -> list[Path]:
    """All that belongs to a set, the manifests first: no set is valid that lacks a part."""
    files = [path for path in folder.iterdir() if FILE.fullmatch(path.name)]
    return sorted(files, key=lambda path: (not MANIFEST.fullmatch(path.name), path.name))


def _tidy(folder: Path, number: int, facts: Mapping[str, Any], parts: set[str]) -> None:
    """Removes all but set `number` and the last complete one before it that belongs to the same run.

    Parts of higher numbers stay, as they may be the next checkpoint's. Every writer of this set has finished what it
    began before, so temporary files up to `number` are those of the dead.
    """
    before = next((k for k in reversed(_numbers(folder)) if k < number and _complete(folder, k, facts)), None)
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


def _complete(folder: Path, number: int, facts: Mapping[str, Any]) -> bool:
    try:
        checkpoint = Checkpoint(folder, number)
        checkpoint.check_sizes()
    except Unusable:
        return False
    return belongs(checkpoint, facts)


@contextlib.contextmanager
def _told(path: Path) -> Any:
    """Unusable as ConfigError."""
    try:
        yield
    except Unusable as error:
        raise ConfigError("checkpoint", path, f"one that can be read; this one {error}") from error


# -- the manifest ------------------------------------------------------------------------------------------------------
def _encode(rest: Mapping[str, Any]) -> bytes:
    """The one way in which a manifest is written, so that one that is not written so is damaged."""
    rest = {"format": FORMAT, **rest}
    return dumps({"crc": zlib.crc32(dumps(rest)), **rest}) + b"\n"


def _rest(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key not in ("crc", "format")}


def _manifest(path: Path, number: int) -> tuple[dict[str, Any], dict[int, tuple[int, int]]]:
    """Facts, and (bytes, crc) by rank. Raises Unusable."""
    damaged = Unusable(f"is damaged: {path.name} is not what was written")
    try:
        regular(path)
        data = path.read_bytes()
        content = json.loads(data)
        if type(content["format"]) is int and content["format"] > FORMAT:
            raise newer(path.name, content["format"], FORMAT)
        if data != _encode(_rest(content)) or content["number"] != number:
            raise damaged
        facts, parts = content["facts"], {int(rank): tuple(part) for rank, part in content["parts"].items()}
    except OSError as error:
        raise Unusable(f"cannot be read: {path.name}: {words(error)}") from error
    except (*BROKEN, AttributeError) as error:
        raise damaged from error
    if not isinstance(facts, dict) or not all(map(_sound, parts.values())):
        raise damaged
    return facts, parts


def _sound(part: tuple[Any, ...]) -> bool:
    return len(part) == 2 and all(type(value) is int and value >= 0 for value in part)
