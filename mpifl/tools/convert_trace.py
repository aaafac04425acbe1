"""Converts the public traces of devices that FedScale publishes into trace files (`trace_files`).

Their layout is a pickled dictionary by device number. Availability (`client_behave_trace`): `active` and `inactive`,
the times in seconds at which the device comes on and goes off, and `finish_time`, the length after which its trace
repeats. Capacity (`client_device_capacity`): `computation`, ms a row of a forward pass, and `communication`, kbit/s; a
contact takes 3 rows computation / 1000 + kilobits / communication seconds, a step being three forward passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice, pairwise
from math import isfinite
from pathlib import Path
from typing import Any

from mpifl.errors import ConfigError
from mpifl.safe_pickle import read_pickle
from mpifl.scheduling.trace_files import LONGEST_TIME

PASSES = 3  # a training step takes the time of so many forward passes


def convert(path: Path, out: Path, clients: int, rows: int | None = None, kilobits: int | None = None) -> str:
    """Writes the trace of the first `clients` devices of a file, as clients 0, 1, ..; returns a line for the reader.

    rows: that a client computes with at a contact, kilobits: of its message and its update; for a file of capacities.
    Devices whose times do not alternate, or whose traces are of another length than most, are left out. Raises
    ConfigError.
    """
    devices = read_pickle(path, "device trace", "a pickled dictionary of devices", numbered=True)
    first = next(iter(devices.values()), None)
    keys = {_text(key) for key in first} if isinstance(first, Mapping) else set()
    if {"active", "inactive", "finish_time"} <= keys:
        if rows or kilobits:
            option = "--rows" if rows else "--kilobits"
            raise ConfigError(
                option, rows or kilobits, "the file is of availability", "a file of capacities", "leave out the option"
            )
        lengths = Counter(_number(_get(device, "finish_time")) for device in devices.values())
        period = max(lengths, key=lambda length: (lengths[length], length))
        whole = (spans for device in devices.values() if (spans := _spans(device, period)))
        values = [[f"{start:.10g},{end:.10g}" for start, end in spans] for spans in islice(whole, clients)]
        header, key = "client,start,end", "clock.availability"
        section = f"{{name: trace, path: {out}, after: repeat, period: {period:.10g}}}"
    elif {"computation", "communication"} <= keys:
        if not rows or not kilobits:
            option, what = ("--kilobits", "size of the messages (kbit)") if rows else ("--rows", "number of rows")
            raise ConfigError(option, None, "required, since the file is of capacities", f"the {what} of a contact")
        times = (_seconds(device, rows, kilobits) for device in devices.values())
        values = [[f"{time:.10g}"] for time in islice((time for time in times if 0 < time <= LONGEST_TIME), clients)]
        header, key, section = "client,seconds", "clock.delay", f"{{name: trace, path: {out}, exhausted: repeat}}"
    else:
        expected = "devices with active, inactive and finish_time, or with computation and communication"
        raise ConfigError("device trace", path, "other entries", expected)
    if len(values) < clients:
        wrong = f"of {len(devices)} devices in {path} {len(values)} can be used"
        raise ConfigError("--clients", clients, wrong, f"at most {len(values)}")
    lines = [f"{i},{value}" for i, own in enumerate(values) for value in own]
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write("\n".join([header, *lines, ""]))
    except FileExistsError:
        raise ConfigError("--out", out, "the file exists", remedy="choose another name") from None
    except OSError as error:
        raise ConfigError("--out", out, f"cannot be written: {error.strerror}", "a file that can be written") from error
    return f"{out}: {clients:,} clients, {len(lines):,} rows; in a job: {key}: {section}"


def _text(key: object) -> object:
    return key.decode("latin-1") if isinstance(key, bytes) else key


def _get(device: Any, name: str) -> Any:
    """A value of a device, whose names may be text or bytes; None where it has none."""
    return device.get(name, device.get(name.encode())) if isinstance(device, Mapping) else None


def _number(value: object) -> float:
    """A finite number of 0 or more; -1 for anything else."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LONGEST_TIME
    return float(value) if good and isfinite(value) else -1.0  # type: ignore[arg-type]


def _spans(device: Any, period: float) -> list[tuple[float, float]]:
    """The on periods of a device; none where its lists are not such, or its trace has another length."""
    on, off = _get(device, "active"), _get(device, "inactive")
    if not isinstance(on, list) or not isinstance(off, list) or len(on) != len(off):
        return []
    spans = list(zip(map(_number, on), map(_number, off), strict=True))
    apart = all(a[1] <= b[0] for a, b in pairwise(spans))
    inside = all(0 <= start < end <= period for start, end in spans)
    return spans if apart and inside and _number(_get(device, "finish_time")) == period else []


def _seconds(device: Any, rows: int, kilobits: int) -> float:
    """The time of a contact; -1 where the device has no capacities above 0."""
    compute, bandwidth = _number(_get(device, "computation")), _number(_get(device, "communication"))
    return PASSES * rows * compute / 1000 + kilobits / bandwidth if compute > 0 and bandwidth > 0 else -1.0
