"""The training loss at the users' own models, where the released code of FedDR takes it; run files do not hold it."""

from __future__ import annotations

from pathlib import Path

from tabulate import tabulate

import mpifl
from mpifl.algorithms import Clients
from mpifl.algorithms.feddr import FedDR
from mpifl.algorithms.fedpd import FedPD
from mpifl.problems import objective
from mpifl.tools.reproduce.items import Item


def table(item: Item, out: Path) -> str:
    """Markdown: both losses after the last round of each of the study's runs whose users keep models of their own."""
    runs = [run for run in item.study.runs if isinstance(run.job.algorithm, FedPD | FedDR)]
    rows = [[*run.labels.values(), run.seed, *(f"{value:.3f}" for value in losses(run.job))] for run in runs]
    headings = [*runs[0].labels, "seed", "at the global model", "at the users' own models"]
    return tabulate(rows, headings, "pipe", disable_numparse=True)


def losses(job: mpifl.Job) -> tuple[float, float]:
    """The training loss of the global model, and sum_i (s_i/S) f_i(x_i) at the users' models x_i; all users a round."""
    problem, algorithm = mpifl.load_problem(job), job.algorithm
    users, x0 = range(problem.clients), problem.initial(job.seed)
    objectives = [objective(job.problem, problem.meta, problem.shard(i), i, job.seed) for i in users]
    server = algorithm.init_server(x0, Clients(problem.samples, seed=job.seed))
    states = [algorithm.init_client(x0, i) for i in users]
    for k in range((job.stop.updates or 0) // problem.clients):
        algorithm.begin_round(server, list(users))
        for i in users:
            message = algorithm.message(server, i)._replace(version=k, round=k)
            algorithm.receive(server, i, algorithm.train(states[i], message, objectives[i]), 0)
        algorithm.aggregate(server)
    own = sum(f.share * f.loss(state.x) for f, state in zip(objectives, states, strict=True))
    return problem.evaluate(algorithm.model(server))["train_loss"], float(own)
