"""FedAMP: every client is sent a mixture of all clients' models, in which models similar to its own have most weight.

Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data", AAAI 2021, arXiv 2007.03797, Algorithm 1;
`attention: cosine` is its HeurFedAMP. alpha_k is one number for the whole run. The local solver starts from u_i, which
the paper leaves open, and the proximal term is squared as printed (a released code has the norm itself).
There is no shared model: the mean of the clients' models is evaluated in its place. The server keeps 2 n models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.rounds import SynchronousRounds
from mpifl.config.types import Fraction, NonNegativeFloat, PositiveFloat
from mpifl.errors import ConfigError
from mpifl.objective import Objective, Vector

TINY = 1e-300  # avoids division by 0: the norm of a zero model, the sum over no other clients


@dataclass(frozen=True)
class FedAMP(SynchronousRounds):
    """u_i = sum_j xi_ij w_j, xi_ij = alpha A'(||w_i - w_j||^2), A(t) = 1 - exp(-t/sigma); w_i ~ prox of F_i at u_i"""

    attention: Literal["exponential", "cosine"] = "exponential"
    """xi_ij: exponential, alpha A'(||w_i - w_j||^2); cosine, a softmax over j of sigma cos(w_i, w_j) (HeurFedAMP)"""
    attention_step: PositiveFloat | None = None
    """step on the attention term (alpha_k), at most sigma/(n-1); null: sigma/n (exponential), 1 (cosine)"""
    sigma: PositiveFloat = 1.0
    """scale of A, in units of a squared distance between models; cosine: factor on the cosine"""
    self_weight: Fraction = 0.5
    """xi_ii of the cosine form (that of the exponential form follows from the others)"""
    proximal: NonNegativeFloat = 1.0
    """lambda of the local term lambda/(2 alpha_k) ||w - u_i||^2"""

    personal_models: ClassVar[bool] = True
    needs = {"a proximal term": "proximal"}

    def validate(self, clients: int) -> None:
        super().validate(clients)
        if self.attention == "exponential" and self.alpha(clients) * (clients - 1) > self.sigma * (1 + 1e-12):
            most = self.sigma / (clients - 1)
            raise ConfigError(
                "attention_step",
                self.attention_step,
                "some weight xi_ii is negative",
                f"at most sigma/(n-1) = {most:g}",
            )

    def alpha(self, n: int) -> float:
        """alpha_k for n clients."""
        return self.attention_step or (self.sigma / n if self.attention == "exponential" else 1.0)

    def server_vectors(self, clients: int) -> float:
        return 2 * clients  # w in float64, from which the weights are computed

    def init_server(self, x0: Vector, clients: Clients) -> State:
        w = np.tile(x0, (clients.n, 1))
        return State(x=x0.copy(), sum=0 * x0, w=w, u=w.copy(), samples=clients.samples)

    def message(self, server: State, i: int) -> Message:
        return Message((server.u[i],))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        server.w[i] = update.vectors[0]
        super().receive(server, i, update, staleness)

    def aggregate(self, server: State) -> None:
        super().aggregate(server)
        server.u = self.attend(server.w).astype(server.x.dtype) @ server.w

    def attend(self, w: np.ndarray) -> np.ndarray:
        """(n, n) the weights xi from the models w, (n, d); each row sums to 1."""
        n, w = len(w), w.astype(np.float64)
        products, squares = w @ w.T, np.einsum("ij,ij->i", w, w)
        if self.attention == "exponential":
            distances = squares[:, None] + squares - 2 * products
            xi = self.alpha(n) / self.sigma * np.exp(-np.maximum(distances, 0) / self.sigma)
            np.fill_diagonal(xi, 0)
        else:
            norms = np.sqrt(np.maximum(squares, TINY))
            cosines = products / (norms[:, None] * norms)
            np.fill_diagonal(cosines, -np.inf)
            largest = np.maximum(cosines.max(1, keepdims=True), -1)
            xi = np.exp(self.sigma * (cosines - largest))
            xi *= (1 - self.self_weight) / np.maximum(xi.sum(1, keepdims=True), TINY)
        np.fill_diagonal(xi, 1 - xi.sum(1))
        return xi

    def init_client(self, x0: Vector, i: int) -> State:
        return State(w=x0)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (u_i,) = message.vectors
        weight = self.proximal / self.alpha(objective.clients)
        client.w, steps, _ = self.solve(objective, u_i, message.round, weight=weight, centre=u_i)
        return Update((client.w,), steps)

    def personal_model(self, client: State) -> Vector:
        return client.w
