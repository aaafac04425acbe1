"""IDX files, plain or gzipped: magic (0, 0, 8 for unsigned bytes, number of dimensions), big-endian sizes, bytes."""

from __future__ import annotations

import gzip
import io
import math
import zlib
from pathlib import Path

import numpy as np

from mpifl.errors import ConfigError, error_text
from mpifl.safe_input import check_size, read_file

UNSIGNED_BYTE = 8
PIECE = 1 << 18  # bytes that are unzipped at once
GZIP = b"\x1f\x8b"  # how a gzipped file begins


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Reads the array of unsigned bytes in `path`. Raises ConfigError unless it has this number of dimensions."""
    try:
        raw = _content(path, dimensions)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ConfigError("data file", path, f"cannot be read: {error_text(error)}", "an undamaged file") from error
    if len(raw) < 4 or raw[0] or raw[1]:
        raise ConfigError("data file", path, "its first two bytes are not zero", "an idx file")
    if raw[2] != UNSIGNED_BYTE:
        raise ConfigError("data file", path, f"it has type {raw[2]}", "an idx file of unsigned bytes (type 8)")
    if raw[3] != dimensions or len(raw) < 4 + 4 * dimensions:
        raise ConfigError("data file", path, f"it has {raw[3]} dimensions", f"an idx file of {dimensions}")
    shape = np.frombuffer(raw, ">u4", dimensions, 4).tolist()
    expected, held = math.prod(shape), len(raw) - 4 - 4 * dimensions
    if held != expected:
        found = f"it has {held}, fewer" if held < expected else "it has more"
        raise ConfigError("data file", path, f"{found} bytes after the header than it says", f"{expected} bytes")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def _content(path: Path, dimensions: int) -> memoryview:
    """The file, unzipped, up to one byte more than its header says. Raises ValueError for an implausible size."""
    stored = read_file(path)
    with io.BytesIO(stored) if stored[:2] != GZIP else gzip.GzipFile(fileobj=io.BytesIO(stored)) as file:
        head = file.read(4 + 4 * dimensions)
        size = math.prod(np.frombuffer(head, ">u4", len(head) // 4 - 1, 4).tolist()) if len(head) >= 8 else 0
        check_size(size, len(stored), "an array")
        found = memoryview(bytearray(len(head) + size + 1))
        found[: len(head)] = head
        end = len(head)
        while piece := file.read(min(PIECE, len(found) - end)):  # read into place: there is no second copy
            found[end : end + len(piece)] = piece
            end += len(piece)
        return found[:end]


def find_idx(folder: Path, name: str) -> Path | None:
    """Returns the path of `name` or `name`.gz in `folder`; None if neither exists."""
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)
