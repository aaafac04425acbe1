"""The server's rate where its clients are on another host, behind a link of a known rate.

    python benchmarks/slow_link.py [--rate 200] [--clients 4] [--sizes 7850 100000 1000000] [--seconds 8] [--repeats 3]

Two network namespaces with host names of their own, connected by a veth pair, each end limited by `tc tbf` to RATE
Mbit/s. `mpirun` starts the server on one, the clients on the other, and server_rate.py on all: messages of d float32
go out, and updates of d float32 come back, as fast as they can. The share of the link is that of the vectors' bytes,
without any header; Ethernet, IP and TCP headers take 4.4 % of it. Needs root, `ip`, `tc`, `unshare` and `nsenter`.
Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import ROOT, launcher

sys.path.insert(0, str(ROOT))
from tests.faults.network import HOSTS, Wire, missing

NAMES = {"": "mpifl", "by_hand_": "by hand", "echo_": "echo"}
BURST, LATENCY = "256kb", "50ms"  # of the token bucket


class Link(Wire):
    """A veth pair between the hosts, limited at both ends."""

    def __init__(self, folder: Path, rate: float) -> None:
        super().__init__(folder)
        self._rate = rate

    def up(self) -> None:
        a, b = self._names
        for name in self._names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        pair = ["link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", b]
        subprocess.run(["ip", "-n", a, *pair], check=True)
        for number, name in enumerate(self._names, 1):
            for words in (
                ["link", "set", "lo", "up"],
                ["address", "add", f"10.77.0.{number}/24", "dev", "wire"],
                ["link", "set", "wire", "up"],
            ):
                subprocess.run(["ip", "-n", name, *words], check=True)
            limit = ["rate", f"{self._rate}mbit", "burst", BURST, "latency", LATENCY]
            subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "wire", "root", "tbf", *limit], check=True)


@contextlib.contextmanager
def link(rate: float) -> Iterator[Link]:
    with tempfile.TemporaryDirectory() as folder:
        made = Link(Path(folder), rate)
        try:
            made.up()
            yield made
        finally:
            made.down()


def measure(made: Link, clients: int, d: int, updates: int, repeats: int, words: list[str]) -> dict[str, Any]:
    """A row of server_rate.py."""
    mpirun = launcher(clients + 1)
    command = [
        *made.on_first, mpirun[0], "--prtemca", "plm_ssh_agent", str(made.agent), "--mca", "btl", "tcp,self",
        "--host", f"{HOSTS[0]}:1,{HOSTS[1]}:{clients}", "--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none", *words,
        *mpirun[1:], str(ROOT / "benchmarks" / "server_rate.py"),
        "--sizes", str(d), "--updates", str(updates), "--repeats", str(repeats),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    out = subprocess.run(command, capture_output=True, text=True, timeout=1800, env=environment)
    if out.returncode:
        sys.exit(f"slow_link: server_rate.py failed\n{out.stderr}")
    return next(json.loads(line) for line in out.stdout.splitlines() if line.startswith("{"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=200, help="Mbit/s, in each direction")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--sizes", type=int, nargs="+", default=[7850, 100_000, 1_000_000])
    parser.add_argument("--seconds", type=float, default=8.0, help="about how long each program runs each time")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("words", nargs="*", help="more for mpirun, after --")
    args = parser.parse_args()
    if why := missing():
        sys.exit(f"slow_link: no two hosts here: {why}")
    print(f"| d (float32) | {' | '.join(f'{name}, share of the link' for name in NAMES.values())} | mpifl, updates/s |")
    print("|--:|--:|--:|--:|--:|")
    with link(args.rate) as made:
        for d in args.sizes:
            most = args.rate * 1e6 / 8 / (4 * d)  # updates/s
            row = measure(made, args.clients, d, max(40, int(args.seconds * most)), args.repeats, args.words)
            shares = [f"{100 * row[f'{key}updates_per_s'] / most:.0f} %" for key in NAMES]
            print(f"| {d:,} | {' | '.join(shares)} | {row['updates_per_s']:,.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
