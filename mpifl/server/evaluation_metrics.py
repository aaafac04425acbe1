"""The metrics that a job names, and what its evaluations need of the problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from math import isnan, nan
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifl.errors import ConfigError
from mpifl.problems.metrics import METRICS
from mpifl.signals import is_from_signal
from mpifl.user_code import import_object

if TYPE_CHECKING:
    from mpifl.config.job import Job
    from mpifl.problems import Problem

Metric = Callable[[np.ndarray, np.ndarray], Any]  # labels (T,), scores (T, C) -> a number
WANTED = "a function of labels (rows,) and scores (rows, classes) that returns a number"


def load_metrics(names: Sequence[str]) -> dict[str, Metric]:
    """The functions of `evaluate.metrics` by name; a user's own are imported. Raises ConfigError."""
    found: dict[str, Metric] = {}
    for name in names:
        if ":" not in name:
            if find_spec("sklearn") is None:
                wrong, remedy = "scikit-learn, which computes it, is not installed", "pip install scikit-learn"
                raise ConfigError("evaluate.metrics", name, wrong, remedy=remedy)
            found[name] = METRICS[name]
            continue
        function = import_object("evaluate.metrics", name, "function")
        if not callable(function) or isinstance(function, type):
            raise ConfigError("evaluate.metrics", name, f"it is {_kind(function)}", WANTED)
        found[name] = function
    return found


def measure(metrics: Mapping[str, Metric], labels: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """The values of the metrics; NaN where a score is not finite, as of a run that diverged.

    Raises ConfigError("evaluate.metrics", ...) where a user's function raises, or returns something else than a number.
    """
    if not np.isfinite(scores).all():
        return dict.fromkeys(metrics, nan)
    labels.flags.writeable = scores.flags.writeable = False
    return {name: _value(name, metric, labels, scores) for name, metric in metrics.items()}


def _value(name: str, metric: Metric, labels: np.ndarray, scores: np.ndarray) -> float:
    try:
        value = metric(labels, scores)
    except BaseException as error:  # whatever a user's function raises
        if is_from_signal(error):
            raise
        text = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        raise ConfigError("evaluate.metrics", name, f"it raised {text[:200]}", WANTED) from error
    if not isinstance(value, Real) or isinstance(value, bool | np.bool_):
        raise ConfigError("evaluate.metrics", name, f"it returned {_kind(value)}", WANTED)
    return float(value)


def _kind(value: object) -> str:
    kind = type(value).__name__
    return kind if value is None or len(text := repr(value)) > 60 or "\n" in text else f"{text} ({kind})"


def check_evaluation(job: Job, problem: Problem) -> None:
    """Raises ConfigError where the problem does not have what `evaluate` and `stop.accuracy` ask for.

    Tries the metrics on the first model.
    """
    if not (job.evaluate.clients or job.evaluate.metrics or job.stop.accuracy):
        return
    x = problem.initial(job.seed)
    if job.stop.accuracy and isnan(problem.evaluate(x).get("test_accuracy", nan)):
        raise ConfigError("stop.accuracy", job.stop.accuracy, "this problem has no test accuracy", "null")
    if job.evaluate.clients and np.isnan(problem.client_accuracies(x)).all():
        wrong, remedy = "no client has an accuracy on test rows of its own", "or set problem.test_split, such as 0.2"
        if not getattr(job.problem.model, "classifies", True):
            wrong, remedy = "the targets are numbers, which have no accuracy", ""
        raise ConfigError("evaluate.clients", True, wrong, "false", remedy)
    if not job.evaluate.metrics:
        return
    names = ", ".join(job.evaluate.metrics)
    try:
        found = problem.test_scores(x)
    except NotImplementedError:
        model = type(job.problem.model).__qualname__
        raise ConfigError("evaluate.metrics", names, f"the model {model} has no method scores", "[]") from None
    if found is None:
        wrong = "this problem has no class labels, or no scores of the classes"
        raise ConfigError("evaluate.metrics", names, wrong, "[]")
    if not len(found[0]):
        remedy = "or set problem.test_split, such as 0.2"
        raise ConfigError("evaluate.metrics", names, "there are no test rows", "[]", remedy)
    measure(load_metrics(job.evaluate.metrics), *found)
