"""Appends to columns of the run file: one-dimensional chunked datasets."""

from __future__ import annotations

import h5py
import numpy as np
from h5py import h5s


def append_values(column: h5py.Dataset, values: np.ndarray) -> None:
    """Appends values (rows,) to a column; text is (rows,) bytes of UTF-8.

    By h5py's low-level interface: the interface of slices computes several times as long, during which no other thread
    runs.
    """
    if not len(values):
        return
    dataset, kind = column.id, None
    if values.dtype.kind == "S":  # HDF5's text has an encoding, which NumPy's does not have
        kind = dataset.get_type()
        values = np.asarray(values, f"S{kind.get_size()}")
    first = dataset.shape[0]
    dataset.set_extent((first + len(values),))
    place = dataset.get_space()
    place.select_hyperslab((first,), (len(values),))
    dataset.write(h5s.create_simple((len(values),)), place, np.ascontiguousarray(values), mtype=kind)
