"""`mpifl verify`: no run file of any kind is called wrong, and every wrong cell and every flipped bit is found."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import h5py
import numpy as np
import pytest

import mpifl
from mpifl.algorithms.common.local_solver import LocalTraining
from mpifl.cli import main
from mpifl.errors import Contradiction, RunFailed
from mpifl.objective import Objective
from mpifl.runfile.writer import RunWriter
from mpifl.tools.verify.run_file import check_file
from tests.mpi.cases import CASES
from tests.mpi.files import differing
from tests.runfile.checksums import changing

OWN = """
from pathlib import Path
Path("imported").touch()
from mpifl.algorithms.area import Area
class Own(Area):
    pass
"""


def made(folder: Path, name: str, job: dict[str, Any], **more: Any) -> Path:
    """The file of a run, whether it completed or failed."""
    path = folder / f"{name}.h5"
    with contextlib.suppress(RunFailed):
        mpifl.run({**job, "name": name, "output": str(path), **more}).close()
    return path


def hurt(folder: Path) -> Path:
    """A run with clients that raise and are lost, and with refused updates, until some clients are set aside."""
    solve, draw = LocalTraining.solve, random.Random(0)

    def failing(self: Any, objective: Objective, *args: Any, **options: Any) -> Any:
        if draw.random() < 0.02:
            raise RuntimeError("trouble")
        y, *rest = solve(self, objective, *args, **options)
        return (y + float("nan") if draw.random() < 0.2 else y, *rest)

    with patch.object(LocalTraining, "solve", failing):
        return made(folder, "hurt", CASES["area-digits"], faults={"refusals": 2})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run with lost and refused clients, one of a synchronous method, one with metrics, and one in real time with so
    many evaluations that the server is late."""
    folder = tmp_path_factory.mktemp("verify")
    clock = {"mode": "real", "delay": {"name": "exponential", "rate": 1000}}
    return {
        "hurt": hurt(folder),
        "rounds": made(folder, "rounds", CASES["fedavg-cohort"]),
        "real": made(folder, "real", CASES["fedbuff"], stop={"updates": 60}, clock=clock, evaluate={"every": 0.001}),
        "metrics": made(folder, "metrics", CASES["apfl"]),
    }


SAID = "rows and checksums verified; what is computed from the data was not checked (--replay)"


# -- no false alarm ----------------------------------------------------------------------------------------------------
def test_what_is_verified_is_told_in_one_line(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Of runs of other kinds tests/verified.py verifies the files, those of all methods among them."""
    assert all(": rows and checksums verified" in check_file(path) for path in files.values())
    assert main(["verify", str(files["rounds"])]) == 0
    out, err = capsys.readouterr()
    assert out == f"{files['rounds']}: 60 updates, 20 aggregations, 4 evaluations, 1 event: {SAID}\n" and not err


def test_a_replay_computes_the_same(files: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = sorted(files["real"].parent.iterdir())
    assert main(["verify", str(files["real"]), "--replay"]) == 0
    assert capsys.readouterr().out.endswith(
        ": rows and checksums verified; the replay computed the same rows and model\n"
    )
    assert sorted(files["real"].parent.iterdir()) == before


def test_a_live_file(tmp_path: Path) -> None:
    """The rows written so far are verified, and the line says so."""
    seen = []
    append = RunWriter.append

    def watched(self: RunWriter, row: Any) -> None:
        append(self, row)
        if not self._rows["updates"]:
            return
        self.flush()
        seen.append(check_file(self.path))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunWriter, "append", watched)
        made(tmp_path, "live", CASES["fedbuff"], stop={"updates": 20})
    assert len(seen) >= 20
    assert all(
        "rows and checksums verified; the run was not closed: what is there was checked" in line for line in seen
    )


def test_code_that_the_file_names_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("own_rules.py").write_text(OWN)
    job = {**CASES["area-before"], "algorithm": {"name": "own_rules:Own", "step_size": 0.1}}
    path = made(tmp_path, "own", job)
    Path("imported").unlink()
    monkeypatch.delitem(__import__("sys").modules, "own_rules")
    line = check_file(path)
    assert line.endswith("messages and triggers were not checked: algorithm is code outside mpifl")
    assert main(["verify", str(path), "--replay"]) == 2 and "--trust" in capsys.readouterr().err
    assert not Path("imported").exists()
    assert main(["verify", str(path), "--replay", "--trust"]) == 0 and Path("imported").exists()


# -- what is no run file, or is damaged --------------------------------------------------------------------------------
def test_what_is_no_run_file_is_an_error_of_the_command_and_what_is_cut_off_is_wrong(
    tmp_path: Path, files: dict[str, Path], refused: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("name: run\n")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = [1.0]
    for name in ("text", "other.h5", "missing.h5"):
        assert refused("verify", tmp_path / name).startswith(f"mpifl: run file={tmp_path / name}: ")
    assert refused("verify") == "mpifl: verify='': no path; expected one RUN.h5\n"
    refused("verify", files["real"], files["real"])
    content = files["real"].read_bytes()
    (tmp_path / "cut.h5").write_bytes(content[: len(content) // 2])
    assert main(["verify", str(tmp_path / "cut.h5")]) == 3
    assert capsys.readouterr().err.startswith(f"mpifl: run file={tmp_path / 'cut.h5'}: truncated")
    bad = shutil.copyfile(files["real"], tmp_path / "bad.h5")
    with h5py.File(bad, "r+", libver="latest") as file:  # tests/runfile flips a bit in each place
        file["updates/norm"][3] += 1
    assert main(["verify", str(bad)]) == 3
    assert re.search(r"updates: the checksum of rows \d+ to \d+ is ", capsys.readouterr().err)


# -- one wrong cell, with checksums that agree -------------------------------------------------------------------------
# The file, the place in it, its row or kind of event, another value, and what is said: of the same row, if of none.
WRONG: list[tuple[str, str, Any, Callable[[Any], Any] | None, str]] = [
    ("real", "updates", None, None, "aggregations row 14: updates is 60, expected 0 to 59"),  # a row less
    ("real", "aggregations", None, None, "aggregations: 14 rows, expected one more after 60 updates"),
    ("rounds", "evaluations", None, None, "evaluations: none after 60 updates, expected one every 20"),
    ("hurt", "updates/version", 20, lambda v: v - 1, r"staleness is \d+, expected \d+"),
    ("real", "updates/version", 9, lambda v: v + 9, "version is .* at most"),
    ("real", "updates/staleness", 20, lambda v: v + 1, "staleness is"),
    ("real", "updates/client", 7, lambda v: (v + 1) % 7, r"(updates|clients) row \d+: "),
    ("rounds", "updates/client", 7, lambda v: 7, "client is 7, expected one of"),
    ("rounds", "updates/client", 7, lambda v: (v + 1) % 7, r"updates row \d+: "),
    ("rounds", "updates/time", 31, lambda v: np.nextafter(v, 9), "time is"),
    ("real", "updates/time", 59, lambda v: np.nan, "time is nan"),
    ("real", "updates/bytes", 3, lambda v: v + 4, "bytes is"),
    ("real", "updates/bytes_down", 3, lambda v: 3 * v, "bytes_down is"),
    ("real", "updates/norm", 5, lambda v: -v, "norm is"),
    ("real", "updates/local_steps", 5, lambda v: -1, "local_steps is -1"),
    ("real", "aggregations/updates", 4, lambda v: v + 1, r"updates row 20: (version|staleness) is"),
    ("real", "aggregations/time", 4, lambda v: np.nextafter(v, 0), "time is"),
    ("real", "evaluations/version", 2, lambda v: v + 9, ""),
    ("rounds", "evaluations/updates", 2, lambda v: v + 1, r"evaluations(: | row \d)"),
    ("real", "evaluations/time", -1, lambda v: v / 2, "evaluations row .*: time is"),
    ("hurt", "evaluations/test_accuracy", 1, lambda v: 1.5, "test_accuracy is 1.5"),
    ("hurt", "client_evaluations/accuracy", 4, lambda v: (v + 0.5) % 1, "evaluations row 0: client_accuracy_"),
    ("hurt", "client_evaluations/client", 4, lambda v: v - 1, "client is 3, expected"),
    ("hurt", "client_evaluations/evaluation", -1, lambda v: v + 1, r"client_evaluations row \d+: evaluation is"),
    ("hurt", "evaluations/client_accuracy_worst", 1, lambda v: v / 2 + 0.3, "client_accuracy_"),
    ("metrics", "metrics/value", 3, lambda v: v + 1, "value is 1"),
    ("metrics", "metrics/metric", 3, lambda v: b"macro_f1", "metric is 'macro_f1', expected"),
    ("metrics", "metrics/evaluation", 3, lambda v: v + 1, "evaluation is 2, expected 1"),
    ("hurt", "events/client", b"lost", lambda v: (v + 1) % 9, r"(updates|events|clients) row \d+: "),
    ("hurt", "events/client", b"refused", lambda v: (v + 1) % 9, r"(updates|events) row \d+: "),
    ("hurt", "events/kind", b"lost", lambda v: b"aside", r"events row \d+: client is"),
    ("hurt", "events/updates", b"refused", lambda v: v + 30, r"(events|updates) row \d+: "),
    ("real", "clients/updates", 2, lambda v: v + 1, "updates is"),
    ("real", "clients/state", 2, lambda v: b"lost", "state is 'lost'"),
    ("real", "clients/rank", 2, lambda v: 1, "rank is 1, expected 0"),
    ("real", "@status", None, lambda v: "interrupted", "attribute status is 'interrupted'"),
    ("real", "@finished", None, lambda v: "", "attribute finished is empty"),
    ("real", "@clients", None, lambda v: 6, "attribute clients is 6, expected 7"),
    ("real", "@seed", None, lambda v: 6, "attribute seed is 6, expected 5"),
    ("real", "model/x@version", None, lambda v: 3, "model/x has version 3, expected 15"),
]


@pytest.mark.parametrize(("kind", "place", "row", "value", "says"), WRONG)
def test_a_wrong_cell_is_found(
    files: dict[str, Path], tmp_path: Path, kind: str, place: str, row: Any, value: Any, says: str
) -> None:
    bad = shutil.copyfile(files[kind], tmp_path / "bad.h5")
    path, _, name = place.partition("@")
    with changing(bad) as file:
        if name:
            file[path or "/"].attrs[name] = value(None)
        elif row is None:
            for column in file[path].values():
                column.resize((len(column) - 1,))
        else:
            k = int(np.flatnonzero(file["events/kind"][...] == row)[0]) if isinstance(row, bytes) else row
            file[path][k] = value(file[path][k])
    expected = says if " row " in says or not isinstance(row, int) else f"{path.partition('/')[0]} row {row}: {says}"
    with pytest.raises(Contradiction, match=f"^{re.escape(str(bad))}: {expected}") as raised:
        check_file(bad)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("updates/norm", "updates row 3: norm is "),
        ("evaluations/train_loss", "evaluations row 3: train_loss is "),
        ("model/x", "model/x item 3 is "),
    ],
)
def test_a_wrong_bit_is_found_by_replay(
    column: str, expected: str, files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = shutil.copyfile(files["rounds"], tmp_path / "bad.h5")
    with changing(bad) as file:
        file[column][3] = np.nextafter(file[column][3], np.array(9, file[column].dtype))
    check_file(bad)
    assert main(["verify", str(bad), "--replay"]) == 3
    out, err = capsys.readouterr()
    assert not out and err.startswith(f"mpifl: {bad}: {expected}") and ", the replay has " in err
    assert err.count("\n") == 1 and len(differing(bad, files["rounds"])) == 1
