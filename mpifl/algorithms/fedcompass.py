"""FedCompass: the server asks each client for so many local steps that clients arrive in groups.

Li, Chaturvedi, He, Chen, Singh, Kindratenko, Huerta, Kim, Madduri, "FedCompass: Efficient Cross-Silo Federated Learning
on Heterogeneous Client Devices using a Computing Power Aware Scheduler", ICLR 2024, arXiv 2309.14675; the order of
operations is that of the scheduler in APPFL, which of a client's late models that wait applies the newest; here all.
The first messages ask for Qmax steps, without a group. A client without a group, or that comes after its group's latest
time, is answered at once: its update is applied, or kept for the next group. Others wait for their group, at most to
its latest time. The staleness of an update is that at its arrival; 1e-9 is added before rounding down.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import floor, inf
from typing import Annotated, Literal

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.local_solver import LocalTraining
from mpifl.config.types import Bounds, NonNegativeFloat, PositiveFloat, PositiveFraction, PositiveInt
from mpifl.errors import ConfigError
from mpifl.objective import Objective, Vector

NONE, LATE = -1, -2  # NONE: the client has no group; LATE: the key of late updates, which the next group takes


@dataclass(frozen=True)
class FedCompass(LocalTraining):
    """x <- x + (alpha/n) sum over a group's updates of s(tau_i) (y_i - x); then each gets its next steps and a group"""

    min_steps: PositiveInt = 20
    """fewest local steps of a contact (Qmin)"""
    max_steps: PositiveInt = 100
    """most local steps of a contact (Qmax)"""
    latest_factor: Annotated[float, Bounds(at_least=1)] = 1.2
    """a group's latest time is this times its expected duration after its first assignment (lambda)"""
    speed_momentum: PositiveFraction = 0.9
    """weight of the last contact in the running mean of a client's seconds a step (m)"""
    alpha: PositiveFloat = 0.9
    """mixing weight (alpha)"""
    staleness: Literal["constant", "polynomial"] = "constant"
    """s(tau): constant 1, or polynomial (tau + 1)^-a"""
    staleness_a: NonNegativeFloat = 0.5
    """a of s(tau)"""
    upload: Literal["model", "delta"] = "model"
    """model: y_i - x, x the present model, as in APPFL; delta: y_i - base_i, as in the paper"""
    local_steps: PositiveInt = field(default=1, init=False)
    local_epochs: PositiveInt | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_steps > self.max_steps:
            raise ConfigError("min_steps", self.min_steps, "above max_steps", f"at most {self.max_steps}")

    # -- server: updates -----------------------------------------------------------------------------------------------
    def server_vectors(self, clients: int) -> float:
        return min(clients, 3)  # a sum for each group that is under way, of which there are few

    def init_server(self, x0: Vector, clients: Clients) -> State:
        n = clients.n
        server = State(x=x0.copy(), n=n, now=0.0, groups=0, due=NONE, steps_now=False)
        server.q, server.start = dict.fromkeys(range(n), self.max_steps), dict.fromkeys(range(n), 0.0)
        server.group = dict.fromkeys(range(n), NONE)
        server.seconds, server.T, server.latest = {}, {}, {}  # seconds a step by client; times by group
        server.arrived, server.sums, server.weights = {}, {}, {}  # clients that wait; sum s y_i and sum s by group
        server.answer = {}  # clients that are answered now
        return server

    def message(self, server: State, i: int) -> Message:
        return Message((server.x,), (server.q[i],), work=server.q[i])

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        server.now, g = update.time, server.group[i]
        seconds, m = max(server.now - server.start[i], 1e-9) / server.q[i], self.speed_momentum
        server.seconds[i] = (1 - m) * server.seconds[i] + m * seconds if i in server.seconds else seconds
        late = g != NONE and server.now > server.latest[g]
        s = 1.0 if self.staleness == "constant" else (staleness + 1) ** -self.staleness_a
        key = LATE if late else g
        server.sums[key] = server.sums.get(key, 0) + s * update.vectors[0]
        server.weights[key] = server.weights.get(key, 0.0) + s
        server.arrived[i] = True
        server.due = g
        server.steps_now = not late and (g == NONE or len(self._waiting(server, g)) == len(self._members(server, g)))
        if late:
            self._assign(server, [i])

    def ready(self, server: State) -> bool:
        """A client without a group steps at once, a group when all its members have arrived."""
        return bool(server.steps_now)

    def alarm(self, server: State) -> float:
        """The earliest latest time of a group in which clients wait."""
        return min((server.latest[server.group[i]] for i in server.arrived), default=inf)

    def on_alarm(self, server: State, time: float) -> None:
        server.now = time
        server.due = min(
            ((server.latest[server.group[i]], server.group[i]) for i in server.arrived), default=(0, LATE)
        )[1]

    def aggregate(self, server: State) -> None:
        g = server.due
        members = self._waiting(server, g)
        keys = [key for key in ((NONE,) if g == NONE else (g, LATE)) if key in server.sums]
        change, weight = sum(server.sums.pop(k) for k in keys), sum(server.weights.pop(k) for k in keys)
        if self.upload == "model":
            change = change - weight * server.x
        server.x = server.x + (self.alpha / server.n) * change
        self._assign(server, members)

    def answers(self, server: State, waiting: list[int], aggregated: bool) -> list[int]:
        now, server.answer = [*server.answer], {}
        return [i for i in now if i in waiting]

    def on_client_lost(self, server: State, i: int) -> None:
        g, server.group[i] = server.group[i], NONE
        server.arrived.pop(i, None)
        if g in server.sums and not self._waiting(server, g):  # the lost client's update still counts
            server.sums[LATE] = server.sums.get(LATE, 0) + server.sums.pop(g)
            server.weights[LATE] = server.weights.get(LATE, 0.0) + server.weights.pop(g)

    # -- server: groups ------------------------------------------------------------------------------------------------
    def _members(self, server: State, g: int) -> list[int]:
        return [i for i, own in server.group.items() if own == g]

    def _waiting(self, server: State, g: int) -> list[int]:
        return [i for i in server.arrived if server.group[i] == g]

    def _assign(self, server: State, members: list[int]) -> None:
        """Gives these clients, the fastest first, their steps and groups; they are answered now."""
        for i in members:
            server.group[i] = NONE
            del server.arrived[i]
        for g in [g for g in server.T if not self._members(server, g)]:
            del server.T[g], server.latest[g]
        for i in sorted(members, key=lambda i: (server.seconds[i], i)):
            t, v = server.now, server.seconds[i]
            joins = {g: floor((T - t) / v + 1e-9) for g, T in server.T.items()}
            joins = {g: q for g, q in joins.items() if self.min_steps <= q <= self.max_steps}
            if joins:
                g = max(joins, key=lambda g: (joins[g], -g))
                q = joins[g]
            else:
                g, q = server.groups, self._steps_of_new_group(server, t, v)
                server.groups, server.T[g], server.latest[g] = g + 1, t + q * v, t + self.latest_factor * q * v
            server.group[i], server.q[i], server.start[i], server.answer[i] = g, q, t, True

    def _steps_of_new_group(self, server: State, t: float, v: float) -> int:
        """The most steps up to Qmax after which this client meets the next group of another's members; else Qmax."""
        found = []
        for g, latest in server.latest.items():
            if t < latest:
                fastest = min(server.seconds[j] for j in self._members(server, g))
                found.append(floor((latest + fastest * self.max_steps - t) / v + 1e-9))
        fitting = [q for q in found if q <= self.max_steps]
        return max(self.min_steps, *fitting) if fitting else self.max_steps

    # -- client --------------------------------------------------------------------------------------------------------
    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (base,), (q,) = message.vectors, message.numbers
        y, steps, _ = self.solve(objective, base, message.round, steps=int(q))
        return Update((y if self.upload == "model" else y - base,), steps)
