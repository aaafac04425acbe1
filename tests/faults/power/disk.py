"""What a disk may hold after a power cut, computed from a record of what processes did to a folder.

`recorder.c` makes the record. The rules are those of POSIX, which say less than most file systems do:

- What a file contained when a sync of it began is on the disk once that sync has ended.
- Of what was written after it, each block of 512 or 4096 bytes is on the disk as of some instant since then. So is the
  length. Where the length grew and a block was not written, there are zeros, or whatever the disk held there before.
- A name that was made, changed or removed is on the disk once a sync of its folder has ended that began later. Of the
  others some are, a renaming as a whole or not at all.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

HEADER = struct.Struct("=ciqqqqq")
BLOCKS = (512, 4096)  # bytes that a disk writes at once
Change = tuple[tuple[str, "File | Folder | None"], ...]  # names of a folder and what they stand for now; None: nothing


@dataclass(frozen=True)
class Record:
    """One call, as `recorder.c` describes it."""

    operation: str
    thread: int
    inode: int
    offset: int
    path: str
    other: str
    data: bytes


@dataclass(eq=False)
class File:
    """A regular file: writes (offset, data) and truncations (length, None), the first `durable` of them on the disk."""

    writes: list[tuple[int, bytes | None]] = field(default_factory=list)
    durable: int = 0


@dataclass(eq=False)
class Folder:
    """A folder: changes of its names, of which the first `durable` are on disk."""

    writes: list[Change] = field(default_factory=list)
    durable: int = 0

    def names(self, changes: Sequence[Change]) -> dict[str, File | Folder]:
        """What its names stand for after some changes."""
        found: dict[str, File | Folder] = {}
        for change in changes:
            for name, node in change:
                found.pop(name, None)
                if node is not None:
                    found[name] = node
        return found


def read_record(path: Path) -> list[Record]:
    """The calls in order, those of all processes."""
    raw, place, records = path.read_bytes(), 0, []
    while place < len(raw):
        operation, thread, inode, offset, *lengths = HEADER.unpack_from(raw, place)
        place += HEADER.size
        parts = []
        for length in (*lengths[1:], lengths[0]):
            parts.append(raw[place : place + length])
            place += length
        first, second, data = parts
        records.append(Record(operation.decode(), thread, inode, offset, first.decode(), second.decode(), data))
    return records


class Disk:
    """The folder `root` after some of the recorded calls: what is on the disk for certain, and what may be.

    All that the folder holds when this object is made is on the disk.
    """

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._folder = Folder()
        self._folders = {self._root: self._folder}
        self._files: dict[int, File] = {}  # by inode
        self._syncs: dict[int, tuple[File | Folder, int]] = {}  # under way, by thread
        self._load(self._folder, root)

    def _load(self, folder: Folder, place: Path) -> None:
        for path in place.iterdir():
            node: File | Folder
            if path.is_dir():
                node = self._folders[str(path)] = Folder()
                self._load(node, path)
            else:
                node = self._files[path.stat().st_ino] = File([(0, path.read_bytes())], 1)
            folder.writes.append(((path.name, node),))
        folder.durable = len(folder.writes)

    def apply(self, record: Record) -> None:
        """Follows one call."""
        folder, name = self._place(record.path)
        match record.operation:
            case "C":
                node = self._files[record.inode] = File()
                folder.writes.append(((name, node),))
            case "T":
                self._files[record.inode].writes.append((record.offset, None))
            case "W":
                self._files[record.inode].writes.append((record.offset, record.data))
            case "B":
                synced = self._folders.get(record.path) or self._files[record.inode]
                self._syncs[record.thread] = synced, len(synced.writes)
            case "E":
                synced, count = self._syncs.pop(record.thread)
                synced.durable = max(synced.durable, count)
            case "M":
                made = self._folders[record.path] = Folder()
                folder.writes.append(((name, made),))
            case "U":
                folder.writes.append(((name, None),))
            case "R" | "L":
                to, other = self._place(record.other)
                node = folder.names(folder.writes)[name]
                assert to is folder, "no file is moved to another folder"
                folder.writes.append((*([(name, None)] if record.operation == "R" else []), (other, node)))

    def _place(self, path: str) -> tuple[Folder, str]:
        parent, name = os.path.split(path)
        return self._folders.get(parent, self._folder), name

    def write(
        self, to: Path, draw: random.Random | None = None, loss: float = 0.0, folder: Folder | None = None
    ) -> None:
        """Makes the new folder `to` one that the disk may hold after a power cut; without `draw` after none.

        loss  the probability of each write that no sync covers to be lost
        """
        folder = folder or self._folder
        to.mkdir()
        sure, rest = folder.writes[: folder.durable], folder.writes[folder.durable :]
        if draw and draw.random() < 0.5:  # in order, as a journal has them
            count = next((k for k in range(len(rest)) if draw.random() < loss), len(rest))
            rest = rest[:count]
        elif draw:
            rest = [change for change in rest if draw.random() >= loss]
        for name, node in folder.names([*sure, *rest]).items():
            if isinstance(node, Folder):
                self.write(to / name, draw, loss, node)
            else:
                (to / name).write_bytes(content(node, draw, loss))


def content(file: File, draw: random.Random | None, loss: float) -> bytes:
    """The bytes of a file on the disk."""
    done = bytearray()
    for offset, data in file.writes[: file.durable if draw else None]:
        _apply(done, offset, data)
    rest = file.writes[file.durable :]
    if not draw:
        return bytes(done)
    block, garbage = draw.choice(BLOCKS), draw.random() < 0.3
    pieces: dict[int, list[tuple[int, bytes]]] = {}  # of each block
    lengths = [len(done)]
    for offset, data in rest:
        lengths.append(offset if data is None else max(lengths[-1], offset + len(data)))
        start = offset
        while data and start < offset + len(data):
            stop = min(offset + len(data), (start // block + 1) * block)
            pieces.setdefault(start // block, []).append((start, data[start - offset : stop - offset]))
            start = stop
    kept = sum(draw.random() >= loss for _ in rest)
    length, old = lengths[kept], len(done)
    _apply(done, length, None)
    for number in range(old // block, -(-length // block)):
        if garbage and number not in pieces and number * block >= old:
            done[number * block : (number + 1) * block] = draw.randbytes(block)
    for number, writes in pieces.items():
        count = sum(draw.random() >= loss for _ in writes)
        if not count and garbage and number * block >= old:
            _apply(done, number * block, draw.randbytes(block))
        for start, data in writes[:count]:
            _apply(done, start, data)
    return bytes(done[:length])


def _apply(done: bytearray, offset: int, data: bytes | None) -> None:
    """A write, or a truncation (data None)."""
    end = offset + len(data or b"")
    if len(done) < end:
        done.extend(bytes(end - len(done)))
    if data is None:
        del done[offset:]
    else:
        done[offset:end] = data
