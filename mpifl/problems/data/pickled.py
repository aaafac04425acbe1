"""Reads CIFAR's pickles without trusting them: every callable that a pickle may name is replaced by an object that
only records its arguments; any other is refused. No code runs on the content of the file, NumPy's included."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from mpifl.errors import ConfigError


class ArrayState:
    """The arguments from which a pickle would construct an array or its type."""

    state: Any = None

    def __init__(self, *made_of: Any) -> None:
        self.made_of = made_of

    def __setstate__(self, state: Any) -> None:
        self.state = state


def latin(text: str, encoding: str = "") -> bytes:
    """Decodes bytes that Python 3 wrote for Python 2."""
    return text.encode("latin-1")


ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): ArrayState,
    ("numpy._core.multiarray", "_reconstruct"): ArrayState,
    ("numpy", "ndarray"): ArrayState,
    ("numpy", "dtype"): ArrayState,
    ("_codecs", "encode"): latin,
}


class Reader(
    pickle._Unpickler
):  # the unpickler in Python: the one in C allocates as many objects as a damaged file claims
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return ALLOWED[module, name]


def read_pickle(path: Path) -> Mapping[bytes, Any]:
    """Reads a pickled dictionary of plain objects and arrays; arrays become `ArrayState`."""
    try:
        content = Reader(BytesIO(path.read_bytes()), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise nearly any exception
        raise ConfigError(
            "data file", path, f"a batch as published: {str(error).lower() or 'it is cut short'}"
        ) from error
    if not isinstance(content, dict):
        raise ConfigError("data file", path, f"a batch as published: it holds a {type(content).__name__}")
    return content


def unsigned_bytes(held: Any, width: int) -> np.ndarray:
    """Returns the array (rows, width), uint8, of a value in a pickle. Raises ValueError for any other value."""
    try:
        _, (rows, columns), kind, by_column, raw = held.state
        if columns != width or kind.made_of[0] not in (b"u1", "u1"):
            raise ValueError("another type or shape")
        return np.frombuffer(raw, np.uint8).reshape((rows, width), order="F" if by_column else "C")
    except (AttributeError, IndexError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"unsigned bytes (rows, {width})") from error
