"""Which operation of a module has other bits when it is computed again on a GPU: by layer, by pass, by setting.

    python benchmarks/gpu_repeat.py [--device cuda] [--repeats 20] [--models cnn resnet mlp]

A local step (forward, loss, backward) is computed again and again on the same rows and weights, alone and while another
thread evaluates a copy of the module, as a run on one process does. Hooks hash each layer's output, the gradient that
enters it, and each weight's gradient. A line of JSON for each model, precision and setting names what differed first:
the first output in the order of the forward pass, else the first gradient in the order of the backward pass.

Settings: `run` is what a run sets (deterministic algorithms, no TF32); `filled` fills memory that is not initialised;
`benchmark` lets cuDNN choose by timing; `no cudnn` has torch's own convolutions; `default` is torch's default.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mpifl.problems.torch  # noqa: F401 - sets what cuBLAS reads when it starts, before torch is imported

# isort: split
import torch
from torch import nn

SETTINGS = ("run", "filled", "benchmark", "no cudnn", "default")
ROWS = 32


def modules() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """Small modules with the shape of a row: convolutions alone, with batch norm and skips, and products alone."""
    conv = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10))

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
            self.norm = nn.BatchNorm2d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))

    residual = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), Residual(), Residual(), nn.Flatten(), nn.Linear(512, 10))
    mlp = nn.Sequential(nn.Flatten(), nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 10))
    return {"cnn": (conv, (1, 8, 8)), "resnet": (residual, (1, 8, 8)), "mlp": (mlp, (1, 8, 8))}


@contextmanager
def setting(name: str) -> Iterator[None]:
    torch.use_deterministic_algorithms(name in ("run", "filled", "no cudnn"))
    torch.utils.deterministic.fill_uninitialized_memory = name == "filled"  # type: ignore[attr-defined]
    flags = {"enabled": name != "no cudnn", "benchmark": name == "benchmark", "allow_tf32": name == "default"}
    try:
        with torch.backends.cudnn.flags(**flags):
            yield
    finally:
        torch.use_deterministic_algorithms(False)


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


def step(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, str]:
    """The hashes of a step's outputs, gradients and weights' gradients, in the order in which they are computed."""
    found: dict[str, str] = {}
    hooks = []
    for name, layer in module.named_modules():
        if any(True for _ in layer.children()):
            continue
        text = f"{name} {type(layer).__name__}"
        hooks.append(layer.register_forward_hook(
            lambda _, __, out, text=text: found.__setitem__(f"forward {text}", digest(out))))  # fmt: skip
        hooks.append(layer.register_full_backward_hook(
            lambda _, __, out, text=text: found.__setitem__(f"backward into {text}", digest(out[0]))))  # fmt: skip
    module.zero_grad()
    loss = nn.functional.cross_entropy(module(x), y)
    found["loss"] = digest(loss)
    loss.backward()
    for hook in hooks:
        hook.remove()
    return found | {
        f"gradient of {name}": digest(p.grad) for name, p in module.named_parameters() if p.grad is not None
    }


def measure(name: str, dtype: str, kind: str, beside: bool, args: argparse.Namespace) -> dict[str, Any]:
    """Repeats a step; what differs from the first time, and in how many repeats."""
    torch.manual_seed(0)
    module, shape = modules()[name]
    device, precision = torch.device(args.device), getattr(torch, dtype)
    module = module.to(device, precision)
    x = torch.randn(ROWS, *shape, device=device, dtype=precision)
    y = torch.randint(10, (ROWS,), device=device)
    over = threading.Event()

    def evaluate() -> None:
        other = modules()[name][0].to(device, precision).eval()
        rows = torch.randn(997, *shape, device=device, dtype=precision)
        with torch.no_grad():
            while not over.is_set():
                other(rows).sum().item()

    row: dict[str, Any] = {"model": name, "dtype": dtype, "setting": kind, "evaluating": beside}
    thread = threading.Thread(target=evaluate, daemon=True)
    with setting(kind):
        if beside:
            thread.start()
        try:
            first, different, counts = step(module, x, y), "", 0
            for _ in range(args.repeats):
                again = step(module, x, y)
                unlike = [key for key in first if again[key] != first[key]]
                counts += bool(unlike)
                different = different or (unlike[0] if unlike else "")
            row |= {"repeats": args.repeats, "different": counts, "first": different}
        except RuntimeError as error:  # an operation without a deterministic algorithm
            row["error"] = str(error).splitlines()[0]
        finally:
            over.set()
            if beside:
                thread.join()
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--models", nargs="+", default=["cnn", "resnet", "mlp"], choices=["cnn", "resnet", "mlp"])
    args = parser.parse_args()
    if args.device != "cpu" and not torch.cuda.is_available():
        print("gpu_repeat: torch finds no GPU", file=sys.stderr)
        return 2
    device = "cpu" if args.device == "cpu" else torch.cuda.get_device_name()
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    print(json.dumps({"device": device, **versions}), flush=True)
    for name in args.models:
        for dtype in ("float32", "float64"):
            for kind in SETTINGS:
                for beside in (False, True):
                    print(json.dumps(measure(name, dtype, kind, beside, args)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
