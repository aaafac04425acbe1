"""Messages of many clients in one array: what is read is what was written, and runs have the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mpifl
from mpifl.algorithms.base import Message
from mpifl.client import worker
from mpifl.problems import on_use
from mpifl.transport import message_table
from mpifl.transport.frames import MAX_NUMBERS
from mpifl.transport.message_table import MessageTable


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [1, 3, 10])
def test_messages_are_read_as_they_were_written(d: int, dtype: type) -> None:
    draw, n, most = np.random.default_rng(d), 7, 3
    table, written = MessageTable(n, d, np.dtype(dtype), most), dict[int, Message]()
    for k in range(200):
        i = int(draw.integers(n))
        vectors = tuple(draw.standard_normal((k % (most + 1), d)).astype(dtype))
        numbers = tuple(draw.standard_normal(k % (MAX_NUMBERS + 1)).tolist())
        table[i] = written[i] = Message(vectors, numbers, work=k, version=2**40 + k, round=2**31 + k)
        j = int(draw.integers(n))
        assert (j in table) == (j in written)
        read, expected = table.pop(j, None), written.pop(j, None)
        assert (read is None) == (expected is None)
        if read and expected:
            assert read[1:] == expected[1:] and len(read.vectors) == len(expected.vectors)
            for own, v in zip(read.vectors, expected.vectors, strict=True):
                np.testing.assert_array_equal(own, v, strict=True)
        assert sorted(written) == list(table) and len(table) == len(written)
    table.clear()
    assert not table and list(table) == [] and table.get(0) is None
    with pytest.raises(KeyError):
        table[0]


def test_messages_of_several_clients_are_read_together() -> None:
    """Those that clients have, in the given order; they remain, and what is written later does not change them."""
    table = MessageTable(5, 2, np.dtype(np.float32), 2)
    a, b = np.array([1.5, -0.0], np.float32), np.array([np.nan, 2.0], np.float32)
    table[4] = Message((a, b), (0.25, -3.0), work=2, version=7, round=1)
    table[1] = Message((a,), (), work=0, version=2**40, round=2**31)
    table[0] = Message((), (1.0,))
    read = dict(table.read([4, 2, 1, 0]))
    assert list(read) == [4, 1, 0] and list(table) == [0, 1, 4]
    assert read[4][1:] == ((0.25, -3.0), 2, 7, 1) and read[1][1:] == ((), 0, 2**40, 2**31)
    table[4] = Message((b, b))
    del table[1]
    for i, vectors in {4: (a, b), 1: (a,), 0: ()}.items():
        for own, v in zip(read[i].vectors, vectors, strict=True):
            np.testing.assert_array_equal(own.view(np.uint32), v.view(np.uint32), strict=True)
    assert list(table) == [0, 4] and list(table.read([1, 2, 3])) == list(table.read([])) == []
    table.remove([])
    assert list(table) == [0, 4]
    table.remove([4, 0])
    assert not table and 4 not in table
    with pytest.raises(KeyError):
        del table[1]


JOBS = {
    "area": {"algorithm": {"name": "area", "step_size": 0.1, "trigger": {"every": 3}}},
    "fedpd": {"algorithm": {"name": "fedpd", "eta": 1.0}},
    "scaffold": {"algorithm": {"name": "scaffold", "step_size": 0.1, "local_steps": 2}},
}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("model", ["quadratic", "logistic"])
def test_runs_have_the_same_bits(name: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the messages in a table, one objective that the clients share, and a checkpoint of them."""
    data = {"data": {"name": "fedpd-synthetic", "dim": 4, "samples": 3}, "batch_size": 2} if model == "logistic" else {}
    job = {
        "name": "many", "seed": 3, "problem": {"model": {"name": model}, "clients": 9, **data}, **JOBS[name],
        "clock": {"mode": "virtual", "delay": {"name": "exponential", "rate": 1.0}}, "stop": {"updates": 120},
        "evaluate": {"updates": 60}, "checkpoint": {"updates": 50}, "log_interval": None,
    }  # fmt: skip
    with mpifl.run({**job, "output": str(tmp_path / "few.h5")}) as few:
        model_of_few, updates = few.model.copy(), few.updates.copy()
    used = []
    for module in (on_use, worker, message_table):
        monkeypatch.setattr(module, "MAX_CLIENTS_AS_OBJECTS", 0)
    monkeypatch.setattr(MessageTable, "clear", lambda self: used.append(self))  # called at the end
    with mpifl.run({**job, "output": str(tmp_path / "many.h5")}) as many:
        np.testing.assert_array_equal(many.model, model_of_few, strict=True)
        for column in ("time", "client", "version", "norm", "local_steps"):
            np.testing.assert_array_equal(many.updates[column], updates[column])
    assert used
