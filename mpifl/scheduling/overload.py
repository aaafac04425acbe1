"""Describes a server, or clients, that could not keep up with the real clock."""

from __future__ import annotations

TOLERANCE = 1.0  # s by which evaluations may be late without being reported
LONGER = 1.5  # times the emulated delay that contacts may take without being reported


def describe_overload(age: float, every: float | None, one_process: bool) -> str:
    """A clause that says how late evaluations were and what to change; "" for at most 1 s or their interval.

    age: the largest of `/evaluations/age` (s). every: the job's `evaluate.every` (s), None where updates count.
    one_process: whether clients compute in the server's process.
    """
    if not age > max(TOLERANCE, every or 0.0):
        return ""
    place = "clients on ranks of their own (mpirun)" if one_process else "a core of its own for rank 0"
    longer = f"a longer evaluate.every than {every:g} s or " if every else ""
    return f"the server was overloaded: evaluations up to {age:.2g} s late (use {longer}{place})"


def describe_slow_contacts(asked: float, took: float) -> str:
    """A clause that says how long contacts took; "" for at most LONGER times their delays, and where there were none.

    asked: s of a contact by the delay model, mean over the run. took: s until its update was consumed, likewise.
    """
    if not took > LONGER * asked:
        return ""
    return (
        f"contacts took {took:.2g} s where the delay model says {asked:.2g} s: computing or the server cannot keep "
        "up (use more ranks on more cores, longer delays, or the virtual clock)"
    )
