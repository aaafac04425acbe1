"""The content of a checkpoint: typed snapshots of the server and of the clients, and their layout in HDF5 files.

A checkpoint has one file per rank, a part: that of rank 0 holds a `ServerSnapshot`, each other one the
`ClientSnapshot`s of the clients that its rank hosts. The layout follows from the fields: to store something
else, add a field, fill it, and increase `FORMAT`. It is documented in docs/reference/checkpoint-format.md.

Nothing is pickled: all values are numbers, booleans and texts. h5py is imported when the first part is written or read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from mpifl.errors import error_text
from mpifl.safe_input import open_regular

# 1: a binary format of the project's own; 2: the rows were in the run file alone; 3, 4, 5: other columns or tables
FORMAT = 6
SIGNATURE = b"\x89HDF\r\n\x1a\n"
PART = "a part of a checkpoint"  # what a file should be, in errors
T = TypeVar("T")


class Unusable(Exception):
    """A part or a manifest that cannot be used; a clause after "checkpoint 12": "is damaged: 000012.rank3 is ..." """


# -- the server --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ClientTableState:
    """The server's table of the n clients; a list has an item for each client unless noted."""

    state: list[str]
    """live, lost or aside"""
    rounds: list[int]
    """messages that the client has been sent"""
    bytes_down: list[int]
    """size of the last message to the client, bytes"""
    refused: list[int]
    """updates refused in a row"""
    moved: list[int]
    """moves to another rank in a row, without an update consumed between them"""
    in_flight: list[int]
    """clients whose update the server has not consumed"""
    grace: list[float]
    """for each client in `in_flight`: s until its silence counts as a failure"""
    waiting: list[int]
    """clients that are answered at the next aggregation"""
    accuracies: list[float] | None = None
    """accuracy of the client's personal model, 0 to 1; nan: none reported yet; absent: the method has none"""


@dataclass(frozen=True)
class LoopState:
    """The server loop; the algorithm's own state is apart."""

    version: int
    """aggregations"""
    updates: int
    """updates consumed"""
    clients: ClientTableState
    """the client table"""
    time: float = 0.0
    """s of the run's clock, when the last update was consumed; 0: none was"""


@dataclass(frozen=True)
class ClockState:
    """The run's clock and the updates in flight; each list has an item for each of them."""

    time: float
    """s of the run's clock"""
    client: list[int]
    """clients whose updates are in flight, in the clock's order"""
    due: list[float]
    """s of the run's clock: virtual, when the update is due; real, when the message was sent"""
    compute: list[float]
    """s that the emulated computation takes; nan: not emulated"""
    exchange: list[float]
    """s that the emulated exchange of message and update takes; nan: not emulated"""
    waited: list[float]
    """s that the message waits until the client is on; inf: the client is not on again for long enough"""


@dataclass(frozen=True)
class ScheduleState:
    """The counters of the live schedule."""

    clock: ClockState
    """the run's clock"""
    round_size: int
    """updates that complete the present synchronous round"""
    updates: int
    """updates so far"""
    pending: int
    """updates since the last aggregation"""
    aggregations: int
    """aggregations so far"""
    timed_aggregations: int
    """aggregations so far that were due by the clock"""
    next_aggregation: float
    """s: when the next one is due by the clock; inf: never"""
    evaluations: int
    """due times of evaluations that have passed"""
    checkpoints: int
    """due times of checkpoints that have passed"""
    checkpoint_updates: int
    """updates at the last checkpoint"""
    evaluated_time: float = nan
    """s: time of the last evaluation; nan: none yet"""
    evaluated_updates: int = -1
    """updates before the last evaluation; -1: none yet"""
    evaluated_aggregations: int = -1
    """aggregations before the last evaluation; -1: none yet"""


@dataclass(frozen=True)
class PendingEvaluation:
    """A model that waits to be evaluated."""

    time: float
    """s of the run's clock"""
    updates: int
    """updates consumed before the model was taken"""
    version: int
    """aggregations before the model was taken"""
    model: np.ndarray
    """(d,) the model"""
    accuracies: np.ndarray | None = None
    """(n,) accuracies of the clients' personal models at that time; absent: the method has none"""
    age: float | None = None
    """s from when the evaluation was due to `time`; absent: written by an older version"""


@dataclass(frozen=True)
class EvaluatorState:
    """The evaluator: targets, and the evaluations that are not yet rows of the run file."""

    best: float
    """best mean accuracy of personal models so far; nan: none"""
    reached: bool
    """whether the target accuracy was reached"""
    pending: list[PendingEvaluation]
    """models that wait to be evaluated, in the order of submission"""
    kept: np.ndarray | None = None
    """(d,) the best model so far, by the rows of the run file; absent: without `keep.best`, and before the first row"""


@dataclass(frozen=True)
class ServerSnapshot:
    """The server between two events, and where each client was then."""

    number: int
    """number of the checkpoint"""
    run: str
    """id of the run, from the run file"""
    session: str
    """id of the process that wrote the checkpoint, from the run file"""
    resumed_from: int
    """number of the checkpoint that this process resumed from; 0: none"""
    resumes: int
    """how many times the run was resumed before"""
    started: str
    """when the run started, as in the run file"""
    began: float
    """Unix time (s) at which the run's clock started"""
    config: str
    """the resolved job, YAML, as in the run file"""
    time: float
    """s of the run's clock"""
    wall_seconds: float
    """s that the run has taken, earlier sessions included"""
    rows: dict[str, int]
    """rows of each table of the run file"""
    client_rank: list[int]
    """the rank that hosts each client, and whose part has its snapshot"""
    loop: LoopState
    """the server loop"""
    schedule: ScheduleState
    """the schedule and the clock"""
    evaluator: EvaluatorState
    """targets and pending evaluations"""
    algorithm: dict[str, np.ndarray]
    """the algorithm's server state, by the names that the method gives"""

    def without_arrays(self) -> ServerSnapshot:
        """The snapshot without models and the algorithm's state, which may be large."""
        return dataclasses.replace(
            self, algorithm={}, evaluator=dataclasses.replace(self.evaluator, pending=[], kept=None)
        )


# -- the clients -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class UpdateSnapshot:
    """A client's last update, which it has sent or still holds back; the server may have consumed it or not."""

    vectors: tuple[np.ndarray, ...]
    """(d,) each"""
    numbers: tuple[float, ...]
    """numbers that the method sends with the vectors"""
    local_steps: int
    """gradient steps taken"""
    version: int
    """version of the message that it answers: aggregations before that was sent"""
    round: int
    """round of the message that it answers: earlier messages to the client"""
    norm: float
    """Euclidean norm of all vectors"""
    compute: float
    """s that the computation took; nan: unknown"""
    busy: float
    """s that the rank spent on it: computing, and evaluating the personal model"""
    accuracy: float
    """accuracy of the client's personal model on its own test rows, 0 to 1; nan: there is none"""
    refused: str
    """why the update was refused; empty: it was not"""
    hold: float
    """s for which the update is still held back"""


@dataclass(frozen=True)
class ClientSnapshot:
    """One client between two messages."""

    state: Mapping[str, np.ndarray] | None
    """the algorithm's client state, by the names that the method gives; None: the client could not be hosted"""
    objective: Mapping[str, np.ndarray] = field(default_factory=dict)
    """the state of the client's objective: statistics of batch norm, an optimiser's state"""
    update: UpdateSnapshot | None = None
    """the last update; None: the client has sent none since it was started or moved, or it raised an error"""
    error: str = ""
    """error that the client raised on its last message; empty: none"""


DTYPES = {int: "i8", float: "f8"}
# Fields of an update that are single numbers: name -> NumPy's type.
SCALARS = {name: DTYPES[hint] for name, hint in get_type_hints(UpdateSnapshot).items() if hint in DTYPES}
PartContent = ServerSnapshot | Mapping[int, ClientSnapshot]


# -- parts -------------------------------------------------------------------------------------------------------------
def write_part(path: Path, number: int, rank: int, content: PartContent) -> None:
    """Makes the file `path` the part of rank `rank` in checkpoint `number`. Arrays are written as they are now.

    Raises OSError; TypeError or ValueError for what cannot be stored.
    """
    from mpifl.checkpoint.hdf5 import write

    body = _tree(content) if isinstance(content, ServerSnapshot) else _clients_tree(content)
    write(path, {"format": FORMAT, "number": number, "rank": rank, **body})


def read_server(path: Path) -> ServerSnapshot:
    """The content of rank 0's part. Raises Unusable."""
    with opened_file(path, PART) as tree:
        return _record(ServerSnapshot, tree)


def read_clients(path: Path, wanted: Iterable[int] | None = None) -> dict[int, ClientSnapshot]:
    """The snapshots of these clients (None: all), as far as they are in a part; new arrays. Raises Unusable."""
    with opened_file(path, PART) as tree:
        return _clients(tree, None if wanted is None else set(wanted))


def check_part(path: Path, number: int, rank: int) -> None:
    """Raises Unusable for what is not the part of that rank in checkpoint `number`; reads no large array of clients."""
    with opened_file(path, PART) as tree:
        if (found := tree.get("rank")) != rank or tree["number"] != number:
            raise ValueError(f"it is that of rank {found} in checkpoint {tree['number']}")
        if rank == 0:
            _record(ServerSnapshot, tree)
        else:
            _clients(tree, set())


@contextmanager
def opened_file(path: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Opens a file of a checkpoint as a tree. Raises Unusable for whatever is wrong with it, also in the block.

    kind  what the file should be, for the error
    """
    try:
        with open_regular(path, follow_links=False) as file:
            signature = file.read(len(SIGNATURE))
    except OSError as error:
        raise Unusable(f"cannot be read: {path.name}: {error_text(error)}") from error
    if signature != SIGNATURE:
        raise Unusable(f"is damaged: {path.name} is not an HDF5 file")
    from mpifl.checkpoint.hdf5 import opened

    try:
        with opened(path) as tree:
            if type(version := tree.get("format")) is int and version != FORMAT:
                raise other_format(path.name, version)
            if not all(type(tree.get(name)) is int for name in ("format", "number")):
                raise ValueError("format or number is missing")
            yield tree
    except (Unusable, MemoryError):
        raise
    except Exception as error:  # HDF5 may raise anything for a file that is damaged
        reason = " ".join(str(error).split()) or type(error).__name__
        raise Unusable(f"is damaged: {path.name} is not {kind} ({reason[:200]})") from error


def other_format(name: str, version: int) -> Unusable:
    """The error for a format that this version does not read."""
    age = "newer" if version > FORMAT else "older"
    return Unusable(f"is of {'a' if age == 'newer' else 'an'} {age} format: {name} has format {version}, this mpifl "
                    f"reads {FORMAT}")  # fmt: skip


# -- dataclasses as trees ----------------------------------------------------------------------------------------------
def _tree(record: Any) -> dict[str, Any]:
    """Groups for records, attributes for numbers and texts, datasets for lists and arrays; None is left out."""
    hints = get_type_hints(type(record))
    return {name: _node(value, hints[name]) for name, value in vars(record).items() if value is not None}


def _node(value: Any, hint: Any) -> Any:
    item = get_args(_required(hint))
    if dataclasses.is_dataclass(value):
        return _tree(value)
    if _required(hint) in (bool, int, float):
        return _required(hint)(value)
    if not isinstance(value, list):
        return value
    if dataclasses.is_dataclass(item[0]):
        return {str(k): _tree(each) for k, each in enumerate(value)}
    if item[0] is str:
        return text_array(value)
    return np.array(value, DTYPES[item[0]])


def text_array(texts: list[str]) -> np.ndarray:
    """(len(texts),) in UTF-8"""
    raw = [text.encode() for text in texts]
    return np.array(raw, f"S{max(1, *map(len, raw), 1)}")


def _required(hint: Any) -> Any:
    """A type without "or None"."""
    if get_origin(hint) is UnionType:
        return next(arg for arg in get_args(hint) if arg is not NoneType)
    return hint


def _record(cls: type[T], tree: Mapping[str, Any]) -> T:
    """Inverse of `_tree`. Raises ValueError."""
    hints = get_type_hints(cls)
    found = {}
    for name, hint in hints.items():
        if name in tree:
            found[name] = _value(name, tree[name], _required(hint))
        elif get_origin(hint) is UnionType:
            found[name] = None
        else:
            raise ValueError(f"{name} is missing")
    return cls(**found)


def _value(name: str, node: Any, hint: Any) -> Any:
    item, kind = get_args(hint), get_origin(hint)
    is_array, is_group = hasattr(node, "dtype"), isinstance(node, dict)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and is_group:
        return _record(hint, node)
    if kind is list and is_group and dataclasses.is_dataclass(item[0]):
        return [_value(name, node[str(k)], item[0]) for k in range(len(node))]
    if (
        kind is list
        and is_array
        and len(node.shape) == 1
        and node.dtype.kind == {int: "i", float: "f", str: "S"}[item[0]]
    ):
        found = np.asarray(node).tolist()
        return [text.decode() for text in found] if item[0] is str else found
    if kind is dict and is_group:
        return {key: _value(key, value, item[1]) for key, value in node.items()}
    if hint is np.ndarray and is_array:
        return np.asarray(node)
    if type(node) is hint:
        return node
    raise ValueError(f"{name} is of another type")


# -- clients as trees: one dataset for each name, with a row for each client -------------------------------------------
def _clients_tree(clients: Mapping[int, ClientSnapshot]) -> dict[str, Any]:
    updates = {i: client.update for i, client in clients.items() if client.update}
    refused, errors = [u.refused for u in updates.values()], {i: c.error for i, c in clients.items() if c.error}
    return {
        "state": _by_client({i: client.state for i, client in clients.items() if client.state is not None}),
        "objective": _by_client({i: client.objective for i, client in clients.items() if client.objective}),
        "update": _table(list(updates), {
            **{name: np.array([getattr(u, name) for u in updates.values()], kind) for name, kind in SCALARS.items()},
            "refused": text_array(refused),
        }),
        "update_numbers": _by_client({i: {"numbers": np.array(u.numbers, float)} for i, u in updates.items()}),
        "update_vectors": _by_client(
            {i: {str(k): v for k, v in enumerate(u.vectors)} for i, u in updates.items() if u.vectors}
        ),
        "error": _table(list(errors), {"text": text_array(list(errors.values()))}),
    }  # fmt: skip


def _table(clients: list[int], values: Any) -> dict[str, Any]:
    return {"client": np.array(clients, np.int64), "values": values}


def _by_client(values: Mapping[int, Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """A dataset (clients, ...) for each name; a group of several, each with its clients, where some lack it or have
    another shape or type."""
    kinds: dict[str, dict[tuple[Any, ...], dict[int, np.ndarray]]] = {}
    for i, arrays in values.items():
        for name, array in arrays.items():
            array = np.asarray(array)
            kinds.setdefault(name, {}).setdefault((array.dtype, array.shape), {})[i] = array
    datasets: dict[str, Any] = {}
    for name, blocks in kinds.items():
        (first, *others) = blocks.values()
        if not others and len(first) == len(values):
            datasets[name] = [*first.values()]
        else:
            datasets[name] = {str(k): _table(list(b), [*b.values()]) for k, b in enumerate(blocks.values())}
    return _table(list(values), datasets)


def _clients(tree: Mapping[str, Any], wanted: set[int] | None) -> dict[int, ClientSnapshot]:
    """Inverse of `_clients_tree` for these clients (None: all)."""
    state, objective, update, numbers, vectors, error = (
        _rows(tree[name], wanted)
        for name in ("state", "objective", "update", "update_numbers", "update_vectors", "error")
    )
    return {
        i: ClientSnapshot(
            state.get(i),
            objective.get(i, {}),
            _update(update[i], numbers[i]["numbers"], vectors.get(i, {})) if i in update else None,
            error[i]["text"].item().decode() if i in error else "",
        )
        for i in {**state, **error}
    }


def _update(
    values: Mapping[str, np.ndarray], numbers: np.ndarray, vectors: Mapping[str, np.ndarray]
) -> UpdateSnapshot:  # fmt: skip
    return UpdateSnapshot(
        vectors=tuple(vectors[str(k)] for k in range(len(vectors))),
        numbers=tuple(numbers.tolist()),
        refused=values["refused"].item().decode(),
        **{name: values[name].item() for name in SCALARS},
    )


def _rows(table: Mapping[str, Any], wanted: set[int] | None) -> dict[int, dict[str, np.ndarray]]:
    """The arrays of these clients, by client and name."""
    from mpifl.checkpoint.hdf5 import rows_of

    clients = _numbers(table["client"])
    found: dict[int, dict[str, np.ndarray]] = {i: {} for i in clients if wanted is None or i in wanted}
    for name, value in table["values"].items():
        blocks = value.values() if isinstance(value, dict) else [{"client": None, "values": value}]
        for block in blocks:
            members = clients if block["client"] is None else _numbers(block["client"])
            stored = block["values"]
            if stored.shape[:1] != (len(members),):
                raise ValueError(f"{name} does not have a row for each client")
            for k, row in rows_of(stored, {k for k, i in enumerate(members) if i in found}):
                found[members[k]][name] = row
    return found


def _numbers(stored: Any) -> list[int]:
    """Client numbers. Raises ValueError if they are not distinct integers."""
    clients: list[int] = np.asarray(stored).tolist() if stored.dtype.kind == "i" and len(stored.shape) == 1 else [0, 0]
    if len(set(clients)) < len(clients):
        raise ValueError("client numbers are not distinct")
    return clients
