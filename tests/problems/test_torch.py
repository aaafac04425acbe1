"""Torch modules on flat vectors: the same bits as a plain torch loop, the same run as the NumPy model."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn
from torch.nn.functional import cross_entropy

import mpifl
from mpifl import problems
from mpifl.objective import OptimizerSettings
from mpifl.problems import ProblemConfig
from mpifl.problems.settings import Torch
from mpifl.problems.torch.examples import Examples
from mpifl.problems.torch.flat import Flat
from mpifl.problems.torch.module_objective import Shared, TorchObjective
from mpifl.problems.torch.module_problem import seeded
from mpifl.runfile.reader import Run
from tests.tiers import long, parameters

CPU = torch.device("cpu")
JOB = """
name: torch
seed: 3
problem: {{data: {data}, clients: {clients}, model: {model}, l2: {l2}, batch_size: {batch}, dtype: {dtype},
          evaluation_rows: {rows}}}
algorithm: {algorithm}
clock: {{mode: virtual, delay: {{name: exponential, rate: 10}}}}
stop: {{updates: {updates}}}
evaluate: {{updates: 8, gradient: {gradient}}}
"""


def run(tmp_path: Path, name: str = "run", **options: Any) -> Run:
    given = {"clients": 6, "l2": 0, "batch": 16, "dtype": "float64", "updates": 40, "rows": "null", "gradient": True}
    job = mpifl.load_job(yaml.safe_load(JOB.format(**{**given, "data": "digits", **options})))
    return mpifl.run(job, output=f"{tmp_path / name}.h5")


def client(
    module: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int | None = 8, **options: Any
) -> TorchObjective:
    """One client with rows x, y."""
    l2 = options.pop("l2", 0.0)
    settings = Torch(**options)
    problem = ProblemConfig(model=problems.MODELS["torch-mlp"](), clients=1, batch_size=batch, l2=l2, torch=settings)
    dtype = next(module.parameters()).dtype
    shared = Shared(Flat(module, CPU, dtype, settings.buffers == "averaged"), cross_entropy, CPU, problem)
    return TorchObjective(shared, problem, {"samples": [len(y)], "clients": 1}, 0, 0, Examples(x, y), None)


def rows(count: int = 40, features: int = 5, classes: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, classes, (count,), generator=generator)


def small(*norm: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 4), *norm, nn.ReLU(), nn.Linear(4, 3)).double()


# -- flat vectors ------------------------------------------------------------------------------------------------------
def test_gradient_is_that_of_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = rows()
    one = client(small(), x, y, l2=0.1)
    module = small()
    loss = cross_entropy(module(x[[3, 1, 4]]), y[[3, 1, 4]])
    loss = loss + 0.05 * sum((p**2).sum() for p in module.parameters() if p.ndim > 1)
    expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])
    start = one.shared.flat.values().numpy()
    kept = start.copy()
    found = one.gradient(start, np.array([3, 1, 4]))
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-15)
    assert one.loss(start, np.array([3, 1, 4])) == pytest.approx(float(loss.detach()), abs=1e-14)
    assert (start == kept).all()
    found *= 0  # the caller's own
    np.testing.assert_allclose(one.gradient(start, np.array([3, 1, 4])), expected.numpy(), atol=1e-15)
    x, y = rows(50)
    one = client(small(), x, y)
    start = one.shared.flat.values().numpy()
    whole = one.gradient(start), one.loss(start)
    monkeypatch.setattr("mpifl.problems.torch.module_objective.MAX_ROWS", 7)
    np.testing.assert_allclose(one.gradient(start), whole[0], atol=1e-15)
    assert one.loss(start) == pytest.approx(whole[1], abs=1e-14)
    stepped = start.copy()
    one.descend(stepped, [slice(None)], 0.5)
    np.testing.assert_allclose(stepped, start - 0.5 * whole[0], atol=1e-15)


# -- the NumPy model ---------------------------------------------------------------------------------------------------
METHODS = [
    "{name: fedavg, local_steps: 3}",
    "{name: area, step_size: 1, trigger: {every: 2}}",
    "{name: fedprox, mu: 0.1, local_epochs: 1}",
    "{name: scaffold, local_steps: 2}",
    "{name: feddane, step_size: 0.05, mu: 0.1}",
    "{name: fedpd, eta: 1, solver: gd, local_steps: 2}",
    "{name: feddr, eta: 1, solver: svrg, local_steps: 3}",
    "{name: apfl, adapt: step}",
]


@pytest.mark.parametrize("method", parameters(METHODS, METHODS[1::3]))
def test_logistic_regression_is_the_one_in_numpy(method: str, tmp_path: Path) -> None:
    """Virtual clock, float64: every evaluation to 1e-12."""
    options = {"algorithm": method, "l2": 1e-3}
    ours = run(tmp_path, "torch", model="{name: torch-logistic, bias: true}", **options)
    numpy = run(tmp_path, "numpy", model="{name: logistic, bias: true}", **options)
    assert ours.layout == numpy.layout
    for column in numpy.evaluations.columns:
        np.testing.assert_allclose(ours.evaluations[column], numpy.evaluations[column], rtol=0, atol=1e-12)
    np.testing.assert_allclose(ours.model, numpy.model, rtol=0, atol=1e-12)


def test_measures_are_those_in_numpy() -> None:
    """Of the same rows of clients, held out or not."""
    pair = []
    for model in ("logistic", "torch-logistic"):
        settings = ProblemConfig(
            model=problems.MODELS[model](), clients=4, test_split=0.2, validation_split=0.2, dtype="float64"
        )
        problem = problems.load(settings)
        one = problems.objective(settings, problem.meta, problem.shard(1), 1, 0)
        x, metrics = problem.initial(0), problem.evaluate(problem.initial(0))
        assert problem.validation_rows and {"validation_loss", "test_loss"} <= metrics.keys()
        measured = one.fisher(x), one.accuracy(x), one.loss(x), problem.client_accuracies(x), [*metrics.values()]
        pair.append((*measured, *problem.shard(3)))
    for found, expected in zip(*pair, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


# -- a plain torch loop ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        ("{name: torch-mlp, hidden: [17, 9]}", "float32"),
        ("{name: cnn, channels: [3, 5], hidden: 11}", "float32"),
        ("{name: resnet, depth: 20, groups: 4}", "float32"),
        long("{name: vgg11}", "float32"),
        ("{name: torch-mlp, hidden: [17]}", "float64"),
    ],
)
def test_one_client_is_a_plain_loop(model: str, dtype: str, tmp_path: Path) -> None:
    """FedAvg with one client: torch.optim.SGD on the same batches, the same weights bit for bit."""
    ours = run(
        tmp_path, model=model, dtype=dtype, clients=1, updates=2 if "vgg" in model else 6, rows=20, gradient=False,
        algorithm="{name: fedavg, step_size: 0.05, local_steps: 3}",
    )  # fmt: skip
    assert plain_loop(ours, ((1, 8, 8), 10, 0), lambda x: x.reshape(-1, 1, 8, 8)).tobytes() == ours.model.tobytes()


def plain_loop(ours: Run, shape: tuple[Any, ...], inputs: Any) -> np.ndarray:
    """The model after the local steps of a run with one client; shape: what the network is built for."""
    job = mpifl.load_job(ours.config)
    problem, algorithm = problems.load(job.problem), ours.config["algorithm"]
    x, y = (torch.from_numpy(part) for part in problem.shard(0)[:2])
    one: Any = problems.objective(job.problem, problem.meta, problem.shard(0), 0, job.seed)
    build: Any = job.problem.model
    module = seeded(job.seed, lambda: build.build(*shape)).to(getattr(torch, ours.config["problem"]["dtype"]))
    optimiser = torch.optim.SGD(module.parameters(), algorithm["step_size"])
    for round in range(ours.config["stop"]["updates"]):
        for batch in one.batches(round, algorithm["local_steps"]):
            optimiser.zero_grad()
            cross_entropy(module(inputs(x[batch])), y[batch]).backward()
            optimiser.step()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()


@pytest.mark.parametrize("model", ["{name: char-lstm, hidden: 12}", "{name: lstm, embedding: 7, hidden: 6, dense: 5}"])
def test_one_client_is_a_plain_loop_on_text(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPIFL_CACHE", str(tmp_path / "cache"))
    text = "".join(np.random.default_rng(0).choice(list("abc de\n"), 600))
    (tmp_path / "roles.jsonl").write_text(json.dumps({"play": "p", "role": "r", "text": text}))
    ours = run(
        tmp_path, model=model, dtype="float32", clients="null", batch=6, updates=3, rows=20, gradient=False,
        algorithm="{name: fedavg, step_size: 0.5, local_steps: 4}",
        data=f"{{name: shakespeare, path: {tmp_path}/roles.jsonl, window: 11, min_characters: 1}}",
    )  # fmt: skip
    problem = problems.load(mpifl.load_job(ours.config).problem)
    tokens = torch.from_numpy(np.load(problem.meta["tokens"][0]).astype(np.int64))
    begins, y = problem.shard(0)[:2]
    assert tokens[begins[:, 0] + 11].tolist() == y.tolist()

    def windows(begins: torch.Tensor) -> torch.Tensor:
        return torch.stack([tokens[begin : begin + 11] for begin in begins.reshape(-1)])

    assert plain_loop(ours, ((11,), 80, 80), windows).tobytes() == ours.model.tobytes()


# -- what a module has besides parameters ------------------------------------------------------------------------------
def test_a_gradient_leaves_statistics_alone_until_update_buffers() -> None:
    """descend, and gradient followed by update_buffers, end alike; a gradient alone changes nothing at x."""
    x, y = rows(24)
    one = client(small(nn.BatchNorm1d(4)), x, y)
    start = one.shared.flat.values().numpy()
    kept, fast, slow = start.copy(), start.copy(), start.copy()
    batches = [np.arange(8), np.arange(8, 20)]
    one.descend(fast, batches, 0.1)
    for batch in batches:
        slow -= 0.1 * one.gradient(slow, batch)
        one.update_buffers(slow)
    one.gradient(start)
    assert (start == kept).all()
    np.testing.assert_allclose(slow, fast, atol=1e-14)
    assert (fast[-8:] != start[-8:]).all()
    x, y = rows(24)
    one = client(small(nn.BatchNorm1d(4)), x, y)
    start = one.shared.flat.values().numpy()
    start[-4:] = -0.01
    assert np.isfinite(one.loss(start)) and np.isfinite(one.gradient(start)).all()
    one.descend(start, [slice(None)], 0.1)
    assert (start[-4:] >= 0).all()


def test_a_read_only_vector_can_be_read_and_not_changed() -> None:
    """The vectors of a message are read-only; torch would warn of one, and write to it."""
    x, y = rows(24)
    one = client(small(nn.BatchNorm1d(4)), x, y)
    start = one.shared.flat.values().numpy()
    sent = start.copy()
    sent.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (one.gradient(sent) == one.gradient(start)).all() and one.loss(sent) == one.loss(start)
    sgd = OptimizerSettings("SGD", {}, "fresh", "", {}, "step")
    changes: list[Callable[[], object]] = [
        lambda: one.descend(sent, [slice(None)], 0.1),
        lambda: one.update_buffers(sent),
        lambda: one.take_buffers(sent),
        lambda: one.optimizer(sgd, sent, 0.1),
    ]
    for change in changes:
        with pytest.raises(ValueError, match="read-only"):
            change()


def test_local_statistics_stay_with_the_client() -> None:
    """And are saved and restored: in a checkpoint, where they are arrays, and before an update that may be refused."""
    x, y = rows(24)
    one = client(small(nn.BatchNorm1d(4)), x, y, buffers="local")
    problem = ProblemConfig(model=problems.MODELS["torch-mlp"](), clients=1, torch=Torch(buffers="local"))
    two = TorchObjective(one.shared, problem, {"samples": [24], "clients": 1}, 0, 0, Examples(x + 1, y), None)
    flat = one.shared.flat
    assert flat.d == 5 * 4 + 4 + 4 + 4 + 4 * 3 + 3
    start = flat.values().numpy()
    for each in (one, two):
        each.descend(start.copy(), [slice(None)], 0.1)
    module = small(nn.BatchNorm1d(4))
    for each, inputs in ((one, x), (two, x + 1)):
        expected = 0.1 * module[0](inputs).mean(0).detach()  # type: ignore[index]
        np.testing.assert_allclose(each.stats[:4], expected, atol=1e-14)
    for as_saved in (lambda v: v, lambda v: v.numpy()):
        two.stats.zero_()  # type: ignore[union-attr]
        two.load({name: as_saved(value) for name, value in one.save().items()})
        assert torch.equal(one.stats, two.stats)  # type: ignore[arg-type]


def test_what_a_module_draws_belongs_to_client_and_round() -> None:
    """Dropout has the same masks whatever was computed before, in local steps and in gradients of all rows; measuring
    is without dropout, and does not change the clients' draws."""
    x, y = rows()
    plain, one = client(small(), x, y), client(small(nn.Dropout(0.5)), x, y)
    start = one.shared.flat.values().numpy()

    def contact(round: int) -> list[np.ndarray]:
        y_i = start.copy()
        one.begin_round(round)
        one.descend(y_i, one.batches(0, 3), 0.1)
        return [y_i, one.gradient(start), one.gradient(start)]

    first, second = contact(0), contact(1)
    torch.rand(99)
    assert np.array_equal(contact(0), first)
    assert all((a != b).any() for a, b in [*zip(first, second, strict=True), first[1:]])
    state = torch.get_rng_state()
    assert one.loss(start) == one.loss(start)
    np.testing.assert_allclose(one.measured_gradient(start), plain.gradient(start), atol=1e-15)
    assert torch.equal(torch.get_rng_state(), state)


def test_autocast_computes_in_bfloat16() -> None:
    """Gradients within bfloat16's rounding, 2^-8, of float32's; parameters stay float32."""
    x, y = rows(64)
    full = client(small().float(), x.float(), y)
    half = client(small().float(), x.float(), y, autocast="bfloat16")
    start = full.shared.flat.values().numpy()
    expected, found = full.gradient(start), half.gradient(start)
    assert found.dtype == np.float32
    assert 0 < np.linalg.norm(found - expected) < 2**-6 * np.linalg.norm(expected)
