"""Input from files and other ranks: escapes text before it is printed, checks sizes before memory is allocated.

Functions raise ValueError with what is wrong; their callers add which file it is.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import Any

from mpifl.host_memory import available_memory

MAX_VALUES = 50_000  # values of one configuration, references resolved: seconds of work, some 100 MB
MAX_TEXT = 1 << 21  # bytes of one configuration
NAME_BYTES, PATH_BYTES = 255, 4095  # that a file's name and a path may have (Linux)
MAX_RATIO = 100  # bytes that one compressed byte may stand for, in data above SMALL_BYTES
SMALL_BYTES = 1 << 26  # data up to this size are read whatever their ratio
NOT_REGULAR = "it is not a regular file"  # but a folder, a pipe, a socket or a device
CONTROLS = (
    *range(0x20), *range(0x7F, 0xA0),  # C0, DEL, C1: terminals act on them
    0x61C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF,  # order of text
    *range(0xD800, 0xE000),  # halves of surrogate pairs cannot be printed at all
)  # fmt: skip
_ESCAPES = {
    code: {9: "\\t", 10: "\\n", 13: "\\r"}.get(code) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
    for code in CONTROLS
}
_IN_LINES = {code: text for code, text in _ESCAPES.items() if code not in (9, 10)}


# -- text --------------------------------------------------------------------------------------------------------------
def printable(text: object, lines: bool = False, most: int | None = None) -> str:
    """The text with control characters, and those that change the order of text, written as `\\x1b` or `\\u202e`.

    lines  keep line ends and tabs
    most   characters after which it is cut
    """
    found = str(text)
    if most is not None and len(found) > most:
        found = f"{found[:most]} ..."
    return found if found.isascii() and found.isprintable() else found.translate(_IN_LINES if lines else _ESCAPES)


def csv_text(text: str) -> str:
    """The text for a cell of a CSV file: with an apostrophe where a spreadsheet would compute it as a formula."""
    if not text.startswith(("=", "+", "-", "@", "\t", "\r", "\n")):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


# -- sizes -------------------------------------------------------------------------------------------------------------
def check_size(size: int, stored: int, what: str) -> None:
    """Raises ValueError for data of `size` bytes that are implausible for the `stored` bytes, or too large for memory.

    At most MAX_RATIO bytes for each stored one where the data are larger than SMALL_BYTES.
    """
    if size > max(SMALL_BYTES, MAX_RATIO * stored):
        text = f"more than {MAX_RATIO} times the {stored} bytes that are stored"
        raise ValueError(f"{what} of {size} bytes, {text}; such data must be stored without compression")
    check_memory(size, what)


def check_memory(size: int, what: str) -> None:
    """Raises ValueError where `size` bytes are more than the memory that is available."""
    if size > SMALL_BYTES and size > (free := available_memory()):
        raise ValueError(f"{what} of {size} bytes, but only {free} bytes of memory are available")


def regular_size(path: Path, follow_links: bool = True) -> int:
    """The size of a regular file. Raises OSError for anything else: a device has no end, a pipe blocks.

    follow_links  False: a link is anything else, because it may lead anywhere
    """
    found = os.stat(path, follow_symlinks=follow_links)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(NOT_REGULAR)
    return found.st_size


def open_regular(path: Path, follow_links: bool = True) -> BufferedReader:
    """A regular file, open for reading; arguments and errors as of `regular_size`.

    Never waits, also where a pipe takes the place of the file meanwhile.
    """
    regular_size(path, follow_links)
    more = os.O_NONBLOCK if follow_links else os.O_NONBLOCK | os.O_NOFOLLOW
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | more))  # noqa: SIM115 - the caller's
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(NOT_REGULAR)
    return file


def read_file(path: Path, follow_links: bool = True) -> bytes:
    """The content of a regular file that fits into memory. Raises OSError, ValueError."""
    with open_regular(path, follow_links) as file:
        check_memory(os.fstat(file.fileno()).st_size, "a file")
        return file.read()


def read_text_file(path: Path, limit: int = MAX_TEXT) -> bytes:
    """The content of a file or pipe of at most `limit` bytes, such as a configuration. Raises OSError, ValueError."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        os.set_blocking(file.fileno(), True)  # it waits only while a process has the pipe open
        found = file.read(limit + 1)
        if not found and stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            raise OSError("nothing came from this pipe")
    if len(found) > limit:
        raise ValueError(f"it has more than {limit} bytes")
    return found


# -- JSON and YAML -----------------------------------------------------------------------------------------------------
def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError, also where it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def parse_yaml(text: str, loader: Any) -> Any:
    """The value of a YAML text, by a PyYAML loader class. Raises yaml.YAMLError and ValueError.

    A value with aliases counts once for every place where it appears.
    """
    if len(text) > MAX_TEXT:
        raise ValueError(f"it has {len(text)} characters, more than {MAX_TEXT}")
    reading = loader(text)
    reading.compose_node = _counted(reading.compose_node)
    try:
        node = reading.get_single_node()
        if node is None:
            return None
        _count(node, {}, set())
        return reading.construct_document(node)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    finally:
        reading.dispose()


def _counted(compose: Callable[..., Any]) -> Callable[..., Any]:
    """`compose_node`, which makes no more nodes than a configuration may have."""
    made = count(1)

    def composed(parent: Any, index: Any) -> Any:
        check_count(next(made))
        return compose(parent, index)

    return composed


def _count(node: Any, known: dict[int, int], above: set[int]) -> int:
    """The number of values below a node, itself included. Raises ValueError for too many, and for a circle."""
    if not isinstance(node.value, list):
        return 1
    if id(node) in known:
        return known[id(node)]
    if id(node) in above:
        raise ValueError("a value contains itself")
    above.add(id(node))
    total = 1
    for child in node.value:
        for each in child if isinstance(child, tuple) else (child,):
            total += _count(each, known, above)
            check_count(total)
    above.remove(id(node))
    known[id(node)] = total
    return total


def check_count(values: int) -> None:
    """Raises ValueError for more values than a configuration may have."""
    if values > MAX_VALUES:
        raise ValueError(f"it has more than {MAX_VALUES} values after its aliases and references are expanded")
