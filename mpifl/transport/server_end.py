"""The interface of the server's end of a transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from mpifl.algorithms.base import Message, Update
from mpifl.checkpoint.part import PartStatus
from mpifl.scheduling.clocks import UpdateSource
from mpifl.text import list_numbers

MAX_NAMED = 8  # clients that `describe_clients` names
QUIET_SECONDS = 8.0  # s without an update, or a last frame, after which the log says whom the server waits for
QUIET_INTERVAL = 60.0  # s between two such lines


class ServerTransport(UpdateSource):
    """The server's end: messages to clients, their updates (`UpdateSource`), and the ranks that host them.

    What it does by default is right where all clients live in the server's process.
    """

    def __init__(self, rank_of: list[int], live_ranks: set[int]) -> None:
        self.rank_of = rank_of  # client -> the rank that hosts it; 0: none does
        self.live_ranks = live_ranks  # ranks with clients that have not died
        self.client_failures: list[tuple[int, str]] = []
        self._errors: dict[int, str] = {}  # client -> why it failed, until its update is due
        self.unresponsive_ranks = set[int]()  # ranks with a client that was abandoned
        self.stuck_ranks = set[int]()  # ranks that `shut_down` has left running
        self.part_statuses: list[PartStatus] = []  # reports of checkpoint parts; whoever handles one removes it
        self.signals: list[int] = []  # numbers of the signals that other ranks have received
        # Called with each rank that has died -> how many clients it hosted.
        self.on_death: Callable[[Mapping[int, int]], None] = lambda hosted: None

    @property
    def computing(self) -> Sequence[int]:
        """Clients that compute in this process at this instant."""
        return ()

    def send(self, i: int, message: Message, delay: float) -> None:
        """Sends client i a message. Does not block. The client holds its update back for `delay` seconds."""
        raise NotImplementedError

    def keep_update(self, i: int, update: Update) -> Update:
        return update

    def release_update(self, i: int) -> None:
        """Frees the buffers of client i's update; the caller does not use its vectors any more."""
        raise NotImplementedError

    def poll(self) -> None:
        """Handles what has arrived. Does not block."""
        raise NotImplementedError

    def has_arrived(self, i: int) -> bool:
        """True if client i's update or error has arrived. Does not block."""
        return True  # a client of this process computes when its update is asked for

    def cancel(self, i: int) -> None:
        """Takes back client i's message, if the client is lost before it computed."""

    def abandon_client(self, i: int) -> None:
        """Stops waiting for client i; an update that still arrives is dropped."""

    def unreported_client_errors(self) -> set[int]:
        """Clients of live ranks whose error the server has not handled, due (`client_failures`) or not."""
        failed = (*self._errors, *(i for i, _ in self.client_failures))
        return {i for i in failed if self.rank_of[i] in self.live_ranks}

    def clients_on_dead_ranks(self) -> list[tuple[int, str]]:
        """Clients whose ranks have died, and why they failed. Drops their updates that had arrived."""
        return []

    def rehost(self, i: int, saved: dict[str, Any] | None, consumed: list[np.ndarray]) -> str:
        """Moves client i to another rank; returns a clause that names the rank, or "" if there is none.

        Args:
            i: The client.
            saved: Where its snapshot is (`client.checkpointing.ResumePayload`); None: it begins with its initial state.
            consumed: For each vector in the algorithm's `increment_of`, the sum of what was consumed of it since.
        """
        return ""

    def send_marker(self, number: int) -> None:
        """Has every rank write its part of a checkpoint once it has processed the messages sent before."""
        raise NotImplementedError

    def shut_down(self, timeout: float = inf) -> int:
        """Ends the run on all ranks; returns how many updates were in flight and are dropped.

        Ranks that send nothing for `timeout` seconds are left running.
        """
        raise NotImplementedError


def describe_clients(clients: Sequence[int], rank_of: Sequence[int]) -> str:
    """A clause that names clients and their rank: those on the rank of the first, the others counted."""
    rank = rank_of[clients[0]]
    here = [i for i in clients if rank_of[i] == rank]
    named = list_numbers("client", here[:MAX_NAMED]) + (", ..." if len(here) > MAX_NAMED else "")
    more = f" and {len(clients) - len(here):,} more on other ranks" if len(clients) > len(here) else ""
    return f"{named} on rank {rank}{more}"
