"""Clients with custom training loops: the runs of a built-in problem, bit for bit, and what is refused."""

from __future__ import annotations

import importlib
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import mpifl
from mpifl import algorithms
from mpifl.algorithms.base import NEEDS
from mpifl.algorithms.fedavg import FedAvg
from mpifl.cli import main
from mpifl.config.job import NOT_NEEDED
from mpifl.config.registry import FAMILIES
from mpifl.errors import RunFailed
from mpifl.problems.own_training import ModelForm, ReturnError
from mpifl.problems.settings import ProblemSettings
from tests.mpi.cases import CASES, EXPONENTIAL, job
from tests.mpi.conftest import write
from tests.mpi.files import differing
from tests.problems.conftest import refusal
from tests.tiers import parameters

ENTRY = "tests.own_clients:quadratics"
FEW: dict[str, Any] = {"stop": {"updates": 20}, "evaluate": {"updates": 5}}


def own(kind: str = "Site", **options: Any) -> dict[str, Any]:
    return {"entry": ENTRY, "options": {"kind": kind, **options}, "dtype": options.get("dtype", "float32")}


def built_in(sigma: float = 0.3) -> dict[str, Any]:
    return {"clients": 7, "model": {"name": "quadratic", "dim": 12, "sigma": sigma}}


def section(name: str) -> dict[str, Any]:
    """Options of a method, and the clock that they need."""
    fitting = [case for case in CASES.values() if case["algorithm"]["name"] == name]
    plain = [case for case in fitting if not {"local_epochs", "solver"} & {*case["algorithm"]}]
    case = (plain or fitting)[0]
    cohort = {"cohort": 4} if case["algorithm"].get("cohort", 0) > 7 else {}
    return {"algorithm": {**case["algorithm"], **cohort}, "clock": case["clock"]}


def run(folder: Path, name: str, problem: dict[str, Any], method: dict[str, Any], **more: Any) -> Path:
    """The file of a run in virtual time."""
    given = {**job(method["algorithm"], problem, **FEW), "clock": method.get("clock", EXPONENTIAL), **more}
    return Path(mpifl.run({"name": name, "output": str(folder / f"{name}.h5"), **given}).path)


def same(mine: Path, built_in: Path) -> None:
    """Asserts the same bits of all rows and the model, but for the order in which losses of clients are summed."""
    assert not differing(mine, built_in, but=("evaluations/train_loss",))
    losses = [mpifl.open_run(path).evaluations.train_loss for path in (mine, built_in)]
    np.testing.assert_allclose(*losses, rtol=1e-12)


class Own(FedAvg):
    """A method of a user's own."""


OWN = f"{__name__}:Own"


NAMES = sorted([*algorithms.names(), *algorithms.ALIASES])
FAST = ("area", "fedasync", "fedavg", "fedcompass", "feddyn", "mime", "quafl", "scaffold")


@pytest.mark.parametrize("name", parameters(NAMES, FAST))
def test_each_method_has_the_bits_of_the_built_in_problem(tmp_path: Path, name: str) -> None:
    """With the fewest hooks that the method needs, and refused with fewer."""
    method = section(name)
    needs = FAMILIES["algorithm"].find(name)().client_needs()
    for option in needs.values():
        if option:  # without what only this option needs
            method["algorithm"] = {**method["algorithm"], option: {**NOT_NEEDED, "accuracy": None}.get(option, 0)}
    always = [need for need, option in needs.items() if not option]
    kind = (
        "GradientSite" if any("adds_term" not in NEEDS[need] for need in always) else "TermSite" if always else "Site"
    )
    sigma = 0.3 if kind != "GradientSite" else 0.0  # draws of batches are the client's own there
    pair(tmp_path, method, kind, sigma)
    if always:
        with refusal(f"it needs {always[0]}, and the clients have custom training loops"):
            run(tmp_path, "refused", own(), method)
        assert not (tmp_path / "refused.h5").exists()


def pair(folder: Path, method: dict[str, Any], kind: str = "Site", sigma: float = 0.3) -> Path:
    """The run of clients with loops of their own, which has the bits of the built-in problem's."""
    mine = run(folder, "own", own(kind, sigma=sigma), method)
    same(mine, run(folder, "built-in", built_in(sigma), method))
    return mine


def test_steps_of_no_contact_leave_the_model_as_it_is(tmp_path: Path) -> None:
    """AREA's first contact with `first_contact: zero` asks for 0 steps, for which no client is asked. A client that is
    sharded has the whole model on one rank."""
    method = {"algorithm": {"name": "area", "first_contact": "zero", "local_steps": 3, "step_weights": "one"}}
    assert mpifl.open_run(pair(tmp_path, method)).updates.local_steps.tolist()[:2] == [0, 0]
    same(run(tmp_path, "sharded", own("ShardedSite"), method), tmp_path / "built-in.h5")


def test_a_method_that_the_clients_gradient_serves_takes_its_own_solver(tmp_path: Path) -> None:
    """SVRG along the clients' gradients; without these the solver is refused, as is one of torch."""
    pair(tmp_path, {"algorithm": {"name": "fedavg", "solver": "svrg", "local_steps": 3}}, "GradientSite", 0.0)
    for solver, says in [("svrg", "algorithm=fedavg: it needs a gradient"), ("torch", "algorithm.solver=torch: the")]:
        with refusal(says):
            run(tmp_path, "refused", own(), {"algorithm": {"name": "fedavg", "solver": solver}})


# -- several arrays, metrics -------------------------------------------------------------------------------------------
def test_models_by_name_and_of_torch_are_the_flat_vector(tmp_path: Path) -> None:
    method = {"algorithm": {"name": "fedbuff", "local_steps": 2}}
    flat = run(tmp_path, "flat", own(), method)
    for kind in ("numpy", "torch"):
        if kind == "torch":
            pytest.importorskip("torch")
        named = {**own(), "entry": "tests.own_clients:named", "options": {"kind": kind}}
        found = run(tmp_path, kind, named, method)
        assert not differing(flat, found)
        assert mpifl.open_run(found).layout == [("w", (3, 3)), ("b", (3,))]


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"w": np.zeros(3)}, "fit returned a y whose 'w' is float64 of shape (3,), not float32 of shape (3,)"),
        ({"w": [0.0]}, "fit returned a y whose 'w' is list of 1, not float32 of shape (3,)"),
        ({"steps": np.zeros(1)}, "fit returned a y with 'steps', which is no name of x0"),
        ({"b": None}, "fit returned a y without 'b', a name of x0"),
    ],
)
def test_a_part_that_is_wrong_is_named(part: dict[str, Any], says: str) -> None:
    x0 = {"w": np.zeros(3, np.float32), "b": np.zeros(2, np.float32)}
    form = ModelForm(ProblemSettings(), x0)
    with pytest.raises(ReturnError, match=re.escape(says)):
        form.flat({name: value for name, value in {**x0, **part}.items() if value is not None}, "fit returned a y")


def test_metrics_are_means_over_the_clients_rows(tmp_path: Path) -> None:
    """Client k has k + 1 training rows, loss k, 2k test rows and accuracy k/4, but the last has no test
    metrics. Without `evaluate` there are none."""
    measured = {"entry": "tests.own_clients:measured", "options": {"clients": 4}}
    path = run(tmp_path, "means", measured, {"algorithm": {"name": "fedavg"}}, evaluate={"updates": 8, "clients": True})
    with mpifl.open_run(path) as found:
        row = found.evaluations.iloc[0]
        assert row.train_loss == pytest.approx((0 * 1 + 1 * 2 + 2 * 3 + 3 * 4) / 10, rel=1e-12)
        assert row.test_accuracy == pytest.approx((2 * 1 / 4 + 4 * 2 / 4) / 6, rel=1e-12)
        assert np.isnan(row.test_loss) and row.client_accuracy_mean == pytest.approx(1 / 4)
        assert found.clients.samples.tolist() == [1, 2, 3, 4]
    path = run(tmp_path, "none", {"entry": "tests.own_clients:unmeasured"}, {"algorithm": {"name": "fedavg"}})
    assert mpifl.open_run(path).evaluations[["train_loss", "test_loss", "test_accuracy"]].isna().to_numpy().all()


# -- repetition --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("MomentumSite", "was tried before the run, twice, with the same bits"),
        ("GlobalSite", "was tried before the run, twice, with the same bits"),
        ("Forgetful", "twice, with different bits, so no run of this job can be repeated exactly; draw from"),
        ("Unseeded", "twice, with different bits"),
        ("Long", "once, as it took more than 0.01 s"),
        ("Untried", "no contact was tried"),
    ],
)
def test_one_contact_is_tried_twice(
    tmp_path: Path, kind: str, says: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said at the start of a run and by `mpifl check --data`; as a warning where the bits differ."""
    if kind == "Long":
        monkeypatch.setattr("mpifl.problems.own_training.LONG", 0.01)
    caplog.set_level("INFO", "mpifl")
    run(tmp_path, "tried", own(kind), {"algorithm": {"name": "fedavg"}})
    (line,) = [record for record in caplog.records if "own training: " in record.getMessage()]
    assert says in line.getMessage() and (line.levelname == "WARNING") == ("different bits" in says)
    text = mpifl.api.job_yaml(mpifl.load_job(str(write(tmp_path, "check", job({"name": "fedavg"}, own(kind))))), True)
    assert f"# {line.getMessage()}\n" in text


@pytest.mark.parametrize("kind", ["MomentumSite", "GlobalSite"])
def test_a_run_continues_from_its_checkpoint_with_the_same_bits(tmp_path: Path, kind: str) -> None:
    """What a client keeps is restored, and draws from the process' generators belong to the contact."""
    method = {"algorithm": {"name": "fedbuff", "trigger": {"every": 2}}}
    whole = run(tmp_path, "whole", own(kind), method)
    part = run(tmp_path, "part", own(kind), method, stop={"updates": 11}, checkpoint={"end": True})
    mpifl.resume(part, "stop.updates=20", trust=True)
    assert not differing(whole, part, but=("events", "evaluations"))
    again = mpifl.replay(whole, "output=again.h5".replace("again", str(tmp_path / "again")), trust=True)
    assert not differing(whole, Path(again.path), but=("events",))


def test_a_refused_update_leaves_a_client_as_it_was(tmp_path: Path) -> None:
    """A client returns x less the number k of its contacts, so ||x - y|| is k sqrt(12): no refused one counts."""
    method = {"algorithm": {"name": "fedbuff", "trigger": {"every": 1}}}
    path = run(tmp_path, "refused", own("Counts", clients=3), method, stop={"updates": 40})
    with mpifl.open_run(path) as found:
        assert found.events.kind.tolist().count("refused") == 1
        norms = found.updates.norm[found.updates.client == 1]
        assert len(norms) > 2
        np.testing.assert_allclose(norms, np.sqrt(12) * np.arange(1, len(norms) + 1), rtol=1e-6)


# -- mistakes ----------------------------------------------------------------------------------------------------------
RETURNS = [  # what a client returns, and what is said of it
    ("length", "fit returned a y that is float32 of shape (2,), not float32 of shape (3,)"),
    ("double", "fit returned a y that is float64 of shape (3,), not float32 of shape (3,)"),
    ("mapping", "fit returned a y that is dict of x, not float32 of shape (3,)"),
    ("no pair", "fit returned float32 of shape (3,), not (y, local_steps)"),
    ("a list", "fit returned list of 2, not (y, local_steps)"),
    ("no steps", "fit returned local_steps=0, not an integer of at least 1"),
    ("true", "fit returned local_steps=True, not an integer of at least 1"),
    ("text", "fit returned local_steps='1', not an integer of at least 1"),
    ("saves an object", "save returned self, which is Wrong, not an array or a number"),
    ("saves a list", "save returned list of 3, not a mapping of arrays and numbers by name"),
    ("saves without names", "save returned dict of 1, not a mapping of arrays and numbers by name"),
]
WRONG = {"entry": "tests.own_clients:wrong"}
BUFFERED = {"algorithm": {"name": "fedbuff", "trigger": {"every": 2}}}


@pytest.mark.parametrize(
    ("case", "says"),
    [
        *((f"trial:{case}", f"problem.entry=tests.own_clients:wrong: client 0: {says}") for case, says in RETURNS),
        ("trial:nan", "client 0: fit returned a y that is not finite"),
        ("trial:raises", """client 0: KeyError: "of the user's own" (own_clients.py:"""),
        ("trial:exits", "client 0: SystemExit: 4 (own_clients.py:"),
        (
            "trial:moves",
            "client 0: fit: it changes the working directory to /, to which paths of the job are relative;",
        ),
        ("evaluates to text", "client 0: evaluate returned train_loss='low', not a number"),
        ("evaluates to numbers", "client 0: evaluate returned train_loss=array([1., 2.]), not a number"),
        ("evaluates to a number", "client 0: evaluate returned float, not a mapping"),
        ("evaluates by another name", "client 0: evaluate returned 'loss', which is none of train_loss, test_loss"),
        ("evaluates minus rows", "client 0: evaluate returned rows=-1, not a number of at least 0"),
        ("no fit", "client 0 is a Lacking without a method fit; expected clients with fit(x, contact)"),
        ("no load", "client 0 is a Lacking without load; expected both save and load, or none of them"),
        ("no samples", "client 0 is a Lacking with samples=0; expected an integer from 1 to 2^53"),
        ("samples", f"client 0 is a Lacking with samples={10**30}; expected an integer from 1 to 2^53"),
        ("mistyped samples", "client 0: AttributeError: 'Mistyped' object has no attribute 'data' (own_clients.py:"),
        (
            "mistyped evaluate",
            "client 0: AttributeError: 'Mistyped' object has no attribute 'measure' (own_clients.py:",
        ),
        ("some sharded", "some clients are sharded and others are not; expected all of them, or none"),
        ("sharded with names", "the clients are sharded, and x0 is a mapping; expected a flat array (d,)"),
        ("sharded with a gradient", "the clients are sharded, and have gradient, which one rank of a group calls for"),
        ("sharded with save", "the clients are sharded, and have save, which one rank of a group calls for all;"),
        ("no clients", "there are no clients; expected at least one"),
        ("clients by name", "the clients are dict of north, south; expected a list of clients"),
        ("a generator", "it returns tuple of 2; expected (module, loss, datasets"),
        ("ints", "problem.dtype=float32: x0 is int64; return float32 in tests.own_clients:wrong"),
        ("doubles", "problem.dtype=float32: x0 is float64; set problem.dtype=float64, or return float32 in"),
        ("a matrix", "x0 is an array of shape (3, 1); expected a flat array (d,), or a mapping of arrays by name"),
        ("a number", "x0 is float; expected a flat array, or a mapping of arrays by name"),
        ("x0 of nan", "x0 has nan or infinity; expected finite numbers"),
        ("names of lists", "x0 is list of 2; expected a flat array, or a mapping of arrays by name"),
        ("one name twice", "x0 has the names [1, '1']; expected names that differ as text"),
        ("nothing", "x0 is empty; expected a flat array (d,), or a mapping of arrays by name"),
    ],
)
def test_a_mistake_is_one_line_before_the_run(tmp_path: Path, case: str, says: str) -> None:
    with refusal(re.escape(says)):
        run(tmp_path, "wrong", {**WRONG, "options": {"case": case}}, BUFFERED)
    assert not (tmp_path / "wrong.h5").exists()


def test_a_fit_that_hangs_when_it_is_tried_ends_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one line after `faults.patience`; until then, and without it for ever, a line every 10 s names it.

    A wait of 0.25 s with a line at least every 0.1 s has two lines.
    """
    monkeypatch.setattr("mpifl.problems.own_training.LONGEST_SILENCE", 0.1)
    caplog.set_level("INFO", "mpifl")
    before, begin = signal.getsignal(signal.SIGALRM), time.perf_counter()
    with refusal("fit of client 0 has not returned after faults.patience=0.25 s"):
        run(tmp_path, "wrong", {**WRONG, "options": {"case": "trial:hangs"}}, BUFFERED, faults={"patience": 0.25})
    lines = [text for text in caplog.messages if "fit of client 0 is tried before the run, for " in text]
    assert len(lines) == 2 and time.perf_counter() - begin < 5
    assert signal.getsignal(signal.SIGALRM) is before and not (tmp_path / "wrong.h5").exists()


RAISES = [("raises", 'KeyError: "of the user\'s own"'), ("exits", "SystemExit: 4")]


@pytest.mark.parametrize(("case", "says"), parameters([*RETURNS, *RAISES], RAISES))
def test_a_mistake_during_the_run_is_an_error_of_the_client(tmp_path: Path, case: str, says: str) -> None:
    """Which ends a run in one process, whose clients cannot be lost."""
    with pytest.raises(RunFailed, match=re.escape(says)):
        run(tmp_path, "wrong", {**WRONG, "options": {"case": case}}, BUFFERED)


SHARDED: dict[str, Any] = {"problem": own("ShardedSite"), "ranks_per_client": 2}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"problem": {"l2": 0.1}}, "problem.l2=0.1: the clients have custom training loops; expected"),
        ({"problem": {"batch_size": 4}}, "problem.batch_size=4: the clients have"),
        ({"problem": {"clients": 5}}, "problem.clients=5: tests.own_clients:wrong returns 3 clients; expected 3, or"),
        ({"problem": {"micro_batches": 2}}, "problem.micro_batches=2: the clients have custom"),
        ({"problem": {"torch": {"autocast": "bfloat16"}}}, "problem.torch.autocast=bfloat16: the clients have"),
        ({"problem": {"torch": {"buffers": "local"}}}, "problem.torch.buffers=local: the clients have"),
        ({"evaluate": {"updates": 5, "gradient": True}}, "evaluate.gradient=True: the clients have custom training"),
        ({"evaluate": {"updates": 5, "metrics": ["auroc"]}}, "evaluate.metrics=auroc: this problem has no class"),
        ({"algorithm": {"name": "scaffold"}}, "algorithm=scaffold: it needs a gradient, and the clients have custom"),
        ({"algorithm": {"name": "fedprox"}}, "algorithm=fedprox: it needs a proximal term, and the clients have"),
        # what needs whole vectors where clients are sharded; one rank a client has whole vectors
        (SHARDED | {"algorithm": {"name": "area"}}, "algorithm=area: the clients are sharded, so each of the 2 ranks"),
        (SHARDED | {"algorithm": {"name": "quafl"}}, "expected a method of the package that sends one vector each way"),
        (SHARDED | {"algorithm": {"name": "scaffold"}}, "algorithm=scaffold: it needs a gradient, and the clients"),
        (SHARDED | {"algorithm": {"name": OWN}}, "algorithm=Own: the clients are sharded, so"),
        (SHARDED | {"faults": {"norm": 10}}, "faults.norm=10.0: the clients are sharded, so each of the 2 ranks"),
    ],
)  # fmt: skip
def test_options_of_other_problems_are_refused(tmp_path: Path, more: dict[str, Any], says: str) -> None:
    given = {"algorithm": {"name": "fedbuff"}, **more, "problem": {**WRONG, **more.get("problem", {})}}
    with refusal(re.escape(says)):
        run(tmp_path, "wrong", given.pop("problem"), {"algorithm": given.pop("algorithm")}, **given)
    assert not (tmp_path / "wrong.h5").exists()


def test_the_list_of_methods_is_that_of_what_they_need(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "algorithms", "--own-training"]) == 0
    works, lacking = capsys.readouterr().out.split("clients that offer more")
    family = "fedavg fedadam fednova fedexp fedbuff fadas ca2fl fedasync async-fedavg area mifa fedcompass"
    assert {line.split()[0] for line in works.splitlines() if line.startswith("  ")} >= {*family.split()}
    assert "fedasync        with proximal: 0" in works and "fedprox         with mu: 0" in works
    assert "feddyn         a proximal term                adds_term or gradient" in lacking
    assert main(["list", "models", "--own-training"]) == 2
    assert "list=models: --own-training is for the list of algorithms" in capsys.readouterr().err


def test_torch_is_imported_where_the_clients_need_it_alone(tmp_path: Path) -> None:
    program = f"""
import sys
from tests.problems.test_own_training import own, run
from pathlib import Path
run(Path({str(tmp_path)!r}), "light", own(), {{"algorithm": {{"name": "fedavg"}}}})
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize(
    ("version", "says"),
    [("1.50.0", "flwr=1.50.0: mpifl.adapters.flower is for other versions; expected >=1.42,<1.43"),
     ("", "it is not installed, and mpifl.adapters.flower needs it; pip install 'mpifl[flower]'")],
)  # fmt: skip
def test_another_flower_is_refused(version: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flwr = ModuleType("flwr")
    vars(flwr).update(__version__=version, common=None)
    monkeypatch.setitem(sys.modules, "flwr", flwr if version else None)
    monkeypatch.delitem(sys.modules, "mpifl.adapters.flower", raising=False)
    with refusal(re.escape(says)):
        importlib.import_module("mpifl.adapters.flower")
