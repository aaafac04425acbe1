"""LEAF's Sent140, Shakespeare and FEMNIST in its JSON layout: rows, owners, chosen users, good and damaged files."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifl.problems import DATA, ProblemConfig, load
from mpifl.problems.problem import Rows
from tests.problems.conftest import LETTERS, Users, refusal, write_leaf

pytestmark = pytest.mark.usefixtures("cache")


def tweet(user: str, text: str) -> list[str]:
    """A tweet as data_to_json.py writes it: id, date, query, user, text, and the file of the original that it came
    from."""
    return ["1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", user, text, "training"]


def tweets(**users: list[tuple[str, int]]) -> Users:
    return {
        user: {"x": [tweet(user, text) for text, _ in said], "y": [label for _, label in said]}
        for user, said in users.items()
    }


def read(name: str, folder: Path, **options: Any) -> Rows:
    return DATA[name](path=str(folder), **options).read(folder, False, None)


def windows(rows: Rows, half: str = "x") -> list[list[int]]:
    tokens, begins = np.load(rows.tokens.file, mmap_mode="r"), getattr(rows, half)
    assert begins.dtype == np.int64 and begins.shape[1:] == (1,) and tokens.max() < rows.tokens.vocabulary
    return [tokens[b : b + rows.tokens.window].tolist() for b in begins[:, 0]]


def test_sent140_by_hand(tmp_path: Path) -> None:
    """Words by number of uses: `.` 4, then `a` and `b` 3 each, `don't` 2, and `!` and `B` once."""
    write_leaf(tmp_path / "train", tweets(ann=[("a b. a.", 1), ("b, don't! ", 0)], bob=[("b . a . don't B", 0)]))
    write_leaf(tmp_path / "test", tweets(bob=[("B b new", 1)], eve=[("", 0)]))
    rows = read("sent140", tmp_path, vocabulary=4, window=5)
    dot, a, b, dont, unknown, padding = 2, 3, 4, 5, 1, 0
    assert windows(rows) == [[a, b, dot, a, dot], [b, unknown, dont, unknown, padding], [b, dot, a, dot, dont]]
    assert windows(rows, "x_test") == [[unknown, b, unknown, padding, padding], [padding] * 5]
    assert rows.y.tolist() == [1, 0, 0] and rows.y_test.tolist() == [1, 0] and rows.classes == 2
    assert rows.owner is not None and rows.owner.tolist() == [0, 0, 1]
    assert rows.owner_test is not None and rows.owner_test.tolist() == [1, -1]
    assert rows.tokens is not None and (rows.tokens.window, rows.tokens.vocabulary) == (5, 6)


def test_sent140_against_leafs_own_code(tmp_path: Path) -> None:
    """LEAF's line_to_indices on random text, its index for unknown words and padding apart. Labels are 0 and 4."""
    draw = random.Random(0)
    lines = ["".join(draw.choices("aB'é_1 .,!?;:@#-", k=draw.randrange(90))) for _ in range(200)]
    users = tweets(**{f"u{k}": [(line, 4 * (k % 2)) for line in lines[4 * k : 4 * k + 4]] for k in range(50)})
    write_leaf(tmp_path / "train", users)
    counts = Counter(word for line in lines for word in re.findall(r"[\w']+|[.,!?;]", line))
    word2id = {word: k for k, (_, word) in enumerate(sorted((-n, word) for word, n in counts.items())[:30])}
    expected = []
    for line in lines:
        indl = [word2id.get(word, -1) + 2 for word in re.findall(r"[\w']+|[.,!?;]", line)[:25]]
        expected.append(indl + [0] * (25 - len(indl)))
    rows = read("sent140", tmp_path, vocabulary=30)
    assert windows(rows) == expected
    assert rows.y.tolist() == [k // 4 % 2 for k in range(200)] and len(rows.y_test) == 0


def test_many_words_take_more_bytes(tmp_path: Path) -> None:
    write_leaf(tmp_path / "train", tweets(ann=[(" ".join(f"w{k:05}" for k in range(70000)), 1)]))
    for vocabulary, kind in ((254, np.uint8), (255, np.uint16), (65534, np.uint16), (65535, np.uint32)):
        rows = read("sent140", tmp_path, vocabulary=vocabulary, window=70000)
        tokens = np.load(rows.tokens.file)
        assert tokens.dtype == kind
        assert tokens.tolist() == [k + 2 if k < vocabulary else 1 for k in range(70000)]


def shakespeare(rng: random.Random, *users: str, rows: int = 3) -> tuple[Users, dict[str, list[str]]]:
    """Users in LEAF's layout, windows of one text each, and these windows with the character after them."""
    content: Users = {}
    said = {}
    for user in users:
        text = "".join(rng.choices(LETTERS, k=80 + rows))
        content[user] = {"x": [text[k : k + 80] for k in range(rows)], "y": [text[k + 80] for k in range(rows)]}
        said[user] = [text[k : k + 81] for k in range(rows)]
    return content, said


def spelt(rows: Rows, half: str, labels: np.ndarray) -> list[str]:
    texts = ["".join(LETTERS[t] for t in row) for row in windows(rows, half)]
    return [text + LETTERS[y] for text, y in zip(texts, labels, strict=True)]


def test_rows_of_leaf_shakespeare_are_those_of_the_files(tmp_path: Path) -> None:
    train, said = shakespeare(random.Random(1), "HAMLET_GHOST", "LEAR_FOOL")
    more, said_more = shakespeare(random.Random(2), "LEAR_EDGAR", rows=2)
    test, said_test = shakespeare(random.Random(3), "LEAR_FOOL", "NOBODY", rows=1)
    write_leaf(tmp_path / "train", train)
    write_leaf(tmp_path / "train", more, "b.json")
    write_leaf(tmp_path / "test", test)
    rows = read("leaf-shakespeare", tmp_path)
    assert spelt(rows, "x", rows.y) == [*said["HAMLET_GHOST"], *said["LEAR_FOOL"], *said_more["LEAR_EDGAR"]]
    assert spelt(rows, "x_test", rows.y_test) == [*said_test["LEAR_FOOL"], *said_test["NOBODY"]]
    assert rows.owner is not None and rows.owner.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert rows.owner_test is not None and rows.owner_test.tolist() == [1, -1]
    assert rows.classes == 80 and rows.tokens is not None and rows.tokens.vocabulary == 80
    assert np.load(rows.tokens.file).dtype == np.uint8


def writer(k: int, rows: int) -> dict[str, list[Any]]:
    """A writer as data_to_json.py writes one: pixels/255, and labels up to 61."""
    generator = np.random.default_rng(k)
    pixels = generator.integers(0, 256, (rows, 784))
    return {"x": (pixels / 255).tolist(), "y": generator.integers(0, 62, rows).tolist()}


def test_rows_of_femnist_are_those_of_the_files(tmp_path: Path) -> None:
    made = [writer(1, 3), writer(2, 1), writer(3, 2)]
    write_leaf(tmp_path / "train", {"f0001_41": made[0], "f0002_42": made[1]}, "all_data_0.json")
    write_leaf(tmp_path / "train", {"f0000_14": made[2]}, "all_data_1.json")
    write_leaf(tmp_path / "test", {"f0002_42": writer(4, 2), "f0003_43": writer(5, 1)})
    rows = read("femnist", tmp_path)
    assert rows.x.dtype == np.float32 and rows.divisor == 1
    assert rows.x.tolist() == np.concatenate([each["x"] for each in made]).astype(np.float32).tolist()
    assert rows.y.tolist() == [y for each in made for y in each["y"]]
    assert rows.owner is not None and rows.owner.tolist() == [0, 0, 0, 1, 2, 2]
    assert rows.owner_test is not None and rows.owner_test.tolist() == [1, 1, -1]
    assert rows.x_test.dtype == np.float32 and rows.y_test.tolist() == writer(4, 2)["y"] + writer(5, 1)["y"]
    assert rows.classes == 62 and rows.shape == (1, 28, 28)
    problem = load(ProblemConfig(data=DATA["femnist"](path=str(tmp_path))))  # type: ignore[call-arg]
    assert problem.samples.tolist() == [3, 1, 2] and problem.d == 784 * 62


@pytest.mark.parametrize("name", ["sent140", "leaf-shakespeare"])
def test_users_are_drawn_by_the_seed_among_those_with_enough_rows(tmp_path: Path, name: str, cache: Path) -> None:
    """User k has k training rows and one test row, `x` no training rows; tokens are made once for all choices."""
    names = [f"u{k}" for k in range(1, 13)]
    train = {}
    for k, user in enumerate(names, 1):
        train |= (
            tweets(**{user: [(user, 1)] * k}) if name == "sent140" else shakespeare(random.Random(k), user, rows=k)[0]
        )
    test = {user: {"x": train[user]["x"][:1], "y": train[user]["y"][:1]} for user in names}
    write_leaf(tmp_path / "train", dict(list(train.items())[:5]), "a.json")
    write_leaf(tmp_path / "train", dict(list(train.items())[5:]), "b.json")
    write_leaf(tmp_path / "test", {**test, "x": test["u1"]})
    everyone = read(name, tmp_path)
    texts = dict(zip(np.asarray(everyone.owner).tolist(), windows(everyone), strict=True))
    draws = set()
    for seed in range(4):
        rows = read(name, tmp_path, users=4, min_samples=6, seed=seed)
        counts = np.bincount(np.asarray(rows.owner)).tolist()  # a user's number is its number of rows
        assert len(counts) == 4 and counts == sorted(counts) and min(counts) >= 6
        assert sorted(np.asarray(rows.owner_test).tolist()) == [-1, 0, 1, 2, 3]
        for k, row in zip(np.asarray(rows.owner_test).tolist(), windows(rows, "x_test"), strict=True):
            assert row == windows(rows)[np.asarray(rows.owner).tolist().index(k)] if k >= 0 else row == texts[0]
        assert len(rows.y) == sum(counts) and len(rows.y_test) == 5
        draws.add(tuple(counts))
    assert len(draws) > 1 and len(list((cache / "tokens").iterdir())) == 1
    with refusal(r"^problem.data.users=8: .* has 7 users with at least 6 training rows; expected at most 7$"):
        read(name, tmp_path, users=8, min_samples=6)
    with refusal(f"^data file={tmp_path}: it has no users with at least 13 training rows"):
        read(name, tmp_path, min_samples=13)


GOOD_TWEET, GOOD_WINDOW, PIXELS = tweet("u", "hello"), "x" * 80, [0.5] * 784
GOOD = {"sent140": ([GOOD_TWEET], [1]), "leaf-shakespeare": ([GOOD_WINDOW], ["t"]), "femnist": ([PIXELS], [61])}


@pytest.mark.parametrize(
    ("name", "x", "y", "text"),
    [
        ("sent140", [GOOD_TWEET], [2], r"y has labels beyond 0 and 1, or 0 and 4"),
        ("sent140", [GOOD_TWEET], ["1"], r"y is not a whole number for each of 1 rows"),
        ("sent140", [GOOD_TWEET[:4]], [1], "not a list of rows of id, date, query, user and text"),
        ("sent140", ["hello"], [1], "not a list of rows of id, date, query, user and text"),
        ("sent140", [[*GOOD_TWEET[:4], 7]], [1], "not a list of rows of id, date, query, user and text"),
        ("sent140", [], [], "no rows"),
        ("leaf-shakespeare", [GOOD_WINDOW[1:]], ["t"], "not strings of 80 characters, and one character after each"),
        ("leaf-shakespeare", [GOOD_WINDOW], ["to"], "not strings of 80 characters, and one character after each"),
        ("leaf-shakespeare", [GOOD_WINDOW], ["t", "o"], "not strings of 80 characters, and one character after each"),
        ("leaf-shakespeare", [["x"] * 80], ["t"], "expected str"),
        ("leaf-shakespeare", [[0.1]], [1], ""),
        ("femnist", [PIXELS], [62], "y has labels beyond 0 to 61"),
        ("femnist", [PIXELS], [-1], "y has labels beyond 0 to 61"),
        ("femnist", [PIXELS], [0, 1], "y is not a whole number for each of 1 rows"),
        ("femnist", [PIXELS, PIXELS[1:]], [0, 1], ""),
        ("femnist", [PIXELS[1:]], [0], "x has no images of 784 numbers between 0 and 1"),
        ("femnist", [[*PIXELS[1:], 255]], [0], "x has no images of 784 numbers between 0 and 1"),
        ("femnist", [[*PIXELS[1:], float("nan")]], [0], "x has no images of 784 numbers between 0 and 1"),
        ("femnist", [[*PIXELS[1:], "white"]], [0], ""),
    ],
)
def test_a_user_with_wrong_rows_is_named(tmp_path: Path, name: str, x: list[Any], y: list[Any], text: str) -> None:
    file = write_leaf(tmp_path / "train", {"v": dict(zip("xy", GOOD[name])), "u": {"x": x, "y": y}})
    with refusal(rf"^data file={file}: user u: .*{text}"):
        read(name, tmp_path)


def test_a_user_is_named_as_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "train" / "a.json"
    file.parent.mkdir()
    file.write_text(
        '{"users": ["Ann"], "user_data": {"Ann": {"x": [[1]], "y": [0]}, "McDuff": {"x": [[1]], "y": [0]}}}'
    )
    with refusal(f"^data file={file}: user_data has McDuff, which users has not; "):
        read("leaf", tmp_path)


def test_missing_files_and_users_are_named(tmp_path: Path) -> None:
    for name in ("sent140", "leaf-shakespeare"):
        with refusal(f"^problem.data.path={name}: there is no such folder .* under the data root {tmp_path}; expected"):
            DATA[name]().read(tmp_path, False, None)
        with refusal(rf"^data file={tmp_path}/train/\*.json: no such file; expected at least one json file$"):
            read(name, tmp_path)
    write_leaf(tmp_path / "train", {})
    with refusal(f"^data file={tmp_path}/train: no user has rows; expected at least one user with rows$"):
        read("sent140", tmp_path)
