"""Reads pickles of plain objects and arrays without trusting them: CIFAR's, and public traces of devices.

Every callable that a pickle may name is replaced by an object that only records its arguments; any other is refused. No
code runs on the content of the file, NumPy's included.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mpifl.errors import ConfigError
from mpifl.safe_input import read_file


class ArrayState:
    """The arguments from which a pickle would construct an array or its type."""

    state: Any = None

    def __init__(self, *made_of: Any) -> None:
        self.made_of = made_of


ARRAYS = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}
# What a dictionary of plain objects and arrays consists of. Others can claim any size, hash what is nested without end,
# or change an object of this program.
OPCODES = (
    b"\x80\x95N\x89\x88IJKML\x8aFG"  # frames and numbers
    b"STUBCVX\x8c\x8d\x8e"  # texts and bytes
    b"()t\x85\x86\x87]laeds}u"  # tuples, lists, dictionaries
    b"c\x93Rbghjpqr\x94."  # names, calls, states, repeated objects, the end
)


ACTS: dict[int, Callable[[Any], None]] = pickle._Unpickler.dispatch


class Opcodes(dict[int, Callable[[Any], None]]):
    """What the unpickler does for each opcode."""

    def __missing__(self, code: int) -> Callable[[Any], None]:
        raise pickle.UnpicklingError(f"it has the opcode {code:#04x}")


class Reader(pickle._Unpickler):
    """An unpickler in Python: the one in C allocates as many objects as a damaged file claims."""

    dispatch: ClassVar[Any] = Opcodes({code: act for code, act in ACTS.items() if code in OPCODES})
    stack: Any
    append: Any
    pop_mark: Any

    def __init__(self, raw: bytes, keys: tuple[type, ...] = (str, bytes)) -> None:
        """keys: the types that keys of dictionaries may have."""
        super().__init__(BytesIO(raw), encoding="bytes")
        self._keys = keys
        self._left = len(raw)  # bytes that texts may still be encoded to: each is in the file

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return self.latin
        if (module, name) not in ARRAYS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return ArrayState

    def latin(self, text: str, encoding: str = "") -> bytes:
        """How Python 3 writes bytes where Python 2 is to read them."""
        self._left -= len(text)
        if self._left < 0:
            raise pickle.UnpicklingError("it encodes more text than it has")
        return text.encode("latin-1")

    def call(self) -> None:
        """REDUCE: an array, its type, or bytes."""
        arguments = self.stack.pop()
        if not isinstance(arguments, tuple) or self.stack[-1] not in (ArrayState, self.latin):
            raise pickle.UnpicklingError("it calls something that is not a function")
        self.stack[-1] = self.stack[-1](*arguments)

    def set_state(self) -> None:
        """BUILD: what is in an array."""
        state = self.stack.pop()
        if not isinstance(self.stack[-1], ArrayState):
            raise pickle.UnpicklingError("it changes something that is not an array")
        self.stack[-1].state = state

    def set_item(self) -> None:
        """SETITEM"""
        value, key = self.stack.pop(), self.stack.pop()
        self._update(self.stack[-1], [key, value])

    def set_items(self) -> None:
        """SETITEMS"""
        items = self.pop_mark()
        self._update(self.stack[-1], items)

    def make_dictionary(self) -> None:
        """DICT"""
        items = self.pop_mark()
        self.append({})
        self._update(self.stack[-1], items)

    def _update(self, target: Any, items: list[Any]) -> None:
        if not isinstance(target, dict) or not all(isinstance(key, self._keys) for key in items[::2]):
            names = " and ".join(kind.__name__ for kind in self._keys)
            raise pickle.UnpicklingError(f"it has a dictionary with other keys than {names}")
        target.update(zip(items[::2], items[1::2], strict=True))


Reader.dispatch.update({
    ord("R"): Reader.call, ord("b"): Reader.set_state, ord("s"): Reader.set_item, ord("u"): Reader.set_items,
    ord("d"): Reader.make_dictionary,
})  # fmt: skip


def read_pickle(
    path: Path, kind: str = "data file", expected: str = "a batch as published", numbered: bool = False
) -> Mapping[Any, Any]:  # fmt: skip
    """Reads a pickled dictionary of plain objects and arrays; arrays become `ArrayState`.

    numbered: keys may be integers too. Raises ConfigError with `kind` as its key.
    """
    try:
        content = Reader(read_file(path), (str, bytes, int) if numbered else (str, bytes)).load()
    except Exception as error:  # a damaged pickle can raise nearly any exception
        reason = str(error) or "it is cut short"
        raise ConfigError(kind, path, reason, expected) from error
    if not isinstance(content, dict):
        raise ConfigError(kind, path, f"it holds a {type(content).__name__}", expected)
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
