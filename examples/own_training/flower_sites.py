"""The clients of flower_app.py, which stays as it is, in a job of mpifl."""

from examples.own_training.flower_app import client_fn
from mpifl.adapters import flower


def clients(number=10):
    return flower.clients(client_fn, number)
