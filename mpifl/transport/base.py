"""What every transport offers the server, and the clients of a rank."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any, NamedTuple, Protocol

import numpy as np

from mpifl.algorithms.base import Algorithm, Message, Update
from mpifl.scheduling.base import UpdateSource


class PartStatus(NamedTuple):
    """A rank's part of a checkpoint: durable, or failed."""

    rank: int
    number: int  # of the checkpoint
    bytes: int
    crc: int
    error: str  # why it failed, or ""


class ServerTransport(UpdateSource, Protocol):
    """The server's end: messages to clients, their updates, and the ranks that host them."""

    rank_of: list[int]  # of each client
    live_ranks: set[int]
    unresponsive_ranks: set[int]  # those with a client that was abandoned
    stuck_ranks: set[int]  # those that `shut_down` has left running
    part_statuses: list[PartStatus]  # received; whoever handles them removes them
    signals: list[int]  # numbers of signals that other ranks have received

    def send(self, i: int, message: Message, delay: float) -> None:
        """Sends client i a message without waiting; the client holds its update back for `delay` seconds."""

    def expect_update(self, i: int, round: int) -> None:
        """Client i sends its update of this round without a message: it was in flight when the run was saved."""

    def release_update(self, i: int) -> None:
        """Frees the buffers of client i's update, whose vectors are not used any more."""

    def poll(self) -> None:
        """Handles what has arrived, without waiting."""

    def has_arrived(self, i: int) -> bool:
        """Whether client i's update or error has arrived; never waits."""

    def abandon_client(self, i: int) -> None:
        """Waits for client i no more; an update that still arrives is dropped."""

    def unreported_client_errors(self) -> set[int]:
        """Clients that have raised and that `pop_client_failures` has not returned."""

    def clients_on_dead_ranks(self) -> list[tuple[int, str]]:
        """Clients whose ranks have died, and why they failed; their updates that had arrived are dropped."""

    def rehost(self, i: int, saved: dict[str, Any] | None, consumed: list[np.ndarray]) -> str:
        """Moves client i to another rank; which one, in words, or "" where there is none.

        saved     which checkpoint has its snapshot (`client.checkpoint.ResumePayload`); None: it starts anew
        consumed  sums of what was consumed of it since, of each vector that telescopes
        """

    def send_marker(self, number: int) -> None:
        """Has every rank write its part of a checkpoint once it has processed the messages sent before."""

    def shut_down(self, code: int, timeout: float = inf) -> int:
        """Ends the run on all ranks; how many updates were in flight and are dropped.

        Ranks that send nothing for `timeout` seconds are left running.
        """


class ClientTransport(Protocol):
    """The end of the clients that one rank hosts."""

    def messages(self, most: int) -> Iterator[list[tuple[int, Message, float]]]:
        """(client, message, delay in seconds) of those that have arrived, at most so many, until the run ends."""

    def send_update(self, i: int, update: Update, delay: float) -> None:
        """Sends client i's update once `delay` seconds have passed since its message arrived."""

    def send_client_error(self, i: int, text: str) -> None:
        """Sends what client i raised."""

    def poll(self) -> None:
        """Sends and receives what is ready, without waiting; called while clients compute, where a device does that."""


def max_vectors(algorithm: Algorithm) -> int:
    """Most vectors in a message or an update."""
    return max(algorithm.vectors_up, algorithm.vectors_down)
