"""The interface of the server's end of a transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Protocol

import numpy as np

from mpifl.algorithms.base import Message
from mpifl.scheduling.schedule import UpdateSource
from mpifl.transport.client_end import PartStatus

MAX_NAMED = 8  # clients that `describe_clients` names
QUIET = 8.0  # s without an update, or a last frame, after which the log says whom the server waits for
QUIET_INTERVAL = 60.0  # s between two such lines


class ServerTransport(UpdateSource, Protocol):
    """The server's end: messages to clients, their updates, and the ranks that host them."""

    rank_of: list[int]  # client -> the rank that hosts it
    live_ranks: set[int]
    unresponsive_ranks: set[int]  # ranks with a client that was abandoned
    stuck_ranks: set[int]  # ranks that `shut_down` has left running
    part_statuses: list[PartStatus]  # received reports of checkpoint parts; whoever handles one removes it
    signals: list[int]  # numbers of the signals that other ranks have received
    on_death: Callable[[Mapping[int, int]], None]  # called with each rank that has died -> how many clients it hosted

    @property
    def computing(self) -> Sequence[int]:
        """Clients that compute in this process at this instant."""

    def send(self, i: int, message: Message, delay: float) -> None:
        """Sends client i a message. Does not block. The client holds its update back for `delay` seconds."""

    def release_update(self, i: int) -> None:
        """Frees the buffers of client i's update; the caller does not use its vectors any more."""

    def poll(self) -> None:
        """Handles what has arrived. Does not block."""

    def has_arrived(self, i: int) -> bool:
        """True if client i's update or error has arrived. Does not block."""

    def cancel(self, i: int) -> None:
        """Takes back client i's message, if the client is lost before it computed."""

    def abandon_client(self, i: int) -> None:
        """Stops waiting for client i; an update that still arrives is dropped."""

    def unreported_client_errors(self) -> set[int]:
        """Clients that have raised and are not handled yet: those in `client_failures`, and those not due."""

    def clients_on_dead_ranks(self) -> list[tuple[int, str]]:
        """Clients whose ranks have died, and why they failed. Drops their updates that had arrived."""

    def rehost(self, i: int, saved: dict[str, Any] | None, consumed: list[np.ndarray]) -> str:
        """Moves client i to another rank; returns a clause that names the rank, or "" if there is none.

        Args:
            i: The client.
            saved: Where its snapshot is (`client.checkpointing.ResumePayload`); None: it begins with its initial state.
            consumed: For each vector in the algorithm's `increment_of`, the sum of what was consumed of it since.
        """

    def send_marker(self, number: int) -> None:
        """Has every rank write its part of a checkpoint once it has processed the messages sent before."""

    def shut_down(self, timeout: float = inf) -> int:
        """Ends the run on all ranks; returns how many updates were in flight and are dropped.

        Ranks that send nothing for `timeout` seconds are left running.
        """


def describe_clients(clients: Sequence[int], rank_of: Sequence[int]) -> str:
    """A clause that names clients and their rank: those on the rank of the first, the others counted."""
    rank = rank_of[clients[0]]
    here = [i for i in clients if rank_of[i] == rank]
    named = ", ".join(map(str, here[:MAX_NAMED])) + (", ..." if len(here) > MAX_NAMED else "")
    more = f" and {len(clients) - len(here):,} more on other ranks" if len(clients) > len(here) else ""
    return f"client{'s' if len(here) > 1 else ''} {named} on rank {rank}{more}"
