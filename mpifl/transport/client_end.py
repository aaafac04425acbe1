"""The clients' end of a transport: its interface, that of the clients it serves, and what passes between both ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from mpifl.algorithms.base import Algorithm, Message, Update
from mpifl.scheduling.due_queue import DueQueue
from mpifl.vector_memory import VectorMemory


class PartStatus(NamedTuple):
    """A rank's part of a checkpoint: durable, or failed."""

    rank: int
    number: int  # the checkpoint's number
    bytes: int
    crc: int
    error: str  # why it failed, or ""


class ClientError(NamedTuple):
    """Returned instead of an update: what a client raised, and where."""

    text: str


class Delivery(NamedTuple):
    """A message that has arrived at its client."""

    client: int
    message: Message
    due: float  # perf_counter at which the contact is over: the update leaves then, not before


class UpdateSink(Protocol):
    """Where a rank's clients send what they have computed."""

    def send_update(self, i: int, update: Update) -> None:
        """Sends client i's update."""

    def send_client_error(self, i: int, text: str) -> None:
        """Sends what client i raised."""


class LocalClients(Protocol):
    """The clients of a rank, as a transport sees them (`client.worker.Worker`)."""

    link: UpdateSink  # sink of the updates; the transport sets it
    memory: VectorMemory  # memory of the vectors that clients compute with
    batch_size: int  # maximum number of messages that `step` takes
    held: DueQueue[Update]  # updates whose contacts are not over, by perf_counter

    @property
    def computing(self) -> Sequence[int]:
        """Clients that compute at this instant."""

    def step(self, deliveries: Sequence[Delivery]) -> None:
        """Trains clients on their messages; sends each update once its contact is over."""

    def release(self, now: float) -> float:
        """Sends the updates whose contacts are over at `now`; returns when the next one is (perf_counter)."""

    def forget_update(self, i: int) -> None:
        """Frees client i's last update, which the server has consumed."""


class CheckpointEvents(Protocol):
    """What both transports call and offer so that a rank can write its part of a checkpoint."""

    on_marker: Callable[[int], None]  # called with a checkpoint's number, between two messages
    on_progress: Callable[[], None]  # called now and then
    on_stop: Callable[[], None]  # called before the end of the run is confirmed

    def send_part_status(self, number: int, bytes: int, crc: int, error: str) -> None:
        """Reports this rank's part of a checkpoint: durable, or failed."""


class ClientTransport(UpdateSink, CheckpointEvents, Protocol):
    """The clients' end of a transport between processes."""

    def messages(self, most: int) -> Iterator[list[Delivery]]:
        """Yields batches of the messages that have arrived, at most `most` in one, until the run ends."""

    def poll(self) -> None:
        """Sends and receives what is ready, without waiting; called while a device computes."""


def max_vectors(algorithm: Algorithm) -> int:
    """Most vectors in a message or an update."""
    return max(algorithm.vectors_up, algorithm.vectors_down)
