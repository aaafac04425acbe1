"""The end of a run file: the final model, plain attributes; or, where it cannot be written, what a kill would leave."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from pathlib import Path

import h5py
import numpy as np

from mpifl.storage.durable import sync_folder
from mpifl.storage.layout import LATER


def replace_model(file: h5py.File, x: np.ndarray, version: int) -> None:
    """Writes the model (d,) of `version` over the one in the file. ValueError for another shape."""
    model = file["model/x"]
    if np.shape(x) != model.shape:
        raise ValueError(f"a model of shape {np.shape(x)} where {model.shape} was promised")
    for step in (-1, version):
        model.attrs.modify("version", np.int64(step))  # -1: being written, not to be used
        file.flush()
        if step == -1:
            model[...] = np.asarray(x)
            file.flush()


def in_place(path: Path, file: os.stat_result) -> None:
    """Raises OSError where a file was deleted, moved or replaced: what belongs to it may be lost."""
    if not os.path.samestat(os.stat(path), file):
        raise OSError(None, "another file has taken its place")


def settle(path: Path) -> None:
    """Gives a closed run file the attributes that changed in place as ordinary strings, by a copy that replaces it.

    Fixed-length text reads as bytes in h5py; whoever opens a finished file by hand expects text. Where there is no room
    for a copy the file stays as it is.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        shutil.copyfile(path, temporary)
        with h5py.File(temporary, "r+", libver="latest", locking="best-effort") as file:
            for name, kind in LATER.items():
                if kind != "f8":
                    file.attrs[name] = bytes(file.attrs[name]).decode()
        with temporary.open("rb") as raw:
            os.fsync(raw.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except (OSError, RuntimeError):  # h5py's for a full disk
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def let_go(file: h5py.File, descriptor: int) -> None:
    """Leaves a file as a kill would: closing what could not be written would mark it as whole."""
    with contextlib.suppress(Exception):
        if file:  # let HDF5 close something else
            substitute = os.memfd_create("abandoned")
            os.dup2(substitute, descriptor)
            os.close(substitute)
        file.close()
