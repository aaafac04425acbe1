"""The run-file schema (version 1): one typed record for each table, and the root attributes.

The HDF5 layout, the writer's columns, the rows in checkpoints, what validation expects, the reader's columns and the
reference page are derived from this file: a new column is a new field, with its meaning below it, and the place that
fills it. In an existing table it also has `missing`, is entered in `NEW` of tests/runfile/test_old.py and, unless the
table is that of the clients, increases `FORMAT` of checkpoint/snapshot.py: older checkpoints lack the column, and would
be reported as damaged. docs/reference/checkpoint-format.md states that number. A measured time also has a place in
`ReplaySchedule.from_run`, by which a replay repeats it.

A table is a group with one chunked dataset a column; its number of rows is that of the shortest column, so a reader
never sees half a row. Every dataset exists from the start: SWMR mode allows nothing to be
created later. Text that is written later has a fixed length for the same reason (UTF-8, cut where it is longer).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

import numpy as np

if TYPE_CHECKING:
    import h5py

SCHEMA = 1
STATUSES = ("running", "completed", "failed", "interrupted")


class Column(NamedTuple):
    """One column of a table."""

    dtype: str  # NumPy's; S32: text of at most 32 bytes
    unit: str = ""
    missing: float | None = None  # what is read from a file of an older version without it; None: every version has it

    def array(self, values: Sequence[Any]) -> np.ndarray:
        """(len(values),) the values in the column's type; text is cut to the column's bytes."""
        if self.dtype.startswith("S"):
            values = [encode(value, int(self.dtype[1:])) for value in values]
        return np.array(values, self.dtype)


class UpdateRow(NamedTuple):
    """One row for each update that the server consumed, in order."""

    time: Annotated[float, Column("f8", "s of the run's clock")]
    """time at which the update was consumed"""
    client: Annotated[int, Column("i4")]
    """client that sent it"""
    version: Annotated[int, Column("i8")]
    """version of the model that the client started from"""
    staleness: Annotated[int, Column("i4")]
    """aggregations between that model and the one it is applied to"""
    local_steps: Annotated[int, Column("i4")]
    """steps that the client took for this update"""
    bytes: Annotated[int, Column("i8", "bytes")]
    """size of the update, header and vectors"""
    norm: Annotated[float, Column("f8")]
    """Euclidean norm of all the update's vectors"""
    bytes_down: Annotated[int, Column("i8", "bytes", missing=nan)] = 0
    """size of the message that the update answers, header and vectors"""
    compute: Annotated[float, Column("f8", "s", missing=nan)] = nan
    """time that the client computed, without testing a personal model. The delay model `speed` gives it; with other
    delay models it is measured in real time, and NaN under the virtual clock"""
    exchange: Annotated[float, Column("f8", "s", missing=nan)] = nan
    """time that the message and the update were in transit; from the same source as `compute`"""
    waited: Annotated[float, Column("f8", "s", missing=0.0)] = 0.0
    """time from the message until its client was on (`clock.availability`)"""


class AggregationRow(NamedTuple):
    """One row for each aggregation."""

    time: Annotated[float, Column("f8", "s of the run's clock")]
    """time of the aggregation"""
    updates: Annotated[int, Column("i8")]
    """updates consumed by then, from the start of the run"""


class LoggedRow(NamedTuple):
    """One row for each number that the method logs (`State.log`), in order; not in files of older versions."""

    update: Annotated[int, Column("i8")]
    """row of /updates in whose processing it was logged; -1: in an aggregation"""
    aggregation: Annotated[int, Column("i8")]
    """row of /aggregations in which it was logged; -1: with an update"""
    name: Annotated[str, Column("S64")]
    """name of the number"""
    value: Annotated[float, Column("f8")]
    """its value"""


class EvaluationRow(NamedTuple):
    """One row for each evaluation of the global model."""

    time: Annotated[float, Column("f8", "s of the run's clock")]
    """time at which the model was taken"""
    updates: Annotated[int, Column("i8")]
    """updates consumed by then"""
    version: Annotated[int, Column("i8")]
    """aggregations by then"""
    train_loss: Annotated[float, Column("f8")] = nan
    """mean loss over all training rows, with the regulariser, and with g(x) where the method minimises f + g"""
    test_loss: Annotated[float, Column("f8")] = nan
    """mean loss over the test rows, without the regulariser; NaN where there are no test rows"""
    test_accuracy: Annotated[float, Column("f8", "fraction")] = nan
    """accuracy on the test rows"""
    validation_loss: Annotated[float, Column("f8", missing=nan)] = nan
    """mean loss over the validation rows, without the regulariser; NaN without `problem.validation_split`"""
    validation_accuracy: Annotated[float, Column("f8", "fraction", missing=nan)] = nan
    """accuracy on the validation rows; NaN without `problem.validation_split`"""
    personal_accuracy_mean: Annotated[float, Column("f8", "fraction", missing=nan)] = nan
    """mean over the clients of the accuracy of each one's own model on its own test rows, as reported at its last
    contact, or of x_0 before the first; NaN where the method has no personal models or no client has test rows"""
    personal_accuracy_q25: Annotated[float, Column("f8", "fraction", missing=nan)] = nan
    """lower quartile of these accuracies"""
    personal_accuracy_median: Annotated[float, Column("f8", "fraction", missing=nan)] = nan
    """median of these accuracies"""
    personal_accuracy_q75: Annotated[float, Column("f8", "fraction", missing=nan)] = nan
    """upper quartile of these accuracies"""
    personal_accuracy_best: Annotated[float, Column("f8", "fraction", missing=nan)] = nan
    """highest `personal_accuracy_mean` so far (BMTA)"""
    client_accuracy_mean: Annotated[float, Column("f8", "fraction", missing=nan)] = nan
    """mean over the clients of the accuracy of the global model on each one's own test rows; NaN where no client has
    test rows"""
    client_accuracy_q25: Annotated[float, Column("f8", "fraction", missing=nan)] = nan
    """lower quartile of these accuracies; NaN unless `evaluate.clients`"""
    client_accuracy_median: Annotated[float, Column("f8", "fraction", missing=nan)] = nan
    """median of these accuracies; NaN unless `evaluate.clients`"""
    client_accuracy_q75: Annotated[float, Column("f8", "fraction", missing=nan)] = nan
    """upper quartile of these accuracies; NaN unless `evaluate.clients`"""
    client_accuracy_worst: Annotated[float, Column("f8", "fraction", missing=nan)] = nan
    """mean of the ceil(m/10) lowest of these accuracies, with m the number of clients with test rows; NaN unless
    `evaluate.clients`"""
    client_accuracy_variance: Annotated[float, Column("f8", missing=nan)] = nan
    """variance of these accuracies (the sum of squares is divided by m); NaN unless `evaluate.clients`"""
    gradient_norm: Annotated[float, Column("f8", missing=nan)] = nan
    """Euclidean norm of the gradient of f at the model, f the training loss without a method's own g; NaN unless
    `evaluate.gradient`"""
    gradient_mapping: Annotated[float, Column("f8", missing=nan)] = nan
    """Euclidean norm of the gradient mapping (x - prox_{eta g}(x - eta grad f(x)))/eta at the model x, eta the
    method's; NaN unless `evaluate.gradient` and the method minimises f + g"""
    age: Annotated[float, Column("f8", "s", missing=nan)] = 0.0
    """time from when the evaluation was due to `time`; 0 under the virtual clock"""


class ClientEvaluationRow(NamedTuple):
    """One row for each evaluation and client with test rows, if the job has `evaluate.clients`; not in files of older
    versions."""

    evaluation: Annotated[int, Column("i8")]
    """row of /evaluations, from 0"""
    client: Annotated[int, Column("i4")]
    """client; they ascend within an evaluation"""
    accuracy: Annotated[float, Column("f8", "fraction")]
    """accuracy of the global model on the client's own test rows"""
    personal_accuracy: Annotated[float, Column("f8", "fraction")] = nan
    """accuracy of the client's own model, as reported at its last contact, or of x_0 before the first; NaN where the
    method has no personal models"""


class MetricRow(NamedTuple):
    """One row for each evaluation and metric of `evaluate.metrics`, in their order; not in files of older versions."""

    evaluation: Annotated[int, Column("i8")]
    """row of /evaluations, from 0"""
    metric: Annotated[str, Column("S128")]
    """name of the metric in the job"""
    value: Annotated[float, Column("f8")]
    """value of the metric for the global model on the test rows; NaN where a score is not finite"""


class EventRow(NamedTuple):
    """One row for each event, such as a lost client or a checkpoint."""

    time: Annotated[float, Column("f8", "s of the run's clock")]
    """time of the event"""
    kind: Annotated[str, Column("S32")]
    """`lost`, `rehosted`, `refused`, `aside`; `checkpoint`, `checkpoint-skipped`, `checkpoint-failed`, `resumed`;
    `changed`, a key of the job from here on; `interrupted`, `failed`, `dropped`, `evaluation-skipped`"""
    client: Annotated[int, Column("i4")] = -1
    """client that it is about; -1: none"""
    text: Annotated[str, Column("S512")] = ""
    """details, one line"""
    updates: Annotated[int, Column("i8", missing=-1)] = -1
    """updates consumed before it; -1: not known"""
    version: Annotated[int, Column("i8", missing=-1)] = -1
    """aggregations made before it; -1: not known"""


class ClientRow(NamedTuple):
    """One row for each client."""

    samples: Annotated[int, Column("i8")]
    """number of training rows, s_i"""
    rate: Annotated[float, Column("f8", "1/s")]
    """contacts per second; NaN where the delay model has no rates"""
    rank: Annotated[int, Column("i4")]
    """rank that hosted the client when the run began or was resumed; /events has later moves"""
    updates: Annotated[int, Column("i8")] = 0
    """updates consumed"""
    state: Annotated[str, Column("S16")] = "live"
    """`live`, `lost`, `aside`"""
    on: Annotated[float, Column("f8", "fraction", missing=nan)] = nan
    """fraction of the run for which `clock.availability` had the client on; NaN until the end"""


class ChecksumRow(NamedTuple):
    """One row for each checksum: of a block of rows, a column, the model, or an attribute; not in files of older
    versions."""

    object: Annotated[str, Column("S32")]
    """what the checksum covers: a table that grows (`updates`), a column of one that does not (`clients/rate`),
    `model/x`, or an attribute (`@config`, `model/x@layout`)"""
    first: Annotated[int, Column("i8")]
    """first row of the block; 0 for anything but a table that grows"""
    rows: Annotated[int, Column("i8")]
    """number of rows in the block, or of items in the column or the model; 1 for an attribute"""
    crc: Annotated[int, Column("i8")]
    """CRC-32 (zlib) of the block's values, column by column, little endian, continued from the previous block of the
    table; for an attribute, CRC-32 of its value as JSON"""


Row = UpdateRow | AggregationRow | LoggedRow | EvaluationRow | ClientEvaluationRow | MetricRow | EventRow
RowBlock = Mapping[str, Mapping[str, np.ndarray]]  # rows of each table that grows: an array for each column


@dataclass(frozen=True)
class Table:
    """A group of the run file, derived from its typed record."""

    row: type
    chunk: int  # rows a chunk; 0 for a table of fixed length
    columns: dict[str, Column]
    added: bool = False  # files of older versions do not have it

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in all columns."""
        return sum(np.dtype(column.dtype).itemsize for column in self.columns.values())

    def arrays(self, rows: Sequence[Any]) -> dict[str, np.ndarray]:
        """The rows as an array (rows,) for each column."""
        return {name: column.array([getattr(row, name) for row in rows]) for name, column in self.columns.items()}


def _table(row: type, chunk: int = 0, added: bool = False) -> Table:
    hints = get_type_hints(row, include_extras=True)
    return Table(row, chunk, {name: hint.__metadata__[0] for name, hint in hints.items()}, added)


# Tables that grow. A row refers only to tables listed before its own.
TABLES: dict[str, Table] = {
    "updates": _table(UpdateRow, 4096),
    "aggregations": _table(AggregationRow, 4096),
    "logged": _table(LoggedRow, 4096, added=True),
    "evaluations": _table(EvaluationRow, 256),
    "client_evaluations": _table(ClientEvaluationRow, 4096, added=True),
    "metrics": _table(MetricRow, 256, added=True),
    "events": _table(EventRow, 16),
}
LOGGED_BESIDE = ("updates", "aggregations", "evaluations")  # tables whose frames have a column for each name logged
CLIENTS = _table(ClientRow)
CLIENTS_CHANGING = ("updates", "state", "on")  # columns that change until the run is over
CHECKSUMS = _table(ChecksumRow, 256, added=True)


class Attribute(NamedTuple):
    """One root attribute."""

    kind: type
    meaning: str
    dtype: str = ""  # fixed-size type of an attribute that changes after the start, until the run is over
    items: type | None = None  # type of the items of a list, which is stored as JSON text


ATTRIBUTES: dict[str, Attribute] = {
    "schema": Attribute(int, f"version of this schema: {SCHEMA}"),
    "id": Attribute(
        str, "identifies the run: drawn when it begins, kept when it is resumed; not in files of older versions"
    ),
    "session": Attribute(
        str,
        "identifies the process that writes the file: drawn when it begins or resumes the run; not in files of older "
        "versions",
    ),
    "resumed_from": Attribute(
        int, "number of the checkpoint that the run was resumed from; 0: none; not in files of older versions"
    ),
    "mpifl_version": Attribute(str, "version of the package"),
    "name": Attribute(str, "name of the job"),
    "algorithm": Attribute(str, "name of the algorithm"),
    "config": Attribute(str, "resolved job, YAML; it loads again"),
    "seed": Attribute(int, "seed of the job"),
    "clock": Attribute(str, "`real`, `virtual` or `replay`"),
    "clients": Attribute(int, "number of clients"),
    "ranks": Attribute(int, "number of ranks; 1 without MPI"),
    "hosts": Attribute(str, "JSON list, one name a rank, rank 0 first", items=str),
    "mpi": Attribute(str, "MPI library; `none` for one process"),
    "compute": Attribute(
        str,
        "JSON list, one object a rank, rank 0 first: `device`, `threads` and so on; only where a torch model computes",
        items=dict,
    ),
    "git_commit": Attribute(str, "commit of the source, with `-dirty` for changed files; empty where it is not known"),
    "started": Attribute(str, "time of the start, ISO 8601 with microseconds and offset"),
    "finished": Attribute(str, "time of the end, in the format of `started`; empty until then", "S40"),
    "status": Attribute(str, "one of " + ", ".join(f"`{status}`" for status in STATUSES), "S16"),
    "began": Attribute(float, "Unix time (s) at which the run's clock started; NaN until then", "f8"),
    "wall_seconds": Attribute(float, "wall time from the first message to the last event, s; NaN until the end", "f8"),
    "server_cpu_share": Attribute(
        float, "CPU time of rank 0 divided by the wall time of this session; NaN until the end", "f8"
    ),
    "contact_delay": Attribute(
        float,
        "mean time of a contact by the delay model in this session, s; NaN until the end, without delays, and in "
        "virtual time",
        "f8",
    ),
    "contact_seconds": Attribute(
        float, "mean time from these contacts' messages until their updates were consumed, s; NaN where that is", "f8"
    ),
    "peak_rss_mb": Attribute(float, "largest resident memory of rank 0, MiB; NaN until the end", "f8"),
}
CHANGING = {name: attribute.dtype for name, attribute in ATTRIBUTES.items() if attribute.dtype}


def append_rows(table: h5py.Group, columns: Mapping[str, np.ndarray]) -> None:
    """Appends rows, an array (rows,) for each column, to a table of an open file."""
    for name, values in columns.items():
        column, rows = table[name], len(table[name])
        column.resize((rows + len(values),))
        column[rows:] = values.astype(column.dtype)


def encode(value: str, size: int) -> bytes:
    """`value` as at most `size` bytes of UTF-8, cut between characters."""
    data = value.encode("utf-8", "replace")
    return data if len(data) <= size else data[:size].decode("utf-8", "ignore").encode("utf-8")
