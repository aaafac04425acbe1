"""The transformer of fsdp.py, sharded: each rank of a client receives, trains and sends its part of one flat vector."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector

from examples.own_training import fsdp
from mpifl.problems import process_group


class Flat(nn.Module):
    """The transformer with one parameter, a flat vector."""

    def __init__(self, flat):
        super().__init__()
        self.flat, self.like = nn.Parameter(flat), [fsdp.make_model()]  # whose parameters are not this module's

    def forward(self, text):
        shapes = {name: p.shape for name, p in self.like[0].named_parameters()}
        parts = self.flat.split([shape.numel() for shape in shapes.values()])
        tensors = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts)}
        return functional_call(self.like[0], tensors, text)


def start():
    return parameters_to_vector(fsdp.make_model().parameters()).detach()


class Site(fsdp.Site):
    sharded = True

    def fit(self, x, contact):
        model, rank, size = Flat(x), 0, 1
        if contact.comm:
            process_group(contact.comm)
            rank, size, model = contact.comm.rank, contact.comm.size, Flat(torch.zeros_like(start()))
            fully_shard(model)
            model.flat.to_local().detach().copy_(x)  # x is the part that fully_shard gives this rank
        optimizer = torch.optim.SGD(model.parameters(), contact.step_size)
        for _ in range(contact.steps):
            rows = contact.generator.choice(self.samples, 8, replace=False)[rank::size]
            optimizer.zero_grad()
            fsdp.loss_of(model, self.text[rows]).backward()
            optimizer.step()
        return (model.flat.to_local() if contact.comm else model.flat).detach(), contact.steps

    def evaluate(self, x):
        with torch.no_grad():
            return {"train_loss": float(fsdp.loss_of(Flat(x), self.text))}


def clients(number=4):
    return start(), [Site(k) for k in range(number)]
