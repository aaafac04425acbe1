"""How much memory this process may still take: of its machine, and of the control groups that limit it (Linux)."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from typing import NamedTuple

MAX_NAME = 60  # characters of a name: it is sent to rank 0


class MemoryLimit(NamedTuple):
    """A limit that all processes of a host share that have one of this name."""

    name: str  # "this host", or a control group
    total: int  # bytes
    free: int  # bytes that nothing occupies now, or that the system can take back at once


def memory_limits(proc: str = "/proc") -> list[MemoryLimit]:
    """The limits of this process, the machine's memory first; those above the machine's memory are left out.

    Control groups of version 1 and 2 are read, with those above them. Empty where the system says nothing.
    """
    machine = _machine(proc)
    if machine is None:
        return []
    return [machine, *_control_groups(proc, machine.total)]


def available_memory(proc: str = "/proc") -> int:
    """Bytes that this process may still allocate, by its `memory_limits` and by the limit of its address space."""
    found = [limit.free for limit in memory_limits(proc)]
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY:
        with contextlib.suppress(OSError):
            found.append(max(0, space - _statm(0)))
    return min(found, default=2**62)


def resident_bytes() -> int:
    """The resident memory (RSS, bytes) of this process; 0 where the system does not say."""
    try:
        return _statm(1)
    except OSError:
        return 0


def _statm(column: int) -> int:
    """Bytes of this process: 0 address space, 1 resident memory. Raises OSError."""
    return int(_read("/proc/self/statm").split()[column]) * os.sysconf("SC_PAGE_SIZE")


def _read(path: str) -> str:
    """The text of a file of the kernel. Paths in it may be no UTF-8."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def _machine(proc: str) -> MemoryLimit | None:
    try:
        lines = (line.split() for line in _read(f"{proc}/meminfo").splitlines())
        kilobytes = {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1}
        return MemoryLimit("this host", kilobytes["MemTotal"] << 10, kilobytes["MemAvailable"] << 10)
    except (OSError, ValueError, KeyError):
        return None


def _control_groups(proc: str, below: int) -> Iterator[MemoryLimit]:
    """The limits below so many bytes of this process' control groups, from its own up to the root."""
    try:
        groups = [line.split(":", 2) for line in _read(f"{proc}/self/cgroup").splitlines()]
        mounts = [line.split() for line in _read(f"{proc}/self/mountinfo").splitlines()]
    except OSError:
        return
    for words in mounts:  # ... root mount-point options ... - type source options
        if "-" not in words or len(words) < words.index("-") + 4:
            continue
        kind, options = words[words.index("-") + 1], words[words.index("-") + 3].split(",")
        if kind == "cgroup2":
            paths, files = [path for number, _, path in groups if number == "0"], V2
        elif kind == "cgroup" and "memory" in options:
            paths, files = [path for _, kinds, path in groups if "memory" in kinds.split(",")], V1
        else:
            continue
        root, mount = words[3], os.path.normpath(words[4])
        for path in paths:  # a container sees its own group as the root, whatever the path says
            inside = path.removeprefix(root.rstrip("/")).strip("/")
            folder = os.path.join(mount, inside) if inside else mount
            if not os.path.isdir(folder):
                folder = mount
            while True:
                if limit := _limit(folder, mount, files, below):
                    yield limit
                if folder == mount:
                    break
                folder = os.path.dirname(folder)


class _Files(NamedTuple):
    limit: str
    used: str
    cached: str  # field of memory.stat: what the system can take back


V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = _Files("memory.max", "memory.current", "inactive_file")


def _limit(folder: str, mount: str, files: _Files, below: int) -> MemoryLimit | None:
    try:
        total = _read(f"{folder}/{files.limit}").strip()
        if total == "max" or int(total) >= below:
            return None
        used, cached = int(_read(f"{folder}/{files.used}")), 0
        with contextlib.suppress(OSError, ValueError):
            for line in _read(f"{folder}/memory.stat").splitlines():
                key, _, value = line.partition(" ")
                if key == files.cached:
                    cached = int(value)
        name = f"/{os.path.relpath(folder, mount)}" if folder != mount else "/"
        free = max(0, int(total) - max(0, used - cached))
        return MemoryLimit(f"control group {name[-MAX_NAME:]}", int(total), free)
    except (OSError, ValueError):
        return None
