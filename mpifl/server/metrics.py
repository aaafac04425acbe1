"""What an evaluation of a job needs of its problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mpifl.errors import ConfigError

if TYPE_CHECKING:
    from mpifl.config.job import Job
    from mpifl.problems import Problem


def check_evaluation(job: Job, problem: Problem) -> None:
    """Raises ConfigError where the problem does not have what the job's section `evaluate` asks for."""
    if job.evaluate.clients and np.isnan(problem.client_accuracies(problem.initial(job.seed))).all():
        text = "false, or problem.test_split such as 0.2: no client has test rows of its own"
        raise ConfigError("evaluate.clients", True, text)
