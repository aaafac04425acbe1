"""AREA with an attack: how well the rows of a contact can be reconstructed from what the server sees of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.config.types import NonNegativeInt
from mpifl.objective import Objective, Vector
from mpifl.problems.models.logistic import LogisticObjective
from mpifl.problems.rows import take_rows

RECOVERED = 0.1  # largest relative error of a row that counts as recovered
ITERATIONS = 300  # of the optimiser that matches gradients
NAMES = "gradient_error", "recovered", "row_error", "label_error", "error_ratio"


@dataclass(frozen=True)
class Exposed(Area):
    """AREA; each client also measures, at one contact, what could be reconstructed of the rows of its local steps.

    The attack has more than a server has: it knows the local step, M, the batch size and the labels of the rows. It
    takes (x_s - y_i)/(alpha M) for the gradient at x_s of one batch of all the rows.
    """

    sees: Literal["update", "message", "messages"] = "messages"
    """update, x_s - y_i as FedBuff sends it; message, minus the residual m_i; messages, x_s - (x_0 + sum of all m_i)"""
    contact: NonNegativeInt = 3
    """the contact of each client that is attacked, counted from 0"""

    def init_server(self, x0: Vector, clients: Clients) -> State:
        server = super().init_server(x0, clients)
        server.attacked, server.totals = 0, np.zeros(len(NAMES))
        return server

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        super().receive(server, i, update, staleness)
        if update.numbers:
            server.attacked, server.totals = server.attacked + 1, server.totals + np.array(update.numbers)

    def aggregate(self, server: State) -> None:
        super().aggregate(server)
        if server.attacked:
            server.log(**dict(zip(NAMES, server.totals / server.attacked, strict=True)))

    def init_client(self, x0: Vector, i: int) -> State:
        return State(y=x0, x_0=x0, sum=0 * x0)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        update = super().train(client, message, objective)
        (x_s,), (m,) = message.vectors, update.vectors
        client.sum = client.sum + m
        if message.round != self.contact:
            return update
        true = x_s - client.y
        seen = {"update": true, "message": -m, "messages": x_s - (client.x_0 + client.sum)}[self.sees]
        steps = objective.batches(message.round, self.local_steps)
        rows = np.concatenate([take_rows(objective.x, batch) for batch in steps])
        labels = np.concatenate([take_rows(objective.y, batch) for batch in steps])
        gradient = seen / (self.client_step(objective, message.numbers[0]) * len(steps))
        attack = class_means if isinstance(objective, LogisticObjective) else matched_rows
        errors = row_errors(rows, labels, attack(gradient, x_s, labels, rows.shape[1]))
        means = other_means(objective.x, objective.y, rows, labels)
        error = float(np.linalg.norm(seen - true) / np.linalg.norm(true))
        found, mean, label = (
            float(np.mean(errors <= RECOVERED)),
            float(errors.mean()),
            float(relative(rows, means).mean()),
        )
        return update._replace(numbers=(error, found, mean, label, mean / label if label else np.inf))


def relative(rows: np.ndarray, found: np.ndarray) -> np.ndarray:
    """(k,) ||row - found||/||row||, rows and what was found for them (k, features)."""
    return np.asarray(np.linalg.norm(rows - found, axis=1) / np.linalg.norm(rows, axis=1))


def other_means(x: np.ndarray, y: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(k, features) for each of k rows the mean of the client's other rows with its label; 0 where there is none."""
    same = labels[:, None] == y
    return np.asarray((same @ x - rows) / np.maximum(1, same.sum(1, keepdims=True) - 1))


def row_errors(rows: np.ndarray, labels: np.ndarray, found: np.ndarray) -> np.ndarray:
    """(k,) the relative error of each row, by the nearest of the reconstructed rows with its label."""
    return np.array(
        [relative(row[None], found[labels == label]).min() for row, label in zip(rows, labels, strict=True)]
    )


def class_means(gradient: np.ndarray, x: np.ndarray, labels: np.ndarray, features: int) -> np.ndarray:
    """(k, features) for each of k rows the mean of those with its label, from a gradient of logistic regression.

    The model has a bias. The gradient is G = mean of a (p - e)', and h = mean of p - e, of rows a with probabilities p
    and labels e. With q = h + (mean of e), the mean p, and if p is the same for all rows, G_c = q_c abar - (k_c/k)
    abar_c. As rows are between 0 and 1, abar is at least G_c/q_c, and equal to it for a class without rows. Exact for
    one row, and for equal p if a class has no rows.
    """
    classes, k = gradient.size // (features + 1), len(labels)
    G, h = gradient[: features * classes].reshape(features, classes), gradient[features * classes :]
    shares = np.bincount(labels, minlength=classes) / k
    q = h + shares
    q = np.where(np.abs(q) < 1e-12, 1e-12, q)
    mean = (G / q).max(1)
    return np.clip(((q * mean[:, None] - G)[:, labels] / shares[labels]).T, 0, 1)


def matched_rows(gradient: np.ndarray, x: np.ndarray, labels: np.ndarray, features: int) -> np.ndarray:
    """(k, features) rows between 0 and 1 whose gradient at x has the direction of the given one, for the model mlp.

    Adam on 1 - cosine of the two gradients, from uniform rows (Geiping et al., arXiv 2003.14053, without their prior).
    """
    import torch

    classes = 1 + int(labels.max())
    hidden = next(m for m in range(1, x.size) if (features + 1) * m + (m + 1) * 10 == x.size)
    shapes = [(features, hidden), (hidden,), (hidden, 10), (10,)]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    assert ends[-1] == x.size and classes <= 10
    weights = [
        torch.tensor(part.reshape(shape), requires_grad=True)
        for part, shape in zip(np.split(x, ends[:-1]), shapes, strict=True)
    ]
    target, y = torch.tensor(gradient), torch.tensor(labels)
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand((len(labels), features), generator=generator, dtype=target.dtype).requires_grad_()
    optimizer = torch.optim.Adam([rows], 0.1)
    for _ in range(ITERATIONS):
        scores = torch.relu(rows @ weights[0] + weights[1]) @ weights[2] + weights[3]
        loss = torch.nn.functional.cross_entropy(scores, y)
        found = torch.cat([part.flatten() for part in torch.autograd.grad(loss, weights, create_graph=True)])
        mismatch = 1 - (found @ target) / (found.norm() * target.norm())
        (rows.grad,) = torch.autograd.grad(mismatch, [rows])
        optimizer.step()
        with torch.no_grad():
            rows.clamp_(0, 1)
    return rows.detach().numpy()
