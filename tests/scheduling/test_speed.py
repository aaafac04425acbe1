"""Separate times of computing and exchanging: the delay model `speed`, what the clocks report to the rules, and a
replay."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.stats import kstest

import mpifl
from mpifl import open_run
from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Message, State, Update
from mpifl.objective import Objective
from mpifl.scheduling.clocks import RealClock, VirtualClock
from mpifl.scheduling.delays import Delay, Exponential, Fixed, NoDelay, Speed
from mpifl.transport.frames import HEADER_BYTES
from tests.mpi.files import differing
from tests.quadratic_runs import Log, quadratics, run

CLIENTS = quadratics([1, 1, 1], [0, 1, 2])
MANY = 4000


@dataclass(frozen=True)
class Asks(Area):
    """AREA that asks its clients for 1, 3 and 2 units of work of `busy` s each, and keeps the times that it is
    given."""

    busy: float = 0.0
    told: list[tuple[int, float, float]] = field(default_factory=list)  # client, compute, exchange

    def message(self, server: State, i: int) -> Message:
        return super().message(server, i)._replace(work=(1, 3, 2)[i], numbers=(float(i),))

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        time.sleep(self.busy * message.work)
        return super().train(client, message, objective)

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        self.told.append((i, update.compute, update.exchange))
        super().receive(server, i, update, staleness)


class Noted(RealClock):
    """A real clock that records bounds on the time at which each message left."""

    def __init__(self, law: Delay) -> None:
        super().__init__(law.contact_times(3, 0), law.split_times(3, 0))
        self.left: dict[int, list[tuple[float, float]]] = {i: [] for i in range(3)}
        self.start()

    def contact_time(self, i: int, round: int, work: int = 1) -> float:
        before = self.now()
        delay = super().contact_time(i, round, work)
        self.left[i].append((before, self.now()))
        return delay


def virtual(law: Delay) -> VirtualClock:
    return VirtualClock(law.contact_times(3, 0), law.split_times(3, 0))


def test_times_of_a_contact() -> None:
    """work * compute_i + exchange_i, each client's times multiplied by its factor; the rate is that of work 1."""
    law = Speed(compute=[1.0, 2.0, 4.0], exchange=[0.5, 0.25, 0.125], spread=3.0)
    parts, seconds = law.split_times(3, 0), law.contact_times(3, 0)
    assert [parts(i, 0, 1) for i in range(3)] == [(1.0, 0.5), (4.0, 0.5), (12.0, 0.375)]
    assert parts(1, 0, 5) == parts(1, 7, 5) == (20.0, 0.5)
    assert [seconds(i, 3) for i in range(3)] == [1.5, 4.5, 12.375]
    assert law.rates(3, 0).tolist() == [1 / 1.5, 1 / 4.5, 1 / 12.375]
    assert law.has_split_times and not law.may_be_zero


def test_factors_are_evenly_spaced_from_1_to_the_spread() -> None:
    """Factors evenly spaced from 1, the first client's, to `spread`, the last one's; one client alone has 1."""
    for spread, factors in ((1.0, [1, 1, 1]), (2.0, [1, 1.25, 1.5, 1.75, 2]), (0.5, [1, 0.75, 0.5]), (7.0, [1])):
        parts = Speed(compute=2.0, exchange=1.0, spread=spread).split_times(len(factors), 0)
        assert [parts(i, 0, 1) for i in range(len(factors))] == [(2.0 * f, f) for f in factors]


def test_noise_is_exponential_about_the_same_means() -> None:
    law = Speed(compute=[0.5, 2.0], exchange=[1.0, 0.25], spread=2.0, noise="exponential")
    parts = law.split_times(2, 5)
    times = np.array([[parts(i, r, 1) for r in range(MANY)] for i in range(2)])  # (client, round, part)
    for (i, part), mean in np.ndenumerate(np.array([[0.5, 1.0], [4.0, 0.5]])):
        assert kstest(times[i, :, part], "expon", args=(0, mean)).pvalue > 1e-3
        assert times[i, :, part].mean() == pytest.approx(mean, rel=5 / sqrt(MANY))
        assert np.corrcoef(times[i, 1:, part], times[i, :-1, part])[0, 1] == pytest.approx(0, abs=5 / sqrt(MANY))
    four = times.transpose(0, 2, 1).reshape(4, MANY)
    assert np.abs(np.corrcoef(four)[np.triu_indices(4, 1)]).max() < 5 / sqrt(MANY), "clients and parts are independent"
    assert law.rates(2, 5).tolist() == [1 / 1.5, 1 / 4.5]


def test_lognormal_noise_has_the_given_mean_and_sigma() -> None:
    """log t ~ N(log mean - sigma^2/2, sigma^2)."""
    parts = Speed(compute=2.0, exchange=0.5, noise="lognormal", sigma=1.5).split_times(1, 5)
    times = np.log([parts(0, r, 1) for r in range(MANY)])
    for part, mean in enumerate((2.0, 0.5)):
        assert kstest(times[:, part], "norm", args=(np.log(mean) - 1.5**2 / 2, 1.5)).pvalue > 1e-3
    assert np.corrcoef(times.T)[0, 1] == pytest.approx(0, abs=5 / sqrt(MANY))


def test_steps_multiply_the_computing_time_alone() -> None:
    one, four = (Speed(compute=0.5, exchange=0.25, noise="exponential", steps=k) for k in (1, 4))
    (compute, exchange), many = one.split_times(1, 0)(0, 0, 3), four.split_times(1, 0)(0, 0, 3)
    assert many == (4 * compute, exchange) and four.rates(1, 0).tolist() == [1 / 2.25]


def test_a_drawn_time_is_a_function_of_seed_client_and_round() -> None:
    """Whatever the order of the calls; k units of work take k times as long, and the exchange is unchanged."""
    law = Speed(noise="exponential")
    parts = law.split_times(3, 9)
    forward = {(i, r): parts(i, r, 1) for i in range(3) for r in range(50)}
    again = law.split_times(3, 9)
    for key in np.random.default_rng(0).permutation(list(forward)).tolist():
        compute, exchange = forward[tuple(key)]
        assert again(*key, 1) == (compute, exchange)
        assert again(*key, 3) == (3 * compute, exchange)
        assert law.contact_times(3, 9)(*key) == compute + exchange
    assert len({t for pair in forward.values() for t in pair}) == 300
    assert law.split_times(3, 8)(0, 0, 1) != forward[0, 0]


# -- the clocks --------------------------------------------------------------------------------------------------------
def test_virtual_arrivals_with_unequal_work() -> None:
    """1, 3 and 2 units of 1 s and an exchange of 0.25 s: contacts of 1.25, 3.25 and 2.25 s."""
    algorithm = Asks()
    log = run(algorithm, CLIENTS, clock=virtual(Speed(compute=1.0, exchange=0.25)), stop_time=6.75)
    times = [(1.25, 0), (2.25, 2), (2.5, 0), (3.25, 1), (3.75, 0), (4.5, 2), (5.0, 0), (6.25, 0), (6.5, 1), (6.75, 2)]
    assert [(row[0], row[1]) for row in log.updates] == times
    assert algorithm.told == [(i, (1.0, 3.0, 2.0)[i], 0.25) for i in log.order]
    assert [row[8:10] for row in log.updates] == [pair[1:] for pair in algorithm.told], "and so in the run file"


@pytest.mark.parametrize("law", [NoDelay(), Fixed(seconds=2.0), Exponential(rate=3.0)], ids=lambda law: law.name)
def test_virtual_clock_without_parts(law: Delay) -> None:
    """One time for every contact, however much work is asked for; its parts are unknown."""
    algorithm = Asks()
    log = run(algorithm, CLIENTS, clock=virtual(law), stop_updates=12)
    assert not law.has_split_times and law.split_times(3, 0) is None
    assert np.isnan([pair[1:] for pair in algorithm.told]).all() and np.isnan([row[8:10] for row in log.updates]).all()
    plain = run(Area(), CLIENTS, clock=virtual(law), stop_updates=12)
    assert [row[:2] for row in plain.updates] == [row[:2] for row in log.updates]


def contacts(clock: Noted, log: Log) -> list[tuple[int, float, float]]:
    """Client, and lower and upper bound of the duration of each contact, in the order of arrival."""
    found, seen = [], [0, 0, 0]
    for when, i, *_ in log.updates:
        before, after = clock.left[i][seen[i]]
        found.append((i, when - after, when - before))
        seen[i] += 1
    return found


def test_real_clock_measures() -> None:
    """Computing time by the client's own clock; exchange time is the rest of the contact, with all waiting."""
    algorithm, clock = Asks(busy=0.004), Noted(Fixed(seconds=[0.0, 0.03, 0.0]))
    log = run(algorithm, CLIENTS, clock=clock, stop_updates=24)
    busy = [update.busy for _, update in log.consumed]
    for (i, least, most), (j, compute, exchange), work in zip(contacts(clock, log), algorithm.told, busy, strict=True):
        assert i == j and compute >= 0.004 * (1, 3, 2)[i] and exchange >= 0
        assert compute <= work and least - 1e-9 <= work + exchange <= most + 1e-9
        assert i != 1 or work + exchange >= 0.03
    assert [row[8:10] for row in log.updates] == [pair[1:] for pair in algorithm.told]


def test_real_clock_with_speed() -> None:
    algorithm, clock = Asks(), Noted(Speed(compute=0.004, exchange=0.008))
    log = run(algorithm, CLIENTS, clock=clock, stop_updates=20)
    for (i, least, most), told in zip(contacts(clock, log), algorithm.told, strict=True):
        compute = (1, 3, 2)[i] * 0.004
        assert told == (i, compute, 0.008)
        assert most >= compute + 0.008 and least > 0


# -- replays -----------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """AsyPFL under the real clock: clients with longer exchanges are told to take more local steps."""
    path = tmp_path_factory.mktemp("speed") / "real.h5"
    job = {
        "name": "real", "seed": 4, "output": str(path), "stop": {"updates": 60}, "evaluate": {"updates": 10},
        "problem": {"clients": 4, "batch_size": 8, "test_split": 0.2},
        "algorithm": {"name": "asypfl", "local_steps": 2, "indicators": {"name": "measured", "most": 6}},
        "clock": {"mode": "real", "delay": {"name": "fixed", "seconds": [0.004, 0.012, 0.03, 0.06]}},
    }  # fmt: skip
    mpifl.run(job).close()
    return path


def test_a_replay_of_measured_indicators(recorded: Path, tmp_path: Path) -> None:
    """Work that followed from measured times is asked for again: the same rows, losses, accuracies and model."""
    with open_run(recorded) as run_file:
        rows = run_file.updates
        assert rows.local_steps.nunique() > 1 and (rows.compute > 0).all() and (rows.exchange > 0).all()
        assert rows.bytes_down.tolist() == [HEADER_BYTES + 4 * 640] * 60
        assert run_file.evaluations.personal_accuracy_mean.notna().all()
    mpifl.replay(recorded, output=tmp_path / "again.h5").close()
    assert not differing(recorded, tmp_path / "again.h5", but=("events",))


@pytest.mark.damaged
def test_a_replay_reads_the_recorded_times(recorded: Path, tmp_path: Path) -> None:
    """With other times in the file, the same order of arrivals gives another run, which is reported."""
    path = tmp_path / "tampered.h5"
    path.write_bytes(recorded.read_bytes())
    with h5py.File(path, "r+", libver="latest") as file:
        client = file["updates/client"][()]
        file["updates/exchange"][...] = np.where(client == 0, 100.0, file["updates/exchange"][()])
    with pytest.raises(mpifl.RunFailed, match=r"updates row \d+: local_steps is \d+, the replay has \d+"):
        mpifl.replay(path, output=tmp_path / "again.h5").close()
    found = differing(recorded, tmp_path / "again.h5", but=("events",))
    assert {"updates/local_steps", "updates/exchange", "model/x"} <= set(found)
    assert not {"updates/time", "updates/client", "updates/compute"} & set(found)
