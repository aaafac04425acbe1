"""The lines that errors are reported in."""

from __future__ import annotations

from mpifl.errors import first_and_last_line, format_client_error, shortened


def test_a_clients_error_in_one_line_names_its_rank_and_the_error() -> None:
    try:
        raise ValueError("a gradient of shape (3,)")
    except ValueError as error:
        text = format_client_error(2, error)
    assert len(text.splitlines()) > 2
    line = first_and_last_line(text)
    assert line.startswith("raised on rank 2 on ")
    assert line.endswith("): ValueError: a gradient of shape (3,)")


def test_a_clients_error_is_cut_to_its_first_and_last_part() -> None:
    """A line to 1000 characters and 28 for the mark, the text to 8000; what cannot be printed is escaped."""
    for message in ("first" + "x" * 10_000_000 + "last", "first\n" + "x\n" * 10_000_000 + "last"):
        try:
            raise ValueError(message)
        except ValueError as error:
            text = format_client_error(2, error)
        assert len(text) < 8200 and text.startswith("raised on rank 2 on ")
        assert "ValueError: first" in text and text.endswith("last")
    try:
        raise ValueError("\ud800 \x1b[31m")
    except ValueError as error:
        assert format_client_error(2, error).endswith("ValueError: \\ud800 \\x1b[31m")
    assert shortened("abcdefgh", 8) == "abcdefgh" and shortened("abcdefghi", 4) == "ab [5 characters] hi"


def test_a_line_alone_is_not_repeated() -> None:
    assert first_and_last_line("rank 3 was lost") == "rank 3 was lost"
    assert first_and_last_line("") == ""
