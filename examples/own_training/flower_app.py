"""A Flower app: softmax regression on handwritten digits, whose clients have most rows of two digits each."""

import numpy as np
from flwr.client import ClientApp, NumPyClient
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from sklearn.datasets import load_digits


class DigitsClient(NumPyClient):
    def __init__(self, rows, labels):
        cut = len(rows) * 4 // 5
        self.train, self.test = (rows[:cut], labels[:cut]), (rows[cut:], labels[cut:])

    def get_parameters(self, config):
        return [np.zeros((64, 10), np.float32), np.zeros(10, np.float32)]

    def fit(self, parameters, config):
        weights, bias = parameters
        rows, labels = self.train
        for _ in range(config.get("local_epochs", 1)):
            for batch in np.array_split(np.random.permutation(len(rows)), len(rows) // 16):
                error = softmax(rows[batch] @ weights + bias) - np.eye(10, dtype=np.float32)[labels[batch]]
                weights -= 0.1 / len(batch) * rows[batch].T @ error
                bias -= 0.1 * error.mean(0)
        return [weights, bias], len(rows), {}

    def evaluate(self, parameters, config):
        rows, labels = self.test
        scores = softmax(rows @ parameters[0] + parameters[1])
        loss = -np.log(scores[np.arange(len(labels)), labels] + 1e-9).mean()
        return float(loss), len(rows), {"accuracy": float((scores.argmax(1) == labels).mean())}


def softmax(z):
    z = np.exp(z - z.max(1, keepdims=True))
    return z / z.sum(1, keepdims=True)


def client_fn(context):
    digits = load_digits()
    order = np.argsort(digits.target + np.random.default_rng(0).normal(0, 3, len(digits.target)))
    mine = np.array_split(order, context.node_config["num-partitions"])[context.node_config["partition-id"]]
    return DigitsClient((digits.data[mine] / 16).astype(np.float32), digits.target[mine]).to_client()


def server_fn(context):
    return ServerAppComponents(strategy=FedAvg(), config=ServerConfig(num_rounds=10))


app = ClientApp(client_fn=client_fn)
server_app = ServerApp(server_fn=server_fn)
