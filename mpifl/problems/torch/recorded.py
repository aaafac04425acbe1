"""The operations of a function of tensors, recorded and repeated without the Python code that leads to them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

log = logging.getLogger(__package__)

Gradients = Callable[[dict[str, Tensor], Tensor, Tensor], dict[str, Tensor]]
Operations = Callable[..., list[Tensor]]
AFTER = 100  # calls before a recording, which takes as long as some hundred calls without it save


def keeps_no_state(module: nn.Module, loss: Callable[..., Tensor]) -> bool:
    """Whether all code of the module and of the loss is torch's or this package's: results depend on tensors alone."""
    parts = list(module.modules())
    code = [*map(type, parts), type(loss) if isinstance(loss, nn.Module) else loss]
    hooks = (part._forward_hooks or part._forward_pre_hooks or part._backward_hooks for part in parts)
    return not any(hooks) and all(
        str(getattr(one, "__module__", "")).partition(".")[0] in ("torch", "mpifl") for one in code
    )


class Recorded:
    """The gradients of a module that keeps no state (`keeps_no_state`), from its weights, inputs and targets.

    From the call after `AFTER` with arguments of one shape, their operations are repeated from a recording: for a small
    model torch.func.vmap and grad take longer than the operations that they lead to. A recording whose results differ
    from the function's in a bit is not used, and a function that torch cannot record is called each time.
    """

    def __init__(self, function: Gradients) -> None:
        """function: weights by name, (clients, ...) each, inputs and targets (clients, rows, ...) -> gradients."""
        self._function = function
        self._calls = Counter[Any]()  # shapes, types and device of the arguments -> calls
        self._recordings: dict[Any, Operations] = {}

    def __call__(self, weights: dict[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
        key = x.shape, x.dtype, x.device, y.shape, y.dtype
        if operations := self._recordings.get(key):
            with torch.no_grad():
                return dict(zip(weights, operations(*weights.values(), x, y), strict=True))
        gradients = self._function(weights, x, y)
        self._calls[key] += 1
        if self._calls[key] == AFTER and (operations := self._record(weights, x, y, gradients)):
            self._recordings[key] = operations
        return gradients

    def _record(
        self, weights: dict[str, Tensor], x: Tensor, y: Tensor, expected: dict[str, Tensor]
    ) -> Operations | None:
        from torch.fx.experimental.proxy_tensor import make_fx

        def function(*arguments: Tensor) -> list[Tensor]:
            found = self._function(dict(zip(weights, arguments)), *arguments[-2:])
            return [found[name] for name in weights]

        arguments = *weights.values(), x, y
        try:
            operations: Operations = make_fx(function)(*arguments).forward
            found = operations(*arguments)
        except Exception as error:  # whatever torch comes to; the function itself has just worked
            log.debug("gradients are not recorded: %s", error)
            return None
        return operations if all(map(torch.equal, found, (expected[name] for name in weights))) else None
