"""Optimisers of torch.optim as local solvers: on the views of one client's vector that are a module's parameters."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from mpifl.errors import ConfigError
from mpifl.objective import OptimizerSettings, Vector
from mpifl.problems.torch.flat import tensor

TRIAL_STEP = 1e-3  # learning rate of the steps that are tried before a run
State = dict[int, dict[str, Tensor]]  # number of a parameter -> torch's name -> tensor
REFUSED = {
    "LBFGS": "evaluates the loss several times a step",
    "SparseAdam": "needs sparse gradients",
    "LambdaLR": "takes a function",
    "MultiplicativeLR": "takes a function",
    "ReduceLROnPlateau": "needs a measured loss",
    "SequentialLR": "takes schedules",
    "ChainedScheduler": "takes schedules",
}


def check_names(settings: OptimizerSettings) -> None:
    """Raises ConfigError for a class that torch does not have, and for options that the class does not take."""
    cls = _find(torch.optim, torch.optim.Optimizer, "optimizer", settings.name)
    if "lr" in settings.options:
        raise ConfigError(
            "optimizer.lr", settings.options["lr"], "no such key", remedy="step_size times step_weights is the lr"
        )
    _check_options("optimizer", cls, settings.options, {"params", "lr"})
    if settings.schedule:
        cls = _find(lr_scheduler, lr_scheduler.LRScheduler, "schedule", settings.schedule)
        _check_options("schedule", cls, settings.schedule_options, {"optimizer", "last_epoch", "verbose"})


def _find(module: Any, base: type, key: str, name: str) -> type:
    """The subclass of `base` in a module of torch. Raises ConfigError(key.name, ...)."""
    known = {n for n, c in vars(module).items() if isinstance(c, type) and issubclass(c, base) and n[0] != "_"}
    known = known - {base.__name__} | (REFUSED.keys() if base is lr_scheduler.LRScheduler else set())
    usable = sorted(known - REFUSED.keys())
    if name in REFUSED and name in known:
        raise ConfigError(f"{key}.name", name, f"it {REFUSED[name]}", f"one of {', '.join(usable)}")
    if name not in usable:
        by_case = {each.lower(): each for each in usable}
        near = difflib.get_close_matches(name.lower(), [*by_case], 1)
        if near:
            raise ConfigError(f"{key}.name", name, "no such class", remedy=f"did you mean {by_case[near[0]]}?")
        raise ConfigError(f"{key}.name", name, "no such class", f"one of {', '.join(usable)}")
    found: type = getattr(module, name)
    return found


def _check_options(key: str, cls: type, options: Mapping[str, Any], given: set[str]) -> None:
    """Raises ConfigError for an option that the class does not take, and for a missing one; `given`: not options."""
    parameters = {n: p for n, p in inspect.signature(cls).parameters.items() if n not in given}
    for option, value in options.items():
        if option not in parameters:
            near = difflib.get_close_matches(option, [*parameters], 1, 0.0)
            wrong, remedy = f"no such option of {cls.__name__}", f"the nearest is {near[0]}"
            raise ConfigError(f"{key}.{option}", value, wrong, remedy=remedy)
    for option, parameter in parameters.items():
        if parameter.default is parameter.empty and option not in options:
            raise ConfigError(f"{key}.{option}", "???", f"required by {cls.__name__}", "a value")


def make(settings: OptimizerSettings, parameters: Sequence[nn.Parameter], step: float) -> torch.optim.Optimizer:
    """The optimiser of these parameters, with the learning rate `step`."""
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.options.items()}
    found: torch.optim.Optimizer = getattr(torch.optim, settings.name)(parameters, lr=step, **options)
    return found


class Schedule:
    """The options that a learning-rate schedule sets, as a function of the number of steps (or contacts) before.

    torch's schedules are recursions: one is followed on a parameter of its own, which no gradient changes.
    """

    def __init__(self, settings: OptimizerSettings, step: float) -> None:
        self.base = step
        self._settings = settings
        self._restart()

    def _restart(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._optimizer = make(self._settings, [nn.Parameter(torch.zeros(1, 1))], self.base)
            self._optimizer.step()  # else the schedule warns
            cls = getattr(lr_scheduler, self._settings.schedule)
            self._scheduler = cls(self._optimizer, **self._settings.schedule_options)
        self._position = 0

    def at(self, k: int) -> dict[str, Any]:
        """The options after k steps of the schedule."""
        if k < self._position:
            self._restart()
        while self._position < k:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._optimizer.step()
                self._scheduler.step()
            self._position += 1
        return {name: value for name, value in self._optimizer.param_groups[0].items() if name != "params"}


class ClientOptimizer:
    """What one client keeps of its optimiser from one contact to the next."""

    def __init__(self) -> None:
        self.contact, self.steps = 0, 0
        self.state: State = {}
        self._loaded = False  # true: all tensors are in the CPU's memory
        self._schedule: Schedule | None = None

    def restore(self, optimizer: torch.optim.Optimizer, settings: OptimizerSettings) -> None:
        """Gives a new optimiser the state that was kept."""
        parameters: list[nn.Parameter] = optimizer.param_groups[0]["params"]
        if self._loaded:  # torch keeps some numbers on the device and others not
            for k, like in trial_state(settings, parameters).items():
                self.state[k] = {name: value.to(like[name].device) for name, value in self.state[k].items()}
            self._loaded = False
        for k, state in self.state.items():
            optimizer.state[parameters[k]] = {name: value.clone() for name, value in state.items()}

    def keep(self, optimizer: torch.optim.Optimizer, steps: int) -> None:
        """Keeps the state of an optimiser that takes no more steps. steps: of all contacts."""
        self.steps, self.state = steps, state_of(optimizer)

    def schedule(self, settings: OptimizerSettings, step: float) -> Schedule | None:
        """The client's schedule, which starts at the learning rate `step`; None where the job has none."""
        if settings.schedule and (self._schedule is None or self._schedule.base != step):
            self._schedule = Schedule(settings, step)
        return self._schedule

    def save(self) -> dict[str, Tensor]:
        """What is kept, by name; empty before the first contact, and where nothing is kept."""
        if not self.steps:
            return {}
        named = {f"optimizer.{k}.{name}": value for k, one in self.state.items() for name, value in one.items()}
        return {"optimizer.steps": torch.tensor(self.steps), **named}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restores what `save` returned, as tensors or arrays; other items of `saved` are left alone."""
        self.steps, self.state, self._loaded = int(saved.get("optimizer.steps", 0)), {}, False
        for key, value in saved.items():
            kind, *names = key.split(".", 2)  # optimizer.NUMBER.NAME
            if kind == "optimizer" and len(names) == 2:
                self.state.setdefault(int(names[0]), {})[names[1]] = torch.as_tensor(value)
                self._loaded |= not isinstance(value, Tensor)


class TorchOptimizer:
    """One run of the local solver on y, (d,): torch's optimiser on the views of y that are the module's parameters."""

    def __init__(
        self, client: ClientOptimizer, settings: OptimizerSettings, y: Vector, shapes: Sequence[tuple[int, ...]],
        step: float,
    ) -> None:  # fmt: skip
        self._client, self._settings, self._shapes = client, settings, shapes
        self._sizes = [torch.Size(shape).numel() for shape in shapes]
        self._parameters = [nn.Parameter(part) for part in self._parts(y)]
        self._optimizer = make(settings, self._parameters, step)
        self._schedule, self._steps = client.schedule(settings, step), 0
        if settings.state == "kept":
            self._steps = client.steps
            client.restore(self._optimizer, settings)

    def _parts(self, v: Vector) -> list[Tensor]:
        """The views of a vector (d,) that are the module's parameters, or their gradients."""
        parts = tensor(v)[: sum(self._sizes)].split(self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def step(self, gradient: Vector) -> None:
        for p, values in zip(self._parameters, self._parts(gradient), strict=True):
            p.grad = values
        if self._schedule:
            k = self._steps if self._settings.per == "step" else self._client.contact
            self._optimizer.param_groups[0].update(self._schedule.at(k))
        self._optimizer.step()
        self._steps += 1

    def close(self) -> None:
        if self._settings.state == "kept":
            self._client.keep(self._optimizer, self._steps)


def state_of(optimizer: torch.optim.Optimizer) -> State:
    """The state of each parameter, without what is None."""
    return {
        k: {name: value for name, value in optimizer.state[p].items() if value is not None}
        for k, p in enumerate(optimizer.param_groups[0]["params"])
    }


def trial_state(settings: OptimizerSettings, parameters: Sequence[Tensor]) -> State:
    """The state after two steps with gradients of 0 on copies of the parameters."""
    copies = [nn.Parameter(p.detach().clone()) for p in parameters]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = make(settings, copies, TRIAL_STEP)
        for _ in range(2):
            for p in copies:
                p.grad = torch.zeros_like(p)
            optimizer.step()
    return state_of(optimizer)


def check(settings: OptimizerSettings, parameters: Sequence[Tensor]) -> None:
    """Raises ConfigError where torch has no such optimiser or schedule, or refuses it for these parameters."""
    check_names(settings)
    try:
        state = trial_state(settings, parameters)
    except Exception as error:  # whatever torch raises for these options, shapes or this device
        wrong, expected = _line(error), "an optimiser and options for this module and device"
        raise ConfigError("optimizer", settings.name, wrong, expected) from error
    if settings.state == "kept" and not all(isinstance(v, Tensor) for one in state.values() for v in one.values()):
        raise ConfigError("state", "kept", f"the state of {settings.name} is not only tensors", "fresh")
    if settings.schedule:
        try:
            Schedule(settings, TRIAL_STEP).at(2)
        except Exception as error:
            raise ConfigError("schedule", settings.schedule, _line(error), "options that torch takes") from error


def _line(error: Exception) -> str:
    return shorten(f"{type(error).__name__}: {error}", 300)
