"""LEAF (Caldas et al., arXiv 1812.01097): a folder with train/ and test/, each of JSON files {users, user_data: {user:
{x, y}}}; every user is one client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from mpifl.config.types import NonNegativeInt, PositiveInt
from mpifl.errors import ConfigError, error_text
from mpifl.problems.data.folder import CLASSES, Part, Piece, files_ending_in, gather, located, warn_of_others
from mpifl.problems.problem import Data, Rows
from mpifl.rng import stream
from mpifl.safe_input import parse_json, read_file

JSON = ".json"  # ending of the files that are read, in any case
T = TypeVar("T")


@dataclass(frozen=True)
class Leaf(Data):
    """Users of LEAF JSON files whose x are lists of numbers; each user with rows is one client, in file order."""

    natural: ClassVar[bool] = True
    name: str = "leaf"
    path: str = ""
    """Folder with train/*.json and test/*.json: an existing path, else relative to the data root."""

    def read(self, root: Path, download: bool, clients: int | None) -> Rows:
        folder = located_halves(self.path, root)
        train, test = read_halves(folder, vectors, empty=True)
        return gather_users(train, test, folder)


@dataclass(frozen=True)
class LeafUsers(Data):
    """The base of LEAF's own data sets: where they are, and which of their users become clients."""

    natural: ClassVar[bool] = True
    name: str = ""
    path: str = ""
    """Folder with train/*.json and test/*.json: an existing path, else relative to the data root."""
    users: PositiveInt | None = None
    """Number of users, drawn at random from those with enough rows, in the order of the files; null: all of them."""
    min_samples: PositiveInt = 1
    """Smallest number of training rows of a user that becomes a client."""
    seed: NonNegativeInt = 0
    """Seed of the draw; the run's own seed does not change it."""

    def select(self, samples: np.ndarray, folder: Path) -> np.ndarray:
        """The indices of the users that become clients, from all users' numbers of training rows (users,)."""
        which = f"users with at least {self.min_samples} training rows"
        return select_users("users", self.users, samples >= self.min_samples, self.seed, folder, which)


def select_users(
    field: str, wanted: int | None, eligible: np.ndarray, seed: int, source: Path, which: str
) -> np.ndarray:
    """Draws `wanted` of the users that are `eligible` (users,) bool; returns their indices in order. None: all of them.

    `field` is the option with their number, `which` describes the eligible users. Raises ConfigError if `source` has
    too few.
    """
    indices = np.flatnonzero(eligible)
    if not len(indices):
        raise ConfigError("data file", source, f"it has no {which}", "at least one of them")
    if wanted is None:
        return indices
    if wanted > len(indices):
        raise ConfigError(
            f"problem.data.{field}", wanted, f"{source} has {len(indices)} {which}", f"at most {len(indices)}"
        )
    return np.sort(stream(seed, field).choice(indices, wanted, replace=False))


def located_halves(path: str, root: Path) -> Path:
    """The folder of `located`; logs how many files in its folders train and test are not read."""
    folder = located(path, root)
    for half in (folder / "train", folder / "test"):
        warn_of_others(half, files_ending_in((JSON,), half)[1], (JSON,))
    return folder


def read_halves(folder: Path, rows: Callable[[Any, Any], T], empty: bool = False) -> tuple[dict[str, T], dict[str, T]]:
    """Reads the users in `folder`/train, and in `folder`/test if it exists, with `read_users`."""
    train = read_users(folder / "train", rows, empty)
    if not train:
        raise ConfigError("data file", folder / "train", "no user has rows", "at least one user with rows")
    return train, read_users(folder / "test", rows, True) if (folder / "test").is_dir() else {}


def read_users(folder: Path, rows: Callable[[Any, Any], T], empty: bool) -> dict[str, T]:
    """Returns `rows(x, y)` of every user in all JSON files in `folder`, files in sorted order.

    `rows` raises ValueError with what is wrong. Users without rows are left out if `empty` is set, else an error."""
    files = json_files(folder)
    if not files:
        raise ConfigError("data file", folder / "*.json", "no such file", "at least one json file")
    users: dict[str, T] = {}
    for file in files:
        user = None
        try:
            content = parse_json(read_file(file))
            if unlisted := sorted(set(content["user_data"]) - set(content["users"])):
                raise ValueError(f"user_data has {unlisted[0]}, which users has not")
            for user in content["users"]:
                held = content["user_data"][user]
                if not len(held["y"]):
                    if not empty:
                        raise ValueError("no rows")
                    continue
                if user in users:
                    raise ValueError("another file has this user too")
                users[user] = rows(held["x"], held["y"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            wrong = (f"user {user}: " if user else "") + error_text(error)
            expected = "LEAF's JSON: users, and user_data with x and y of each"
            raise ConfigError("data file", file, wrong, expected) from error
    return users


def json_files(folder: Path) -> list[Path]:
    """The JSON files in `folder`, in sorted order."""
    return files_ending_in((JSON,), folder)[0]


def gather_users(train: Mapping[str, Part], test: Mapping[str, Part], folder: Path) -> Rows:
    """Joins the rows of the users in `train`, each of which is a client, and of those in `test`."""
    rows = [Piece(k, f"{folder}, user {user}", *part) for k, (user, part) in enumerate(train.items())]
    whose = by_client(test, train)
    return gather(rows, [Piece(k, f"{folder}, user {user}", *test[user]) for k, user in zip(whose, test, strict=True)])


def by_client(test: Mapping[str, T], users: Iterable[str]) -> dict[int, T]:
    """Returns the client of each test row: k for the k-th of `users`, negative for users without training rows."""
    known = {user: k for k, user in enumerate(users)}
    return {known.get(user, -1 - k): part for k, (user, part) in enumerate(test.items())}


def vectors(x: Any, y: Any) -> Part:
    """Returns rows (rows, features), float64, and their labels (rows,)."""
    rows = np.array(x, np.float64)
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise ValueError("x is not a list of rows of finite numbers")
    return rows, labels(y, len(rows))


def labels(y: Any, rows: int, classes: int | None = None) -> np.ndarray:
    """Returns y as (rows,) int64. Raises ValueError unless these are integers, below `classes` if that is given."""
    given = np.array(y)
    whole = given.shape == (rows,) and given.dtype.kind in "biuf" and np.isfinite(given).all()
    if not whole or (given % 1 != 0).any():
        raise ValueError(f"y is not a whole number for each of {rows} rows")
    if classes is not None and (given.min() < 0 or given.max() >= classes):
        raise ValueError(f"y has labels beyond 0 to {classes - 1}")
    if np.abs(given.astype(float)).max(initial=0) >= CLASSES:
        raise ValueError(f"y has labels of {CLASSES} or more")
    return given.astype(np.int64)
