"""FLSim's simulations with 10 clients: FedAvg (ms a round) or FedAsync (updates a second). Prints a JSON line.

Its sync and async trainers, clients, local SGD, servers and aggregators, in one process, without metrics.
"""

# ruff: noqa: E402

import argparse
import dataclasses
import functools
import json
import logging
import os
import time

os.environ["TQDM_DISABLE"] = "1"  # progress bars; read by imports

import numpy as np
import torch
from data import ROWS, STEP, rows, seconds_each
from exchange import leave_out

plain = dataclasses.dataclass


def hashable(cls=None, /, **options):
    """A dataclass; one of FLSim's may be another's default value, which Python 3.11 refuses unless it has a hash."""
    if cls is None:
        return functools.partial(hashable, **options)
    return plain(cls, **options, **({"unsafe_hash": True} if cls.__module__.startswith("flsim.") else {}))


dataclasses.dataclass = hashable
leave_out("torchvision", "opacus", "tensorboard")  # slow to import; nothing here uses them

from flsim.active_user_selectors.simple_user_selector import SequentialActiveUserSelectorConfig
from flsim.clients.base_client import ClientConfig
from flsim.data.data_provider import IFLDataProvider, IFLUserData
from flsim.interfaces.batch_metrics import IFLBatchMetrics
from flsim.interfaces.model import IFLModel
from flsim.optimizers.async_aggregators import AsyncAggregationType, FedAvgWithLRAsyncAggregatorConfig
from flsim.optimizers.local_optimizers import LocalOptimizerSGDConfig
from flsim.servers.sync_servers import FedAvgOptimizerConfig, SyncServerConfig
from flsim.trainers.async_trainer import AsyncTrainer
from flsim.trainers.sync_trainer import SyncTrainer
from flsim.utils.async_trainer.async_staleness_weights import PolynomialStalenessWeightConfig
from flsim.utils.async_trainer.async_weights import AsyncWeightConfig
from flsim.utils.async_trainer.training_event_generator import (
    AsyncTrainingEventGeneratorConfig,
    PoissonAsyncTrainingStartTimeDistrConfig,
)
from flsim.utils.timing.training_duration_distribution import PerUserExponentialDurationDistributionConfig
from work import Linear

CLIENTS = 10


class Loss(IFLBatchMetrics):
    """The loss of a batch, and its number of rows."""

    loss = num_examples = None
    predictions = targets = model_inputs = ()

    def __init__(self, loss, count):
        self.loss, self.num_examples = loss, count


class Model(IFLModel):
    """The model of `work`, with the methods that FLSim calls."""

    def __init__(self):
        self._module = Linear()

    def fl_get_module(self):
        return self._module

    def fl_forward(self, batch):
        x, y = batch
        return Loss(torch.nn.functional.cross_entropy(self._module(x), y), len(y))

    def fl_create_training_batch(self, **batch):
        return batch["batch"]

    def get_num_examples(self, batch):
        return len(batch[1])

    def fl_cuda(self):
        raise NotImplementedError

    def get_eval_metrics(self, batch):
        raise NotImplementedError


class Client(IFLUserData):
    """One client: a batch drawn among its rows at each contact."""

    def __init__(self, i, batch):
        self._x, self._y = map(torch.from_numpy, rows(i))
        self._draw, self._batch = np.random.default_rng(1000 + i), batch

    def train_data(self):
        at = torch.from_numpy(self._draw.choice(ROWS, self._batch, replace=False))
        yield self._x[at], self._y[at]

    def num_train_examples(self):
        return self._batch

    def num_train_batches(self):
        return 1

    def num_eval_examples(self):
        return 0

    def num_eval_batches(self):
        return 0

    def eval_data(self):
        return iter(())


class Clients(IFLDataProvider):
    """All clients, which train only."""

    def __init__(self, batch):
        self._clients = [Client(i, batch) for i in range(CLIENTS)]

    def train_user_ids(self):
        return list(range(CLIENTS))

    def num_train_users(self):
        return CLIENTS

    def get_train_user(self, user_index):
        return self._clients[user_index]

    def train_users(self):
        return self._clients

    def eval_users(self):
        return []

    test_users = eval_users


def times_of(owner, name):
    """The list of the times (perf_counter) at which the owner's method returns."""
    times, method = [], getattr(owner, name)

    def timed(*args, **options):
        result = method(*args, **options)
        times.append(time.perf_counter())
        return result

    setattr(owner, name, timed)
    return times


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("method", choices=["rounds", "virtual"])
    parser.add_argument("--updates", type=int, default=1000, help="or rounds")
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    options = {
        "client": ClientConfig(epochs=1, optimizer=LocalOptimizerSGDConfig(lr=STEP)),
        "do_eval": False, "report_train_metrics": False,
    }  # fmt: skip
    if args.method == "rounds":
        trainer = SyncTrainer(
            model=Model(), users_per_round=CLIENTS, epochs=args.updates,
            server=SyncServerConfig(
                server_optimizer=FedAvgOptimizerConfig(), active_user_selector=SequentialActiveUserSelectorConfig()
            ),
            **options,
        )  # fmt: skip
        times = times_of(trainer, "_train_one_round")
    else:
        trainer = AsyncTrainer(
            model=Model(), epochs=args.updates / CLIENTS,
            aggregator=FedAvgWithLRAsyncAggregatorConfig(
                aggregation_type=AsyncAggregationType.fed_async_aggregation, lr=0.6
            ),
            async_weight=AsyncWeightConfig(
                staleness_weight=PolynomialStalenessWeightConfig(exponent=0.5, avg_staleness=0)
            ),
            training_event_generator=AsyncTrainingEventGeneratorConfig(
                training_start_time_distribution=PoissonAsyncTrainingStartTimeDistrConfig(training_rate=CLIENTS),
                duration_distribution_generator=PerUserExponentialDurationDistributionConfig(
                    training_duration_mean=1.0
                ),
            ),
            **options,
        )  # fmt: skip
        times = times_of(trainer, "train_and_update_global_model")
    trainer.train(Clients(args.batch), None, CLIENTS, distributed_world_size=1)
    each = seconds_each(times)
    figure = {"ms_a_round": 1e3 * each} if args.method == "rounds" else {"updates_per_s": 1 / each}
    print(json.dumps({**figure, "rounds" if args.method == "rounds" else "updates": len(times)}))


main()
