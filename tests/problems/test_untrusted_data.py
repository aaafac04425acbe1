"""Data files from elsewhere: no other file is read, no code runs, no size is believed, memory and time are bounded."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import resource
import socket
import struct
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from mpifl.errors import ConfigError
from mpifl.problems.data.cifar import read_python
from mpifl.problems.data.femnist import Femnist
from mpifl.problems.data.folder import Folder
from mpifl.problems.data.idx import read_idx
from mpifl.problems.data.leaf import Leaf
from mpifl.problems.data.leaf_text import Sent140
from mpifl.safe_input import open_regular
from mpifl.scheduling.delays import Trace
from tests.problems.conftest import idx_bytes, refusal

GIB = 1 << 30
X, Y = np.zeros((4, 3)), np.arange(4)


@contextmanager
def bounded() -> Iterator[None]:
    """The block takes less than 300 MiB and 10 s."""
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10
    assert time.monotonic() - begin < 10


def refused(folder: Path, says: str) -> None:
    with bounded(), refusal(says):
        Folder(path=str(folder)).read(folder, False, None)


def header(shape: tuple[int, ...], kind: str = "<f8") -> bytes:
    made = io.BytesIO()
    np.lib.format.write_array_header_1_0(made, {"descr": kind, "fortran_order": False, "shape": shape})
    return made.getvalue()


def zipped(file: Path, members: dict[str, bytes], zeros: int = 0, method: int = zipfile.ZIP_DEFLATED) -> None:
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, head in members.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                member.write(head)
                for _ in range(zeros >> 20 if name == "x" else 0):
                    member.write(bytes(1 << 20))


# -- npz ---------------------------------------------------------------------------------------------------------------
def test_an_npz_that_inflates_or_is_compressed_otherwise_is_refused(tmp_path: Path) -> None:
    """A member of 256 KiB that decompresses to 256 MiB of zeros, as its header says."""
    zipped(tmp_path / "a.npz", {"x": header((GIB // 64, 2))}, GIB // 4)
    assert (tmp_path / "a.npz").stat().st_size < 300 << 10
    refused(tmp_path, f"arrays up to x of {GIB // 4} bytes, more than 100 times")
    zipped(tmp_path / "a.npz", {"x": header((4, 3))}, method=zipfile.ZIP_LZMA)
    refused(tmp_path, "x is not compressed as numpy does it")


@pytest.mark.parametrize("shape", [(2**60, 8), (2**30, 3), (0, 2**62)])
def test_an_npz_that_claims(tmp_path: Path, shape: tuple[int, ...]) -> None:
    zipped(tmp_path / "a.npz", {"x": header(shape), "y": header((0,), "<i8")})
    refused(tmp_path, "more than 100 times|array is too big")


def test_many_files_that_inflate_a_little(tmp_path: Path) -> None:
    for k in range(3):
        zipped(tmp_path / f"{k:02}.npz", {"x": header((15 << 20, 1), "|u1")}, 15 << 20)
        with zipfile.ZipFile(tmp_path / f"{k:02}.npz", "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("y.npy", header((15 << 20,), "|u1") + bytes(15 << 20))
    refused(tmp_path, "arrays up to [xy] of [0-9]+ bytes, more than 100 times")


def test_sparse_data_that_are_compressed_well_are_taken(tmp_path: Path) -> None:
    x = np.zeros((2000, 1000))
    x[np.arange(2000), np.arange(2000) % 1000] = 1
    np.savez_compressed(tmp_path / "a.npz", x=x, y=np.arange(2000) % 7)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("x", data=x, compression="gzip", shuffle=True, fletcher32=True)
        file.create_dataset("y", data=np.arange(2000) % 7, compression="lzf")
        file["soft"] = h5py.SoftLink("/x")
        file["names"] = "of any length"
    rows = Folder(path=str(tmp_path)).read(tmp_path, False, None)
    assert rows.x.sum() == 4000 and len(rows.y) == 4000


# -- HDF5 --------------------------------------------------------------------------------------------------------------
def made(file: h5py.File, rows: int = 4, **options: Any) -> None:
    file.create_dataset("x", (rows, 3), "f8", **options)


def soft_to_external(file: h5py.File, other: Path) -> None:
    file["group"] = h5py.ExternalLink(str(other), "/")
    file["x"] = h5py.SoftLink("/group/x")


def virtual(file: h5py.File, other: Path) -> None:
    layout = h5py.VirtualLayout((4, 3), "f8")
    layout[...] = h5py.VirtualSource(str(other), "x", (4, 3))
    file.create_virtual_dataset("x", layout)


def plugin(file: h5py.File, other: Path) -> None:
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_chunk((4, 3))
    made.set_filter(32015, h5py.h5z.FLAG_OPTIONAL)
    h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F64LE, h5py.h5s.create_simple((4, 3)), made)


def inflating(file: h5py.File, other: Path) -> None:
    data = file.create_dataset("x", (1 << 20, 256), "f8", chunks=(1 << 12, 256), compression="gzip")
    data[: 1 << 16] = np.zeros((1 << 16, 256))


def references(file: h5py.File, other: Path) -> None:
    file["y"] = Y
    file.create_dataset("x", data=np.array([[file["y"].ref]], h5py.ref_dtype))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda file, other: file.update(x=h5py.ExternalLink(str(other), "/x")), "/x is a link to another file"),
        (soft_to_external, "/group is a link to another file"),
        (lambda file, other: made(file, external=[(str(other), 0, 96)]), "/x has its data in another file"),
        (virtual, "/x has its data in another file"), (plugin, "passes through filter 32015"),
        (inflating, "more than 100 times"),
        (lambda file, other: made(file, 2**50, chunks=(1024, 3)), "more than 100 times"),
        (lambda file, other: made(file, chunks=(2**25, 3), maxshape=(None, 3)), "chunks of more than"),
        (references, "x holds values of variable length"),
    ],
)  # fmt: skip
def test_hdf5_data_of_a_user(tmp_path: Path, make: Callable[[h5py.File, Path], None], says: str) -> None:
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["x"] = X
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        make(file, tmp_path / "other.hdf5")
        if "y" not in file:
            file["y"] = Y
    refused(tmp_path, says)


# -- idx, JSON, CSV ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("head", "says"),
    [
        (bytes((0, 0, 8, 3)) + struct.pack(">3I", 2**31, 28, 28), "more than 100 times"),
        (idx_bytes(np.zeros((2, 28, 28))), r"it has more bytes after the header than it says; expected 1568 bytes"),
    ],
)
def test_a_gzipped_idx_that_inflates(tmp_path: Path, head: bytes, says: str) -> None:
    with gzip.open(tmp_path / "a.gz", "wb", 1) as packed:
        packed.write(head)
        for _ in range(100):
            packed.write(bytes(1 << 20))
    with bounded(), refusal(says):
        read_idx(tmp_path / "a.gz", 3)


@pytest.mark.parametrize(
    "x", ["[" * 100_000, "[[1" + "0" * 400 + "]]", "[[" + "9" * 5000 + "]]", "[[1e999]]", "[[NaN]]", '[[{"a": 1}]]']
)
def test_bad_json_of_leaf(tmp_path: Path, x: str) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.json").write_text(f'{{"users": ["u"], "user_data": {{"u": {{"y": [0], "x": {x}}}}}}}')
    with bounded(), pytest.raises(ConfigError):
        Leaf(path=str(tmp_path)).read(tmp_path, False, None)


def test_a_trace_that_is_no_regular_file(tmp_path: Path) -> None:
    pipe(tmp_path / "pipe")
    for path in ("/dev/zero", str(tmp_path / "pipe")):
        with bounded(), refusal("not a regular file"):
            Trace(path=path).contact_times(2, 0)
    (tmp_path / "a.csv").write_text(f'client,seconds\n0,"{"1" * 200_000}"\n')
    with refusal("field larger than field limit"):
        Trace(path=str(tmp_path / "a.csv")).contact_times(2, 0)


# -- pickles -----------------------------------------------------------------------------------------------------------
class Canary:
    def __reduce__(self) -> Any:
        return os.mkdir, ("executed",)


LATIN = b"c_codecs\nencode\n"


def pipe(path: Path) -> None:
    os.mkfifo(path)


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize("make", [pipe, bound_socket, Path.mkdir])
@pytest.mark.parametrize("name", ["a.npz", "a.h5", "a.HDF5"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    make(tmp_path / name)
    refused(tmp_path, rf"{name}: cannot be read: it is not a regular file; expected")


@pytest.mark.parametrize("data", [Leaf, Sent140, Femnist])
def test_a_pipe_among_leaf_files(tmp_path: Path, data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPIFL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "train").mkdir()
    pipe(tmp_path / "train/a.json")
    with bounded(), refusal(r"a.json: .*it is not a regular file; expected "):
        data(path=str(tmp_path)).read(tmp_path, False, None)


def test_a_pipe_that_takes_the_place_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the file and its opening."""
    pipe(tmp_path / "a")
    monkeypatch.setattr("mpifl.safe_input.regular_size", lambda *arguments: 1)
    with bounded(), pytest.raises(OSError, match=r"^it is not a regular file$"):
        open_regular(tmp_path / "a")


STATE = b"cnumpy\nndarray\n"
PICKLES = {
    "code": (pickle.dumps({b"data": Canary()}), "asks for posix.mkdir"),
    "key of nested tuples": (b"\x80\x02}" + b")" + b"\x85" * 300_000 + b"Ns.", "a dictionary with other keys"),
    "keys of nested tuples": (b"\x80\x02}(" + b")" + b"\x85" * 300_000 + b"Nu.", "a dictionary with other keys"),
    "dictionary of nested tuples": (b"\x80\x02(" + b")" + b"\x85" * 300_000 + b"Nd.", "a dictionary with other keys"),
    "set of nested tuples": (b"\x80\x04(" + b")" + b"\x85" * 300_000 + b"\x91.", "opcode 0x91"),
    "bytes that are claimed": (b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".", "opcode 0x96"),
    "text encoded often": (
        b"\x80\x02X" + struct.pack("<I", 1 << 20) + b"a" * (1 << 20) + b"q\x000" + LATIN + b"q\x010("
        + b"h\x01h\x00X\x06\x00\x00\x00latin1\x86R" * 100_000 + b"l.", "opcode 0x30",
    ),
    "text encoded often, without pops": (
        b"\x80\x02(X" + struct.pack("<I", 1 << 20) + b"a" * (1 << 20) + b"q\x00" + LATIN + b"q\x01"
        + b"h\x01h\x00X\x06\x00\x00\x00latin1\x86R" * 100_000 + b"l.", "encodes more text than it has",
    ),
    "a function's attribute": (b"\x80\x02" + LATIN + b"}U\x04codeNsb.", "changes something that is not an array"),
    "a class' attribute": (b"\x80\x02" + STATE + b"N}U\x05stateNs\x86b.", "changes something that is not an array"),
    "new object": (b"\x80\x02" + STATE + b")\x81.", "opcode 0x81"),
    "call of a tuple": (b"\x80\x02))R.", "calls something that is not a function"),
}  # fmt: skip


@pytest.mark.parametrize("name", PICKLES)
def test_hostile_pickles_are_refused_and_execute_nothing(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content, says = PICKLES[name]
    (tmp_path / "data_batch_1").write_bytes(content)
    with bounded(), refusal(says):
        read_python(tmp_path / "data_batch_1", {"labels": 10}, "labels")
    assert not (tmp_path / "executed").exists()
