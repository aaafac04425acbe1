"""The layout of a checkpoint as plain h5py sees it and as docs/reference/checkpoint-format.md describes it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from mpifl.runfile.checkpoint_folder import folder_of
from tests.mpi.cases import AREA, DIGITS, job
from tests.server.test_resume import kept, run  # noqa: F401 - a fixture

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs/generator"))
import tables  # type: ignore[import-not-found]  # noqa: E402 - of the folder above

PAGE = (ROOT / "docs/reference/checkpoint-format.md").read_text()
FREE = ("algorithm", "rows")  # groups whose names the page leaves to the method, and to the run file
CASES = {
    "area": job({**AREA, "trigger": {"every": 3}}, checkpoint={"updates": 13}),
    "personal": job({"name": "apfl"}, {**DIGITS, "test_split": 0.2}, checkpoint={"updates": 13}, stop={"updates": 30}),
    "refused": job({**AREA, "trigger": {"every": 2}}, faults={"norm": 0.9, "refusals": 3}, checkpoint={"updates": 13}),
}


@pytest.fixture(params=CASES)
def parts(request: pytest.FixtureRequest, tmp_path: Path, kept: list[Path]) -> Iterator[dict[int, h5py.File]]:  # noqa: F811
    """The parts of rank 0 and rank 1 of a run's second checkpoint, while the run continues."""
    run(tmp_path, "run", CASES[request.param])
    files = {rank: h5py.File(folder_of(kept[1]) / f"000002.rank{rank}") for rank in (0, 1)}
    yield files
    for file in files.values():
        file.close()


def documented(table: str) -> dict[str, str]:
    """The name and kind in each row of a generated table."""
    assert f"<!-- generate: {table} -->" in PAGE
    return dict(re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", getattr(tables, table)(), re.M))


def found(group: h5py.Group, path: str = "") -> dict[str, str]:
    """The path and kind of everything in a group."""
    kinds = {"i": "integer", "f": "float64", "S": "text", "b": "boolean"}
    here = {f"{path}/{name}": f"{kinds[group.attrs.get_id(name).dtype.kind]}, attribute" for name in group.attrs}
    for name, value in group.items():
        below = f"{path}/{name}"
        if isinstance(value, h5py.Dataset):
            here[below] = f"dataset, {kind(value)}"
        else:
            here |= {below: "group"} | ({} if name in FREE else found(value, below))
    return here


def test_the_server_is_as_documented(parts: dict[int, h5py.File]) -> None:
    """Nothing exists that the page does not list, and nothing is missing that it does not call optional."""
    page, there = documented("server_snapshot"), found(parts[0])
    there = {re.sub(r"/\d+(/|$)", r"/0\1", name): kind for name, kind in there.items()}
    extra = {"/format": "integer, attribute", "/rank": "integer, attribute", "/evaluator/pending/0": "group"}
    page |= extra
    assert {"/number", "/format", "/rank"} <= there.keys() <= page.keys()
    for name, kind in page.items():
        if name in there:
            assert kind.startswith(there[name]) or there[name].startswith(kind.removesuffix(", optional")), name
        else:
            assert "optional" in kind or name.startswith("/evaluator/pending/0"), name


def test_values_are_those_of_the_run(parts: dict[int, h5py.File]) -> None:
    server, clients = parts[0], parts[1]
    loop, n = server["loop"], len(server["client_rank"])
    assert server.attrs["format"] == 6 and server.attrs["number"] == 2 and server.attrs["rank"] == 0
    assert loop.attrs["updates"] == server["rows"].attrs["updates"] == 26 and set(server["client_rank"]) == {1}
    assert server.attrs["time"] == server["schedule/clock"].attrs["time"] > 0
    assert loop["clients/rounds"].shape == (n,) and {*loop["clients/state"].asstr()} <= {"live", "aside"}
    assert server["algorithm/x"].dtype.kind == "f" and np.isfinite(server["algorithm/x"][:]).all()
    assert {*clients["state/client"][:]} <= {*range(n)}, "those that are not in their initial state"
    update, vectors = clients["update"], clients["update_vectors"]
    in_flight = loop["clients/in_flight"][:]
    assert {*in_flight} <= {*update["client"]}
    sent = dict(zip(update["client"], update["values/round"], strict=True))
    assert all(sent[i] == loop["clients/rounds"][i] - 1 for i in in_flight)
    norms = dict(zip(update["client"], update["values/norm"], strict=True))
    one = vectors["values/0"]
    assert one.shape == (len(vectors["client"]), *server["algorithm/x"].shape) and len(one)
    if len(vectors["values"]) == 1:
        for i, v in zip(vectors["client"], one, strict=True):
            assert np.linalg.norm(v) == pytest.approx(norms[i])


def test_the_clients_are_as_documented(parts: dict[int, h5py.File]) -> None:
    by_hand = re.sub(r"<!-- generate: .*?<!-- end of", "", PAGE, flags=re.S)
    listed = re.findall(r"^\| `/(\w+)` \|", by_hand, re.M)
    assert listed == ["state", "objective", "update", "update_numbers", "update_vectors", "error"]
    assert {*parts[1]} == {*listed} and {*parts[1].attrs} == {"format", "number", "rank"}
    for table in listed:
        assert {*parts[1][table]} == {"client", "values"}
        check(parts[1][table])
    page = documented("update_snapshot")
    assert {name: kind(parts[1]["update/values"][name]) for name in parts[1]["update/values"]} == page


def kind(dataset: h5py.Dataset) -> str:
    return "text" if dataset.dtype.kind == "S" else str(dataset.dtype)


def check(table: h5py.Group) -> None:
    """Every dataset has a row for each client, and so has each table in the place of one."""
    clients = table["client"][:].tolist()
    assert len({*clients}) == len(clients)
    for value in table["values"].values():
        if isinstance(value, h5py.Dataset):
            assert len(value) == len(clients)
        else:
            members = [i for block in value.values() for i in block["client"][:].tolist()]
            assert {*members} <= {*clients} and len({*members}) == len(members)
            assert all(len(block["values"]) == len(block["client"]) for block in value.values())
