"""Modules for rows of numbers, small images and text, built out of torch.nn."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional


class Logistic(nn.Module):
    """x W + b on flattened rows; the parameters W (features, classes) and b (classes,) are in the order of the flat
    vector of the NumPy model `logistic` (nn.Linear keeps its weight the other way round)."""

    def __init__(self, features: int, classes: int, bias: bool) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.empty(features, classes))
        self.b = nn.Parameter(torch.empty(classes)) if bias else None
        for part in self.parameters():
            nn.init.uniform_(part, -(features**-0.5), features**-0.5)  # the distribution of nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        scores = x.flatten(1) @ self.W
        return scores if self.b is None else scores + self.b


def dense(inputs: int, hidden: Sequence[int], outputs: int) -> list[nn.Module]:
    """Dense layers of the widths `hidden`, each with a ReLU behind it, and one of `outputs` without."""
    widths = [inputs, *hidden, outputs]
    layers: list[nn.Module] = []
    for pair in itertools.pairwise(widths):
        layers += [nn.Linear(*pair), nn.ReLU()]
    return layers[:-1]


def mlp(shape: tuple[int, ...], hidden: Sequence[int], classes: int) -> nn.Sequential:
    """Flattened rows, then dense layers."""
    return nn.Sequential(nn.Flatten(), *dense(prod(shape), hidden, classes))


def cnn(shape: tuple[int, int, int], channels: Sequence[int], hidden: int, classes: int) -> nn.Sequential:
    """LEAF's CNN for FEMNIST (models/femnist/cnn.py): for each of `channels` a 5 x 5 convolution that keeps the size,
    ReLU and 2 x 2 max pooling; then dense, ReLU, dense. Shape: (channels, height, width)."""
    layers: list[nn.Module] = []
    for pair in itertools.pairwise([shape[0], *channels]):
        layers += [nn.Conv2d(*pair, kernel_size=5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    height, width = (side >> len(channels) for side in shape[1:])
    return nn.Sequential(*layers, nn.Flatten(), *dense(channels[-1] * height * width, [hidden], classes))


class Recurrent(nn.Module):
    """Rows of tokens (rows, window) int64: embedding, stacked LSTM, and `head` on the top layer's last output.

    `padding` is a token whose embedding is zero at first and has no gradient.
    """

    def __init__(
        self, vocabulary: int, embedding: int, hidden: int, layers: int, head: nn.Module, padding: int | None = None
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=padding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):  # CPUs without bfloat16 units raise in an LSTM under autocast
            outputs, _ = self.lstm(self.embedding(x))
        scores: Tensor = self.head(outputs[:, -1])
        return scores


class Logit(nn.Module):
    """One output z to the scores (0, z), whose cross entropy is the binary one of sigmoid(z)."""

    def forward(self, z: Tensor) -> Tensor:
        return functional.pad(z, (1, 0))


def char_lstm(vocabulary: int, embedding: int, hidden: int, layers: int, classes: int) -> Recurrent:
    """LEAF's model for Shakespeare (models/shakespeare/stacked_lstm.py): a dense layer on the last output."""
    return Recurrent(vocabulary, embedding, hidden, layers, nn.Linear(hidden, classes))


def lstm(vocabulary: int, embedding: int, hidden: int, layers: int, width: int, classes: int) -> Recurrent:
    """FedProx's and FedDANE's model for Sent140: two dense layers, with nothing between them, on the last output."""
    last = [nn.Linear(width, 1), Logit()] if classes == 2 else [nn.Linear(width, classes)]
    head = nn.Sequential(nn.Linear(hidden, width), *last)
    return Recurrent(vocabulary, embedding, hidden, layers, head, padding=0)
