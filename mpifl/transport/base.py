"""The interfaces of a transport: the server's end and the clients' end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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


class ClientError(NamedTuple):
    """Returned instead of an update: what a client raised, and where."""

    text: str


class ServerTransport(UpdateSource, Protocol):
    """The server's end: messages to clients, their updates, and the ranks that host them."""

    rank_of: list[int]  # of each client
    live_ranks: set[int]
    unresponsive_ranks: set[int]  # those with a client that was abandoned
    stuck_ranks: set[int]  # those that `shut_down` has left running
    part_statuses: list[PartStatus]  # received; whoever handles them removes them
    signals: list[int]  # numbers of signals that other ranks have received
    computing: Sequence[int]  # clients that compute in this process at this instant
    on_death: Callable[[Mapping[int, int]], None]  # called with the ranks that have died -> their clients

    def send(self, i: int, message: Message, delay: float) -> None:
        """Sends client i a message without waiting; the client holds its update back for `delay` seconds."""

    def release_update(self, i: int) -> None:
        """Frees the buffers of client i's update, whose vectors are not used any more."""

    def poll(self) -> None:
        """Handles what has arrived, without waiting."""

    def has_arrived(self, i: int) -> bool:
        """Whether client i's update or error has arrived; never waits."""

    def cancel(self, i: int) -> None:
        """Takes back client i's message, if it is lost before it computed."""

    def abandon_client(self, i: int) -> None:
        """Stops waiting for client i; an update that still arrives is dropped."""

    def unreported_client_errors(self) -> set[int]:
        """Clients that have raised and that `pop_client_failures` has not returned."""

    def clients_on_dead_ranks(self) -> list[tuple[int, str]]:
        """Clients whose ranks have died, and why they failed; their updates that had arrived are dropped."""

    def rehost(self, i: int, saved: dict[str, Any] | None, consumed: list[np.ndarray]) -> str:
        """Moves client i to another rank; returns a clause that names it, or "" where there is none.

        saved     which checkpoint has its snapshot (`client.checkpoint.ResumePayload`); None: its initial state
        consumed  for each vector in the algorithm's `increment_of`, the sum of what was consumed of it since
        """

    def send_marker(self, number: int) -> None:
        """Has every rank write its part of a checkpoint once it has processed the messages sent before."""

    def shut_down(self, code: int, timeout: float = inf) -> int:
        """Ends the run on all ranks; returns how many updates were in flight and are dropped.

        Ranks that send nothing for `timeout` seconds are left running.
        """


class ClientTransport(Protocol):
    """The clients' end: messages to the clients of one rank, and their updates."""

    on_marker: Callable[[int], None]  # called for a checkpoint's number, between two messages
    on_poll: Callable[[], None]  # called now and then
    on_stop: Callable[[], None]  # called before the end of the run is confirmed

    def messages(self, most: int) -> Iterator[list[tuple[int, Message, float]]]:
        """Batches of the messages that have arrived, at most `most` in one, until the run ends.

        Of each: client, message, and the delay (s) until its update may leave.
        """

    def send_update(self, i: int, update: Update, delay: float) -> None:
        """Sends client i's update once `delay` seconds have passed since its message arrived."""

    def send_client_error(self, i: int, text: str) -> None:
        """Sends what client i raised."""

    def poll(self) -> None:
        """Sends and receives what is ready, without waiting; called while a device computes."""


class ResumableTransport(Protocol):
    """The part of a clients' end that checkpoints use; the in-process transport implements it as well."""

    on_marker: Callable[[int], None]
    on_poll: Callable[[], None]
    on_stop: Callable[[], None]

    def send_client_error(self, i: int, text: str) -> None:
        """Sends what client i raised."""

    def resend_update(self, i: int, update: Update, delay: float) -> None:
        """Sends client i's update, which was in flight when the run was saved, once `delay` seconds have passed."""

    def remaining_delays(self) -> dict[int, float]:
        """For how long updates are still held back (s), by client."""

    def send_part_status(self, number: int, bytes: int, crc: int, error: str) -> None:
        """Reports this rank's part of a checkpoint: durable, or failed."""


def max_vectors(algorithm: Algorithm) -> int:
    """Most vectors in a message or an update."""
    return max(algorithm.vectors_up, algorithm.vectors_down)
