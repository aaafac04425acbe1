"""The limits of memory: the machine's, and those of control groups of both versions with the groups above them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpifl.host_memory import MemoryLimit, available_memory, memory_limits, resident_bytes
from mpifl.safe_input import check_memory

MEMINFO = "MemTotal:       32000 kB\nMemFree: 1 kB\nMemAvailable:   20000 kB\n"


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def system(tmp_path: Path, cgroup: str, mount: str) -> str:
    """A /proc with these lines."""
    write(tmp_path / "proc", meminfo=MEMINFO)
    write(tmp_path / "proc/self", cgroup=cgroup, mountinfo=mount)
    return str(tmp_path / "proc")


def test_version_2_with_the_groups_above(tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    proc = system(tmp_path, "0::/slurm/job/task", f"31 24 0:27 / {groups} rw,nosuid - cgroup2 cgroup2 rw")
    write(groups / "slurm/job/task", memory__max="max", memory__current=5)
    cached = "anon 1\ninactive_file 1000000"
    write(groups / "slurm/job", memory__max=9_000_000, memory__current=4_000_000, memory__stat=cached)
    write(groups / "slurm", memory__max=20_000_000, memory__current=19_000_000)
    assert memory_limits(proc) == [
        MemoryLimit("this host", 32000 << 10, 20000 << 10),
        MemoryLimit("control group /slurm/job", 9_000_000, 6_000_000),  # the cached megabyte can be taken back
        MemoryLimit("control group /slurm", 20_000_000, 1_000_000),
    ]
    assert available_memory(proc) == 1_000_000, "what the tightest group above leaves"


def test_version_1_limits_of_the_groups_above_are_counted(tmp_path: Path) -> None:
    groups = tmp_path / "memory"
    lines = f"40 32 0:35 / {tmp_path}/cpu rw - cgroup cgroup rw,cpu\n41 32 0:36 / {groups} rw - cgroup cgroup rw,memory"
    proc = system(tmp_path, "5:cpu:/other\n4:memory:/pbs/1\n0::/", lines)
    write(groups / "pbs/1", memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=1)  # no limit
    write(groups / "pbs", memory__limit_in_bytes=8_000_000, memory__usage_in_bytes=3_000_000)
    assert memory_limits(proc)[1:] == [MemoryLimit("control group /pbs", 8_000_000, 5_000_000)]
    assert available_memory(proc) == 5_000_000


def test_a_file_larger_than_the_job_of_slurm_leaves_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpifl.safe_input.available_memory", lambda: 100 << 20)
    check_memory(100 << 20, "a file")
    with pytest.raises(ValueError, match="only 104857600 bytes of memory are available"):
        check_memory(101 << 20, "a file")


def test_a_container_sees_its_group_as_the_root(tmp_path: Path) -> None:
    """Beside a mount point with bytes that are no UTF-8, as on a disk with an old label."""
    groups = tmp_path / "cgroup"
    proc = system(tmp_path, "0::/docker/abc", f"31 24 0:27 /docker/abc {groups} ro - cgroup2 cgroup rw")
    mounts = tmp_path / "proc/self/mountinfo"
    mounts.write_bytes(b"30 24 0:26 / /media/K\xf6ln rw - ext4 /dev/sdb1 rw\n" + mounts.read_bytes())
    write(groups, memory__max=4_000_000, memory__current=1_000_000)
    assert memory_limits(proc)[1:] == [MemoryLimit("control group /", 4_000_000, 3_000_000)]


@pytest.mark.parametrize("content", ["", "MemTotal: x kB", "MemTotal: 5 kB"])
def test_a_system_that_says_nothing_has_no_limits(tmp_path: Path, content: str) -> None:
    write(tmp_path, meminfo=content)
    assert memory_limits(str(tmp_path)) == []


def test_free_and_resident_memory_of_this_host_are_within_its_total() -> None:
    limits = memory_limits()
    assert limits[0].name == "this host" and all(0 <= limit.free <= limit.total for limit in limits)
    assert 5 << 20 < resident_bytes() < limits[0].total
