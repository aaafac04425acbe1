"""Calls a user's `problem.entry` function, with or without torch: every mistake is one line, before any work."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mpifl.errors import ConfigError
from mpifl.problems.generators import IMPORT_SEED, seeded_generators, torch_seed
from mpifl.problems.settings import ProblemSettings
from mpifl.user_code import ChangedDirectory, import_object, working_directory_kept

DATA_SEED = 0  # seed of the function's draws for the clients' data, on all ranks and for all seeds of a run
RETURNS = (
    "(module, loss, datasets[, test[, predict[, collate]]]), or a dict with these names; "
    "or (x0, clients), a list of clients with a method fit"
)


def entry_error(settings: ProblemSettings, wrong: str, expected: str = "", remedy: str = "") -> ConfigError:
    """A ConfigError of what the function returns."""
    return ConfigError("problem.entry", settings.entry, wrong, expected, remedy)


def find(entry: str) -> Callable[..., Any]:
    """The function of "package.module:function". Raises ConfigError."""
    found = import_object("problem.entry", entry, "function")
    if not callable(found):
        raise ConfigError("problem.entry", entry, f"it is {kind(found)}", "a function")
    return found


def call(settings: ProblemSettings, seed: int) -> Any:
    """What the function returns, called with the generators of the process seeded. Raises ConfigError."""
    assert settings.entry is not None
    with seeded_generators(0, IMPORT_SEED):  # for draws at the top level of its file, which may be what imports torch
        function, options = find(settings.entry), settings.options or {}
    try:
        signature = inspect.signature(function)
    except ValueError as error:
        raise entry_error(settings, str(error), "a function that is written in Python") from error
    try:
        signature.bind(**options)
    except TypeError as error:
        takes = f"{settings.entry}({', '.join(signature.parameters)})"
        raise ConfigError("problem.options", options, str(error), f"what {takes} takes") from error
    torch = sys.modules.get("torch")
    made = _called(settings, function, options, seed)
    if torch is None and "torch" in sys.modules:  # the function has imported torch, whose generator had no seed
        made = _called(settings, function, options, seed)
    return made


def _called(settings: ProblemSettings, function: Callable[..., Any], options: Mapping[str, Any], seed: int) -> Any:
    """What the function returns; it must leave the working directory, and torch's threads are those of before."""
    torch = sys.modules.get("torch")
    threads = torch and torch.get_num_threads()
    try:
        with working_directory_kept(), seeded_generators(seed, torch_seed(seed)):
            made = function(**options)
    except ChangedDirectory as error:
        raise entry_error(settings, str(error), "a function that leaves it as it is") from error
    except SystemExit as error:  # a parser of sys.argv may exit: it has mpifl's words
        remedy = "take options as arguments, which problem.options gives, not from the command line"
        raise entry_error(settings, f"it exits with status {error.code}", RETURNS, remedy) from error
    if torch:
        torch.set_num_threads(threads)  # those of the job
    return made


def trains_itself(made: Any) -> bool:
    """Whether the function has returned a model and clients, which have custom training loops."""
    return isinstance(made, tuple | list) and len(made) == 2 and indexed(made[1]) and not isinstance(made[1], str)


def indexed(thing: Any) -> bool:
    """Whether it has a length and items by number."""
    return hasattr(thing, "__len__") and hasattr(thing, "__getitem__")


def kind(thing: Any) -> str:
    """The type of a value, and its length or its keys where it has parts."""
    if isinstance(thing, dict):
        return f"dict of {', '.join(map(str, thing))}"
    if isinstance(thing, np.ndarray):
        return f"{thing.dtype} of shape {thing.shape}"
    return type(thing).__name__ + (f" of {len(thing)}" if isinstance(thing, tuple | list) else "")
