"""Shakespeare by role: windows of text, good and damaged files; the real file where it exists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpifl.problems import DATA
from mpifl.problems.problem import Rows
from tests.problems.conftest import LETTERS, refusal
from tests.tiers import examples

Roles = list[tuple[str, str, str]]

pytestmark = pytest.mark.usefixtures("cache")


def write(file: Path, roles: Roles) -> Path:
    lines = (json.dumps({"play": play, "role": role, "text": text}) + "\n" for play, role, text in roles)
    file.write_text("".join(lines))
    return file


def read(file: Path, **options: Any) -> Rows:
    return DATA["shakespeare"](path=str(file), **options).read(file.parent, False, None)


def written(rows: Rows, half: str = "x") -> list[str]:
    """The text of each row's window."""
    tokens = np.load(rows.tokens.file, mmap_mode="r")
    assert tokens.dtype == np.uint8 and tokens.ndim == 1
    begins = getattr(rows, half)
    assert begins.dtype == np.int64 and begins.shape[1:] == (1,)
    return ["".join(LETTERS[t] for t in tokens[b : b + rows.tokens.window]) for b in begins[:, 0]]


ROLES = [
    ("hamlet", "FIRST", "To be, or not to be"),
    ("lear", "FIRST", "Nothing.\nNothing?"),
    ("lear", "FOOL", "Nuncle"),
]


def windows(text: str, window: int, stride: int = 1) -> list[tuple[str, str]]:
    return [(text[b : b + window], text[b + window]) for b in range(0, len(text) - window, stride)]


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.text(st.sampled_from(LETTERS), max_size=30), min_size=1, max_size=5),
    window=st.integers(1, 6),
    stride=st.integers(1, 4),
    eighths=st.integers(0, 7),
)
def test_rows_are_all_windows_of_both_parts(
    tmp_path: Path, texts: list[str], window: int, stride: int, eighths: int
) -> None:
    """Against slices of the strings themselves: training rows of the first part of each text, test rows of the rest."""
    file = write(tmp_path / "roles.jsonl", [("play", str(k), text) for k, text in enumerate(texts)])
    cuts = [len(text) - len(text) * eighths // 8 for text in texts]
    parts = [(text[:cut], text[cut:]) for text, cut in zip(texts, cuts, strict=True) if cut > window]
    options = {"window": window, "stride": stride, "test": eighths / 8, "min_characters": 0}
    if not parts:
        with refusal(f"{file}: it has no roles .* a training row of {window} characters; expected"):
            read(file, **options)
        return
    rows = read(file, **options)
    assert rows.classes == 80 and rows.tokens is not None
    assert (rows.tokens.window, rows.tokens.vocabulary) == (window, 80)
    halves = ((rows.owner, written(rows), rows.y), (rows.owner_test, written(rows, "x_test"), rows.y_test))
    for half, (owner, said, labels) in enumerate(halves):
        found = zip(owner.tolist(), said, (LETTERS[y] for y in labels), strict=True)
        assert list(found) == [(k, *row) for k, part in enumerate(parts) for row in windows(part[half], window, stride)]


def test_other_characters_are_spaces_and_lines_of_a_role_one_text(tmp_path: Path) -> None:
    roles = [("p", "A", "a\tb\u2019c$d~e\U0001f600f"), ("p", "B", "b" * 9), ("p", "A", "gh"), ("q", "A", "xxxxx")]
    rows = read(write(tmp_path / "roles.jsonl", roles), window=3, min_characters=0, test=0)
    texts = ["a b c d e f\ngh", "b" * 9, "xxxxx"]
    assert written(rows) == [said for text in texts for said, _ in windows(text, 3)]
    assert [LETTERS[y] for y in rows.y] == [after for text in texts for _, after in windows(text, 3)]


def test_roles_are_drawn_by_the_seed_among_those_with_enough_text(tmp_path: Path) -> None:
    """This number of the roles with enough text, in the order of the file; another seed draws others; the tokens are
    those of all roles."""
    roles = [("p", str(k), LETTERS[30 + k] * (10 if k % 3 else 5)) for k in range(30)]
    file = write(tmp_path / "roles.jsonl", roles)
    options = {"window": 2, "test": 0, "min_characters": 6}
    everyone = [LETTERS[30 + k] for k in range(30) if k % 3]
    assert [said[0] for said in written(read(file, **options))[::8]] == everyone  # 10 - 2 rows a role
    draws = []
    for seed in range(5):
        rows = read(file, **options, roles=7, seed=seed)
        draws.append([said[0] for said in written(rows)[::8]])
        assert sorted(set(draws[-1]), key=everyone.index) == draws[-1] and len(draws[-1]) == 7
        assert rows.owner is not None and rows.owner.tolist() == [k for k in range(7) for _ in range(8)]
    assert len({*map(tuple, draws)}) > 1
    with refusal(rf"^problem.data.roles=21: .*{file} has 20 roles .* 6 characters .*; expected at most 20$"):
        read(file, **options, roles=21)
    with refusal(r"it has no roles of at least 11 characters .*; expected at least one of them$"):
        read(file, window=2, min_characters=11)


def test_file_is_looked_for_under_the_root_too(tmp_path: Path) -> None:
    (tmp_path / "shakespeare").mkdir()
    write(tmp_path / "shakespeare/mit_roles.jsonl", [("p", "A", "x" * 2000)])
    assert len(DATA["shakespeare"]().read(tmp_path, False, None).y) == 1600 - 80
    line = r"^problem.data.path=shakespeare/mit_roles.jsonl: there is no such file .* nowhere; expected an existing"
    with refusal(line):
        DATA["shakespeare"]().read(Path("nowhere"), False, None)


WHOLE = "".join(json.dumps({"play": p, "role": r, "text": t}) + "\n" for p, r, t in ROLES).encode()


@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(WHOLE)))
def test_a_file_cut_inside_a_line_is_refused_and_after_a_line_is_read(tmp_path: Path, length: int) -> None:
    """A file that ends inside a line is refused; one that ends with a line has that many roles."""
    file = tmp_path / "roles.jsonl"
    file.write_bytes(WHOLE[:length])
    ends = [k + 1 for k, byte in enumerate(WHOLE) if byte == ord("\n")]
    lines = sum(length >= end - 1 for end in ends)  # the last line end may be missing
    if length in (end - over for end in ends for over in (0, 1)):
        rows = read(file, window=4, min_characters=0)
        assert rows.owner is not None and rows.owner[-1] == lines - 1
    else:
        with refusal(
            f"^data file={file}: (line {lines + 1}: .*; expected a json object|no lines; expected at least one)"
        ):
            read(file, window=4, min_characters=0)


@pytest.mark.parametrize(
    "line", ["[1]", "3", '{"role": "A"}', '{"role": 1, "text": "x"}', '{"role": "A", "text": null}', "", "[" * 9999]
)
def test_a_line_that_is_no_object_with_role_and_text_is_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "roles.jsonl"
    file.write_bytes(WHOLE + line.encode() + b"\n")
    with refusal(f"^data file={file}: line 4: .*; expected a json object with role and text in each line$"):
        read(file)


@pytest.mark.data
def test_the_real_file(data_root: Path) -> None:
    """1,343 roles, 77 distinct characters of which LEAF's 80 lack two (tab, dollar), 642 roles of 1,000 or more."""
    file = data_root / "shakespeare/mit_roles.jsonl"
    if not file.is_file():
        pytest.skip("no shakespeare/mit_roles.jsonl under MPIFL_DATA")
    texts = [json.loads(line)["text"] for line in file.open(encoding="utf-8")]
    assert len(texts) == 1343 and len(set("".join(texts))) == 77
    rows = DATA["shakespeare"]().read(data_root, False, None)
    long = [text for text in texts if len(text) >= 1000]
    cuts = [len(text) - int(0.2 * len(text)) for text in long]
    assert rows.owner is not None and rows.owner_test is not None and len(long) == 642
    assert np.bincount(rows.owner).tolist() == [cut - 80 for cut in cuts]
    tests = [len(text) - cut - 80 for text, cut in zip(long, cuts, strict=True)]
    assert np.bincount(rows.owner_test).tolist() == tests
    tokens = np.load(rows.tokens.file, mmap_mode="r")
    assert len(tokens) == 4349471 and len(np.unique(tokens)) == 75
    first = "".join(LETTERS[t] for t in tokens[rows.x[0, 0] :][:81])
    assert first == long[0][:81] and LETTERS[rows.y[0]] == first[-1]
    assert DATA["shakespeare"](roles=50).read(data_root, False, None).owner.max() == 49  # type: ignore[union-attr]
    assert DATA["shakespeare"](min_characters=0).read(data_root, False, None).owner.max() == 1127  # type: ignore[union-attr]
