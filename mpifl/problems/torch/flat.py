"""A module on flat vectors: its parameters are views of one vector, their gradients of another. Nothing is copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mpifl.objective import NO_STATE, ModuleState, StateEntry, Vector
from mpifl.problems.problem import Layout
from mpifl.problems.torch.state_dict import dtype_name, to_bytes

MAX_CONSTANTS = 1 << 26  # bytes of constants that a run file holds


def tensor(x: Vector) -> Tensor:
    """The vector as a tensor in the same memory, or a copy of a read-only array, since no tensor is read-only."""
    if not isinstance(x, np.ndarray):
        return x
    return torch.from_numpy(x if x.flags.writeable else x.copy())


def check_writable(y: Vector) -> None:
    """Raises ValueError for a read-only array that is to be changed in place: `tensor` gives a copy of it."""
    if isinstance(y, np.ndarray) and not y.flags.writeable:
        raise ValueError("the vector to be changed is read-only; pass clone(y)")


def vector_like(x: Vector, result: Tensor) -> Vector:
    """A result as what x is, a NumPy array or a tensor, in the same memory."""
    return result.numpy() if isinstance(x, np.ndarray) else result


def running_statistics(module: nn.Module) -> dict[str, Tensor]:
    """The running statistics of its norms, by name."""
    norms = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._NormBase)]
    kept = {id(b) for norm in norms for b in (norm.running_mean, norm.running_var) if b is not None}
    return {name: b for name, b in module.named_buffers() if id(b) in kept}


def _place(part: Tensor) -> tuple[object, ...]:
    """Equal for tensors of the same values in the same memory."""
    return part.data_ptr(), part.dtype, part.shape, part.stride()


class Flat:
    """One module, bound to one flat vector at a time.

    The vector has the parameters that need a gradient, in the module's order, and where running statistics are averaged
    these follow. These get the vector's dtype. Parameters that need no gradient and other buffers stay what they are.
    """

    def __init__(self, module: nn.Module, device: torch.device, dtype: torch.dtype, averaged: bool) -> None:
        self.module = module.to(device).train()  # as a whole, also where a part of it was not
        weights = {name: p for name, p in module.named_parameters() if p.requires_grad}
        stats = running_statistics(module)
        for part in (*weights.values(), *stats.values()):
            part.data = part.data.to(dtype)
        self._variances = [name.endswith("running_var") for name in stats]
        self.weights, self.stats = list(weights.values()), list(stats.values())
        self.averaged = averaged and bool(stats)
        self.layout: Layout = [(name, tuple(part.shape)) for name, part in weights.items()]
        if self.averaged:
            self.layout += [(name, tuple(part.shape)) for name, part in stats.items()]
        self._sizes = [part.numel() for part in self.weights]
        self._stat_sizes = [part.numel() for part in self.stats]
        self.trained = sum(self._sizes)  # entries that gradients change
        self.d = self.trained + (sum(self._stat_sizes) if self.averaged else 0)
        self._device, self.dtype = device, dtype
        self._bound: Vector = None
        self._bound_statistics: Tensor | None = None  # the tensor that the statistics are views of
        self._scratch = torch.empty(self.d - self.trained, device=device, dtype=dtype)

    def values(self) -> Tensor:
        """(d,) a copy of the present parameters, and statistics where they are averaged."""
        parts = [*self.weights, *(self.stats if self.averaged else ())]
        return torch.cat([part.detach().reshape(-1) for part in parts])

    def state_dict(self) -> dict[str, Any]:
        """The module's `state_dict`, without statistics that each client keeps for itself."""
        local = set() if self.averaged else {part.data_ptr() for part in self.stats}
        entries = self.module.state_dict(keep_vars=True).items()
        return {key: part for key, part in entries if not (isinstance(part, Tensor) and part.data_ptr() in local)}

    def state(self) -> ModuleState:
        """What `state_dict` has; unknown where an entry is neither a parameter nor a buffer, and where the constants
        are too large for a run file."""
        held, entries = [*self.module.parameters(), *self.module.buffers()], self.state_dict()
        if not all(isinstance(part, Tensor) and part.layout == torch.strided for part in (*held, *entries.values())):
            return NO_STATE
        known = {_place(part) for part in held}
        if not known.issuperset(map(_place, entries.values())):
            return NO_STATE
        parts = {_place(part): name for part, (name, _) in zip([*self.weights, *self.stats], self.layout)}
        constants = [part for part in entries.values() if _place(part) not in parts]
        if sum(part.nbytes for part in constants) > MAX_CONSTANTS:
            return NO_STATE
        found = [
            StateEntry(key, dtype_name(part), [*part.shape], name, part.nbytes if name is None else 0)
            for key, part in entries.items()
            for name in [parts.get(_place(part))]
        ]
        return ModuleState(found, np.frombuffer(b"".join(map(to_bytes, constants)), np.uint8))

    def own_statistics(self) -> Tensor | None:
        """A copy of the running statistics, for one client; null where there are none, or the vector has them."""
        return torch.cat([part.reshape(-1) for part in self.stats]) if self.stats and not self.averaged else None

    def bind(self, x: Vector, stats: Tensor | None = None) -> None:
        """From now on the module's parameters are views of x (d,), and its running statistics of `stats` or, where that
        is null, of a copy of those in x: x itself is not changed by a forward pass."""
        if x is not self._bound:
            self._bound, whole = x, tensor(x)
            for weight, values in zip(self.weights, whole[: self.trained].split(self._sizes), strict=True):
                weight.data = values.view(weight.shape)
        if not self.stats:
            return
        if stats is None:
            stats = self._scratch
            stats.copy_(tensor(x[self.trained :]))
        if stats is not self._bound_statistics:
            self._bound_statistics = stats
            for part, values in zip(self.stats, stats.split(self._stat_sizes), strict=True):
                part.data = values.view(part.shape)
        for part, is_variance in zip(self.stats, self._variances):
            if is_variance:
                part.clamp_(min=0)  # rules that extrapolate or reflect may have averaged to less

    def train(self) -> None:
        """Puts the module into training mode. Where it is in that mode its parts are not visited again."""
        if not self.module.training:
            self.module.train()

    def bind_in_place(self, y: Vector) -> None:
        """Likewise, but averaged statistics are views of y as well: a forward pass in training changes them there."""
        self.bind(y, tensor(y)[self.trained :] if self.averaged else None)

    def update_buffers(self, y: Vector) -> None:
        """Writes the statistics that the last forward pass left into y, in place."""
        check_writable(y)
        if self.averaged:
            tensor(y)[self.trained :] = self._scratch

    def take_buffers(self, gradient: Vector) -> None:
        """Makes the statistics that a gradient has in place of zeros those of the last forward pass."""
        check_writable(gradient)
        if self.averaged:
            statistics = tensor(gradient)[self.trained :]
            self._scratch.copy_(statistics)
            statistics.zero_()

    def new_gradient(self) -> Tensor:
        """(d,) zeros, of which the parameters' gradients are views: the next backward passes add to it."""
        result = torch.zeros(self.d, device=self._device, dtype=self.dtype)
        for part, values in zip(self.weights, result[: self.trained].split(self._sizes), strict=True):
            part.grad = values.view(part.shape)
        return result
