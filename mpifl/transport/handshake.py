"""Before a run: which ranks there are, what they have to compute with, who hosts which clients, whether all are ready.

Every rank but 0 says a word of itself and then waits for its part: a part is a job with its clients, or an exit code.
Having built its clients it says a second word, what it computes with or what is wrong, and waits for the verdict: go,
or an exit code. Rank 0 alone decides, and alone prints.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifl.errors import ConfigError
from mpifl.problems import Place

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpifl.problems import Problem

WORD = 4096  # bytes of what a rank says of itself


def host() -> str:
    """This host's name; the node's as SLURM calls it, where it does."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def myself() -> dict[str, Any]:
    """What a rank says of itself: host, process, the cores that it may use as bits, how many of them its host gets."""
    cores = os.sched_getaffinity(0)
    return {
        "host": host(),
        "process": os.getpid(),
        "cores": hex(sum(1 << core for core in cores)),
        "quota": _quota() or len(cores),
    }


def _quota() -> float | None:
    """Cores' worth of time that a container (control group) gets on this host, all its processes together."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return float(quota) / float(period)
    except (OSError, ValueError):  # no such system, or "max"
        return None


# -- ranks 1 .. R-1 ----------------------------------------------------------------------------------------------------
def say(comm: MPI.Comm, word: dict[str, Any]) -> None:
    """A word to rank 0."""
    from mpifl.transport.mpi import SETUP, wait

    text = json.dumps(word).encode()
    if len(text) > WORD:
        text = json.dumps({"error": ["rank", comm.rank, "a shorter message: this one is too long to send"]}).encode()
    wait(comm.Isend(text.ljust(WORD), 0, SETUP))


def array(comm: MPI.Comm, shape: Any, dtype: Any) -> np.ndarray:
    """The next array that rank 0 sends."""
    from mpifl.transport.mpi import SETUP, wait

    wait(comm.Irecv(result := np.empty(shape, dtype), 0, SETUP))
    return result


def part(comm: MPI.Comm) -> dict[str, Any]:
    """What rank 0 has for this rank; with `code` it is to leave."""
    found: dict[str, Any] = json.loads(array(comm, int(array(comm, 1, np.int64)[0]), np.uint8).tobytes())
    return found


# -- rank 0 ------------------------------------------------------------------------------------------------------------
_known: list[dict[str, Any]] = []  # the ranks' first words, once they are heard
_awaited: list[tuple[list[bytearray], list[Any]]] = []  # receives that an interrupt kept from being waited for


def forget() -> None:
    """Another command begins, at which every rank says its first word anew."""
    _known.clear()


def hear(comm: MPI.Comm) -> list[dict[str, Any]]:
    """Waits for one word of every other rank."""
    from mpifl.transport.mpi import SETUP, wait

    if not _awaited:
        buffers = [bytearray(WORD) for _ in range(1, comm.size)]
        _awaited.append((buffers, [comm.Irecv(b, r, SETUP) for r, b in enumerate(buffers, 1)]))
    buffers, requests = _awaited[0]
    wait(*requests)
    _awaited.clear()
    return [json.loads(b) for b in buffers]


def ranks(comm: MPI.Comm | None) -> list[dict[str, Any]]:
    """What all ranks say of themselves, rank 0's word first; the others say theirs once, as soon as they are there."""
    if not _known:
        _known.extend([myself(), *(hear(comm) if comm else ())])
    return _known


def places(words: list[dict[str, Any]]) -> list[Place]:
    """What each rank has to compute with: a core that k ranks of a host may use is 1/k for each of them."""
    masks = [int(word["cores"], 16) for word in words]
    users: Counter[tuple[str, int]] = Counter()
    for word, mask in zip(words, masks, strict=True):
        users.update((word["host"], core) for core in range(mask.bit_length()) if mask >> core & 1)
    on_host = Counter(word["host"] for word in words)
    seen: Counter[str] = Counter()
    result = []
    for r, (word, mask) in enumerate(zip(words, masks, strict=True)):
        name = word["host"]
        share = sum(1 / users[name, core] for core in range(mask.bit_length()) if mask >> core & 1)
        share = min(share, word["quota"] / on_host[name])
        result.append(Place(seen[name], max(1, int(share + 1e-9))))
        seen[name] += r > 0  # rank 0 has no clients
    return result


def packed(text: dict[str, Any], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The buffers that `part` and then `array` take in, in order."""
    raw = json.dumps(text).encode()
    return [np.array([len(raw)], np.int64), np.frombuffer(raw, np.uint8), *arrays]


def send_parts(comm: MPI.Comm, texts: list[dict[str, Any]], arrays: list[list[np.ndarray]] | None = None) -> None:
    """Sends rank r + 1 its text r and its arrays r."""
    from mpifl.transport.mpi import SETUP, wait

    requests = []
    for r, text in enumerate(texts):
        requests += [comm.Isend(a, r + 1, SETUP) for a in packed(text, arrays[r] if arrays else ())]
    wait(*requests)


def deal(
    comm: MPI.Comm, job: dict[str, Any], problem: Problem, x0: np.ndarray, saved: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Hands every client to its rank, and waits until all have built theirs; the facts that they tell.

    saved: the checkpoint from which they go on: what `saving.restore` wants, and out, the clients that were at work.

    Raises ConfigError for the first rank that cannot; the verdict is then still to be given, with `dismiss`.
    """
    n, places_ = problem.clients, places(ranks(comm))
    common = {"job": job, "meta": problem.meta, "n": n, "d": x0.size, "dtype": x0.dtype.str, "saved": saved}
    texts, arrays = [], []
    for r in range(comm.size - 1):
        mine = [(i, problem.shard(i)) for i in range(r, n, comm.size - 1)]
        specs = [(i, specified(shard)) for i, shard in mine]
        texts.append({**common, "place": places_[r + 1], "clients": specs})
        arrays.append([x0, *(a for _, shard in mine for a in shard)])
    send_parts(comm, texts, arrays)
    words = hear(comm)
    for word in words:
        if "error" in word:
            raise ConfigError(*word["error"])
    return [word["facts"] for word in words]


def specified(arrays: Sequence[np.ndarray]) -> list[Any]:
    """Shapes and dtypes, as `array` takes them."""
    return [(a.shape, a.dtype.str) for a in arrays]


def go(comm: MPI.Comm) -> None:
    """The verdict: the run begins. From now on it goes on without those that die."""
    from mpifl.transport.mpi import MPI, SETUP, wait

    for r in range(1, comm.size):
        with contextlib.suppress(MPI.Exception):
            wait(*(comm.Isend(a, r, SETUP) for a in packed({}, [])))


def dismiss(comm: MPI.Comm | None, code: int) -> None:
    """Rank 0: no run; the other ranks, waiting for their part or for the verdict, leave with this exit code."""
    if comm:
        ranks(comm)
        send_parts(comm, [{"code": code}] * (comm.size - 1))
