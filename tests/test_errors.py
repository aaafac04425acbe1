"""The lines that errors are reported in."""

from __future__ import annotations

from mpifl.errors import first_and_last_line, format_client_error


def test_a_clients_error_in_one_line_names_its_rank_and_the_error() -> None:
    try:
        raise ValueError("a gradient of shape (3,)")
    except ValueError as error:
        text = format_client_error(2, error)
    assert len(text.splitlines()) > 2
    line = first_and_last_line(text)
    assert line.startswith("raised on rank 2 on ")
    assert line.endswith("): ValueError: a gradient of shape (3,)")


def test_a_line_alone_is_not_repeated() -> None:
    assert first_and_last_line("rank 3 was lost") == "rank 3 was lost"
    assert first_and_last_line("") == ""
