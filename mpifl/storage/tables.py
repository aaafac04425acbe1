"""The run-file schema (version 1): one typed record for each table, and the root attributes.

The HDF5 layout, the writer's columns, what validation expects, the reader's columns and the reference page are derived
from this file: a new column is a new field, and the place that fills it.

A table is a group with one chunked dataset a column; its number of rows is that of the shortest column, so a reader
never sees half a row. Every dataset exists from the start: single-writer-multiple-reader mode allows nothing to be
created later. Text that is written later has a fixed length for the same reason (UTF-8, cut where it is longer).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import Annotated, NamedTuple, get_type_hints

SCHEMA = 1
STATUSES = ("running", "completed", "failed", "interrupted")


class Column(NamedTuple):
    """One column of a table."""

    dtype: str  # NumPy's; S32: text of at most 32 bytes
    meaning: str
    unit: str = ""
    missing: float | None = None  # what is read from a file of an older version without it; None: every version has it


class UpdateRow(NamedTuple):
    """One row for each update that the server consumed, in order."""

    time: Annotated[float, Column("f8", "when it was consumed", "s of the run's clock")]
    client: Annotated[int, Column("i4", "its sender")]
    version: Annotated[int, Column("i8", "of the model that the client started from")]
    staleness: Annotated[int, Column("i4", "aggregations between that model and the one it is applied to")]
    local_steps: Annotated[int, Column("i4", "taken by the client for this update")]
    bytes: Annotated[int, Column("i8", "header and vectors of the update", "bytes")]
    norm: Annotated[float, Column("f8", "Euclidean, over the update's vectors")]
    bytes_down: Annotated[
        int, Column("i8", "header and vectors of the message that the update answers", "bytes", missing=nan)
    ] = 0
    compute: Annotated[
        float,
        Column(
            "f8",
            "time that the client computed, without testing a personal model: as the delay model `speed` gives it, "
            "else as measured; NaN under a virtual clock with another delay model",
            "s",
            missing=nan,
        ),
    ] = nan
    exchange: Annotated[
        float, Column("f8", "time that the message and the update were in transit; likewise", "s", missing=nan)
    ] = nan
    waited: Annotated[
        float, Column("f8", "from the message until its client was on (`clock.availability`)", "s", missing=0.0)
    ] = 0.0


class AggregationRow(NamedTuple):
    """One row for each aggregation (global step)."""

    time: Annotated[float, Column("f8", "when it was made", "s of the run's clock")]
    updates: Annotated[int, Column("i8", "consumed by then, from the start of the run")]


class EvaluationRow(NamedTuple):
    """One row for each evaluation of the global model."""

    time: Annotated[float, Column("f8", "when the model was taken", "s of the run's clock")]
    updates: Annotated[int, Column("i8", "consumed by then")]
    version: Annotated[int, Column("i8", "aggregations by then")]
    train_loss: Annotated[
        float,
        Column(
            "f8", "mean over all training rows, regulariser included; with a method's g(x) where it minimises f + g"
        ),
    ] = nan
    test_loss: Annotated[
        float, Column("f8", "mean over the test rows, without the regulariser; NaN where there are none")
    ] = nan
    test_accuracy: Annotated[float, Column("f8", "of the test rows", "fraction")] = nan
    validation_loss: Annotated[
        float,
        Column(
            "f8",
            "mean over the validation rows, without the regulariser; NaN without `problem.validation_split`",
            missing=nan,
        ),
    ] = nan
    validation_accuracy: Annotated[
        float, Column("f8", "of the validation rows; NaN without any", "fraction", missing=nan)
    ] = nan
    personal_accuracy_mean: Annotated[
        float,
        Column(
            "f8",
            "mean over the clients, each one's own model on its own test rows, as reported at its last contact (before "
            "the first: of x_0); NaN where the method has no personal models or no client has test rows",
            "fraction",
            missing=nan,
        ),
    ] = nan
    personal_accuracy_q25: Annotated[float, Column("f8", "lower quartile of the same", "fraction", missing=nan)] = nan
    personal_accuracy_median: Annotated[float, Column("f8", "median of the same", "fraction", missing=nan)] = nan
    personal_accuracy_q75: Annotated[float, Column("f8", "upper quartile of the same", "fraction", missing=nan)] = nan
    personal_accuracy_best: Annotated[
        float, Column("f8", "the highest mean so far (BMTA)", "fraction", missing=nan)
    ] = nan
    client_accuracy_mean: Annotated[
        float,
        Column(
            "f8",
            "mean over the clients, the global model on each one's own test rows; NaN where there are none",
            "fraction",
            missing=nan,
        ),
    ] = nan
    client_accuracy_q25: Annotated[
        float,
        Column(
            "f8", "lower quartile over the clients of the same; NaN unless `evaluate.clients`", "fraction", missing=nan
        ),
    ] = nan
    client_accuracy_median: Annotated[float, Column("f8", "median; likewise", "fraction", missing=nan)] = nan
    client_accuracy_q75: Annotated[float, Column("f8", "upper quartile; likewise", "fraction", missing=nan)] = nan
    client_accuracy_worst: Annotated[
        float,
        Column(
            "f8",
            "worst 10 %: mean of the ceil(m/10) lowest accuracies, m being the clients with test rows; likewise",
            "fraction",
            missing=nan,
        ),
    ] = nan
    client_accuracy_variance: Annotated[
        float, Column("f8", "variance over the clients (the sum of squares is divided by m); likewise", missing=nan)
    ] = nan
    gradient_norm: Annotated[
        float,
        Column(
            "f8",
            "Euclidean, of the training loss at the model, without a method's own regulariser; NaN unless "
            "`evaluate.gradient`",
            missing=nan,
        ),
    ] = nan
    age: Annotated[
        float,
        Column("f8", "from when the evaluation was due to `time`; 0 under the virtual clock", "s", missing=nan),
    ] = 0.0


class ClientEvaluationRow(NamedTuple):
    """One row for each evaluation and client with test rows, if the job has `evaluate.clients`; not in files of older
    versions."""

    evaluation: Annotated[int, Column("i8", "row of /evaluations, from 0")]
    client: Annotated[int, Column("i4", "ascending within an evaluation")]
    accuracy: Annotated[float, Column("f8", "of the global model on the client's own test rows", "fraction")]
    personal_accuracy: Annotated[
        float,
        Column(
            "f8",
            "of the client's own model, as reported at its last contact (before the first: of x_0); NaN where the "
            "method has no personal models",
            "fraction",
        ),
    ] = nan


class MetricRow(NamedTuple):
    """One row for each evaluation and metric of `evaluate.metrics`, in their order; not in files of older versions."""

    evaluation: Annotated[int, Column("i8", "row of /evaluations, from 0")]
    metric: Annotated[str, Column("S128", "its name in the job")]
    value: Annotated[float, Column("f8", "of the global model on the test rows; NaN where a score is not finite")]


class EventRow(NamedTuple):
    """One row for each event, such as a lost client or a checkpoint."""

    time: Annotated[float, Column("f8", "when it happened", "s of the run's clock")]
    kind: Annotated[
        str,
        Column(
            "S32",
            "`lost`, `rehosted`, `refused`, `aside`; `checkpoint`, `checkpoint-skipped`, `checkpoint-failed`, "
            "`resumed`; `interrupted`, `failed`, `dropped`, `evaluation-skipped`",
        ),
    ]
    client: Annotated[int, Column("i4", "-1: of no client")] = -1
    text: Annotated[str, Column("S512", "one line")] = ""
    updates: Annotated[int, Column("i8", "consumed before it; -1: not known", missing=-1)] = -1
    version: Annotated[int, Column("i8", "aggregations before it; -1: not known", missing=-1)] = -1


class ClientRow(NamedTuple):
    """One row for each client."""

    samples: Annotated[int, Column("i8", "training rows, s_i")]
    rate: Annotated[float, Column("f8", "contacts; NaN where the delay model has no rates", "1/s")]
    rank: Annotated[int, Column("i4", "when the run began, or was resumed; later moves are in /events")]
    updates: Annotated[int, Column("i8", "consumed")] = 0
    state: Annotated[str, Column("S16", "`live`, `lost`, `aside`")] = "live"
    on: Annotated[
        float,
        Column("f8", "of the run's time, by `clock.availability`; NaN until the end", "fraction", missing=nan),
    ] = nan


class ChecksumRow(NamedTuple):
    """One row for each checksum: of a block of rows, a column, the model, or an attribute; not in files of older
    versions."""

    object: Annotated[
        str,
        Column(
            "S32",
            "what it covers: a table that grows (`updates`), a column of a table that does not (`clients/rate`), "
            "`model/x`, or an attribute (`@config`, `model/x@layout`)",
        ),
    ]
    first: Annotated[int, Column("i8", "row of the block; 0 where it is no growing table")]
    rows: Annotated[int, Column("i8", "in the block; the items of a column or the model; 1 for an attribute")]
    crc: Annotated[
        int,
        Column(
            "i8",
            "CRC-32 (zlib) of the block's values, column by column, little endian, continued from the table's block "
            "before; of an attribute, of its value as JSON",
        ),
    ]


Row = UpdateRow | AggregationRow | EvaluationRow | ClientEvaluationRow | MetricRow | EventRow


@dataclass(frozen=True)
class Table:
    """A group of the run file, derived from its typed record."""

    row: type
    chunk: int  # rows a chunk; 0 for a table of fixed length
    columns: dict[str, Column]
    added: bool = False  # files of older versions do not have it


def _table(row: type, chunk: int = 0, added: bool = False) -> Table:
    hints = get_type_hints(row, include_extras=True)
    return Table(row, chunk, {name: hint.__metadata__[0] for name, hint in hints.items()}, added)


# Tables that grow. A row refers only to tables listed before its own.
TABLES: dict[str, Table] = {
    "updates": _table(UpdateRow, 4096),
    "aggregations": _table(AggregationRow, 4096),
    "evaluations": _table(EvaluationRow, 256),
    "client_evaluations": _table(ClientEvaluationRow, 4096, added=True),
    "metrics": _table(MetricRow, 256, added=True),
    "events": _table(EventRow, 16),
}
CLIENTS = _table(ClientRow)
CLIENTS_CHANGING = ("updates", "state", "on")  # columns that change until the run is over
CHECKSUMS = _table(ChecksumRow, 256, added=True)


class Attribute(NamedTuple):
    """One root attribute."""

    kind: type
    meaning: str
    dtype: str = ""  # of one that changes after the start, so has a fixed size until the run is over
    items: type | None = None  # of a list, which is stored as JSON text


ATTRIBUTES: dict[str, Attribute] = {
    "schema": Attribute(int, f"{SCHEMA}"),
    "id": Attribute(str, "of the run, drawn when it begins, kept when it is resumed; not in files of older versions"),
    "session": Attribute(
        str,
        "of the process that writes the file, drawn when it begins or resumes the run; not in files of older versions",
    ),
    "resumed_from": Attribute(
        int, "number of the checkpoint that the run was resumed from; 0: none; not in files of older versions"
    ),
    "mpifl_version": Attribute(str, "of the package"),
    "name": Attribute(str, "of the job"),
    "algorithm": Attribute(str, "its name"),
    "config": Attribute(str, "the resolved job, YAML; it loads again"),
    "seed": Attribute(int, "of the job"),
    "clock": Attribute(str, "`real`, `virtual` or `replay`"),
    "clients": Attribute(int, "number of clients"),
    "ranks": Attribute(int, "number of ranks; 1 without MPI"),
    "hosts": Attribute(str, "JSON list, one name a rank, rank 0 first", items=str),
    "mpi": Attribute(str, "the MPI library; `none` for one process"),
    "compute": Attribute(
        str,
        "JSON list, one object a rank, rank 0 first: `device`, `threads` and so on; only where a torch model computes",
        items=dict,
    ),
    "git_commit": Attribute(str, "of the source, with `-dirty` for changed files; empty where it is not known"),
    "started": Attribute(str, "ISO 8601 with microseconds and offset"),
    "finished": Attribute(str, "as `started`; empty until the end", "S40"),
    "status": Attribute(str, ", ".join(f"`{status}`" for status in STATUSES), "S16"),
    "began": Attribute(float, "Unix time (s) at which the run's clock started; NaN until then", "f8"),
    "wall_seconds": Attribute(
        float, "s of wall time from the first message to the last event; NaN until the end", "f8"
    ),
    "server_cpu_share": Attribute(
        float, "CPU time of rank 0 divided by the wall time of this session; NaN until the end", "f8"
    ),
    "peak_rss_mb": Attribute(float, "largest resident memory of rank 0, MiB; NaN until the end", "f8"),
}
CHANGING = {name: attribute.dtype for name, attribute in ATTRIBUTES.items() if attribute.dtype}


def encode(value: str, size: int) -> bytes:
    """`value` as at most `size` bytes of UTF-8, cut between characters."""
    data = value.encode("utf-8", "replace")
    return data if len(data) <= size else data[:size].decode("utf-8", "ignore").encode("utf-8")


# -- documentation -----------------------------------------------------------------------------------------------------
def columns_markdown() -> str:
    """A Markdown table of every column of the run file."""
    lines = ["| dataset | dtype | unit | meaning |", "|---|---|---|---|"]
    for name, table in {**TABLES, "clients": CLIENTS, "checksums": CHECKSUMS}.items():
        lines.append(f"| **/{name}** | | | {table.row.__doc__} |")
        for field, column in table.columns.items():
            lines.append(f"| `/{name}/{field}` | {_spelled(column.dtype)} | {column.unit} | {column.meaning} |")
    return "\n".join(lines)


def attributes_markdown() -> str:
    """A Markdown table of every root attribute."""
    names = {str: "text", int: "integer", float: "float64"}
    lines = ["| attribute | type | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | {names[a.kind]} | {a.meaning} |" for name, a in ATTRIBUTES.items()]
    return "\n".join(lines)


def _spelled(dtype: str) -> str:
    kind, size = dtype[0], int(dtype[1:])
    return f"text, {size} bytes" if kind == "S" else {"f": "float", "i": "int"}[kind] + str(8 * size)
