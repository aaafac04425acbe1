"""The log of a run: what runs where at the start, then a line on its state at regular intervals."""

from __future__ import annotations

import json
import logging
import os
import platform
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpifl.host_memory import resident_bytes
from mpifl.runfile.tables import UpdateRow
from mpifl.server.evaluator import Evaluator
from mpifl.server.progress import format_metrics
from mpifl.text import format_count, format_duration
from mpifl.transport.detection import name_of
from mpifl.transport.layout import Layout

if TYPE_CHECKING:
    from mpifl.config.job import Checkpoint, Job
    from mpifl.problems import Problem
    from mpifl.server.loop import ServerLoop

log = logging.getLogger(__package__)

MAX_HOSTS = 8  # hosts that are named


def log_start(job: Job, problem: Problem, attrs: Mapping[str, Any], origin: str) -> None:
    """Logs what the run computes, and where.

    attrs: the run file's root attributes. origin: "" for a new run, else what it resumes or replays.
    """
    if log.isEnabledFor(logging.INFO):
        log.info("%s", "\n".join(_start_lines(job, problem, attrs, origin)))
    if problem.offers is not None:
        from mpifl.problems.own_training import describe_trial

        facts: list[dict[str, Any]] = json.loads(attrs.get("compute", "[]"))
        trial = next((fact for fact in facts if "repeats" in fact), {})
        log.log(logging.WARNING if trial.get("repeats") is False else logging.INFO, "%s", describe_trial(trial))


def _start_lines(job: Job, problem: Problem, attrs: Mapping[str, Any], origin: str) -> list[str]:
    from mpifl.config.read import job_to_dict

    config = job_to_dict(job)
    commit = f", commit {attrs['git_commit'].replace(attrs['git_commit'][12:40], '')}" if attrs["git_commit"] else ""
    size = f"{format_count(problem.clients, 'client')}, {format_count(problem.d, 'parameter')}"
    mpi = "no MPI" if attrs["mpi"] == "none" else name_of(attrs["mpi"])
    lines = [
        f"mpifl {attrs['mpifl_version']}{commit}; {mpi}; Python {platform.python_version()}",
        f"job: {job.name}, {attrs['algorithm']}, {size}, seed {job.seed}",
        f"ranks: {_ranks(attrs)}",
        *_groups(attrs, job.ranks_per_client),
        f"clock: {_clock(attrs['clock'], config['clock']['delay'], config['clock']['availability'])}",
        f"stop: {_targets(job)}; evaluation: {_cadence(job.evaluate.every, job.evaluate.updates)}",
        f"output: {Path(job.output).absolute()}; checkpoints: {_checkpoints(job.checkpoint)}",
    ]
    return [lines[0], *([origin] if origin else []), *lines[1:]]


def _ranks(attrs: Mapping[str, Any]) -> str:
    """Ranks by host, threads of a rank and devices."""
    hosts = Counter(json.loads(attrs["hosts"]) or [platform.node()])
    named = ", ".join(f"{count} on {host}" for host, count in list(hosts.items())[:MAX_HOSTS])
    more = (
        f", {sum(list(hosts.values())[MAX_HOSTS:])} on {len(hosts) - MAX_HOSTS} more" if len(hosts) > MAX_HOSTS else ""
    )
    facts = json.loads(attrs.get("compute", "[]"))
    devices = Counter(fact.get("gpu") or fact["device"] for fact in facts if "device" in fact)
    compute = "; ".join(f"{count} computing on {device}" for device, count in devices.items())
    threads = {fact["threads"] for fact in facts if "threads" in fact} or {int(os.environ.get("OMP_NUM_THREADS", "1"))}
    counts = " or ".join(map(str, sorted(threads)))
    return f"{attrs['ranks']} ({named}{more}); {counts} thread{'s' if counts != '1' else ''} each" + (
        f"; {compute}" if compute else ""
    )


def _groups(attrs: Mapping[str, Any], ranks_per_client: int) -> list[str]:
    """A line on the groups of ranks, where clients are computed by more than one."""
    if attrs["ranks"] == 1 or ranks_per_client == 1:
        return []
    return [f"groups: {Layout(attrs['ranks'], ranks_per_client).describe(json.loads(attrs['hosts']))}"]


def _clock(mode: str, delay: Mapping[str, Any], availability: Mapping[str, Any]) -> str:
    model, on = _model(delay), ""
    if availability["name"] != "always":
        on = f"; clients are on as given by {_model(availability)}"
    if mode == "real":
        return f"real; a contact takes the longer of its computation and the emulated delay, {model}{on}"
    if mode == "virtual":
        return f"virtual; times are those of the delay model, {model}, whatever the computation takes{on}"
    return "recorded; the events of the run that is repeated, in their order"


def _model(section: Mapping[str, Any]) -> str:
    """A model's name with its options, unless these are null or false."""
    known = {key: value for key, value in section.items() if key != "name" and value not in (None, False)}
    text = ", ".join(f"{key} {f'{value:g}' if isinstance(value, float) else value}" for key, value in known.items())
    return f"{section['name']} ({text})" if text else str(section["name"])


def _targets(job: Job) -> str:
    stop = job.stop
    targets = [f"{stop.time:g} s"] if stop.time else []
    targets += [format_count(stop.updates, "update")] if stop.updates else []
    targets += [f"test accuracy {stop.accuracy:g}"] if stop.accuracy else []
    if plateau := stop.plateau:
        targets.append(f"{plateau.evaluations} evaluations without a better {plateau.metric.replace('_', ' ')}")
    return " or ".join(targets)


def _cadence(seconds: float | None, updates: int | None) -> str:
    """How often something is done."""
    times = [f"every {seconds:g} s"] if seconds else []
    times += [f"every {updates:,} updates"] if updates else []
    return " and ".join(times)


def _checkpoints(checkpoint: Checkpoint) -> str:
    """When checkpoints are saved."""
    times = [_cadence(checkpoint.every, checkpoint.updates)] if checkpoint.every or checkpoint.updates else []
    times += [f"every {format_duration(checkpoint.wall)} of wall time"] if checkpoint.wall else []
    times += ["at the end"] if checkpoint.end else []
    return f"{', '.join(times)}{' and ' if times else ''}when a signal ends the run"


class RunLog:
    """Logs the state of a run every `interval` seconds of wall time, from a thread. An observer of the server loop."""

    def __init__(self, job: Job, evaluator: Evaluator, loop: ServerLoop, interval: float, updates: int = 0) -> None:
        """updates: those consumed before the run was resumed."""
        self._stop, self._evaluator, self._loop, self._interval = job.stop, evaluator, loop, interval
        self._count, self._staleness = updates, 0
        self._begin = time.perf_counter()
        self._last = (self._begin, updates, 0)  # perf_counter, updates and sum of staleness at the last line
        self._time = 0.0  # s of the run's clock
        self._first_share = self._share()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="log")
        self._thread.start()

    def on_update(self, row: UpdateRow) -> None:
        self._count += 1
        self._staleness += row.staleness
        self._time = row.time

    def close(self, completed: bool = False) -> None:
        """Ends the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._interval):
            log.info("%s", self.line())

    def _share(self) -> float | None:
        """The share of the run that is done, by the stop that is nearer; None where only an accuracy stops it."""
        shares = [self._time / self._stop.time] if self._stop.time else []
        shares += [self._count / self._stop.updates] if self._stop.updates else []
        return min(max(shares), 1.0) if shares else None

    def line(self) -> str:
        """The state of the run; rate and staleness are those since the last line."""
        now, (before, updates, staleness) = time.perf_counter(), self._last
        self._last = (now, self._count, self._staleness)
        count, share = self._count - updates, self._share()
        done = "" if share is None else f" ({share:.0%})"
        limit = f" of {self._stop.time:g}" if self._stop.time else ""
        parts = [
            f"{self._time:.4g}{limit} s{done}",
            f"{self._count:,} updates ({count / (now - before):,.0f} a second)",
        ]
        if count:
            parts.append(f"staleness {(self._staleness - staleness) / count:.1f}")
        parts += format_metrics(self._evaluator.latest)
        clients = self._loop.clients
        lost = len(clients.inactive)
        parts.append(f"{clients.n - lost:,} clients live" + (f", {lost:,} lost or set aside" if lost else ""))
        parts.append(f"{resident_bytes() / 1e9:.2f} GB")
        if share is not None and self._first_share is not None and share > self._first_share:
            left = (now - self._begin) * (1 - share) / (share - self._first_share)
            parts.append(f"about {format_duration(left)} left")
        return ", ".join(parts)
