"""pfl-research's simulation with FedAvg and 10 clients: ms a round. Prints a JSON line.

Its algorithm, model, simulated backend and local SGD, in one process; a client's rows are shuffled anew at each round.
"""

import argparse
import json
import logging
import time

import numpy as np
import torch
from data import STEP, seconds_each
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops  # noqa: F401 - selects torch
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from work import ROWS, Linear, rows

CLIENTS = 10


class Model(Linear):
    def loss(self, x, y, eval=False):
        return torch.nn.functional.cross_entropy(self(x), y)

    def metrics(self, x, y, eval=True):
        return {}


class Clock(TrainingProcessCallback):
    def __init__(self):
        self.times = []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.times.append(time.perf_counter())
        return False, Metrics()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    tensors = [tuple(map(torch.from_numpy, rows(i))) for i in range(CLIENTS)]
    draw = np.random.default_rng(0)

    def user(i):
        at = torch.from_numpy(draw.choice(ROWS, args.batch, replace=False))
        return Dataset(raw_data=[part[at] for part in tensors[i]])

    data = FederatedDataset(user, MinimizeReuseUserSampler(list(range(CLIENTS))))
    module = Model()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0))
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=args.rounds, evaluation_frequency=10**6, train_cohort_size=CLIENTS,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data), model=model,
        model_train_params=NNTrainHyperParams(
            local_batch_size=args.batch, local_num_epochs=None, local_learning_rate=STEP, local_num_steps=1
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=args.batch), callbacks=[clock],
    )  # fmt: skip
    times = clock.times
    print(json.dumps({"ms_a_round": 1e3 * seconds_each(times), "rounds": len(times)}))


main()
