"""Shakespeare's plays by speaking role, to predict the next character (McMahan et al., arXiv 1602.05629; LEAF, arXiv
1812.01097)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from mpifl.config.types import Bounds, NonNegativeInt, PositiveInt
from mpifl.errors import ConfigError, error_text
from mpifl.problems.data.cache import Arrays, cached
from mpifl.problems.data.folder import located
from mpifl.problems.data.leaf import select_users
from mpifl.problems.problem import Data, Rows, Tokens
from mpifl.safe_input import read_file

# LEAF's 80 characters, in its order.
CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"


@dataclass(frozen=True)
class Shakespeare(Data):
    """The next of 80 characters from the `window` before it; a client is a role of a play.

    Departures from LEAF: the last part of each role's text is its test text, and every window lies in one of the two
    parts, its next character included. LEAF's `-t sample` cuts the list of all windows and leaves out 79 in between, so
    that the last training label is the first character of a test window. Line ends are
    kept; LEAF makes them spaces. A character that is not among the 80 counts as a space; in LEAF its index is -1.
    """

    natural: ClassVar[bool] = True
    name: str = "shakespeare"
    path: str = "shakespeare/mit_roles.jsonl"
    """File of lines {"play": ..., "role": ..., "text": ...}: an existing path, else relative to the data root."""
    window: PositiveInt = 80
    """Characters in one row."""
    stride: PositiveInt = 1
    """Distance in characters from the beginning of one row to that of the next."""
    min_characters: NonNegativeInt = 1000
    """Smallest length of a role's text; a role also needs at least one training row."""
    roles: PositiveInt | None = None
    """Number of roles, drawn at random from those with enough text, in the order of the file; null: all of them."""
    seed: NonNegativeInt = 0
    """Seed of the draw; the run's own seed does not change it."""
    test: Annotated[float, Bounds(at_least=0, below=1)] = 0.2
    """Fraction of each role's text, at its end, that is kept for testing (rounded down)."""

    def read(self, root: Path, download: bool, clients: int | None) -> Rows:
        file = located(self.path, root, file=True)
        cache = cached("shakespeare", {}, [file], lambda: tokenised(file))
        tokens, ends = np.load(cache / "tokens.npy", mmap_mode="r"), np.load(cache / "ends.npy")
        sizes = np.diff(ends, prepend=0)
        cuts = ends - np.floor(self.test * sizes).astype(np.int64)  # begin of each role's test text
        ready = (sizes >= self.min_characters) & (cuts - (ends - sizes) > self.window)
        which = f"roles of at least {self.min_characters} characters with a training row of {self.window} characters"
        chosen = select_users("roles", self.roles, ready, self.seed, file, which)
        x, owner = self._windows(ends[chosen] - sizes[chosen], cuts[chosen])
        x_test, owner_test = self._windows(cuts[chosen], ends[chosen])
        y, y_test = (tokens[begins + self.window].astype(np.int64) for begins in (x, x_test))
        text = Tokens(cache / "tokens.npy", self.window, len(CHARACTERS))
        return Rows(
            x[:, None], y, x_test[:, None], y_test, len(CHARACTERS), owner=owner, owner_test=owner_test, tokens=text
        )

    def _windows(self, first: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the beginnings (S,) of the windows between `first` and `end` (roles,) that have a next character, and
        their roles (S,)."""
        begins = [np.arange(a, b - self.window, self.stride) for a, b in zip(first, end)]
        return np.concatenate(begins), np.repeat(np.arange(len(begins)), [len(part) for part in begins])


def tokenised(file: Path) -> Arrays:
    """Returns the texts of all roles joined, and the end of each (roles,); the lines of one role are one text."""
    import json

    texts: dict[tuple[str, str], list[str]] = {}
    for k, line in enumerate(read_file(file).splitlines(), 1):
        try:
            record = json.loads(line)
            play, role, text = record.get("play", ""), record["role"], record["text"]
            if not all(isinstance(value, str) for value in (play, role, text)):
                raise TypeError("one of them is not text")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            wrong = f"line {k}: {error_text(error)}"
            raise ConfigError("data file", file, wrong, "a json object with role and text in each line") from error
        texts.setdefault((play, role), []).append(text)
    if not texts:
        raise ConfigError("data file", file, "no lines", "at least one line")
    parts = [encoded("\n".join(lines)) for lines in texts.values()]
    return {"tokens": np.concatenate(parts), "ends": np.cumsum([len(part) for part in parts])}


def encoded(text: str) -> np.ndarray:
    """Returns (characters,) uint8, the index of each in CHARACTERS; that of a space for any other character."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return TABLE[np.minimum(codes, len(TABLE) - 1)]


TABLE = np.full(128, CHARACTERS.index(" "), np.uint8)  # index: code point; the last entry is for all others
TABLE[[ord(c) for c in CHARACTERS]] = range(len(CHARACTERS))
