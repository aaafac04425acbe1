"""FedLab's server handlers and its FedDyn client on given numbers."""

# ruff: noqa: E402

import numpy as np
import torch
from exchange import leave_out, main

leave_out("torchvision", "pynvml", "munch")

from fedlab.contrib.algorithm.feddyn import FedDynSerialClientTrainer, FedDynServerHandler
from fedlab.contrib.algorithm.fednova import FedNovaServerHandler
from fedlab.contrib.algorithm.scaffold import ScaffoldServerHandler


def module(d):
    return torch.nn.Linear(d, 1, bias=False).double()


def handler(cls, x0, clients, members, rounds):
    made = cls(module(x0.size), rounds, members / clients)
    made.num_clients = clients
    made.set_model(torch.from_numpy(x0))
    return made


def fednova(options, x0, models, taus):
    """models: (rounds, members, d); taus: (rounds, members) local steps."""
    server, found = handler(FedNovaServerHandler, x0, options["clients"], models.shape[1], len(models)), []
    server.setup_optim("weighted_com")
    for uploads, steps in zip(models, taus, strict=True):
        for y, tau in zip(uploads, steps, strict=True):
            server.load([torch.from_numpy(y), torch.tensor([float(tau)])])
        found.append(server.model_parameters.numpy().copy())
    return {"models": np.array(found)}


def feddyn(options, x0, models):
    """models: (rounds, members, d)"""
    server, found, h = handler(FedDynServerHandler, x0, options["clients"], models.shape[1], len(models)), [], []
    server.setup_optim(options["alpha"])
    for uploads in models:
        for y in uploads:
            server.load([torch.from_numpy(y)])
        found.append(server.model_parameters.numpy().copy())
        h.append(server.h.numpy())
    return {"models": np.array(found), "h": np.array(h)}


def feddyn_client(options, x, targets):
    """One contact of a client at each row of x, (contacts, d), whose loss is the mean square of y - targets."""
    client = FedDynSerialClientTrainer(module(x.shape[1]), 1)
    client.setup_optim(options["epochs"], 1, options["step"], options["alpha"])
    client.criterion = lambda output, target: ((output - target) ** 2).sum() / 2
    loader = [(torch.eye(x.shape[1]).double(), torch.from_numpy(targets)[:, None])]
    found, duals = [], []
    for start in x:
        (th,) = client.train(0, torch.from_numpy(start), loader)
        found.append(th.numpy().copy())
        duals.append(client.L[0].numpy().copy())
    return {"models": np.array(found), "duals": np.array(duals)}


def scaffold(options, x0, dy, dc):
    """dy, dc: (rounds, members, d)"""
    server, found, c = handler(ScaffoldServerHandler, x0, options["clients"], dy.shape[1], len(dy)), [], []
    server.setup_optim(options["server_step"])
    for one, other in zip(dy, dc, strict=True):
        for k in range(len(one)):
            server.load([torch.from_numpy(one[k]), torch.from_numpy(other[k])])
        found.append(server.model_parameters.numpy().copy())
        c.append(server.global_c.numpy().copy())
    return {"models": np.array(found), "c": np.array(c)}


main({"fednova": fednova, "feddyn": feddyn, "feddyn_client": feddyn_client, "scaffold": scaffold})
