"""What a run file holds (schema version 1): its tables, their columns and types, and what every root attribute means.

A table is a group with one chunked dataset a column; its number of rows is the shortest column's, so a reader never
sees half a row. Everything exists from the first instant: single-writer-multiple-reader mode allows nothing to be
created later. Strings that are written later are of fixed length for the same reason (UTF-8, cut where longer).
"""

from __future__ import annotations

SCHEMA = 1
STATUSES = ("running", "completed", "failed", "interrupted")

TABLES: dict[str, dict[str, str]] = {
    "updates": {
        "time": "f8",  # s of the run's clock
        "client": "i4",
        "version": "i8",  # of x that the client started from
        "staleness": "i4",  # global steps since then
        "local_steps": "i4",
        "bytes": "i8",
        "norm": "f8",
        "bytes_down": "i8",  # of the message that this update answers
        "compute": "f8",  # s that the client computed; NaN where a virtual clock does not tell
        "exchange": "f8",  # s that the message and the update were on their way; likewise
    },
    "aggregations": {"time": "f8", "updates": "i8"},
    "evaluations": {
        "time": "f8",
        "updates": "i8",
        "version": "i8",
        "train_loss": "f8",
        "test_loss": "f8",
        "test_accuracy": "f8",  # 0 to 1
        "personal_accuracy_mean": "f8",  # over the clients, own model on own test rows; NaN where there are none
        "personal_accuracy_q25": "f8",
        "personal_accuracy_median": "f8",
        "personal_accuracy_q75": "f8",
        "personal_accuracy_best": "f8",  # the highest mean so far (BMTA)
        "client_accuracy_mean": "f8",  # over the clients, the global model on own test rows
        "gradient_norm": "f8",  # Euclidean, of the training loss without a method's penalty; NaN where not asked for
    },
    "events": {
        "time": "f8",
        "kind": "S32",
        "client": "i4",  # -1: none
        "text": "S512",
        "updates": "i8",  # consumed before it; -1 where that is not known, as in files of older versions
        "version": "i8",  # aggregations before it; likewise
    },
}
ROWS = {"updates": 4096, "aggregations": 4096, "evaluations": 256, "events": 16}  # rows a chunk

CLIENTS = {"samples": "i8", "rate": "f8", "rank": "i4", "updates": "i8", "state": "S16"}

# Root attributes that change after the start, so of a fixed size; the others come from the caller.
LATER = {
    "status": "S16",  # one of STATUSES
    "finished": "S40",  # ISO 8601 with microseconds and offset; empty while the run goes on
    "began": "f8",  # Unix time (s) at which the run's clock started; this and what follows is NaN until the run sets it
    "wall_seconds": "f8",  # wall time of the run
    "server_cpu_share": "f8",  # CPU time of rank 0 over wall time
    "peak_rss_mb": "f8",  # largest resident memory of rank 0, MiB
}


def text(value: str, size: int) -> bytes:
    """`value` as at most `size` bytes of UTF-8, cut between characters."""
    data = value.encode("utf-8", "replace")
    return data if len(data) <= size else data[:size].decode("utf-8", "ignore").encode("utf-8")
