"""Exported models load strictly into a new module of the user's, which then has the loss that the run file states."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mpifl
from mpifl import cli

torch = pytest.importorskip("torch")
from safetensors.torch import load_file  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from tests.problems.zoo import modules  # noqa: E402

JOB = {
    "name": "a", "seed": 3, "problem": {"batch_size": 5}, "algorithm": {"name": "fedavg", "step_size": 0.1},
    "clock": {"mode": "virtual", "delay": "exponential"}, "stop": {"updates": 6}, "evaluate": {"updates": 6},
}  # fmt: skip


class Buffers(nn.Module):  # type: ignore[misc]
    """Buffers of several types, one that is not in the state_dict, and an empty one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("scale", torch.tensor(2.0, dtype=torch.float64))
        self.register_buffer("phase", torch.polar(torch.ones(3), torch.arange(3.0)))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("index", torch.tensor([2, 0, 1]).t())
        self.register_buffer("none", torch.empty(0, 4))
        self.register_buffer("own", torch.ones(3), persistent=False)

    def forward(self, x: Any) -> Any:
        x = (x * self.phase).real.masked_fill(self.mask, 1)[:, self.index]
        return self.linear(x) * self.scale.float() * self.own


class Adapted(nn.Module):  # type: ignore[misc]
    """A frozen base of bfloat16, drawn by the run's seed, and a trained adapter of float32."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(3, 3).bfloat16().requires_grad_(False)
        self.down, self.up = nn.Linear(3, 2, bias=False), nn.Linear(2, 3, bias=False)

    def forward(self, x: Any) -> Any:
        return self.base(x.bfloat16()).float() + self.up(self.down(x))


class Renamed(nn.Module):  # type: ignore[misc]
    """Keys of its own: `core.weight` for `net.weight`."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 3)

    def state_dict(self, *args: Any, **keys: Any) -> Any:
        found = super().state_dict(*args, **keys)
        return {key.replace("net.", "core."): part for key, part in found.items()}

    def load_state_dict(self, state: Any, strict: bool = True, assign: bool = False) -> Any:
        assert set(state) == {"core.weight", "core.bias"}
        return super().load_state_dict({key.replace("core.", "net."): part for key, part in state.items()}, strict)

    def forward(self, x: Any) -> Any:
        return self.net(x)


class Transposed(Renamed):
    """Keys of its own, and the weight the other way round."""

    def state_dict(self, *args: Any, **keys: Any) -> Any:
        found = super().state_dict(*args, **keys)
        return {**found, "core.weight": found["core.weight"].T}

    def load_state_dict(self, state: Any, strict: bool = True, assign: bool = False) -> Any:
        return super().load_state_dict({**state, "core.weight": state["core.weight"].T}, strict)


KINDS = {"buffers": Buffers, "adapted": Adapted, "renamed": Renamed, "transposed": Transposed}


def entry(kind: str) -> tuple[Any, ...]:
    """Of these, or of those whose torch files tests/problems/zoo compares with their runs."""
    if kind not in KINDS:
        return getattr(modules, kind)()  # type: ignore[no-any-return]
    draw = torch.Generator().manual_seed(0)
    x = [torch.randn(10, 3, generator=draw) for _ in range(3)]
    *clients, test = (TensorDataset(each, each.argmax(1)) for each in x)
    return KINDS[kind](), cross_entropy, clients, test


def run(folder: Path, kind: str, **problem: Any) -> mpifl.Run:
    problem = {**JOB["problem"], "entry": f"{__name__}:entry", "options": {"kind": kind}, **problem}
    return mpifl.run({**JOB, "problem": problem, "output": folder / "a.h5"})


def check(kind: str, path: Path, run: mpifl.Run) -> None:
    """A new module loads the file strictly, and has the parameters and the test loss of the run."""
    torch.manual_seed(99)
    module, loss, _, test = entry(kind)
    module.eval()
    module.load_state_dict(torch.load(path, weights_only=True) if path.suffix == ".pt" else load_file(path))
    trained = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    values = [trained[name].reshape(-1) for name, _ in run.layout if name in trained]
    assert torch.cat(values).numpy().tobytes() == run.model[: sum(map(len, values))].tobytes()
    x, y = test[:]
    assert loss(module(x), y).item() == pytest.approx(run.evaluations.test_loss.iloc[-1], rel=1e-6)


@pytest.mark.parametrize("kind", ["buffers", "adapted", "renamed", "tied", "batch_norm"])
def test_a_module_loads_strictly(tmp_path: Path, kind: str) -> None:
    """But for statistics that each client keeps, which are in no export."""
    made = run(tmp_path, kind)
    for to in ("torch", "safetensors"):
        check(kind, *mpifl.export_run(made.path, to), made)
    if kind == "batch_norm":
        made = run(tmp_path / "local", kind, torch={"buffers": "local"})
        (path,) = mpifl.export_run(made.path, "torch")
        missing = {*entry(kind)[0].state_dict()} - {*torch.load(path, weights_only=True)}
        assert missing == {"1.running_mean", "1.running_var"}


def test_types_and_values_of_constants_are_exact(tmp_path: Path) -> None:
    (path,) = mpifl.export_run(run(tmp_path, "buffers").path, "torch")
    found, expected = torch.load(path, weights_only=True), Buffers().state_dict()
    for name in ("scale", "phase", "mask", "index", "none"):
        assert found[name].dtype == expected[name].dtype and torch.equal(found[name], expected[name])


@pytest.mark.parametrize("kind", ["adapted", "transposed"])
def test_what_the_run_file_does_not_have_comes_from_the_entry(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    """A frozen base that is too large for the run file, and entries that are computed: with --full, if trusted."""
    monkeypatch.setattr("mpifl.problems.torch.flat.MAX_CONSTANTS", 8)
    made = run(tmp_path, kind)
    (path,) = mpifl.export_run(made.path, "torch")
    assert {*torch.load(path, weights_only=True)} == {name for name, _ in made.layout}
    for to in ("torch", "safetensors"):
        assert "--trust" in refused("export", made.path, "--to", to, "--full", "overwrite=true")
        assert cli.main(["export", str(made.path), "--to", to, "--full", "--trust", "overwrite=true"]) == 0
        check(kind, made.path.with_suffix({"torch": ".pt"}.get(to, ".safetensors")), made)
