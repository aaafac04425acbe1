"""Optimisers of torch.optim as local solvers: the bits of a bare torch loop on the same batches, and what is kept."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import mpifl
from mpifl.algorithms.apfl import APFL
from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Clients, Message
from mpifl.algorithms.common.local_solver import LocalTraining, Sgd, TorchSolver
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.fedprox import FedProx
from mpifl.algorithms.scaffold import Scaffold
from mpifl.client.worker import Worker
from mpifl.problems.torch.module_objective import TorchObjective
from mpifl.transport.client_end import ClientError
from tests.mpi import cases
from tests.problems.conftest import refusal
from tests.problems.test_torch import client, rows, small
from tests.tiers import parameters

STEP, EPOCHS, CONTACTS = 0.05, 1, 3  # 40 rows in batches of 8: five local steps a contact
OPTIONS: dict[str, dict[str, Any]] = {
    "ASGD": {"t0": 5},
    "Adadelta": {"rho": 0.8},
    "Adafactor": {},
    "Adagrad": {"lr_decay": 0.1},
    "Adam": {"betas": [0.8, 0.99], "weight_decay": 0.1, "amsgrad": True},
    "AdamW": {"weight_decay": 0.2},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Rprop": {},
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "CosineAnnealingLR": {"T_max": 12},
    "CyclicLR": {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3, "cycle_momentum": False},
    "ExponentialLR": {"gamma": 0.9},
    "MultiStepLR": {"milestones": [3, 12]},
    "OneCycleLR": {"max_lr": 0.1, "total_steps": 100},
    "StepLR": {"step_size": 4, "gamma": 0.5},
}
EITHER = [*product(OPTIONS, ["fresh", "kept"])]
TIMES = [*product(SCHEDULES, ["kept", "fresh"], ["step", "contact"])]


def bare_loop(
    optimizer: str, options: dict[str, Any], kept: bool, schedule: str = "", schedule_options: Any = None,
    per: str = "step", gradient_of: Callable[[Any, Any, Any], Any] | None = None,
) -> np.ndarray:  # fmt: skip
    """The model after the contacts, by a plain loop over torch's classes."""
    x, y = rows()
    one, module, made, scheduler = client(small(), x, y), small(), None, None
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    for contact in range(CONTACTS):
        if made is None or not kept:
            made = getattr(torch.optim, optimizer)(module.parameters(), lr=STEP, **options)
            if schedule and (per == "step" or scheduler is None):
                scheduler = getattr(torch.optim.lr_scheduler, schedule)(made, **schedule_options)
            if scheduler and per == "contact":
                group = scheduler.optimizer.param_groups[0]
                made.param_groups[0].update({name: value for name, value in group.items() if name != "params"})
                scheduler.optimizer = made
        start = [p.detach().clone() for p in module.parameters()]
        for batch in one.batches(contact, 0, EPOCHS):
            made.zero_grad()
            cross_entropy(module(x[batch]), y[batch]).backward()
            if gradient_of:
                for p, p0 in zip(module.parameters(), start, strict=True):
                    p.grad = gradient_of(p.grad, p.detach(), p0)
            made.step()
            if scheduler and per == "step":
                scheduler.step()
        if scheduler and per == "contact":
            scheduler.step()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()


def contacts(algorithm: LocalTraining, one: TorchObjective, count: int = CONTACTS, first: int = 0) -> np.ndarray:
    """The model after contacts of one client, each of which starts from where the last one ended."""
    x = one.shared.flat.values().numpy() if first == 0 else one.last  # type: ignore[attr-defined]
    for contact in range(first, first + count):
        one.begin_round(contact)
        (x,) = algorithm.train(algorithm.init_client(x, 0), Message((x,), round=contact), one).vectors
    one.last = x  # type: ignore[attr-defined]
    return x


def fedavg(solver: Any) -> FedAvg:
    return FedAvg(step_size=STEP, local_epochs=EPOCHS, solver=solver)


@pytest.mark.parametrize("name, state", parameters(EITHER, lambda case: case[1] == "kept" or "Adam" in case[0]))
def test_the_bits_of_a_bare_loop(name: str, state: str) -> None:
    solver = TorchSolver(optimizer={"name": name, **OPTIONS[name]}, state=state)  # type: ignore[arg-type]
    found = contacts(fedavg(solver), client(small(), *rows()))
    np.testing.assert_array_equal(found, bare_loop(name, OPTIONS[name], state == "kept"))


@pytest.mark.parametrize("name, state, per", parameters(TIMES, [*TIMES[:4], *TIMES[4::4]]))
def test_schedules_are_those_of_a_bare_torch_loop(name: str, state: str, per: str) -> None:
    """Per step, anew at each contact unless the state is kept; per contact, whatever the state."""
    solver = TorchSolver("torch", "AdamW", state, {"name": name, **SCHEDULES[name]}, per)  # type: ignore[arg-type]
    found = contacts(fedavg(solver), client(small(), *rows()))
    expected = bare_loop("AdamW", {}, state == "kept", name, SCHEDULES[name], per)
    np.testing.assert_array_equal(found, expected)


def test_plain_sgd_is_the_solver_sgd() -> None:
    """Bit for bit; with momentum to rounding, as torch orders the operations otherwise."""
    plain, found, heavy, expected = (
        contacts(fedavg(solver), client(small(), *rows()))
        for solver in (Sgd(), TorchSolver(), TorchSolver("torch", {"name": "SGD", "momentum": 0.9}), Sgd(momentum=0.9))
    )
    np.testing.assert_array_equal(found, plain)
    np.testing.assert_allclose(heavy, expected, atol=1e-13)


def test_terms_of_a_method_are_part_of_the_gradient_and_callbacks_leave_the_optimiser_alone() -> None:
    """FedProx: Adam gets g + mu (y - x). APFL binds the module to another vector after each step; its shared model is
    FedAvg's."""
    algorithm = FedProx(step_size=STEP, local_epochs=EPOCHS, mu=0.3, solver=TorchSolver(optimizer="Adam"))
    found = contacts(algorithm, client(small(), *rows()))
    expected = bare_loop("Adam", {}, False, gradient_of=lambda g, p, p0: g + 0.3 * (p - p0))
    np.testing.assert_array_equal(found, expected)
    solver = TorchSolver(optimizer="Adam", state="kept")
    algorithm = APFL(step_size=STEP, local_epochs=EPOCHS, solver=solver)
    found = contacts(algorithm, client(small(), *rows()))
    np.testing.assert_array_equal(found, bare_loop("Adam", {}, True))


def test_entries_without_gradient_stay() -> None:
    """Averaged statistics of batch norm follow the parameters in the vector: weight decay does not shrink them."""
    norm = torch.nn.BatchNorm1d(4)
    one = client(small(norm), *rows())
    x = one.shared.flat.values().numpy()
    solver = TorchSolver(optimizer={"name": "SGD", "weight_decay": 1.0})
    y = FedAvg(step_size=STEP, solver=solver).solve(one, x, 0).x
    plain = FedAvg(step_size=STEP).solve(client(small(norm), *rows()), x, 0).x
    trained = one.shared.flat.trained
    np.testing.assert_array_equal(y[trained:], plain[trained:])
    np.testing.assert_allclose(y[:trained], plain[:trained] - STEP * x[:trained], atol=1e-15)


def test_methods_that_take_any_steps() -> None:
    assert Scaffold(option="I", solver=TorchSolver()).torch_optimizer()
    assert Area(solver=TorchSolver()).effective_steps(Clients(np.ones(3))) is None
    assert FedAvg().torch_optimizer() is None


# -- what is kept ------------------------------------------------------------------------------------------------------
KEPT = TorchSolver("torch", "NAdam", "kept", {"name": "StepLR", "step_size": 7})


def test_a_kept_state_survives_saving() -> None:
    """As arrays, as in a checkpoint: names, shapes and types are torch's."""
    whole = contacts(fedavg(KEPT), client(small(), *rows()), 4)
    first, second = client(small(), *rows()), client(small(), *rows())
    contacts(fedavg(KEPT), first, 2)
    saved = {name: value.numpy() for name, value in first.save().items()}
    assert saved["optimizer.steps"] == 10 and saved["optimizer.3.mu_product"].shape == ()
    assert saved["optimizer.0.exp_avg"].shape == (4, 5) and saved["optimizer.0.exp_avg"].dtype == np.float64
    second.load(saved)
    second.last = first.last  # type: ignore[attr-defined]
    np.testing.assert_array_equal(contacts(fedavg(KEPT), second, 2, first=2), whole)
    assert not client(small(), *rows()).save()


@pytest.mark.parametrize("first", [0, 1])
def test_a_refused_update_changes_no_state(first: int) -> None:
    """Not at the first contact either, before which there was none."""
    algorithm = fedavg(KEPT)
    one, again = client(small(), *rows()), client(small(), *rows())
    x = one.shared.flat.values().numpy()
    host, other = Worker(algorithm, x, {0: one}), Worker(algorithm, x, {0: again})
    for contact in range(first):
        for each in (host, other):
            each.train(0, Message((x,), round=contact))
    refused = host.train(0, Message((np.full_like(x, np.inf),), round=first))
    assert not isinstance(refused, ClientError) and refused.refused
    found, expected = (each.train(0, Message((x,), round=first + 1)) for each in (host, other))
    np.testing.assert_array_equal(found.vectors[0], expected.vectors[0])


# -- runs --------------------------------------------------------------------------------------------------------------
def job(**solver: Any) -> dict[str, Any]:
    problem = {"data": "digits", "clients": 6, "model": {"name": "torch-mlp", "hidden": [8]}, "batch_size": 16}
    method = {"name": "fedbuff", "step_size": 0.01, "local_steps": 2, "trigger": {"every": 3}, "solver": solver}
    return {"name": "optimizer", **cases.job(method, problem, stop={"updates": 30})}


ADAM: dict[str, Any] = {
    "name": "torch", "optimizer": {"name": "Adam", "weight_decay": 0.1}, "state": "kept",
    "schedule": {"name": "ExponentialLR", "gamma": 0.9}, "per": "contact",
}  # fmt: skip


@pytest.mark.parametrize("change", parameters({"batched": 0, "replay": 1}, ["replay"]))
def test_runs_are_repeated(change: str, tmp_path: Path) -> None:
    """A replay has the bits of the run, clients that are computed together the numbers."""
    made = job(**ADAM)
    made["problem"]["dtype"] = "float64"
    with mpifl.run(made, output=str(tmp_path / "a.h5")) as run:
        if change == "replay":
            with mpifl.replay(tmp_path / "a.h5", output=str(tmp_path / "b.h5")) as again:
                np.testing.assert_array_equal(run.model, again.model)
            return
        made["problem"]["torch"] = {"batched": True}
        with mpifl.run(made, output=str(tmp_path / "b.h5")) as again:
            assert '"batched": true' in again.attrs["compute"]
            np.testing.assert_allclose(run.model, again.model, rtol=0, atol=1e-12)


# -- what is refused ---------------------------------------------------------------------------------------------------
WRONG: dict[str, tuple[dict[str, Any], str, str]] = {  # solver, key=value, expected
    "unknown": ({"optimizer": "Adan"}, "optimizer.name=Adan", "did you mean Adam?"),
    "far": ({"optimizer": "zzzzzz"}, "optimizer.name=zzzzzz", "one of ASGD, Adadelta"),
    "closure": ({"optimizer": "LBFGS"}, "optimizer.name=LBFGS", "it evaluates the loss several times a step; expected"),
    "sparse": ({"optimizer": "SparseAdam"}, "optimizer.name=SparseAdam", "it needs sparse gradients; expected one of"),
    "shape": ({"optimizer": "Muon"}, "optimizer=Muon", "Muon only supports 2D parameters"),
    "option": ({"optimizer": {"name": "SGD", "momentun": 0.9}}, "optimizer.momentun=0.9", "the nearest is momentum"),
    "lr": ({"optimizer": {"name": "Adam", "lr": -1}}, "optimizer.lr=-1", "step_size times step_weights is the lr"),
    "value": ({"optimizer": {"name": "Adam", "betas": [2, 0.9]}}, "optimizer=Adam", "Invalid beta parameter"),
    "schedule": ({"schedule": "StepLr"}, "schedule.name=StepLr", "did you mean StepLR?"),
    "required": ({"schedule": "StepLR"}, "schedule.step_size=???", "required by StepLR"),
    "division": ({"schedule": {"name": "StepLR", "step_size": 0}}, "schedule=StepLR", "ZeroDivisionError"),
    "total": ({"schedule": {"name": "OneCycleLR", "max_lr": 1}}, "schedule=OneCycleLR", "total_steps"),
    "function": ({"schedule": {"name": "LambdaLR", "lr_lambda": "x"}}, "schedule.name=LambdaLR", "takes a function"),
    "measured": ({"schedule": "ReduceLROnPlateau"}, "schedule.name=ReduceLROnPlateau", "needs a measured loss"),
    "last": ({"schedule": {"name": "StepLR", "step_size": 2, "last_epoch": 3}}, "schedule.last_epoch=3", "no such"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_options_of_the_solver_torch_are_refused(case: str) -> None:
    solver, key, text = WRONG[case]
    one = client(small(), *rows())
    with refusal(f"^algorithm.solver.{re.escape(key)}: .*{re.escape(text)}"):
        Worker(fedavg(TorchSolver(**solver)), one.shared.flat.values().numpy(), {0: one})
