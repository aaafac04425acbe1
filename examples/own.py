"""Handwritten digits from eight scanners: a convolutional network on rows that differ in number and in brightness."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset


def make_problem(clients: int = 8, hidden: int = 64) -> tuple:
    """The module, the loss (the mean over the rows of a batch), each client's data set, and the test set."""
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    y = torch.tensor(digits.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    test, train = order[:297], order[297:]

    # Client k has k + 1 times the rows of client 0, and its scanner is darker the larger k is.
    ends = len(train) * torch.arange(1, clients + 1).cumsum(0) // sum(range(clients + 1))
    rows = enumerate(train.tensor_split(ends[:-1]))
    datasets = [TensorDataset(x[mine] * (1 - 0.5 * k / clients), y[mine]) for k, mine in rows]

    module = nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )
    return module, cross_entropy, datasets, TensorDataset(x[test], y[test])
