"""Partitions of the training rows over the clients: each assigns every row to exactly one client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpifl.config.types import NonNegativeInt, PositiveInt
from mpifl.errors import ConfigError
from mpifl.problems.dirichlet import Dirichlet
from mpifl.problems.problem import Partition
from mpifl.rng import stream


@dataclass(frozen=True)
class Iid(Partition):
    """Shuffled rows in n equal parts (sizes differ by one at most)."""

    name: str = "iid"
    seed: NonNegativeInt = 0
    """Seed of the split; the run's own seed does not change it."""

    def owners(self, y: np.ndarray, classes: int, clients: int, batch: int) -> np.ndarray:
        return stream(self.seed, "partition").permutation(len(y)) % clients


@dataclass(frozen=True)
class NearIid(Partition):
    """Of every class clients 1 .. n-1 get floor(count/n) rows and client n gets the rest (arXiv 2405.10123, Fig. 2)."""

    name: str = "near-iid"
    seed: NonNegativeInt = 0
    """Seed of the split; the run's own seed does not change it."""

    def owners(self, y: np.ndarray, classes: int, clients: int, batch: int) -> np.ndarray:
        generator = stream(self.seed, "partition")
        owner = np.empty(len(y), np.int64)
        for label in range(classes):
            rows = generator.permutation(np.flatnonzero(y == label))
            part = len(rows) // clients
            place = np.arange(len(rows))
            owner[rows] = np.minimum(place // part, clients - 1) if part else clients - 1
        return owner


@dataclass(frozen=True)
class ClassesPerClient(Partition):
    """m classes per client: each class is split into n m / C equal shards, a client gets m of different classes."""

    name: str = "classes-per-client"
    m: PositiveInt = 2
    """Classes m that one client holds; n m must be a multiple of the number of classes C."""
    seed: NonNegativeInt = 0
    """Seed of the split; the run's own seed does not change it."""

    def owners(self, y: np.ndarray, classes: int, clients: int, batch: int) -> np.ndarray:
        if self.m > classes or clients * self.m % classes:
            wrong = f"the shards of {classes} classes do not go round {clients} clients"
            expected = f"at most {classes}, with {clients} * m a multiple of {classes}"
            raise ConfigError("problem.partition.m", self.m, wrong, expected)
        generator = stream(self.seed, "partition")
        left = np.full(classes, clients * self.m // classes)  # shards not assigned yet
        holders: list[list[int]] = [[] for _ in range(classes)]
        for client in generator.permutation(clients):
            # Classes with most shards left come first, ties at random: none keeps more shards than clients remain.
            for label in np.lexsort((generator.random(classes), -left))[: self.m]:
                left[label] -= 1
                holders[label].append(int(client))
        owner = np.empty(len(y), np.int64)
        for label, clients_of in enumerate(holders):
            rows = generator.permutation(np.flatnonzero(y == label))
            for client, part in zip(clients_of, np.array_split(rows, len(clients_of)), strict=True):
                owner[part] = client
        return owner


@dataclass(frozen=True)
class Natural(Partition):
    """The natural partition of the data: one device, user or file is one client."""

    name: str = "natural"

    def owners(self, y: np.ndarray, classes: int, clients: int, batch: int) -> np.ndarray:
        raise ConfigError("problem.partition", self.name, "these data do not come by client", "another partition")


PARTITIONS: dict[str, type[Partition]] = {
    "iid": Iid,
    "near-iid": NearIid,
    "dirichlet": Dirichlet,
    "classes-per-client": ClassesPerClient,
    "natural": Natural,
}
