"""Flower's simulation (ray) with FedAvg and 10 clients: ms a round. Prints a JSON line.

Its message API and strategy; a client's step is `work.Client`, kept from round to round in each of ray's processes.
"""

import argparse
import json
import logging
import os
import tempfile
import time

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_worker_niceness": "0", "OMP_NUM_THREADS": "1"}
os.environ.setdefault("FLWR_HOME", tempfile.mkdtemp())
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")]))

import torch
from data import seconds_each
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from work import ROWS, Client, Linear

CLIENTS = 10
torch.set_num_threads(1)
clients = {}
client_app, server_app = ClientApp(), ServerApp()
times = []


@client_app.train()
def train(message, context):
    i = int(context.node_config["partition-id"])
    if i not in clients:
        clients[i] = Client(i, args.batch)
    client = clients[i]
    client.module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    client.step()
    content = {"arrays": ArrayRecord(client.module.state_dict()), "metrics": MetricRecord({"num-examples": ROWS})}
    return Message(content=RecordDict(content), reply_to=message)


class Timed(FedAvg):
    def aggregate_train(self, *words, **keys):
        result = super().aggregate_train(*words, **keys)
        times.append(time.perf_counter())
        return result


@server_app.main()
def main(grid, context):
    strategy = Timed(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(Linear().state_dict()), num_rounds=args.rounds)


parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=40)
parser.add_argument("--batch", type=int, default=8)
args = parser.parse_args()
if __name__ == "__main__":
    logging.disable(logging.INFO)
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=CLIENTS, backend_config=resources)
    print(json.dumps({"ms_a_round": 1e3 * seconds_each(times), "rounds": len(times)}))
