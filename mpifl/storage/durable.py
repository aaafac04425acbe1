"""What makes files durable: nothing here raises anything but OSError."""

from __future__ import annotations

import errno
import os
import secrets
import zlib
from pathlib import Path
from typing import BinaryIO

BLOCK = 1 << 20  # bytes read at once

NO_SUCH_SYNC = (errno.EINVAL, errno.ENOTSUP)  # a file system where folders need none


def words(error: OSError) -> str:
    """The operating system's words for what went wrong."""
    return error.strerror or str(error)


def sync_folder(folder: Path) -> None:
    """Makes the names that files in `folder` were given, and lost, durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_SUCH_SYNC:
            raise
    finally:
        os.close(descriptor)


def write_durably(path: Path, data: bytes) -> None:
    """`path` holds what it did, or all of `data`, whenever the power fails; and `data` when this returns."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def checksum(file: BinaryIO) -> tuple[int, int]:
    """Length and CRC-32 of an open file, read block by block."""
    file.seek(0)
    size, crc, block = 0, 0, memoryview(bytearray(BLOCK))
    while count := file.readinto(block):  # type: ignore[attr-defined]
        crc = zlib.crc32(block[:count], crc)
        size += count
    return size, crc
