"""AsyncCommSGD: local SGD whose clients all step at the same pace, and meet the server after any number of steps.

Avdiukhin and Kasiviswanathan, "Federated Learning under Arbitrary Communication Patterns", ICML 2021, PMLR 139.
Written after the paper's description: what a client has moved since its last contact enters the global model with the
weight 1/n, and the client goes on from the global model. The server draws the steps to the next contact and sends them
with the model. Clients that come at the same time are served one after another.
Equal pace is up to the clock: `delay: {name: speed}` takes a contact's steps times a client's time for one; with other
delays a contact takes the same time whatever its steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.local import Local
from mpifl.algorithms.common.participation import Trigger
from mpifl.errors import ConfigError, choice
from mpifl.objective import Objective, Vector
from mpifl.rng import stream


@dataclass(frozen=True)
class AsyncCommSgd(Local):
    """x <- x + (1/n) (y_i - base_i), y_i after as many steps as time went by since client i's last contact"""

    gap: int | list[int] = 10
    """local steps from one contact to the next, at most where they are drawn: one number, or a list, one a client"""
    draw: str = "uniform"
    """how each gap is drawn: uniform from 1 to gap, or fixed: gap itself"""
    trigger: Trigger = field(default_factory=lambda: Trigger(every=1))
    """when the server adds what has come"""
    reply: str = "after"
    """a sender is answered before or after the aggregation that it triggers, or deferred to the next one"""
    local_steps: int = field(default=1, init=False)
    local_epochs: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("draw", self.draw, ("uniform", "fixed"))
        for gap in self.gap if isinstance(self.gap, Sequence) else [self.gap]:
            if gap != int(gap) or not 1 <= gap <= 2**31:
                raise ConfigError("gap", gap, "a whole number from 1 to 2**31")

    def validate(self, clients: int) -> None:
        super().validate(clients)
        if isinstance(self.gap, Sequence) and len(self.gap) != clients:
            raise ConfigError("gap", f"{len(self.gap)} values", f"one number, or {clients}: one a client")

    def steps(self, seed: int, i: int, contact: int) -> int:
        """The local steps of client i's contact: the same on every clock and link."""
        gap = self.gap[i] if isinstance(self.gap, Sequence) else self.gap
        return int(stream(seed, "gap", i, contact).integers(1, gap + 1)) if self.draw == "uniform" else int(gap)

    def init_server(self, x0: Vector, clients: Clients) -> State:
        contacts = dict.fromkeys(range(clients.n), 0)
        return State(x=x0.copy(), sum=0 * x0, contacts=contacts, n=clients.n, seed=clients.seed)

    def message(self, server: State, i: int) -> Message:
        steps = self.steps(server.seed, i, server.contacts[i])
        return Message((server.x,), (float(steps),), work=steps)

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        server.sum += update.vectors[0]
        server.contacts[i] += 1

    def aggregate(self, server: State) -> None:
        server.x = server.x + server.sum / server.n
        server.sum[:] = 0

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (base,), (steps,) = message.vectors, message.numbers
        y, taken, _ = self.solve(objective, base, message.round, steps=int(steps))
        return Update((y - base,), taken)
