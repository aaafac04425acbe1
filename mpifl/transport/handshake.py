"""The handshake before a run: which ranks there are, who hosts which clients, and whether every rank is ready.

    rank 0                                   every other rank
    ------                                   ----------------
                              <- hello       installation, host, process, cores, memory
    job                       ->             imports its classes      or release: exit code, error
    setup: clients, x_0       ->                                      or release: exit code, error
                              <- report      ready, or what is wrong
    start                     ->                                      or release: exit code, error
    (the run)
    release: exit code, error ->

Rank 0 alone decides, and alone prints.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from mpifl.errors import ConfigError, RunFailed, RunResult, host_name, shortened
from mpifl.host_memory import memory_limits
from mpifl.text import format_duration, list_numbers
from mpifl.transport.backoff import LONGEST_IDLE, LONGEST_SLEEP, Backoff, report_times, wait
from mpifl.transport.detection import is_fault_tolerant
from mpifl.transport.launcher import abort_all_ranks
from mpifl.transport.layout import Layout
from mpifl.transport.rank_deaths import ProcessWatch, launcher_rank, report_death
from mpifl.version import installation

if TYPE_CHECKING:
    from mpi4py import MPI

log = logging.getLogger(__package__)

RANKS_BEFORE = "MPIFL_RANKS_BEFORE"  # set by a sweep: ranks with clients of other runs that share this host's GPUs
SETUP = 3  # tag of everything that the handshake sends
REPLY_BYTES = 4096  # maximum of a hello or a report
MAX_NAMED = 5  # ranks that a line names
MAX_LIMITS = 8  # limits of memory in a hello: the machine's, and those of the nearest control groups


class Hello(NamedTuple):
    """What a rank reports of itself."""

    host: str
    process: int
    core_mask: int  # bit k: the rank may use core k
    quota: float  # CPU quota in cores, of all ranks of its host together
    before: int = 0  # ranks of other runs on its host that take GPUs before those of its own run
    limits: Sequence[Sequence[Any]] = ()  # name, bytes, free bytes of each (`host_memory.MemoryLimit`)
    processes: str = ""  # the namespace of its process id: containers on one host may have one each

    def shares_processes(self, other: Hello) -> bool:
        """Whether a process id means the same process on both ranks."""
        return (self.host, self.processes) == (other.host, other.processes)


class RankResources(NamedTuple):
    """What a rank has to compute with."""

    local: int  # the rank's number among those with clients on its host, other runs of a sweep included
    cores: int


class ClientSetup(NamedTuple):
    """What a rank needs to build its clients."""

    meta: dict[str, Any]  # `Problem.meta`
    clients: int  # number of clients of the whole run
    resources: RankResources
    resume: dict[str, Any] | None  # the checkpoint to resume from
    x0: np.ndarray  # (d,)
    shards: dict[int, list[np.ndarray]]  # client -> its shard


class Released(Exception):
    """Rank 0 has released this rank: the command ends with `result` on all ranks."""

    def __init__(self, result: RunResult) -> None:
        super().__init__(result)
        self.result = result


def own_hello() -> Hello:
    """This process's hello."""
    cores = os.sched_getaffinity(0)
    mask = sum(1 << core for core in cores)
    before = int(os.environ.get(RANKS_BEFORE, "0"))
    limits, processes = memory_limits()[:MAX_LIMITS], ""
    with contextlib.suppress(OSError):
        processes = os.readlink("/proc/self/ns/pid")
    return Hello(host_name(), os.getpid(), mask, _container_quota() or len(cores), before, limits, processes)


def _container_quota() -> float | None:
    """The CPU quota, in cores, of this process's container (control group), for all its processes together."""
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        return float(quota) / float(period)
    except (OSError, ValueError):  # no such file, or the quota is "max"
        return None


# -- ranks 1 .. R-1 ----------------------------------------------------------------------------------------------------
def send_hello(comm: MPI.Comm) -> None:
    """Reports this rank to rank 0."""
    _reply(comm, {"installation": installation(), "hello": own_hello()._asdict()})


def receive_job(comm: MPI.Comm) -> tuple[dict[str, Any], int | None]:
    """Waits for the values of this command's job (`job_to_dict`), and for the process of rank 0 if this one watches it.

    Raises Released where there is no run.
    """
    fields = receive_json(comm)
    _check_released(fields)
    return fields["job"], fields["watch"]


def receive_setup(comm: MPI.Comm) -> ClientSetup:
    """Waits for this rank's clients. Raises Released where there is no run."""
    fields = receive_json(comm)
    _check_released(fields)
    x0 = receive_array(comm, *fields["x0"])
    shards = {i: receive_arrays(comm, specs) for i, specs in fields["shards"]}
    resources = RankResources(*fields["resources"])
    return ClientSetup(fields["meta"], fields["clients"], resources, fields["resume"], x0, shards)


def report_ready(comm: MPI.Comm, facts: Mapping[str, Any]) -> None:
    """Reports that this rank's clients are built; facts: for the run file's attribute `compute`."""
    _reply(comm, {"facts": dict(facts)})


def report_error(comm: MPI.Comm, error: ConfigError) -> NoReturn:
    """Reports why this rank's clients cannot be built; raises Released once rank 0 has ended the command."""
    parts = error.value, f"rank {comm.rank}: {error.wrong}", error.expected, error.remedy
    _reply(comm, {"error": [error.key, *(shortened(str(part), 600) for part in parts)]})
    await_release(comm)


def await_start(comm: MPI.Comm) -> None:
    """Waits until the run starts. Raises Released where it does not."""
    _check_released(receive_json(comm))


def await_release(comm: MPI.Comm) -> NoReturn:
    """Waits for the end of the command, after this rank's part of it; raises Released."""
    while True:
        _check_released(receive_json(comm))


def receive_json(comm: MPI.Comm, source: int = 0) -> dict[str, Any]:
    """Receives the next JSON text from rank 0, or another."""
    length = int(receive_array(comm, 1, np.int64, LONGEST_IDLE, source)[0])
    found: dict[str, Any] = json.loads(receive_array(comm, length, np.uint8, source=source).tobytes())
    return found


def receive_array(
    comm: MPI.Comm, shape: Any, dtype: Any, longest: float = LONGEST_SLEEP, source: int = 0
) -> np.ndarray:  # fmt: skip
    """Receives the next array from rank 0, or another; longest: the longest sleep (s)."""
    wait(comm.Irecv(result := np.empty(shape, dtype), source, SETUP), longest=longest)
    return result


def receive_arrays(comm: MPI.Comm, specs: Sequence[Any], source: int = 0) -> list[np.ndarray]:
    """Receives the next arrays from rank 0, or another; specs: their `array_specs`."""
    return [receive_array(comm, shape, dtype, source=source) for shape, dtype in specs]


def _reply(comm: MPI.Comm, reply: dict[str, Any]) -> None:
    text = json.dumps(reply).encode()
    if len(text) > REPLY_BYTES:
        wrong = f"its report has {len(text)} bytes, of which {REPLY_BYTES} can be sent"
        text = json.dumps({"error": ["rank", comm.rank, wrong, "", "see its output"]}).encode()
    wait(comm.Isend(text, 0, SETUP), longest=LONGEST_IDLE)


def _check_released(fields: dict[str, Any]) -> None:
    if "code" in fields:
        parts = fields["error"]
        error = (ConfigError if len(parts) > 1 else RunFailed)(*parts) if parts else None
        raise Released(RunResult(fields["code"], error, fields["output"]))


# -- rank 0 ------------------------------------------------------------------------------------------------------------
class Handshake:
    """Rank 0's side of the handshake of one command; without a communicator there is no other rank."""

    def __init__(self, comm: MPI.Comm | None = None) -> None:
        self.comm = comm
        self._hellos: list[Hello] = []
        self._refusal: ConfigError | None = None  # of the first rank with another installation, or with an error
        # Rank -> receive of its reply in progress, which outlives an interrupt, and the buffer.
        self._receives: dict[int, tuple[MPI.Request, bytearray]] = {}
        self._replies: dict[int, dict[str, Any]] = {}  # rank -> reply that was received
        self._dead: set[int] = set()  # ranks that died before they replied
        self._sends: list[MPI.Request] = []  # sends in progress, also after an interrupt
        self._watch: ProcessWatch | None = None  # under ULFM reports ranks of this host that end
        self._number = 0  # `launcher_rank` of this rank

    def gather_hellos(self) -> list[Hello]:
        """Every rank's hello, in order of rank; the other ranks send theirs once, as soon as they are up.

        Raises ConfigError for the first rank that reports another installation than that of rank 0, or an error.
        """
        if not self._hellos and not self._dead and not self._refusal:
            replies = self._gather("start")
            own = installation()
            for rank, reply in enumerate(replies, 1):
                if "error" in reply:
                    self._refusal = ConfigError(*reply["error"])
                    break
                if (other := reply["installation"]) != own:
                    where = f"on {reply['hello']['host']} too (rank {rank})"
                    self._refusal = ConfigError("installation", other, f"rank 0 has {own}", f"the same {where}")
                    break
            else:
                self._hellos = [own_hello(), *(Hello(**reply["hello"]) for reply in replies)]
                self._watch_ranks()
        if self._refusal:
            raise self._refusal
        return self._hellos

    def _ranks_of_host(self) -> list[int]:
        """The other ranks whose processes this one can name."""
        return [rank for rank, hello in enumerate(self._hellos) if rank and hello.shares_processes(self._hellos[0])]

    def _watch_ranks(self) -> None:
        if self.comm and is_fault_tolerant():
            processes = {launcher_rank(self.comm, k): self._hellos[k].process for k in self._ranks_of_host()}
            self._watch = ProcessWatch(processes, report_death)
            self._number = launcher_rank(self.comm, 0)

    def send_job(self, job: dict[str, Any]) -> None:
        """Sends the values of the job to all ranks, which import its classes while rank 0 loads the data."""
        if not self.comm:
            return
        from mpifl.transport.mpi import MPI

        watcher = self._ranks_of_host()[:1] if is_fault_tolerant() else []
        for rank in range(1, self.comm.size):
            try:
                self._post(rank, {"job": job, "watch": os.getpid() if rank in watcher else None})
            except MPI.Exception as error:
                self._note_death(rank, error)

    def scatter_clients(
        self, meta: dict[str, Any], x0: np.ndarray, clients: int,
        shard: Callable[[int], Sequence[np.ndarray]], layout: Layout, resume: dict[str, Any] | None = None,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Sends every client's shard to its ranks and waits until all clients are built; returns each rank's facts.

        meta, resume: JSON-able. Raises ConfigError for the first rank that fails; the caller then releases all ranks.
        """
        assert self.comm
        resources = rank_resources(self.gather_hellos())
        common = {"meta": meta, "clients": clients, "resume": resume, "x0": (x0.shape, x0.dtype.str)}
        for rank in range(1, self.comm.size):
            shards = [(i, shard(i)) for i in layout.clients_of(rank, clients)]
            fields = {**common, "resources": resources[rank], "shards": [(i, array_specs(s)) for i, s in shards]}
            self._post(rank, fields, [x0, *(a for _, arrays in shards for a in arrays)])
        self._wait()
        replies = self._gather("build their clients")
        for reply in replies:
            if "error" in reply:
                raise ConfigError(*reply["error"])
        return [reply["facts"] for reply in replies]

    def start_ranks(self) -> None:
        """Starts the run on all ranks; from now on it continues without those that die."""
        if self.comm:
            self._send_to_each_alive({})

    def release_ranks(self, result: RunResult) -> None:
        """Ends the command on the other ranks: they wait for their setup, for the start, or have ended their run."""
        if not self.comm:
            return
        with contextlib.suppress(RunFailed, ConfigError):  # some ranks have died, or have another installation
            self.gather_hellos()
        if self._watch:  # what the ranks do after the command is not watched
            self._watch.close()
            self._watch = None
        error = [*map(str, result.error.args)] if result.error else []  # five of a ConfigError, one of a RunFailed
        fields = {"code": result.code, "error": error, "output": result.output}
        self._send_to_each_alive(fields, result.stuck_ranks)
        if self._receives or self._replies:  # discarded, so that another command may follow
            with contextlib.suppress(RunFailed):
                self._gather("answer")

    def _send_to_each_alive(self, fields: dict[str, Any], stuck: Collection[int] = ()) -> None:
        assert self.comm
        from mpifl.transport.mpi import MPI, QUARANTINE

        for rank in range(1, self.comm.size):
            if rank not in stuck and rank not in self._dead:
                try:
                    self._post(rank, fields)
                    self._wait()
                except MPI.Exception:  # the rank has died
                    QUARANTINE.extend(self._sends)
                    self._sends.clear()

    def kill_stuck_ranks(self, stuck: Collection[int], code: int) -> None:
        """Ends ranks that have not answered for too long, and will not end by themselves."""
        if self.comm and not is_fault_tolerant():
            abort_all_ranks(self.comm, code)
        hellos = self.gather_hellos()
        _kill([hellos[rank] for rank in stuck], hellos[0])

    def end_process(self, code: int) -> None:
        """Ends this process at once; under ULFM, where the others may never notice, also the ranks of its host."""
        if self.comm and is_fault_tolerant():
            report_death(self._number)
            _kill(self._hellos[1:], self._hellos[0])
        os._exit(code)

    def _gather(self, to: str) -> list[dict[str, Any]]:
        """Waits for one reply of every other rank; logs now and then which ranks it waits for to do what.

        Raises RunFailed where ranks have died, once the others replied.
        """
        if not self.comm:
            return []
        from mpifl.transport.mpi import MPI

        backoff, begin, times = Backoff(), time.monotonic(), report_times()
        due = next(times)
        for rank in range(1, self.comm.size):
            if rank not in {*self._receives, *self._replies, *self._dead}:
                buffer = bytearray(REPLY_BYTES)
                try:
                    self._receives[rank] = self.comm.Irecv(buffer, rank, SETUP), buffer
                except MPI.Exception as error:
                    self._note_death(rank, error)
        while self._receives:
            for rank, (request, buffer) in list(self._receives.items()):
                try:
                    if request.Test():
                        self._replies[rank] = json.loads(buffer.rstrip(b"\0"))
                        del self._receives[rank]
                except MPI.Exception as error:
                    self._note_death(rank, error)
            backoff.pause()
            if (waited := time.monotonic() - begin) >= due and self._receives:
                due = next(times)
                log.info("%s", self._waiting(to, waited))
        replies, self._replies = self._replies, {}
        if self._dead:
            text = "died before this run; a program that has lost ranks has to be started again"
            raise RunFailed(f"{list_numbers('rank', sorted(self._dead))} {text}")
        return [replies[rank] for rank in sorted(replies)]

    def _waiting(self, to: str, seconds: float) -> str:
        """What this rank has been waiting for, in a line."""
        ranks = [*self._receives]
        named = list_numbers("rank", ranks[:MAX_NAMED])
        assert self.comm
        more = f" and {len(ranks) - MAX_NAMED} more of {self.comm.size}" if len(ranks) > MAX_NAMED else ""
        return f"waiting for {named}{more} to {to} ({format_duration(seconds)})"

    def _note_death(self, rank: int, error: MPI.Exception) -> None:
        """Notes that a rank has died, with which a call failed with this error; raises the error where it has not."""
        from mpifl.transport.mpi import QUARANTINE, dead_ranks

        assert self.comm
        if rank not in dead_ranks(self.comm):
            raise error
        self._dead.add(rank)
        QUARANTINE.append(self._receives.pop(rank, None))

    def _post(self, rank: int, fields: dict[str, Any], arrays: Sequence[np.ndarray] = ()) -> None:
        """Starts to send a rank the fields of a JSON text, and then arrays."""
        assert self.comm
        self._sends += [self.comm.Isend(buffer, rank, SETUP) for buffer in setup_buffers(fields, arrays)]

    def _wait(self) -> None:
        """Waits for what is being sent."""
        wait(*self._sends)
        self._sends.clear()


def _kill(hellos: Sequence[Hello], own: Hello) -> None:
    """Ends the processes that this rank can name; one on another host ends itself (`client_rank.ClientRank`)."""
    for hello in hellos:
        if hello.shares_processes(own):
            with contextlib.suppress(ProcessLookupError):  # the process has just ended
                os.kill(hello.process, signal.SIGKILL)


def rank_resources(hellos: Sequence[Hello]) -> list[RankResources]:
    """What each rank has to compute with; a core that k ranks of a host may use counts 1/k for each."""
    users: Counter[tuple[str, int]] = Counter()
    for hello in hellos:
        users.update((hello.host, core) for core in _cores(hello))
    ranks_on_host = Counter(hello.host for hello in hellos)
    numbered: Counter[str] = Counter()
    result = []
    for rank, hello in enumerate(hellos):
        share = sum(1 / users[hello.host, core] for core in _cores(hello))
        share = min(share, hello.quota / ranks_on_host[hello.host])
        result.append(RankResources(hello.before + numbered[hello.host], max(1, int(share + 1e-9))))
        numbered[hello.host] += rank > 0  # rank 0 has no clients
    return result


def _cores(hello: Hello) -> list[int]:
    return [core for core in range(hello.core_mask.bit_length()) if hello.core_mask >> core & 1]


def array_specs(arrays: Sequence[np.ndarray]) -> list[Any]:
    """Shapes and dtypes, as `receive_arrays` takes them."""
    return [(a.shape, a.dtype.str) for a in arrays]


def setup_buffers(fields: dict[str, Any], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The buffers that `receive_json` and then `receive_arrays` receive, in order."""
    raw = json.dumps(fields).encode()
    return [np.array([len(raw)], np.int64), np.frombuffer(raw, np.uint8), *arrays]
