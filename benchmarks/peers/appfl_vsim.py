"""APPFL's virtual-time simulator with FedAsync, 10 clients: updates a second. Prints a JSON line.

Its own server agent and driver (`AsyncSimDriver`); clients have the methods that it calls, around `work.Client`.
"""

# ruff: noqa: E402

import argparse
import json
import logging
import tempfile
import time
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")

import torch
from exchange import leave_out

leave_out(
    "torchvision", "piq", "opacus", "wandb"
)  # builds for another torch, or slow to import; nothing here uses them

from appfl.agent import ServerAgent
from appfl.vsim import AsyncSimDriver, ClientProfile
from omegaconf import OmegaConf
from work import Client

CLIENTS = 10
torch.set_num_threads(1)
DISCOUNT = {"alpha": 0.6, "staleness_fn": "polynomial", "staleness_fn_kwargs": {"a": 0.5}}


class Agent:
    """What the driver asks of a client agent."""

    def __init__(self, i, batch):
        self._id, self._client = f"client{i}", Client(i, batch)

    def get_id(self):
        return self._id

    def load_parameters(self, model):
        self._client.module.load_state_dict(model)

    def train(self):
        self._client.step()

    def get_parameters(self):
        model = {name: v.clone() for name, v in self._client.module.state_dict().items()}
        return model, {"current_local_steps": 1, "compute_second_per_step": 0.1}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--no-memory-option", action="store_true")
    args = parser.parse_args()
    memory = {"optimize_memory": not args.no_memory_option}
    config = OmegaConf.create({
        "client_configs": {
            "model_configs": {"model_path": str(Path(__file__).parent / "work.py"), "model_name": "Linear"},
            "train_configs": {}, "comm_configs": {},
        },
        "server_configs": {
            "num_clients": CLIENTS, "num_global_epochs": args.updates, "scheduler": "AsyncScheduler",
            "scheduler_kwargs": memory, "aggregator": "FedAsyncAggregator",
            "aggregator_kwargs": {**DISCOUNT, **memory},
            "device": "cpu", "logging_output_dirname": tempfile.mkdtemp(), "logging_output_filename": "server",
            **memory,
        },
    })  # fmt: skip
    server = ServerAgent(server_agent_config=config)
    logging.disable(logging.CRITICAL)
    profiles = {f"client{i}": ClientProfile(compute_factor=1 + i / CLIENTS) for i in range(CLIENTS)}
    driver = AsyncSimDriver(server, [Agent(i, args.batch) for i in range(CLIENTS)], profiles, CLIENTS, server.logger)
    begin = time.perf_counter()
    driver.run()
    seconds = time.perf_counter() - begin
    print(json.dumps({"updates_per_s": len(driver.history) / seconds, "updates": len(driver.history)}))


main()
