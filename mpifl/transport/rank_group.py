"""The ranks that compute a client together, over MPI: `problems.micro_batches.Group`.

The first rank, the leader, has the clients. What it asks of the others goes down a binary tree, and each receives the
model from one rank; their gradients come back up the tree of the sum. All messages are between two ranks, so a rank
notices where the one that it waits for has died. It then ends too: a group that is not whole computes nothing, and the
server sees its leader die.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from typing import Any, NamedTuple, cast
from zlib import crc32

import numpy as np

from mpifl.errors import MemberFailed, first_and_last_line, format_client_error
from mpifl.objective import Vector, from_numpy, to_numpy
from mpifl.signals import is_from_signal
from mpifl.transport.backoff import LONGEST_IDLE, Backoff, wait
from mpifl.transport.detection import is_fault_tolerant
from mpifl.transport.handshake import SETUP, array_specs, receive_arrays, receive_json, setup_buffers
from mpifl.transport.mpi import MPI, STUCK_TIMEOUT, dead_ranks
from mpifl.transport.rank_deaths import launcher_rank, on_death

log = logging.getLogger(__package__)

SUM, AGREE = 6, 7  # tags: parts of the sum, and what each member has computed; what the leader asks has SETUP


class Request(NamedTuple):
    """What the leader asks the others to call."""

    client: int
    name: str
    arguments: Mapping[str, Any]  # JSON-able
    arrays: Sequence[np.ndarray]


class RankGroup:
    """The ranks of a group, on each of them."""

    def __init__(self, comm: MPI.Comm, ranks: Sequence[int], d: int, dtype: np.dtype, signals: list[int]) -> None:
        """ranks: of `comm`, the leader first. signals: numbers of those that this rank has received."""
        self._comm, self._ranks, self._signals = comm, ranks, signals
        self.size, self.member = len(ranks), ranks.index(comm.rank)
        lowest = self.member & -self.member or 1 << (self.size - 1).bit_length()
        self._parent = self.member - lowest if self.member else None
        steps = [1 << k for k in reversed(range(lowest.bit_length() - 1))]
        self._children = [self.member + step for step in steps if self.member + step < self.size]
        self._part = np.empty(d, dtype)  # receive buffer of parts of sums
        self._sends: list[tuple[MPI.Request, Any]] = []  # sends in progress, with their buffers
        self._reported = 0  # signals that the rank above has been told

    # -- what is asked -------------------------------------------------------------------------------------------------
    def call(self, client: int, name: str, arguments: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> None:
        with self._whole():
            self._ask(self._children, {"client": client, "name": name, "arguments": arguments}, arrays)

    def stop(self) -> None:
        """Ends `requests` of the members below, of those that are there."""
        for k in self._children:
            with suppress(MPI.Exception):
                self._ask([k], {}, [])

    def _ask(self, members: Sequence[int], fields: dict[str, Any], arrays: Sequence[np.ndarray]) -> None:
        """Sends members a request, no fields for the last one; waits until they have it: the arrays may then change."""
        buffers = setup_buffers({**fields, "arrays": array_specs(arrays)}, arrays)
        wait(*(self._comm.Isend(each, self._ranks[k], SETUP) for k in members for each in buffers))

    def requests(self) -> Iterator[Request]:
        """What the leader asks of this member, until it ends that."""
        assert self._parent is not None
        above = self._ranks[self._parent]
        while True:
            with self._whole():
                fields = receive_json(self._comm, above)
                arrays = receive_arrays(self._comm, fields.pop("arrays"), above)
                if fields:
                    self._ask(self._children, fields, arrays)
            if not fields:
                self.stop()
                return
            yield Request(**fields, arrays=arrays)

    # -- the sum -------------------------------------------------------------------------------------------------------
    def compute(self, gradient: Callable[[], Vector]) -> Any:
        try:
            return gradient()
        except BaseException as error:  # whatever a user's code raises: the others must not wait
            if is_from_signal(error):
                raise
            return error

    def add(self, left: Any, right: Any, source: int, target: int) -> Any:
        with self._whole():
            if self.member == source != target:
                self._send(right, self._ranks[target])
                return None
            if source != target:
                right = self._receive(self._ranks[source])
        for part in (left, right):
            if isinstance(part, BaseException):
                return part
        left += from_numpy(right, left) if source != target else right
        return left

    def _send(self, part: Any, rank: int) -> None:
        """Starts to send a part of the sum, or the text of what was raised."""
        text = b""
        if isinstance(part, BaseException):
            text = format_client_error(self._comm.rank, part).encode()
        new = self._signals[self._reported : self._reported + 1]
        self._reported += len(new)
        for buffer in (np.array([len(text), *(new or [0])], np.int64), text or to_numpy(part)):
            self._sends.append((self._comm.Isend(buffer, rank, SUM), buffer))

    def _receive(self, rank: int) -> Any:
        """A part of the sum, which the next one overwrites, or what was raised."""
        wait(self._comm.Irecv(header := np.empty(2, np.int64), rank, SUM))
        length, number = header.tolist()
        if number:
            self._signals.append(number)
        text = bytearray(length)
        wait(self._comm.Irecv(text if length else self._part, rank, SUM))
        return MemberFailed(text.decode("utf-8", "replace")) if length else self._part

    def finish(self) -> None:
        """Waits until this member's parts of the sum are sent."""
        with self._whole():
            wait(*(request for request, _ in self._sends))
        self._sends.clear()

    # -- what each member computes by itself ---------------------------------------------------------------------------
    def agree(self, run: Callable[[], tuple[np.ndarray, int]], alike: bool = True) -> tuple[np.ndarray, int]:
        """What `run` returns on this member: an array and a number.

        alike: all members return the same; else each has an array of its own, and the number alone is the same.

        Where it has raised on one member, it raises that on the leader and MemberFailed on the others. Others may then
        be waiting inside it without end: if they do not come out of it within STUCK_TIMEOUT, this rank ends.
        """
        result = self.compute(run)
        failed = isinstance(result, BaseException)
        longest = STUCK_TIMEOUT if failed else inf
        told = format_client_error(self._comm.rank, result).encode() if failed else b""
        digest = 0 if failed else crc32(result[0].tobytes() if alike else b"", result[1])
        with self._whole():
            if self.member:
                header = np.array([len(told), digest], np.int64)
                sends = [self._comm.Isend(part, self._ranks[0], AGREE) for part in (header, told)[: 1 + failed]]
                self._wait_for(
                    self._comm.Irecv(any_failed := np.empty(1, np.int64), self._ranks[0], AGREE), longest, told
                )
                wait(*sends)
                if any_failed[0]:
                    raise MemberFailed("the leader has the reason")
                return result
            for rank in self._ranks[1:]:
                self._wait_for(self._comm.Irecv(header := np.empty(2, np.int64), rank, AGREE), longest, told)
                if header[0]:
                    wait(self._comm.Irecv(text := bytearray(int(header[0])), rank, AGREE))
                    result = result if failed else MemberFailed(text.decode("utf-8", "replace"))
                    failed = True
                elif not failed and header[1] != digest:
                    wrong = (
                        f"fit returned another model or number of steps on rank {rank} than on rank {self._ranks[0]}"
                    )
                    result, failed = RuntimeError(f"{wrong}; all ranks of a group must return the same"), True
            wait(*(self._comm.Isend(np.array([failed], np.int64), rank, AGREE) for rank in self._ranks[1:]))
        if isinstance(result, BaseException):
            raise result
        return result

    def _wait_for(self, request: MPI.Request, seconds: float, why: bytes) -> None:
        """Waits for a request; ends this process, for this reason, if it takes longer."""
        end, backoff = time.perf_counter() + seconds, Backoff(LONGEST_IDLE)
        while not request.Test():
            if time.perf_counter() > end:
                reason = first_and_last_line(why.decode())
                log.error("rank %d ends, as others of its group still train: %s", self._comm.rank, reason)
                os.kill(os.getpid(), signal.SIGKILL)
            backoff.pause()

    def gather(self, part: np.ndarray, parts: Sequence[slice]) -> np.ndarray:
        """(d,) on the leader: the vector of which each member has a part; on the others their own part."""
        with self._whole():
            if self.member:
                wait(self._comm.Isend(part, self._ranks[0], SETUP))
                return part
            whole = np.empty(parts[-1].stop, part.dtype)
            whole[parts[0]] = part
            wait(*(self._comm.Irecv(whole[p], rank, SETUP) for p, rank in zip(parts[1:], self._ranks[1:])))
            return whole

    @functools.cached_property
    def communicator(self) -> MPI.Comm:
        """A communicator of the group alone; all members call it at the same time."""
        comm = cast("MPI.Intracomm", self._comm)
        return comm.Create_group(comm.group.Incl(list(self._ranks)), self._ranks[0])

    # -- its end -------------------------------------------------------------------------------------------------------
    @contextmanager
    def watched(self) -> Iterator[None]:
        """Under ULFM ends this process when another rank of the group dies, also while it waits for rank 0 alone."""
        with ExitStack() as stack:
            for rank in self._ranks if is_fault_tolerant() else ():
                if rank != self._comm.rank:
                    act = functools.partial(self._end, f"rank {rank} of its group died")
                    stack.enter_context(on_death(launcher_rank(self._comm, rank), act))
            yield

    def _end(self, why: str) -> None:
        log.error("rank %d ends: %s", self._comm.rank, why)
        os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Ends this process where an MPI call of the block fails: the group has lost a rank."""
        try:
            yield
        except MPI.Exception as error:
            lost = sorted(dead_ranks(self._comm).intersection(self._ranks))
            self._end(f"rank {lost[0]} of its group died" if lost else str(error))
