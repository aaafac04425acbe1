"""The arena from end to end on a small suite, and submissions that are refused."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mpifl
from mpifl.cli import main
from mpifl.errors import ConfigError, Contradiction
from mpifl.tools.arena.audit import check_source
from mpifl.tools.arena.command import arena
from mpifl.tools.arena.submission import verify_submission, verify_table, why_refused
from mpifl.tools.arena.suite import own_method
from mpifl.tools.arena.table import Row, parse_table, read_table, write_table
from tests.arena.conftest import MINE
from tests.tiers import parameters


@pytest.fixture(scope="module")
def results(small: Path) -> Path:
    """The folder of the suite's results, which are stored in the suite."""
    assert "wrote results/arena/arena-1-quick.csv" in arena(processes=2)
    table = Path("results/arena/arena-1-quick.csv").read_bytes()
    (small / "quick.csv.gz").write_bytes(gzip.compress(table, mtime=0))
    return Path("results/arena").resolve()


@pytest.fixture(scope="module")
def submission(results: Path) -> Path:
    arena(own="arena_method:Mine", processes=2)
    return results / "arena-1-quick-arena_method-Mine.json"


def test_a_tier_from_end_to_end(results: Path) -> None:
    """Each method has two configurations at one tuning seed, and the better one at two others; all is in the table."""
    rows = read_table(results / "arena-1-quick.csv")
    assert len(rows) == 3 * (2 + 2) and {row.status for row in rows} == {"completed"}
    for method in ("FedAvg", "ASGD", "FedBuff"):
        tuning = {row.configuration: row.loss for row in rows if (row.method, row.role) == (method, "tuning")}
        reported = [row for row in rows if (row.method, row.role) == (method, "reporting")]
        assert {row.configuration for row in reported} == {min(tuning, key=lambda text: tuning[text])}
        assert [row.seed for row in reported] == [0, 1] and all(len(row.curve.split()) == 51 for row in reported)
        for row in reported:  # the curve has every evaluation here
            assert row.area == pytest.approx(sum(map(float, row.curve.split())) / 51, rel=1e-4)
    interactive = (results / "arena-1-quick.html").read_text()
    assert 'mpifl run jobs/arena/small.yaml \'algorithm={\\"name\\": \\"fedavg\\"' in interactive
    (data,) = re.findall(r'<script id="data" type="application/json">(.*)</script>', interactive)
    for name, cell in zip(("FedAvg", "ASGD", "FedBuff"), json.loads(data)["cells"][0], strict=True):
        assert cell["loss"] == [row.loss for row in rows if (row.method, row.role) == (name, "reporting")]  # to the bit
    page = (results / "arena-1-quick.md").read_text()
    assert "3 methods, 1 scenario, 12 runs" in page and "12 completed, 0 diverged, 0 failed" in page
    before = {path: path.stat().st_mtime_ns for path in results.rglob("*.h5")}
    arena(processes=2)  # computes nothing again
    assert {path: path.stat().st_mtime_ns for path in results.rglob("*.h5")} == before and len(before) == 12
    assert write_table(read_table(results / "arena-1-quick.csv")) == write_table(rows)
    steps = {}  # local steps take time: of two a contact takes two computations and one exchange
    for run in mpifl.open_runs(results / "arena-1" / "small"):
        if run.config["algorithm"]["name"] == "fedavg":
            assert run.config["algorithm"]["local_steps"] == run.config["clock"]["delay"]["steps"]
            steps[run.config["algorithm"]["local_steps"]] = run.updates.compute.mean() / run.updates.exchange.mean()
    assert steps[2] / steps[1] == pytest.approx(2, rel=0.5)


def test_a_submission_is_verified_beside_the_stored_results(submission: Path) -> None:
    page = submission.with_suffix(".md").read_text()
    assert all(name in page for name in ("arena_method:Mine", "FedAvg", "ASGD", "FedBuff"))
    shown: list[str] = []
    line = verify_submission(submission, trust=True, whole=True, processes=2, progress=shown.append)
    assert any(each.startswith("small: 4 of 4 runs completed") for each in shown)
    assert line.endswith("arena_method:Mine in arena-1, quick tier: all rules hold, 4 of 4 runs recomputed to the bit")
    with pytest.raises(ConfigError, match=r"verifying it runs the code in this file; add --trust"):
        verify_submission(submission)


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [3, 5])
def test_a_submission_is_verified_on_several_ranks(submission: Path, ranks: int) -> None:
    line = verify_submission(submission, trust=True, whole=True, ranks=ranks, processes=1)
    assert line.endswith("4 of 4 runs recomputed to the bit")


@pytest.mark.long
def test_a_launcher_that_fails_is_started_again(
    submission: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That Open MPI does not start is no failure of the method."""
    launcher = tmp_path / "launcher"
    launcher.write_text(f'#!/bin/sh\nmkdir {tmp_path}/begun && echo no listener >&2 && exit 1\nshift 2\nexec "$@"\n')
    launcher.chmod(0o755)
    monkeypatch.setenv("MPIFL_MPIEXEC", str(launcher))
    line = verify_submission(submission, trust=True, whole=True, ranks=3, processes=1)
    assert line.endswith("4 of 4 runs recomputed to the bit")
    assert [record.getMessage().endswith("failed: no listener") for record in caplog.records] == [True]


@pytest.mark.long
def test_a_results_table_is_verified(results: Path, tmp_path: Path) -> None:
    """All methods of the suite, or one; a run that was left out is found."""
    table = results / "arena-1-quick.csv"
    line = verify_table(table, "quick", method="ASGD", whole=True, processes=2)
    assert line.endswith("ASGD in arena-1, quick tier: all rules hold, 4 of 4 runs recomputed to the bit")
    assert "3 methods in arena-1, quick tier: all rules hold, 3 of 12 runs" in verify_table(table, "quick", processes=2)
    rows = read_table(table)
    assert any(row.updates < float("inf") for row in rows)
    (tmp_path / "short.csv").write_text(write_table(rows[:-1]))
    with pytest.raises(Contradiction, match="this run is missing"):
        verify_table(tmp_path / "short.csv", "quick")


Change = Callable[[list[Row]], list[Row]]


def one(role: str, /, **changes: Any) -> Change:
    """Changes the first row of a role."""

    def change(rows: list[Row]) -> list[Row]:
        k = next(k for k, row in enumerate(rows) if row.role == role)
        return [*rows[:k], rows[k]._replace(**changes), *rows[k + 1 :]]

    return change


def swapped(rows: list[Row]) -> list[Row]:
    """Reports the configuration that the tuning seeds do not select."""
    chosen = next(row for row in rows if row.role == "reporting").configuration
    other = next(row for row in rows if row.configuration != chosen)
    return [row._replace(configuration=other.configuration) if row.role == "reporting" else row for row in rows]


CHEATS: dict[str, tuple[Change, str]] = {
    "a better loss": (one("reporting", loss=0.5), "loss is 0.5 in the file, but .* when computed here"),
    "another model": (one("reporting", model="0" * 16), "model is 0{16} in the file, but .* computed here"),
    "a failure that is hidden": (one("tuning", status="failed"), "status is failed in the file, but .* computed here"),
    "a bad seed left out": (lambda rows: [row for row in rows if row.seed != 1], "seed 1, .*: this run is missing"),
    "a seed twice": (lambda rows: [*rows, rows[-1]], "this run occurs 2 times"),
    "another seed": (one("reporting", seed=7), "no such configuration or seed"),
    "reported on a tuning seed": (one("tuning", role="reporting"), "role is reporting, but the suite's rules"),
    "the best of the reporting seeds": (swapped, "this configuration is reported, but the tuning seeds select"),
    "another horizon, delays or data": (one("tuning", identity="0" * 12), "hash of its job is 0{12}, but the suite's"),
    "another method": (one("tuning", method="FedAvg"), "the method is FedAvg, but the suite's rules give arena_method"),
    "a scenario of its own": (one("tuning", scenario="easy"), "scenario easy is not in the quick tier"),
}  # fmt: skip


def changed(path: Path, tmp_path: Path, change: Change | None = None, **keys: Any) -> Path:
    """A copy of a submission with another table or other keys."""
    content = json.loads(path.read_text()) | keys
    if change:
        content["table"] = write_table(change(parse_table(path, content["table"])))
    copy = tmp_path / "cheat.json"
    copy.write_text(json.dumps(content))
    return copy


@pytest.mark.parametrize(
    "cheat", [pytest.param(each, marks=[pytest.mark.long] * ("computed here" in CHEATS[each][1])) for each in CHEATS]
)
def test_an_edited_table_is_refused(submission: Path, tmp_path: Path, cheat: str) -> None:
    change, reason = CHEATS[cheat]
    with pytest.raises(Contradiction, match=reason):
        verify_submission(changed(submission, tmp_path, change), trust=True, whole=True, processes=1)


def test_another_suite_or_source_is_refused(submission: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="suite=arena-0: the submission is for another suite; expected arena-1"):
        verify_submission(changed(submission, tmp_path, suite="arena-0"), trust=True)
    with pytest.raises(ConfigError, match=r"cheat\.json: not a submission; expected an object as environment"):
        verify_submission(changed(submission, tmp_path, environment="here"), trust=True)
    with pytest.raises(ConfigError, match=r"^method=arena_method:Other: cannot be imported"):
        verify_submission(changed(submission, tmp_path, method="arena_method:Other"), trust=True)
    copy = changed(submission, tmp_path, source=MINE.replace("0.5 *", "0.6 *"))
    with pytest.raises(Contradiction, match="when computed here"):
        verify_submission(copy, trust=True, whole=True, processes=1)


@pytest.mark.long
def test_rounding_counts_only_where_the_kernels_differ(submission: Path, tmp_path: Path) -> None:
    """A loss that differs by 1e-7: refused, and accepted from a machine with other kernels; by 1e-3 it is refused."""

    def other(factor: float) -> Change:
        return lambda rows: [rows[0]._replace(loss=rows[0].loss * factor), *rows[1:]]

    kernels = json.loads(submission.read_text())["environment"] | {"kernels": "openblas Haswell"}
    copy = changed(submission, tmp_path, other(1 + 1e-7), environment=kernels)
    line = verify_submission(copy, trust=True, whole=True, processes=1)
    assert (
        "4 of 4 runs recomputed, 1 of them within rounding (1e-05): computed with openblas Haswell, here with" in line
    )
    differs = "1 of 4 runs differ, the first: small, seed .*: loss is .* in the file, but .* when computed here"
    for factor, environment, end in (
        (1 + 1e-7, {}, "$"),
        (1 + 1e-3, {"environment": kernels}, "; computed with openb"),
    ):
        with pytest.raises(Contradiction, match=differs + end):
            copy = changed(submission, tmp_path, other(factor), **environment)
            verify_submission(copy, trust=True, whole=True, processes=1)


def test_every_run_that_differs_is_named(results: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of three methods the first run of each is edited."""
    rows = read_table(results / "arena-1-quick.csv")
    first = [next(row for row in rows if row.method == name) for name in ("FedAvg", "ASGD", "FedBuff")]
    edited = tmp_path / "edited.csv"
    edited.write_text(write_table([row._replace(time=1.5) if row in first else row for row in rows]))
    with pytest.raises(Contradiction, match=r"^\S+edited\.csv: 3 of 12 runs differ, the first: small, seed 1000, "):
        verify_table(edited, "quick", whole=True, processes=1)
    lines = [record.getMessage() for record in caplog.records if "time is 1.5 in the file" in record.getMessage()]
    assert [line.split(", {")[1].split('"')[3] for line in lines] == ["fedavg", "async-sgd", "fedbuff"]


def source(statement: str, where: str = "receive") -> str:
    """The method with a further statement in one of its rules, or before the class."""
    if where == "module":
        return MINE.replace("ARENA =", f"{statement}\nARENA =")
    if where == "class":
        return MINE.replace("    trigger:", f"    {statement}\n    trigger:")
    lines = MINE.splitlines()
    k = next(k for k, line in enumerate(lines) if f"def {where}(" in line)
    return "\n".join([*lines[: k + 1], f"        {statement}", *lines[k + 1 :]])


SOURCES = {
    "the clock's future, by its random stream": (source("from mpifl.rng import stream"), "imports stream of mpifl.rng"),
    "the same by way of a module": (source("from mpifl.algorithms.participation import stream"), "imports stream"),
    "a module that does not exist": (source("from mpifl.algorithms.none import stream"), "imports stream"),
    "code that is nested deeply": (source("1" + " ** 1" * 20_000), "cannot be parsed|uses"),
    "a module that the interface uses": (source("from mpifl.algorithms import importlib"), "imports importlib"),
    "objects of the server, from the garbage collector": (source("import gc"), "imports gc"),
    "a file": (source("open('results/x.h5')"), "uses open"),
    "a line that looks like a verification's": (source("print('all rules hold')"), "uses print"),
    "a file, through numpy": (source("import numpy as np; np.load('x')"), "uses load"),
    "a module by its text": (source("__import__('sys')"), "uses __import__"),
    "code as text": (source("eval('1')"), "uses eval"),
    "the globals of a function": (source("self.solve.__globals__"), "uses __globals__"),
    "a list that all clients share": (source("SEEN = []", "module"), "assigns a mutable value outside functions"),
    "a list of the class": (source("seen = []", "class"), "assigns a mutable value outside functions"),
    "a field that all clients share": (source("seen: list = field(default_factory=list)", "class"), "a mutable value"),
    "a default value that all share": (MINE.replace("message, objective)", "message, objective, seen={})"), "default"),
    "a global variable": (source("global seen", "train"), "uses global or nonlocal"),
    "an attribute of the class": (source("Mine.seen = objective", "train"), "changes an object that clients share"),
    "an attribute of the method": (source("self.seen = objective", "train"), "changes an object that clients share"),
    "the rates, undeclared": (source("clients.rates", "init_server"), "does not declare that it knows the rates"),
    "random numbers that do not repeat": (source("import numpy as np; np.random.normal()"), "uses random"),
    "code before the runs": (source("while True: pass", "module"), "is not an import, a definition or a constant"),
    "the interpreter, through typing": (source("from typing import sys"), "imports sys of typing"),
    "annotations evaluated": (source("from typing import get_type_hints"), "imports get_type_hints of typing"),
    "an annotation that is evaluated": (source("seen: 'print(1)' = 0", "class"), "has an annotation as text"),
    "a module of the option types": (source("from mpifl.config.types import dataclasses"), "imports dataclasses of"),
    "a module inside numpy": (source("import numpy as np; np.ma.extras"), "uses ma"),
    "a module inside numpy.linalg": (source("import numpy as np; np.linalg.linalg.functools"), "uses functools"),
    "a private module of numpy": (source("import numpy as np; np._core", "module"), "uses _core"),
    "settings of numpy that all share": (source("import numpy as np; np.setbufsize(16)"), "uses setbufsize"),
    "frames of the callers": (source("g = (g.gi_frame for _ in (1,))"), "uses gi_frame"),
    "the globals, through a format": (source("'{0.__globals__}'.format(self.solve)"), "uses format"),
    "the globals, through a pattern": (MINE + "\n\ndef f(x):\n    match x:\n        case int(real=y):\n"
                                       "            return y\n", "uses match"),
    "writing into a message": (source("message.vectors[0].flags.writeable = True", "train"), "uses flags"),
    "what an objective hides": (source("objective._rows", "train"), "uses _rows"),
    "an attribute of the class, in a class method": (source("cls.seen = 1"), "changes an object that clients share"),
    "another name for the class": (source("me = Mine; me.seen = objective", "train"), "uses Mine as a value"),
    "a class that can be changed": (MINE.replace("@dataclass(frozen=True)", "@dataclass"), "is neither a frozen"),
    "a class without a decorator": (MINE.replace("@dataclass(frozen=True)", ""), "is neither a frozen"),
    "a decorator of a class": (MINE.replace("@dataclass(frozen=True)", "@field\n@dataclass(frozen=True)"), "class dec"),
    "a cell that clients share, of a generator": (
        source("def cell():\n    x = None\n    while True:\n        x = (yield x) or x\n\n\nB: int = cell()", "module"),
        "assigns a mutable value outside functions"),
    "a cell of a closure": (
        source("def cell():\n    box = [0]\n    return lambda v: box.append(v)\n\n\nB: int = cell()", "module"),
        "assigns a mutable value outside functions"),
    "an iterator that clients share": (source("seen: int = field(default_factory=lambda: iter((1, 2)))", "class"),
                                       "assigns a mutable value outside functions"),
    "an attribute of a function": (source("f = Mine.train; f.seen = objective", "train"), "uses Mine.train as a value"),
    "an attribute of an imported class": (source("m = Message; m.seen = 1", "train"), "uses Message as a value"),
    "an attribute of a module": (source("import numpy as np; m = np.linalg; m.seen = 1"), "uses np.linalg as a value"),
    "the class by another name": (source("@classmethod\n    def f(k, v): k.seen = v", "class"), "neither self nor cls"),
    "a hook of the class": (source("def __init_subclass__(self): pass", "class"), "defines __init_subclass__"),
    "a model that was trained before": (source(f"x0 = x0 + ({'0.5, ' * 20})", "init_server"), "a trained model"),
    "the same as text": (source(f"x0 = x0 + int('{'5' * 300}')", "init_server"), "a trained model"),
    "a decorator of a function": (source("@abs\n    def f(self): return 1", "class"), "has a decorator other than"),
}  # fmt: skip


@pytest.mark.parametrize("what", SOURCES)
def test_a_method_that_could_see_more_than_its_messages_is_refused(what: str) -> None:
    text, reason = SOURCES[what]
    with pytest.raises(ConfigError, match=reason):
        check_source(text)


COMPUTED = "y, steps, _ = self.solve(objective, message.vectors[0], message.round)"
RUNS = {  # what is computed in a contact, or another change of the source; why it is refused
    "steps that take no time": ("y, steps, _ = self.solve(objective, message.vectors[0], message.round, steps=50)",
                                "more gradients or losses in a contact than local steps"),
    "the solver called again": (f"{COMPUTED}\n        y, steps, _ = self.solve(objective, y, message.round)",
                                "more gradients or losses in a contact than local steps"),
    "work of no time": (("(server.x,)", "(server.x,), work=0"), "more gradients or losses in a contact than"),
    "all rows at once": ("y, steps = message.vectors[0] - 0.1 * objective.gradient(message.vectors[0]), 1",
                         "rows that are no batch that `objective.batches` returned"),
    "rows of its own": ("y, steps = objective.gradient(message.vectors[0], message.vectors[0]), 1", "rows that are no"),
    "the client's optimum": ("y, steps = objective.c.copy(), 1", "may not use c of an objective"),
    "other data": (f"objective.c[:] = 0\n        {COMPUTED}", "may not use c of an objective"),
    "noise left out": (f"objective.sigma = 0.0\n        {COMPUTED}", "no attribute 'sigma'|object attribute 'sigma'"),
    "an evaluation": (f"objective.accuracy(message.vectors[0])\n        {COMPUTED}", "may not use accuracy of an"),
    "times it does not declare": (("0.5 * (", "update.compute * ("), "when computed here"),
    "writing into the server's model": (f"message.vectors[0][:] = 0\n        {COMPUTED}", "when computed here"),
}  # fmt: skip


@pytest.mark.parametrize("what", parameters(RUNS, [*RUNS][::3]))
def test_a_method_that_takes_more_than_its_time_pays_for_is_refused(
    submission: Path, tmp_path: Path, what: str
) -> None:
    change, reason = RUNS[what]
    text = MINE.replace(*((COMPUTED, change) if isinstance(change, str) else change))
    check_source(text)  # it takes a run to see it
    with pytest.raises(Contradiction, match=reason):
        verify_submission(changed(submission, tmp_path, source=text), trust=True, whole=True, processes=1)


def test_a_method_that_polls_is_refused(submission: Path, tmp_path: Path) -> None:
    text = MINE.replace("    trigger:", "    polls = True\n    trigger:")
    with pytest.raises(ConfigError, match="it polls, and the time of its local steps is not checked"):
        verify_submission(changed(submission, tmp_path, source=text), trust=True)
    Path("polling.py").write_text(text)
    own_method("polling:Mine")
    assert "it polls" in why_refused("polling:Mine"), "said before its runs, too"


@pytest.mark.long
def test_a_method_that_inherits_what_it_does_not_declare_is_refused(submission: Path, tmp_path: Path) -> None:
    """Asynchronous SGD with the rates of the clients, without a word of it in the source."""
    options = "ARENA = {'algorithm': {'rescale': 'rates'}}"
    text = (
        f"from dataclasses import dataclass\n\nfrom mpifl.algorithms.async_sgd import AsyncSgd\n\n{options}\n\n\n"
        '@dataclass(frozen=True)\nclass Mine(AsyncSgd):\n    """Mine"""\n'
    )
    Path("inherits.py").write_text(text)
    arena(own="inherits:Mine", processes=1)
    made = submission.with_name("arena-1-quick-inherits-Mine.json")
    with pytest.raises((ConfigError, Contradiction), match="give no rates"):
        verify_submission(made, trust=True, whole=True, processes=1)


def test_what_a_method_may_do() -> None:
    check_source(MINE)
    check_source(source("import math\nimport numpy as np\nX: float = float('inf')", "module").replace(
        "        y, steps", "        z = np.zeros(3, dtype=np.float64) * math.pi\n"
        "        assert isinstance(message, Message) and X > 1\n        y, steps"))  # fmt: skip
    check_source(source("def __post_init__(self) -> None:\n        super().__post_init__()\n        self._checked()\n"
                        "    def _checked(self, how: Literal['a', 'b'] = 'a') -> None: ...", "class")
                 .replace("from mpifl", "from typing import Literal\nfrom mpifl", 1))  # fmt: skip
    told = MINE.replace("ARENA = {", 'ARENA = {"knows": ["the rates of the clients"], ')
    check_source(told.replace("return State(x", "return State(rates=clients.rates, x"))
    page = Path(__file__).parents[2] / "docs" / "guides" / "arena.md"
    check_source(page.read_text().split("```python\n")[1].split("```")[0])


def test_the_last_lines_have_the_place_of_the_method_among_all(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method that never moves the model is the last at both seeds."""
    (tmp_path / "idle.py").write_text(MINE.replace("0.5 *", "0.0 *"))
    monkeypatch.syspath_prepend(tmp_path)
    said = arena(own="idle:Mine", processes=2, out=tmp_path / "out").splitlines()
    assert said[-2] == "idle:Mine: mean rank by loss 4.0, number 4 of 4 methods"


def test_a_source_that_would_be_refused_is_named_before_the_runs_and_after_them(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "draws.py").write_text(MINE.replace("ARENA =", "import numpy\nTOTAL = numpy.random.rand()\nARENA ="))
    monkeypatch.syspath_prepend(tmp_path)
    lines: list[str] = []
    said = arena(own="draws:Mine", processes=2, out=tmp_path / "out", progress=lambda line: lines.append(caplog.text))
    refusal = "since it would be refused: source=line 6, TOTAL = numpy.random.rand(): "
    assert lines and all(refusal in before for before in lines) and refusal in said
    assert (tmp_path / "out" / "arena-1-quick-draws-Mine.csv").exists() and not list(tmp_path.glob("out/*.json"))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.h5")}
    assert refusal in arena(own="draws:Mine", only=["small"], out=tmp_path / "out")  # its runs are those of the tier
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.h5")} == before


def test_runs_of_a_method_are_not_those_of_another_source(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comments, documentation and ARENA may change. A source that changes while it runs is noticed at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write = (tmp_path / "edited.py").write_text
    write(MINE)
    said = arena(own="edited:Mine", processes=1)
    page = Path("results/arena/arena-1-quick-edited-Mine.md").read_text()
    assert "`mpifl arena --method edited:Mine --scenario small` computes this table again" in page
    write(MINE.replace("LocalTraining):", 'LocalTraining):  # it\n    """A method"""\n').replace("[1, 2]", "[1, 2, 3]"))
    assert said.splitlines()[-1] == arena(own="edited:Mine", processes=1).splitlines()[-1]  # it is not refused
    write(MINE.replace("0.5 *", "0.75 *"))
    changed = r"^--method=edited:Mine: its source has changed since the runs in results/arena/arena-1-edited-Mine, "
    with pytest.raises(ConfigError, match=changed):
        arena(own="edited:Mine", processes=1)
    with pytest.raises(ConfigError, match=changed):
        arena(own="edited:Mine", compute=False)
    edits = [MINE]
    with pytest.raises(ConfigError, match=changed.replace("results/arena", "other")):
        arena(own="edited:Mine", processes=1, out=Path("other"), progress=lambda line: edits and write(edits.pop()))


def test_a_tier_without_stored_results_needs_a_run_of_its_methods_first(small: Path, results: Path) -> None:
    stored = small / "quick.csv.gz"
    stored.rename(small / "away.csv.gz")
    try:
        with pytest.raises(ConfigError, match=r"^--tier=quick: small has no .* --scenario small --out .* first"):
            arena(own="arena_method:Mine", out=Path("elsewhere"))
        assert not Path("elsewhere").exists()
        assert "wrote" in arena(own="arena_method:Mine", only=["small"], processes=2)  # beside those of this folder
    finally:
        (small / "away.csv.gz").rename(stored)


@pytest.mark.long
def test_scenarios_of_a_larger_tier_may_be_computed_apart(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has no stored results, beside which a method is run; then the page of all, without further runs."""
    monkeypatch.setattr("mpifl.tools.arena.command.MAX_NAMED", 0)
    with pytest.raises(
        ConfigError, match=r"^--tier=standard: large has no stored results .* --scenario large --out .* first"
    ):
        arena("standard", own="arena_method:Mine", out=tmp_path)
    arena("standard", only=["large"], processes=2, out=tmp_path)
    table = tmp_path / "arena-1-standard-1-scenarios-596b29be.csv"
    rows = read_table(table)
    assert len(rows) == 12
    table.write_text(write_table(rows[:-1]))  # as of a run that is not at its end
    with pytest.raises(ConfigError, match="has all of them"):
        arena("standard", own="arena_method:Mine", out=tmp_path)
    table.write_text(write_table(rows))
    arena("standard", own="arena_method:Mine", processes=2, out=tmp_path)
    page = (tmp_path / "arena-1-standard-arena_method-Mine.md").read_text()
    assert "4 methods, 2 scenarios, 32 runs" in page
    arena("standard", out=tmp_path, compute=False)
    page = (tmp_path / "arena-1-standard.md").read_text()
    assert "3 methods, 1 scenario, 12 runs" in page and "Not computed here: small." in page
    command = re.findall(r"`mpifl (arena .*)` computes", page)
    assert command == ["arena --scenario large"]
    assert main([*command[0].split(), "--no-runs", "--out", str(tmp_path)]) == 0


@pytest.mark.long
@pytest.mark.parametrize(("option", "what"), [('["stop"].time', "the horizon"), ('["evaluate"].every', "evaluations")])
def test_updates_that_depend_on_the_horizon_or_on_evaluations_are_found(
    submission: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, what: str
) -> None:
    """A method that finds the job of its run, which refers to it, if its source had not been refused."""
    monkeypatch.setattr("mpifl.tools.arena.submission.check_source", lambda source: None)
    step = "self.peek() * (update.vectors[0] - server.x)"
    peek = f"""
    def peek(self):
        import gc

        found = [each if isinstance(each, dict) else vars(each) for each in gc.get_referrers(self)
                 if type(each).__name__ == "Job" or (isinstance(each, dict) and "evaluate" in each)]
        return min(1.0, 0.02 * found[0]{option})
"""
    text = MINE.replace("0.5 * (update.vectors[0] - server.x)", step) + peek
    (tmp_path / "peeks.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    arena(own="peeks:Mine", processes=2, out=tmp_path / "out")
    with pytest.raises(Contradiction, match=f"the updates depend on {what}"):
        verify_submission(tmp_path / "out" / "arena-1-quick-peeks-Mine.json", trust=True, whole=True, processes=1)
