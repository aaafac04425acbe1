"""FedCompass: its schedule, its groups that wait and its latecomers, and FedAvg's rounds at equal speeds."""

from __future__ import annotations

from math import floor, inf
from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.base import Clients, Update
from mpifl.algorithms.fedcompass import FedCompass
from mpifl.scheduling.clocks import VirtualClock
from tests.quadratic_runs import Log, Quadratic, close, random_quadratics, run

LAMBDA = 1.2


class Noted(FedCompass):
    """Notes when it asks whom for how many steps."""

    def message(self, server: Any, i: int) -> Any:
        message = super().message(server, i)
        NOTES.append((server.now, i, message.work))
        return message


NOTES: list[tuple[float, int, int]] = []


def timed(seconds: Any, updates: int, clients: list[Quadratic], **more: Any) -> Log:
    """Clients that take seconds(i, contact) for a local step, and nothing to exchange."""
    NOTES.clear()
    options: dict[str, Any] = {"step_size": 0.001, "min_steps": 20, "max_steps": 100, **more}
    clock = VirtualClock(lambda i, r: 0.0, lambda i, r, work: (work * seconds(i, r), 0.0))
    return run(Noted(**options), clients, clock=clock, stop_updates=updates, x0=1.0)


def test_constant_speeds_make_one_group() -> None:
    """COMP.1: 1, 2 and 4 s a step, Qmin 20, Qmax 100: one group every 100 s, of 100, 50 and 25 steps."""
    timed(lambda i, r: (1, 2, 4)[i], 14, random_quadratics(0, 3))
    expected = [(0, i, 100) for i in range(3)] + [(100, 0, 100)]
    expected += [(t, i, q) for t in (200, 300) for i, q in ((0, 100), (1, 50))]
    expected += [(t, i, q) for t in (400, 500, 600) for i, q in ((0, 100), (1, 50), (2, 25))]
    close(NOTES[: len(expected)], expected)


def test_a_client_that_is_too_slow_starts_a_group() -> None:
    """COMP.2: 1, 2 and 7 s a step: client 2 cannot join with 14 steps, fewer than Qmin; it starts a group that is due
    at 917 s, which client 1 meets."""
    timed(lambda i, r: (1, 2, 7)[i], 21, random_quadratics(0, 3))
    assert (700, 2, 31) in NOTES
    later = [note for note in NOTES if note[0] > 700][:5]
    close(later, [(800, 0, 100), (800, 1, 58), (900, 0, 100), (917, 1, 41), (917, 2, 29)])


def by_hand(clients: list[Quadratic], seconds: Any, updates: int, options: dict[str, Any]) -> tuple[list, list, dict]:
    """The schedule as an event simulation of its own: heap by hand, groups as objects."""
    step, Qmin, Qmax, alpha, m = (
        options[k] for k in ("step_size", "min_steps", "max_steps", "alpha", "speed_momentum")
    )
    n, x, version = len(clients), np.ones(3), 0
    own = [{"base": x, "v": None, "q": Qmax, "start": 0.0, "group": None, "version": 0, "contact": 0} for _ in clients]
    for i, c in enumerate(own):
        c["due"] = Qmax * seconds(i, 0)
    groups: list[dict] = []
    late: list[tuple] = []
    models, counts, notes = [], {"late": 0, "timer": 0, "solo": 0}, []

    def s(tau: int) -> float:
        return (tau + 1) ** -0.5 if options["staleness"] == "polynomial" else 1.0

    def assign(i: int, t: float) -> None:
        c = own[i]
        fits = [(floor((g["T"] - t) / c["v"] + 1e-9), -k, g) for k, g in enumerate(groups)]
        fits = [f for f in fits if Qmin <= f[0] <= Qmax]
        if fits:
            q, _, g = max(fits, key=lambda f: f[:2])
        else:
            open_groups = [g for g in groups if t < g["latest"] and g["members"]]
            meets = [
                floor((g["latest"] + min(own[j]["v"] for j in g["members"]) * Qmax - t) / c["v"] + 1e-9)
                for g in open_groups
            ]
            meets = [q for q in meets if q <= Qmax]
            q = max(max(meets), Qmin) if meets else Qmax
            g = {"T": t + q * c["v"], "latest": t + LAMBDA * q * c["v"], "members": [], "in": []}
            groups.append(g)
        g["members"].append(i)
        c |= {"q": q, "start": t, "group": g, "base": x, "version": version, "contact": c["contact"] + 1}
        c["due"] = t + q * seconds(i, c["contact"])
        notes.append((t, i, q))

    def mix(entries: list[tuple]) -> None:
        nonlocal x, version
        now = x
        for y, base, weight in entries:
            x = x + alpha / n * weight * (y - (now if options["upload"] == "model" else base))
        version += 1
        models.append(x)

    def close_group(g: dict, t: float) -> None:
        entries = [entry for _, entry in g["in"]]
        mix(entries + late)
        late.clear()
        members = [i for i, _ in g["in"]]
        g["in"] = []
        g["members"] = [i for i in g["members"] if i not in members]
        if not g["members"]:
            groups.remove(g)
        for i in sorted(members, key=lambda i: (own[i]["v"], i)):
            assign(i, t)

    for _ in range(updates):
        while True:
            t, i = min((c["due"], k) for k, c in enumerate(own))
            timers = [(g["latest"], k) for k, g in enumerate(groups) if g["in"]]
            if timers and min(timers)[0] < t:
                counts["timer"] += 1
                when, k = min(timers)
                close_group(groups[k], when)
                continue
            break
        c = own[i]
        c["due"] = inf
        per_step = (t - c["start"]) / c["q"]
        c["v"] = per_step if c["v"] is None else (1 - m) * c["v"] + m * per_step
        entry = (clients[i].steps(c["base"], step, c["q"]), c["base"], s(version - c["version"]))
        g = c["group"]
        if g is None:
            counts["solo"] += 1
            mix([entry])
            assign(i, t)
        elif t > g["latest"]:
            counts["late"] += 1
            late.append(entry)
            g["members"].remove(i)
            if not g["members"]:
                groups.remove(g)
            assign(i, t)
        else:
            g["in"].append((i, entry))
            if len(g["in"]) == len(g["members"]):
                close_group(g, t)
    return models, notes, counts


@pytest.mark.parametrize("upload", ["model", "delta"])
@pytest.mark.parametrize("staleness", ["constant", "polynomial"])
def test_rule_by_hand(upload: str, staleness: str) -> None:
    """Five clients whose speeds change at random: groups that close by their timer, latecomers, all in the same order
    and with the same numbers of steps."""
    clients, drawn = random_quadratics(2, 5), np.random.default_rng(1).lognormal(0, 0.5, (5, 200))

    def seconds(i: int, contact: int) -> float:
        return float((1.0, 1.4, 2.1, 3.0, 6.0)[i] * drawn[i, contact])

    options = {"step_size": 0.01, "min_steps": 4, "max_steps": 20, "alpha": 0.9, "speed_momentum": 0.9,
               "staleness": staleness, "upload": upload}  # fmt: skip
    log = timed(seconds, 160, clients, **options)
    models, notes, counts = by_hand(clients, seconds, 160, options)
    close(NOTES[5:], notes, 1e-9)
    close(log.models, models, 1e-10)
    assert counts["solo"] == 5 and counts["late"] > 5 and counts["timer"] > 5, counts


def test_a_lost_client_does_not_hold_its_group_for_ever() -> None:
    """The others wait to the latest time of the group; an update that waited alone is kept for the next group."""
    algorithm = FedCompass(min_steps=2, max_steps=4)
    server = algorithm.init_server(np.zeros(1), Clients(np.ones(2, int)))
    for i in (0, 1):  # alone, then in one group
        algorithm.receive(server, i, Update((np.ones(1),), 4, time=4.0), 0)
        assert algorithm.ready(server)
        algorithm.aggregate(server)
        assert algorithm.answers(server, [i], True) == [i]
    assert server.group[0] == server.group[1]
    algorithm.receive(server, 0, Update((np.ones(1),), 4, time=8.0), 0)
    assert not algorithm.ready(server) and algorithm.answers(server, [0], False) == []
    close(algorithm.alarm(server), 4 + 1.2 * 4)
    algorithm.on_client_lost(server, 1)
    close(algorithm.alarm(server), 4 + 1.2 * 4)
    algorithm.on_alarm(server, 8.8)
    before = server.x.copy()
    algorithm.aggregate(server)
    close(server.x, before + 0.9 / 2 * (1 - before))
    assert algorithm.answers(server, [0], True) == [0] and algorithm.alarm(server) == inf
