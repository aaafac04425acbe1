"""Two hosts on this one: network namespaces with host names of their own, and between them a wire that can be hurt.

The wire is a process that carries Ethernet frames from one TAP device to the other: late, out of order, or not at all.
It reads a line whenever it is to change: delay and jitter in seconds, and the fraction of frames that are lost; a loss
of 1 is a cut.
Needs root, `ip`, `unshare`, `nsenter` and /dev/net/tun.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
FRAME = 1 << 16  # bytes
HOSTS = ("mpifl-a", "mpifl-b")


def missing() -> str:
    """Why this cannot be done here; "" where it can."""
    if os.getuid():
        return "not root"
    if programs := [name for name in ("ip", "unshare", "nsenter", "hostname") if not shutil.which(name)]:
        return f"no {', '.join(programs)}"
    if not os.path.exists("/dev/net/tun"):
        return "no /dev/net/tun"
    probe = subprocess.run(["unshare", "--net", "--uts", "ip", "link"], capture_output=True, text=True)
    return probe.stderr.strip()


class Wire:
    """The hosts' names, and what to put before a command that is to run on the first one."""

    def __init__(self, folder: Path) -> None:
        self._names = [f"{host}-{os.getpid()}" for host in HOSTS]
        self.agent = folder / "agent.sh"  # what mpirun is to use in the place of ssh
        there = f"nsenter --net=/run/netns/{self._names[1]} unshare --uts"
        command = """sh -c 'hostname "$0"; eval "$*"' "$host" "$@\""""
        self.agent.write_text(f"#!/bin/sh\nhost=$1; shift\nexec {there} {command}\n")
        self.agent.chmod(0o755)
        self.on_first = [
            "nsenter", f"--net=/run/netns/{self._names[0]}", "unshare", "--uts",
            "sh", "-c", 'hostname "$0"; exec "$@"', HOSTS[0],
        ]  # fmt: skip

    def up(self) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        command = [sys.executable, __file__, *self._names]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout and self._process.stdout.readline() == "up\n"
        for number, name in enumerate(self._names, 1):
            inside = ["ip", "-n", name]
            for words in ("link set lo up", f"address add 10.77.0.{number}/24 dev tap0", "link set tap0 up"):
                subprocess.run([*inside, *words.split()], check=True)

    def set(self, delay: float = 0.0, jitter: float = 0.0, loss: float = 0.0) -> None:
        """From now on frames take `delay` to `delay + jitter` seconds, and a fraction `loss` of them is lost."""
        assert self._process.stdin
        print(delay, jitter, loss, file=self._process.stdin, flush=True)

    def down(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self._process.kill()
            self._process.communicate()
        for name in self._names:
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL)


# -- the process -------------------------------------------------------------------------------------------------------
def tap(namespace: str) -> int:
    """A new TAP device tap0 in a network namespace; its descriptor stays good wherever this process goes."""
    with open(f"/run/netns/{namespace}") as there:
        if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), namespace)
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", b"tap0", IFF_TAP | IFF_NO_PI))
    return descriptor


def carry(ends: list[int]) -> None:
    """Carries frames between two TAP devices until standard input ends."""
    delay, jitter, loss = 0.0, 0.0, 0.0
    draw, count = random.Random(0), itertools.count()
    late: list[tuple[float, int, int, bytes]] = []  # a heap: when a frame is due, its number, its device, its bytes
    while True:
        wait = max(0.0, late[0][0] - time.monotonic()) if late else None
        for ready in select.select([0, *ends], [], [], wait)[0]:
            if ready == 0:
                line = sys.stdin.readline()
                if not line:
                    return
                delay, jitter, loss = map(float, line.split())
                continue
            with contextlib.suppress(BlockingIOError):
                frame = os.read(ready, FRAME)
                if draw.random() >= loss:
                    due, other = time.monotonic() + delay + jitter * draw.random(), ends[ready == ends[0]]
                    heapq.heappush(late, (due, next(count), other, frame))
        while late and late[0][0] <= time.monotonic():
            *_, other, frame = heapq.heappop(late)
            with contextlib.suppress(OSError):  # a device that is down or full loses the frame, as devices do
                os.write(other, frame)


if __name__ == "__main__":
    devices = [tap(name) for name in sys.argv[1:]]
    print("up", flush=True)
    carry(devices)
