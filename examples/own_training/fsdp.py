"""A small transformer trained with FSDP by the ranks of a group; a client in one process trains it by itself."""

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

from mpifl.problems import process_group

WORDS, WIDTH, LENGTH = 11, 16, 9


def make_model():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), encoder, nn.Linear(WIDTH, WORDS))


def loss_of(model, text):
    scores = model(text[:, :-1])
    return cross_entropy(scores.reshape(-1, WORDS), text[:, 1:].reshape(-1))


class Site:
    """A client whose text counts in steps of 1, 2 or 3: its rows have s = 32."""

    def __init__(self, k):
        self.samples = 32
        self.text = (torch.arange(self.samples)[:, None] + (1 + k % 3) * torch.arange(LENGTH)) % WORDS

    def fit(self, x, contact):
        model, rank, size = make_model(), 0, 1
        model.load_state_dict(x)
        if contact.comm:
            process_group(contact.comm)
            rank, size = contact.comm.rank, contact.comm.size
            for layer in model[1].layers:
                fully_shard(layer)
            fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), contact.step_size)
        for _ in range(contact.steps):
            rows = contact.generator.choice(self.samples, 8, replace=False)[rank::size]  # the same draw on each rank
            optimizer.zero_grad()
            loss_of(model, self.text[rows]).backward()
            optimizer.step()
        return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)), contact.steps

    def evaluate(self, x):
        model = make_model()
        model.load_state_dict(x)
        with torch.no_grad():
            return {"train_loss": float(loss_of(model, self.text))}


def clients(number=4):
    return make_model().state_dict(), [Site(k) for k in range(number)]
