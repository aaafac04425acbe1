"""Contact times: the distributions of rates and times, and traces."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import foldnorm, kstest, norm, truncnorm

from mpifl import open_run
from mpifl.cli import main
from mpifl.errors import ConfigError, RunFailed
from mpifl.rng import stream
from mpifl.scheduling.delays import ContactTimes, Exponential, Fixed, NoDelay, SplitTimes, Trace, checked_times
from tests.mpi.cases import AREA, SMALL, job
from tests.mpi.conftest import write

MANY = 20_000


def test_rates_are_normal_and_negative_ones_become_their_absolute_value() -> None:
    """lambda_i ~ |N(rate, spread)|, the folded normal: of N(10, 5) 2.3 % of the draws are negative."""
    assert kstest(Exponential(rate=100.0, spread=5.0).rates(MANY, 1), norm(100, 5).cdf).pvalue > 1e-3
    rates = Exponential(rate=10.0, spread=5.0).rates(MANY, 1)
    assert (rates > 0).all()
    assert kstest(rates, foldnorm(10 / 5, 0, 5).cdf).pvalue > 1e-3
    resampled = Exponential(rate=10.0, spread=5.0, negative="resample").rates(MANY, 1)
    changed = rates != resampled
    assert changed.mean() == pytest.approx(norm.cdf(-2), abs=5 * sqrt(0.023 / MANY))
    assert kstest(resampled, truncnorm(-2, np.inf, 10, 5).cdf).pvalue > 1e-3


def test_rates_depend_on_the_seed_alone_and_are_equal_without_spread() -> None:
    law = Exponential(rate=10.0, spread=5.0)
    assert law.rates(8, 1).tolist() == law.rates(8, 1).tolist() != law.rates(8, 2).tolist()
    assert Exponential(rate=7.0).rates(5, 1).tolist() == [7.0] * 5


def test_exponential_times_are_independent_and_have_the_clients_rates() -> None:
    """Each client's times are Exp(lambda_i), independent from round to round and from client to client."""
    law = Exponential(rate=10.0, spread=3.0)
    rates, seconds = law.rates(3, 5), law.contact_times(3, 5)
    times = np.array([[seconds(i, round) for round in range(4000)] for i in range(3)])
    for i in range(3):
        assert kstest(times[i], "expon", args=(0, 1 / rates[i])).pvalue > 1e-3
        assert times[i].mean() == pytest.approx(1 / rates[i], rel=5 / sqrt(4000))
        assert np.corrcoef(times[i][1:], times[i][:-1])[0, 1] == pytest.approx(0, abs=5 / sqrt(4000))
    off_diagonal = np.corrcoef(times)[np.triu_indices(3, 1)]
    assert np.abs(off_diagonal).max() < 5 / sqrt(4000)


def test_a_time_is_a_function_of_seed_client_and_round() -> None:
    law = Exponential(rate=10.0)
    seconds = law.contact_times(4, 9)
    forward = {(i, r): seconds(i, r) for i in range(4) for r in range(200)}
    other = law.contact_times(4, 9)
    for key in np.random.default_rng(0).permutation(list(forward)).tolist():
        assert other(*key) == forward[tuple(key)]
    assert len(set(forward.values())) == 800
    streams = {(i, k): stream(9, "delay", i, k).exponential(0.1, 64).tolist() for i in range(4) for k in range(4)}
    assert forward == {(i, r): streams[i, r // 64][r % 64] for i, r in forward}, "64 draws of each stream"


def test_fixed_and_none() -> None:
    assert NoDelay().rates(3, 0) is None and NoDelay().contact_times(3, 0)(2, 5) == 0.0
    assert Fixed(seconds=2.0).rates(2, 0).tolist() == [0.5, 0.5]
    law = Fixed(seconds=[1.0, 4.0])
    assert law.rates(2, 0).tolist() == [1.0, 0.25]
    seconds = law.contact_times(2, 0)
    assert [seconds(0, 0), seconds(1, 0), seconds(1, 7)] == [1.0, 4.0, 4.0]
    assert Fixed(seconds=[0.0, 1.0]).rates(2, 0) is None
    for clients in (1, 3):
        with pytest.raises(ConfigError):
            law.contact_times(clients, 0)


def test_a_trace_gives_the_rows_of_a_client_in_order_and_again_if_asked(tmp_path: Path) -> None:
    """A client's rows in their order, and from its first again when they are used up, if the job says so."""
    path = tmp_path / "trace.csv"
    path.write_text("client,seconds\n0,1.5\n1,0.25\n0,2.5\n")
    seconds = Trace(path=str(path), exhausted="repeat").contact_times(2, 0)
    assert [seconds(0, r) for r in range(4)] == [1.5, 2.5, 1.5, 2.5]
    assert [seconds(1, r) for r in range(2)] == [0.25, 0.25]
    assert Trace(path=str(path)).rates(2, 0) is None


@pytest.mark.parametrize(
    "text", ["client,seconds\n0,1\n", "client,seconds\n0,1\n1,-1\n", "client,seconds\n0,1\n2,1\n", "client,time\n0,1\n",
             "client,seconds\n0,x\n1,1\n", "client,seconds\n0,nan\n1,1\n", "client,seconds\n0\n", ""]
)  # fmt: skip
def test_wrong_traces_are_refused(tmp_path: Path, text: str) -> None:
    """A client without rows, a negative or missing or unreadable time, an unknown client, other columns, nothing."""
    path = tmp_path / "trace.csv"
    path.write_text(text)
    for name in ("trace.csv", "absent.csv"):
        with pytest.raises(ConfigError):
            Trace(path=str(tmp_path / name)).contact_times(2, 0)


def test_a_trace_that_is_used_up_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Client i takes i + 1 s. After its third update client 0 has no time left; by then client 1 has sent one."""
    (tmp_path / "trace.csv").write_text("client,seconds\n" + "".join(f"{i},{i + 1}\n" * 3 for i in range(7)))
    delay = {"name": "trace", "path": str(tmp_path / "trace.csv")}
    for more, code in (({}, 3), ({"exhausted": "repeat"}, 0)):
        clock = {"mode": "virtual", "delay": {**delay, **more}}
        file = write(tmp_path, "trace", job(AREA, SMALL, clock=clock))
        path = tmp_path / f"{code}.h5"
        assert main(["run", str(file), f"output={path}"]) == code
        with open_run(path) as run:
            assert len(run.updates) == (4 if code else 60)
    says = f"client 0 has used up its 3 times in {tmp_path / 'trace.csv'}; with repeat it starts again at its first"
    assert capsys.readouterr().err == f"mpifl: the run failed: clock.delay.exhausted=fail: {says}\n"


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -1.0, "fast"])
def test_times_of_a_model_of_ones_own_are_checked(value: Any) -> None:
    class Own(Fixed):
        def contact_times(self, clients: int, seed: int) -> ContactTimes:
            return lambda client, round: value if round == 2 else 1.0

        def split_times(self, clients: int, seed: int) -> SplitTimes:
            return lambda client, round, work: (1.0, value if round == 2 else 0.5)

    contact, split = checked_times(Own(), 3, 0)
    assert split and contact(1, 1) == 1.0 and split(1, 1, 1) == (1.0, 0.5)
    with pytest.raises(RunFailed, match=rf"Own.contact_times returned {value} for client 1, round 2; seconds from 0"):
        contact(1, 2)
    with pytest.raises(RunFailed, match=rf"Own.split_times returned {value} for client 1, round 2; seconds from 0"):
        split(1, 2, 1)


def test_a_model_of_ones_own_returns_a_function() -> None:
    class Own(Fixed):
        def contact_times(self, clients: int, seed: int) -> ContactTimes:
            return 0.5  # type: ignore[return-value]

    with pytest.raises(ConfigError, match=r"Own.contact_times returned 0.5; expected a function of \(client, round\)"):
        checked_times(Own(), 3, 0)


def test_a_trace_that_is_not_there_is_said_without_its_name_twice() -> None:
    with pytest.raises(ConfigError, match=r"^path=no.csv: cannot be read: No such file or directory; expected"):
        Trace(path="no.csv").contact_times(3, 0)
