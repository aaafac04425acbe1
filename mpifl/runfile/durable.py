"""Durable writes and checksums of files."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

BLOCK_BYTES = 1 << 20  # bytes read at once
SYNC_NOT_SUPPORTED = (errno.EINVAL, errno.ENOTSUP)  # file systems whose folders need no fsync


def sync_folder(folder: Path) -> None:
    """Makes the entries of `folder` durable: files created, renamed and removed. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in SYNC_NOT_SUPPORTED:
            raise
    finally:
        os.close(descriptor)


def write_durably(path: Path, data: bytes) -> None:
    """Replaces the content of `path` atomically and durably: after a power failure it is the old one or `data`."""
    with durable_file(path) as file:
        file.write(data)
    sync_folder(path.parent)


@contextlib.contextmanager
def durable_file(path: Path) -> Iterator[BinaryIO]:
    """A new file that replaces `path` when the block succeeds: its content is durable, its name once its folder is."""
    with durable_files([path]) as (file,):
        yield file


@contextlib.contextmanager
def durable_files(paths: Sequence[Path]) -> Iterator[list[BinaryIO]]:
    """New files that replace `paths` when the block succeeds, and the contents of all of them are durable."""
    temporaries = [temporary_name(path) for path in paths]
    try:
        with contextlib.ExitStack() as stack:
            files: list[BinaryIO] = [stack.enter_context(temporary.open("x+b")) for temporary in temporaries]
            yield files
            for file in files:
                file.flush()
                os.fsync(file.fileno())
        for temporary, path in zip(temporaries, paths, strict=True):
            os.replace(temporary, path)
    except BaseException:
        for temporary in temporaries:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        raise


def temporary_name(path: Path) -> Path:
    """A hidden name beside `path` that no other file has."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def checksum(file: BinaryIO) -> tuple[int, int]:
    """Length and CRC-32 of an open file, read block by block."""
    file.seek(0)
    size, crc, block = 0, 0, memoryview(bytearray(BLOCK_BYTES))
    while count := file.readinto(block):  # type: ignore[attr-defined]
        crc = zlib.crc32(block[:count], crc)
        size += count
    return size, crc
