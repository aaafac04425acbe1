"""The interface of the clients' end of a transport, and what passes between both ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from mpifl.algorithms.base import Algorithm, Message, Update


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


class ClientTransport(Protocol):
    """The clients' end: messages to the clients of one rank, and their updates."""

    on_marker: Callable[[int], None]  # called with a checkpoint's number, between two messages
    on_poll: Callable[[], None]  # called now and then
    on_stop: Callable[[], None]  # called before the end of the run is confirmed

    def messages(self, most: int) -> Iterator[list[tuple[int, Message, float]]]:
        """Yields batches of the messages that have arrived, at most `most` in one, until the run ends.

        An item is (client, message, delay): its update may leave `delay` seconds after the message arrived.
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
