"""APPFL over MPI: updates a second of its server with FedAsync.

    mpirun -n 5 PYTHON appfl_mpi.py --updates 500 [--d 1000000] [--no-memory-option] [--no-sleep]

Its own server agent, scheduler, aggregator and both ends of its communicator; a client's step is `work.Client`, called
between two of its messages, so that its trainer, logger and data loader cost nothing here. Prints a JSON line.
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
from appfl.comm.mpi import MPIClientCommunicator, MPIServerCommunicator, mpi_server_communicator
from data import seconds_each
from mpi4py import MPI
from omegaconf import OmegaConf
from work import Client

torch.set_num_threads(1)
DISCOUNT = {"alpha": 0.6, "staleness_fn": "polynomial", "staleness_fn_kwargs": {"a": 0.5}}


class NoSleep:
    """The module `time` for its server, whose loop sleeps 0.1 s before each look for a message."""

    time = staticmethod(time.time)

    @staticmethod
    def sleep(seconds):
        pass


def serve(comm, args):
    here = Path(__file__).parent
    model = {"model_path": str(here / "work.py"), "model_name": "Flat" if args.d else "Linear",
             "model_kwargs": {"d": args.d} if args.d else {}}  # fmt: skip
    logs = tempfile.mkdtemp()
    memory = {"optimize_memory": not args.no_memory_option}
    config = OmegaConf.create({
        "client_configs": {"model_configs": model, "train_configs": {}, "comm_configs": {}},
        "server_configs": {
            "num_clients": comm.size - 1, "num_global_epochs": args.updates, "scheduler": "AsyncScheduler",
            "scheduler_kwargs": memory, "aggregator": "FedAsyncAggregator",
            "aggregator_kwargs": {**DISCOUNT, **memory},
            "device": "cpu", "logging_output_dirname": logs, "logging_output_filename": "server", **memory,
        },
    })  # fmt: skip
    agent = ServerAgent(server_agent_config=config)
    logging.disable(logging.CRITICAL)
    times = []
    aggregate = agent.aggregator.aggregate

    def timed(*words, **keys):
        result = aggregate(*words, **keys)
        times.append(time.perf_counter())
        return result

    agent.aggregator.aggregate = timed
    communicator = MPIServerCommunicator(comm, agent, logger=agent.logger, **memory)
    if args.no_sleep:
        mpi_server_communicator.time = NoSleep
    communicator.serve()
    print(json.dumps({"updates_per_s": 1 / seconds_each(times), "updates": len(times)}))


def work(comm, args):
    client = Client(comm.rank, args.batch, args.d)
    communicator = MPIClientCommunicator(
        comm, server_rank=0, client_id=f"client{comm.rank}", optimize_memory=not args.no_memory_option
    )
    communicator.get_configuration()
    model = communicator.get_global_model(init_model=True)
    model = model[0] if isinstance(model, tuple) else model
    status = "RUNNING"
    while "DONE" not in status:
        client.module.load_state_dict(model)
        client.step()
        model, answer = communicator.update_global_model(client.module.state_dict())
        status = answer["status"]
    communicator.invoke_custom_action(action="close_connection")


parser = argparse.ArgumentParser()
parser.add_argument("--updates", type=int, default=500)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--d", type=int, default=0)
parser.add_argument("--no-memory-option", action="store_true")
parser.add_argument("--no-sleep", action="store_true")
args = parser.parse_args()
comm = MPI.COMM_WORLD
if comm.rank:
    work(comm, args)
else:
    serve(comm, args)
