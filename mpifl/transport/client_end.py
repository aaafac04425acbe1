"""The clients' end of a transport: its interface, that of the clients it serves, and what passes between both ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mpifl.algorithms.base import Algorithm, Message, Update
from mpifl.scheduling.due_queue import DueQueue
from mpifl.vector_memory import VectorMemory

if TYPE_CHECKING:
    from mpifl.checkpoint.part import PartStatus


class ClientError(NamedTuple):
    """Returned instead of an update: what a client raised, and where."""

    text: str


class Delivery(NamedTuple):
    """A message that has arrived at its client."""

    client: int
    message: Message
    due: float  # perf_counter at which the contact is over: the update leaves then, not before


class ClientTransport(Protocol):
    """The clients' end of a transport, as the clients of a rank use it."""

    on_marker: Callable[[int], None]  # called with a checkpoint's number, between two messages
    on_progress: Callable[[], None]  # called now and then
    on_stop: Callable[[], None]  # called before the end of the run is confirmed

    def send_update(self, i: int, update: Update) -> None:
        """Sends client i's update."""

    def send_client_error(self, i: int, text: str) -> None:
        """Sends what client i raised."""

    def send_part_status(self, status: PartStatus) -> None:
        """Reports this rank's part of a checkpoint: durable, or failed."""


class LocalClients(Protocol):
    """The clients of a rank, as a transport sees them (`client.worker.Worker`)."""

    link: ClientTransport  # where the updates go; the transport sets it
    memory: VectorMemory  # memory of the vectors that clients compute with
    max_deliveries: int  # maximum number of messages that `step` takes
    held: DueQueue[Update]  # updates whose contacts are not over, by perf_counter
    computing: Sequence[int]  # clients that compute at this instant
    last_updates: dict[int, Update]  # each client's last update, for checkpoints

    def step(self, deliveries: Sequence[Delivery]) -> None:
        """Trains clients on their messages; sends each update once its contact is over."""

    def release(self, now: float) -> float:
        """Sends the updates whose contacts are over at `now`; returns when the next one is (perf_counter)."""


def max_vectors(algorithm: Algorithm) -> int:
    """Most vectors in a message or an update."""
    return max(algorithm.vectors_up, algorithm.vectors_down)
