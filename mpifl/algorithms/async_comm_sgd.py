"""AsyncCommSGD: local SGD of clients at equal pace, each of which contacts the server after any number of steps.

Avdiukhin and Kasiviswanathan, "Federated Learning under Arbitrary Communication Patterns", ICML 2021, PMLR 139.
Implemented from the paper's description: the change of a client's model since its last contact is added to the global
model with weight 1/n, and the client continues from the global model. The server draws the number of steps to the next
contact and sends it with the model. Contacts at the same time are processed one after another.
Equal pace depends on the clock: with `delay: {name: speed}` a contact takes its steps times the client's time per step;
with other delay models its duration does not depend on its steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.local_solver import LocalTraining
from mpifl.algorithms.common.vectors import add, mean_step, zeros
from mpifl.algorithms.participation import Reply, Trigger
from mpifl.config.types import Bounds, PositiveInt, check_length
from mpifl.objective import Objective, Vector
from mpifl.rng import stream

Gap = Annotated[int, Bounds(at_least=1, at_most=2**31)]


@dataclass(frozen=True)
class AsyncCommSgd(LocalTraining):
    """x <- x + (1/n) (y_i - base_i), y_i after the steps drawn for client i's contact"""

    gap: Gap | list[Gap] = 10
    """local steps from one contact to the next, the largest if drawn: a number, or a list with one per client"""
    draw: Literal["uniform", "fixed"] = "uniform"
    """how the steps of each contact are drawn: uniform from 1 to gap, or fixed: gap itself"""
    trigger: Trigger = field(default_factory=lambda: Trigger(every=1))
    """when the server adds the accumulated changes"""
    reply: Reply = "after"
    """reply to a sender before or after the aggregation that it triggers, or deferred to the next one"""
    local_steps: PositiveInt = field(default=1, init=False)
    local_epochs: PositiveInt | None = field(default=None, init=False)

    def validate(self, clients: int) -> None:
        super().validate(clients)
        check_length("gap", self.gap, clients)

    def update_weights(self, clients: Clients) -> float:
        return 1 / clients.n

    def steps(self, seed: int, i: int, contact: int) -> int:
        """The local steps of a contact of client i; a function of (seed, i, contact) alone."""
        gap = self.gap[i] if isinstance(self.gap, Sequence) else self.gap
        return int(stream(seed, "gap", i, contact).integers(1, gap + 1)) if self.draw == "uniform" else int(gap)

    def init_server(self, x0: Vector, clients: Clients) -> State:
        contacts = dict.fromkeys(range(clients.n), 0)
        return State(x=x0.copy(), sum=zeros(x0), contacts=contacts, n=clients.n, seed=clients.seed)

    def message(self, server: State, i: int) -> Message:
        steps = self.steps(server.seed, i, server.contacts[i])
        return Message((server.x,), (float(steps),), work=steps)

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        server.sum = add(server.sum, update.vectors[0])
        server.contacts[i] += 1

    def aggregate(self, server: State) -> None:
        server.x = mean_step(server.x, server.sum, server.n)
        server.sum = zeros(server.sum)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (base,), (steps,) = message.vectors, message.numbers
        y, taken, _ = self.solve(objective, base, message.round, steps=int(steps))
        return Update((y - base,), taken)
