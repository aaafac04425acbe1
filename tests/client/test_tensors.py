"""Client rules on torch tensors: every algorithm comes to what it comes to on NumPy arrays.

`Tensor` behaves as a tensor in a GPU's memory does: NumPy cannot see into it, and arithmetic with arrays is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mpifl.algorithms.base import Message, State
from mpifl.client.worker import Worker
from mpifl.objective import check_vectors, clone, from_numpy, to_numpy
from mpifl.problems import ProblemConfig, host, load
from mpifl.problems.models.networks import TorchMlp
from mpifl.problems.problem import ComputeResources
from mpifl.problems.settings import Torch
from mpifl.problems.torch.flat import Flat
from mpifl.problems.torch.module_objective import Shared
from mpifl.vector_memory import VectorMemory
from tests.algorithms.test_state import N, Outcome, build, clients, every_case, plain
from tests.quadratic_runs import close
from tests.tiers import parameters


class Tensor(torch.Tensor):
    """A tensor whose values leave it by `cpu` alone."""

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise TypeError("this tensor is on a device")

    def numpy(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise TypeError("this tensor is on a device")

    def cpu(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.clone().as_subclass(torch.Tensor)

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arithmetic = func not in (torch.Tensor.new_tensor, torch.Tensor.__setitem__)
        if arithmetic and any(isinstance(a, (np.ndarray, np.generic)) for a in args):
            raise TypeError(f"{func.__name__} of a tensor on a device and of an array")
        return super().__torch_function__(func, types, args, kwargs)


class Elsewhere(VectorMemory):
    """Memory whose vectors are `Tensor`s."""

    on_host = False

    def from_host(self, v: np.ndarray) -> Any:
        assert type(v) is np.ndarray
        return torch.from_numpy(v.copy()).as_subclass(Tensor)

    def to_host(self, v: Any) -> np.ndarray:
        assert type(v) is Tensor
        return v.cpu().numpy()


class OnTensors:
    """An objective on arrays that takes and returns tensors."""

    def __init__(self, objective: Any) -> None:
        self._objective = objective

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objective, name)

    def _answer(self, rule: Callable, x: Any, *rest: Any) -> Any:
        assert type(x) is Tensor
        answer = rule(x.cpu().numpy(), *rest)
        return Elsewhere().from_host(answer) if isinstance(answer, np.ndarray) else answer

    def gradient(self, x: Any, rows: Any = None) -> Any:
        return self._answer(self._objective.gradient, x, rows)

    def fisher(self, x: Any) -> Any:
        return self._answer(self._objective.fisher, x)

    def accuracy(self, x: Any) -> Any:
        return self._answer(self._objective.accuracy, x)


class Reloading(Worker):
    """Clients whose states are saved and loaded again before each contact, into the memory of their vectors."""

    def train(self, i: int, message: Message) -> Any:
        saved = self.states[i].save()
        assert not any(isinstance(value, torch.Tensor) for value in saved.values()), "they are saved as arrays"
        self.states[i] = State.load(saved, self._x0)
        return super().train(i, message)


@every_case
@pytest.mark.parametrize("kind", parameters([Worker, Reloading], [Reloading]))
def test_every_algorithm_on_tensors(case: str, kind: type[Worker]) -> None:
    """The server's model after every event, and the final states of server and clients."""
    algorithm, expected = build(case), plain(case)
    x0, objectives = clients("float64")
    worker = kind(algorithm, x0, {i: OnTensors(o) for i, o in objectives.items()}, memory=Elsewhere())
    found = Outcome(algorithm, hosted=(x0, worker))
    assert all(type(model) is np.ndarray for model in [found.server.x, *found.models])
    close(found.models, expected.models)
    for state, other in zip(found.states(), expected.states(), strict=True):
        one, two = state.save(), other.save()
        assert one.keys() == two.keys()
        for key in one:
            close(one[key], two[key])
    kept = {key for i in range(N) for key, v in vars(worker.states[i]).items() if isinstance(v, np.ndarray)}
    assert not kept, "a client keeps arrays"
    if algorithm.personal_models:
        close(to_numpy(algorithm.personal_model(worker.states[1])), algorithm.personal_model(expected.clients[1]))


NETWORK = ProblemConfig(
    clients=N, model=TorchMlp(hidden=[8]), batch_size=16, l2=1e-3, dtype="float64", test_split=0.2,
    torch=Torch(threads=1, batched=False, deterministic=True),
)  # fmt: skip


class Plain(Elsewhere):
    """Memory whose vectors are torch's own tensors, as modules take them."""

    def from_host(self, v: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(v.copy())

    def to_host(self, v: torch.Tensor) -> np.ndarray:
        assert type(v) is torch.Tensor
        found: np.ndarray = v.numpy()
        return found


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("case", ["fedavg-local_steps=3", "scaffold-option=I", "apfl-adapt=step", "fedpd-solver=sarah"])
def test_a_torch_module_on_tensors(case: str, batched: bool) -> None:
    """A module gives the same on tensors as on arrays: bit for bit one by one, up to rounding if computed together."""
    algorithm, problem = build(case), load(NETWORK)
    x0, shards = problem.initial(0), {i: problem.shard(i) for i in range(N)}

    def outcome(memory: VectorMemory, torch_: Torch) -> list[np.ndarray]:
        config = replace(NETWORK, torch=torch_)
        hosted = host(config.model, config.settings, problem.meta, shards, 0, ComputeResources())
        assert (hosted.train_batch is not None) == torch_.batched
        worker = Worker(algorithm, x0, hosted.objectives, hosted.train_batch, memory)
        return Outcome(algorithm, hosted=(x0, worker)).models

    settings = Torch(threads=1, batched=batched, deterministic=True)
    arrays, tensors = outcome(VectorMemory(), settings), outcome(Plain(), settings)
    assert np.abs(arrays[-1] - x0).max() > 1e-3
    close(tensors, arrays)
    if not batched:
        assert np.array_equal(tensors, arrays)


# -- the helpers of rules ----------------------------------------------------------------------------------------------
def test_clones_and_tensors_made_of_arrays_share_no_memory() -> None:
    x, y = np.arange(3, dtype=np.float32), torch.arange(3.0)
    assert to_numpy(x) is x and from_numpy(x, x) is x
    assert to_numpy(y).tobytes() == x.tobytes() and from_numpy(x, y).dtype == y.dtype
    for v, w in ((x, clone(x)), (y, clone(y)), (x, from_numpy(x, y))):
        w += 1
        assert v.tolist() == [0, 1, 2] and w.tolist() == [1, 2, 3]
    assert type(clone(x)) is np.ndarray and type(clone(y)) is type(from_numpy(x, y)) is torch.Tensor


def test_what_does_not_fit_on_the_wire() -> None:
    x = torch.zeros(3)
    check_vectors("it sends", [torch.ones(3)], x)
    wrong = torch.ones(4), torch.ones(3, dtype=torch.float64), np.ones(3, np.float32), torch.ones(3, device="meta")
    for v in wrong:
        with pytest.raises(ValueError, match=r"it sends .*float.* not torch.float32 of shape \(3,\)"):
            check_vectors("it sends", [v], x)
        with pytest.raises(ValueError, match="it sends"):
            check_vectors("it sends", [x], v)


def test_a_module_on_another_device() -> None:
    """It takes its regularised weights along, and models are copied there once. (`meta` has shapes and no values.)"""
    config = replace(NETWORK, torch=Torch())
    flat, meta = Flat(torch.nn.Linear(3, 2), torch.device("cpu"), torch.float64, True), torch.device("meta")
    shared = Shared(flat, torch.nn.CrossEntropyLoss(weight=torch.ones(2)), flat.values().device, config)
    x = np.arange(8.0)
    assert shared.to_device(x) is x
    shared.move(meta)
    there = shared.to_device(x)
    assert there.device == meta and there.dtype == torch.float64
    assert shared.to_device(x) is there is not shared.to_device(x + 1)
    shared.flat.bind(there)
    (weight,) = shared.regularised
    assert weight is shared.flat.module.weight and weight.device == shared.loss.weight.device == meta
