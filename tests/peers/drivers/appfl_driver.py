"""APPFL's aggregators and its FedCompass scheduler on given uploads, at given times."""

# ruff: noqa: E402

import logging
import threading
from types import SimpleNamespace

import numpy as np
import torch
from exchange import leave_out, main

leave_out("opacus")

from appfl.algorithm.aggregator import FedAsyncAggregator, FedBuffAggregator, FedCompassAggregator
from appfl.algorithm.scheduler import compass_scheduler
from omegaconf import DictConfig

FAST = {"optimize_memory": False}  # else it collects garbage at every step


def module(x0):
    made = torch.nn.Module()
    made.w = torch.nn.Parameter(torch.from_numpy(x0.copy()))
    return made


def state(v):
    return {"w": torch.from_numpy(v.copy())}


def arrivals(options, x0, clients, uploads):
    """The model after each upload, in order of arrival: (uploads, d)."""
    cls = {"fedasync": FedAsyncAggregator, "fedbuff": FedBuffAggregator}[options["class"]]
    server = cls(module(x0), DictConfig({**options["arguments"], **FAST}), logging.getLogger())
    models = [server.aggregate(int(i), state(v))["w"].numpy() for i, v in zip(clients, uploads, strict=True)]
    return {"models": np.array(models)}


def fedcompass(options, x0, times, clients, uploads):
    """The model after each aggregation, and (time, client, steps) of each answer, in the scheduler's own order."""
    now, timers, answers, models, waiting = [0.0], [], [], [], {}

    class Timer:
        def __init__(self, interval, function, args, kwargs):
            self.due, self.call = now[0] + interval, lambda: function(*args, **kwargs)

        def start(self):
            timers.append(self)

    compass_scheduler.time = SimpleNamespace(time=lambda: now[0])
    compass_scheduler.threading = SimpleNamespace(Lock=threading.Lock, Timer=Timer)
    aggregator = FedCompassAggregator(module(x0), DictConfig({**options["aggregator"], **FAST}), None)
    scheduler = compass_scheduler.CompassScheduler(DictConfig({**options["scheduler"], **FAST}), aggregator, None)
    versions = 0

    def note():
        nonlocal versions
        if scheduler.global_timestamp > versions:
            versions = scheduler.global_timestamp
            models.append(aggregator.get_parameters()["w"].numpy())
        for i in [i for i, future in waiting.items() if future.done()]:
            answers.append((now[0], i, waiting.pop(i).result()[1]["local_steps"]))

    for t, i, v in zip(times, clients, uploads, strict=True):
        while due := [timer for timer in timers if timer.due < t]:
            first = min(due, key=lambda timer: timer.due)
            timers.remove(first)
            now[0] = first.due
            first.call()
            note()
        now[0] = float(t)
        answer = scheduler.schedule(int(i), state(v))
        if isinstance(answer, tuple):
            answers.append((now[0], int(i), answer[1]["local_steps"]))
        else:
            waiting[int(i)] = answer
        note()
    return {"models": np.array(models), "answers": np.array(answers)}


main({"arrivals": arrivals, "fedcompass": fedcompass})
