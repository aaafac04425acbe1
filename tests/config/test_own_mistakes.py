"""Mistakes in a class of a user's own: one line that names file, class and method, before any work."""

from __future__ import annotations

import importlib
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mpifl
from tests.mpi.cases import SMALL, job
from tests.mpi.conftest import write

HEAD = """
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
from mpifl.algorithms import Message, State, Update
from mpifl.algorithms.base import Algorithm
from mpifl.algorithms.area import Area
from mpifl.scheduling.delays import Delay

"""  # nine lines
RULES = """
    def init_server(self, x0, clients): return State(x=x0.copy())
    def message(self, server, i): return Message((server.x,))
    def receive(self, server, i, update, staleness): pass
"""
DATACLASS = "@dataclass(frozen=True)\n"

WRONG = {
    "options of a base": (
        f"class Base(Area):\n    known: ClassVar[int] = 1\n    beta: float = 0.9\n    gamma: float = 0.1\n"
        f"{DATACLASS}class Own(Base): pass\n",
        "own_case.py:10, class Base is not a dataclass, so its options beta, gamma are lost",
    ),
    "no aggregate": (
        f"{DATACLASS}class Own(Algorithm):{RULES}    def train(self, client, message, objective): pass\n",
        "own_case.py:10, class Own does not have the method aggregate(self, server), and neither does a base",
    ),
    "no personal model": (
        f"{DATACLASS}class Own(Area):\n    personal_models: ClassVar[bool] = True\n",
        "own_case.py:10, class Own does not have the method personal_model(self, client), and neither does a",
    ),
    "self.m": (
        f"{DATACLASS}class Own(Area):\n"
        "    def aggregate(self, server):\n        super().aggregate(server)\n        self.m = server.x\n",
        "own_case.py:14, class Own, method aggregate sets self.m",
    ),
    "self.m without dataclass": (
        "class Own(Area):\n    def train(self, client, message, objective):\n"
        "        for self.k in range(3): pass\n        return super().train(client, message, objective)\n",
        "own_case.py:12, class Own, method train sets self.k",
    ),
}
STATES = [  # the method, what it does before it returns `state`, and what is wrong
    ("init_server(self, x0, clients)", "state.losses = []", "state losses is a list, not an array"),
    ("init_client(self, x0, i)", "if i == 4: state.losses = []", "state losses is a list, not an array"),
    ("init_client(self, x0, i)", "state.generator = object()", "state generator is a object"),
    ("init_client(self, x0, i)", "state.sums = {'a': 1.0}", "state sums is a dict whose keys are not client numbers"),
    ("init_server(self, x0, clients)", "return", "returned a NoneType"),
    ("init_server(self, x0, clients)", "state = State(y=x0.copy())", "set no x, the global model"),
]
for method, line, wrong in STATES:
    call = method.replace("self, ", "")
    code = f"    def {method}:\n        state = super().{call}\n        {line}\n        return state\n"
    WRONG[line] = f"{DATACLASS}class Own(Area):\n{code}", f"own_case.py:12, Own.{method.partition('(')[0]}: {wrong}"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """Writes a module and a job that names its class Own."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(code: str, **more: Any) -> Path:
        monkeypatch.delitem(sys.modules, "own_case", raising=False)
        (tmp_path / "own_case.py").write_text(HEAD + code)
        importlib.invalidate_caches()
        linecache.clearcache()
        return write(tmp_path, "own", job({"name": "own_case:Own"}, SMALL, output=str(tmp_path / "o.h5"), **more))

    return make


@pytest.mark.parametrize(("code", "says"), WRONG.values(), ids=WRONG)
def test_a_mistake_is_one_line(own: Any, code: str, says: str, refused: Callable[..., str], tmp_path: Path) -> None:
    line = refused("run", own(code))
    assert line.startswith("mpifl: algorithm.name=own_case:Own: ") and says in line
    assert not (tmp_path / "o.h5").exists()


def test_methods_that_are_right_pass(own: Any, tmp_path: Path) -> None:
    """Local names, other objects' attributes, functions inside, and options of mixins that are no dataclasses."""
    code = f"""
class Mixin:
    beta: float = 0.5
{DATACLASS}class Own(Mixin, Area):
    gamma: float = 0.1
    def init_server(self, x0, clients):
        state = super().init_server(x0, clients)
        state.sums = {{i: 0 * x0 for i in range(clients.n)}}
        state.mean: float = 0.0
        class Local:
            def __init__(self): self.value = 1
        state.value = Local().value
        return state
"""
    assert mpifl.run(own(code)).status == "completed"


def test_a_missing_method_of_a_delay_model(own: Any, refused: Callable[..., str]) -> None:
    clock = {"mode": "virtual", "delay": {"name": "own_case:Slow"}}
    file = own(f"{DATACLASS}class Own(Area): pass\n{DATACLASS}class Slow(Delay): pass\n", clock=clock)
    says = "clock.delay.name=own_case:Slow: own_case.py:12, class Slow does not have the method"
    assert says in refused("check", file)


def test_what_train_returns_is_an_update_with_a_number_of_steps(own: Any, printed: Callable[..., Any]) -> None:
    """Found when it happens: the client has failed, as with any error of its code."""
    code = f"{DATACLASS}class Own(Area):\n    def train(self, client, message, objective):\n        return "
    err = printed("run", own(f"{code}(1, 2)\n"), code=3).err
    assert "TypeError: own_case.py:12, Own.train returned a tuple, not an Update" in err
    code += "super().train(client, message, objective)._replace(local_steps="
    for steps in ("'a'", "3.25"):
        err = printed("run", own(f"{code}{steps})\n"), "overwrite=true", code=3).err
        assert f" sends local_steps={steps}, not an integer from 0 to 2^31 - 1\n" in err
    run = mpifl.run(own(f"{code}3.0)\n"), overwrite=True)  # a whole number may be a float
    assert run.status == "completed" and set(run.updates.local_steps) == {3}
