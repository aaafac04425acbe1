"""LEAF's two sets of text (Caldas et al., arXiv 1812.01097) from its own JSON files: tweets, and Shakespeare."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mpifl.config.types import PositiveInt
from mpifl.problems.data.cache import Arrays, cached
from mpifl.problems.data.leaf import LeafUsers, by_client, json_files, labels, located_halves, read_halves
from mpifl.problems.data.shakespeare import CHARACTERS, encoded
from mpifl.problems.problem import Rows, Tokens

T = TypeVar("T")

TEXT = 4  # index of the text in a tweet: id, date, query, user, text
PADDING, UNKNOWN, FIRST = 0, 1, 2  # tokens; FIRST: the first of the words
WINDOW = 80  # characters in a row of LEAF's Shakespeare
NOBODY, LEFT_OUT = -1, -2  # owners of a row: no user, a user who is left out


@dataclass(frozen=True)
class LeafText(LeafUsers):
    """The base of LEAF's text: each row is `window` tokens of its own, one after the other in the token file."""

    @abstractmethod
    def _tokenised(self, folder: Path) -> Arrays:
        """What `arrays` returns, of all users in `folder`."""

    def _rows(self, root: Path, options: Mapping[str, object], window: int, vocabulary: int, classes: int) -> Rows:
        folder = located_halves(self.path, root)
        train, test = (json_files(folder / half) for half in ("train", "test"))
        options = {**options, "training files": len(train)}
        cache = cached(self.name, options, train + test, lambda: self._tokenised(folder))
        y, owner, y_test, owner_test = (
            np.load(cache / f"{part}.npy") for part in ("y", "owner", "y_test", "owner_test")
        )
        samples = np.bincount(owner)
        chosen = self.select(samples, folder)
        clients = np.full(len(samples) + 1, LEFT_OUT)
        clients[chosen] = range(len(chosen))
        clients[NOBODY] = NOBODY  # the last entry, which belongs to no user
        owner, owner_test = clients[owner], clients[owner_test]
        x, x_test = np.flatnonzero(owner != LEFT_OUT), np.flatnonzero(owner_test != LEFT_OUT)
        return Rows(
            x[:, None] * window,
            y[x],
            (x_test[:, None] + len(y)) * window,
            y_test[x_test],
            classes,
            owner=owner[x],
            owner_test=owner_test[x_test],
            tokens=Tokens(cache / "tokens.npy", window, vocabulary),
        )


@dataclass(frozen=True)
class Sent140(LeafText):
    """LEAF's Sent140: whether a tweet is positive, 2 classes, rows of `window` words; a client is an author of tweets.

    Words are split as in LEAF, with upper and lower case, and cut and padded at the end. Departures: no GloVe vectors,
    so the vocabulary is that of the most frequent words of all users' training texts, not GloVe's; and padding has an
    index of its own. Users that are left out have no test rows either.
    """

    name: str = "sent140"
    path: str = "sent140"
    """Folder with train/*.json and test/*.json: an existing path, else relative to the data root."""
    vocabulary: PositiveInt = 10000
    """Size of the vocabulary: the most frequent words. Padding and unknown words have two more indices, 0 and 1."""
    window: PositiveInt = 25
    """Words in one row; the rest of a longer tweet is cut off."""

    def read(self, root: Path, download: bool, clients: int | None) -> Rows:
        options = {"vocabulary": self.vocabulary, "window": self.window}
        return self._rows(root, options, self.window, self.vocabulary + FIRST, classes=2)

    def _tokenised(self, folder: Path) -> Arrays:
        from collections import Counter

        train, test = read_halves(folder, tweets)
        counts = Counter(word for texts, _ in train.values() for text in texts for word in words(text))
        known = sorted(counts, key=lambda word: (-counts[word], word))[: self.vocabulary]
        index = {word: k for k, word in enumerate(known, FIRST)}
        dtype = np.min_scalar_type(self.vocabulary + FIRST - 1)

        def indices(texts: list[str]) -> np.ndarray:
            rows = np.full((len(texts), self.window), PADDING, dtype)
            for row, text in zip(rows, texts):
                found = [index.get(word, UNKNOWN) for word in words(text)[: self.window]]
                row[: len(found)] = found
            return rows

        return arrays(train, test, indices)


@dataclass(frozen=True)
class LeafShakespeare(LeafText):
    """LEAF's Shakespeare: the next of 80 characters from the 80 before it; a client is a role of a play.

    A character that is not among the 80 counts as a space; in LEAF its index is -1. Roles that are left out have no
    test rows either.
    """

    name: str = "leaf-shakespeare"
    path: str = "leaf-shakespeare"
    """Folder with train/*.json and test/*.json: an existing path, else relative to the data root."""

    def read(self, root: Path, download: bool, clients: int | None) -> Rows:
        return self._rows(root, {}, WINDOW, len(CHARACTERS), classes=len(CHARACTERS))

    def _tokenised(self, folder: Path) -> Arrays:
        train, test = read_halves(folder, windows)
        return arrays(train, test, lambda rows: rows)


def arrays(
    train: Mapping[str, tuple[T, np.ndarray]],
    test: Mapping[str, tuple[T, np.ndarray]],
    encode: Callable[[T], np.ndarray],
) -> Arrays:
    """Tokens of all rows, training rows first, and of both halves the rows' labels and users, in the training files'
    order; `encode` makes tokens (rows, window) of a user's texts."""
    y, y_test = [part for _, part in train.values()], [part for _, part in test.values()]
    whose = np.maximum(np.array(list(by_client(test, train)), np.int64), NOBODY)
    return {
        "tokens": np.concatenate([encode(texts) for texts, _ in (*train.values(), *test.values())]).ravel(),
        "y": np.concatenate(y),
        "owner": np.repeat(np.arange(len(y)), [len(part) for part in y]),
        "y_test": np.concatenate([*y_test, y[0][:0]]),
        "owner_test": np.repeat(whose, [len(part) for part in y_test]),
    }


def words(text: str) -> list[str]:
    """LEAF's words: runs of letters, digits and apostrophes, and single punctuation marks."""
    return re.findall(r"[\w']+|[.,!?;]", text)


def tweets(x: Any, y: Any) -> tuple[list[str], np.ndarray]:
    """The texts of LEAF's rows of fields, and whether each is positive (rows,)."""
    if not all(isinstance(row, list) and len(row) > TEXT and isinstance(row[TEXT], str) for row in x):
        raise ValueError("x is not a list of rows of id, date, query, user and text")
    given = labels(y, len(x))
    if not {*given.tolist()} <= {0, 1, 4}:
        raise ValueError("y has labels beyond 0 and 1, or 0 and 4")
    return [row[TEXT] for row in x], (given > 0).astype(np.int64)


def windows(x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Characters (rows, 80), and the one after each row (rows,)."""
    if {*map(len, x)} != {WINDOW} or {*map(len, y)} != {1} or len(x) != len(y):
        raise ValueError(f"x and y are not strings of {WINDOW} characters, and one character after each")
    return encoded("".join(x)).reshape(-1, WINDOW), encoded("".join(y)).astype(np.int64)
