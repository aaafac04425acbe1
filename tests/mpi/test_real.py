"""The real clock: the results of a run, and a replay that has the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpifl import open_run
from mpifl.algorithms import ALIASES, names
from tests.mpi.cases import AREA, DIGITS, job
from tests.mpi.cases import CASES as VIRTUAL
from tests.mpi.conftest import run_all, succeed, write
from tests.mpi.files import attribute, differing
from tests.tiers import parameters, selected
from tests.verified import verify_files

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(700)]


def exponential(rate: float) -> dict[str, Any]:
    return {"mode": "real", "delay": {"name": "exponential", "rate": rate}}


NINE = {"clients": 9, "model": {"name": "quadratic", "dim": 12, "sigma": 0.3}}
SECOND = {"stop": {"time": 1.0}, "evaluate": {"every": 0.2}, "clock": exponential(20)}
CASES = {
    name: {**VIRTUAL[name], **SECOND, "clock": {**VIRTUAL[name]["clock"], **exponential(20)}}
    for name in (
        "area-period", "area-poisson", "area-large", "area-on-and-off", "fedavg-cohort", "fedavg-available",
        "fedasync-before", "fedbuff-deferred", "fedpd", "feddane", "scaffold", "async-feddr",
    )
}  # fmt: skip
CASES |= {
    "rate": job(AREA, NINE, **{**SECOND, "stop": {"time": 3.0}}),
    "unhurried": job({"name": "async-fedavg", "reply": "deferred"}, NINE, **{**SECOND, "clock": {"mode": "real"}}),
    "updates": job(AREA, NINE, **{**SECOND, "stop": {"updates": 50, "time": 30}}),
    "accuracy": job(
        {"name": "area", "step_size": 50, "trigger": {"every": 3}}, DIGITS,
        **{**SECOND, "evaluate": {"every": 0.05}, "stop": {"accuracy": 0.6, "time": 30}},
    ),
    "idle": job(AREA, {**NINE, "clients": 2}, **SECOND),
    "asypfl": job(  # how long clients work follows from the times that it is told
        {"name": "asypfl", "local_steps": 2, "indicators": {"name": "measured", "most": 5}},
        {**DIGITS, "test_split": 0.2},
        **{**SECOND, "clock": {"mode": "real", "delay": {"name": "fixed", "seconds": [k / 100 for k in range(1, 10)]}}},
    ),
}  # fmt: skip

NEEDED = {  # options and clocks that the others cannot do without
    "feddr": {"eta": 0.5}, "fedadmm-wang": {"eta": 0.5}, "fedsplit": {"eta": 0.5}, "ringmaster": {"threshold": 4},
}  # fmt: skip
CLOCKS = {"rescaled-asgd": exponential(500)}
CASES |= {  # the other methods and names of methods, as fast as they go
    name: job({"name": name, **NEEDED.get(name, {})}, NINE,
              **{**SECOND, "stop": {"updates": 40, "time": 30}, "clock": CLOCKS.get(name, {"mode": "real"})})
    for name in [*names(), *ALIASES] if name not in {case["algorithm"]["name"] for case in CASES.values()}
}  # fmt: skip


# In the short tier each way to aggregate and kind of message once; that every method has the same bits under MPI as in
# one process is shown under the virtual clock.
SHORT = ["rate", "area-period", "fedavg-cohort", "asypfl"]
every_case = pytest.mark.parametrize("name", parameters(CASES, SHORT))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Every case run on 4 ranks as NAME.h5, replayed there as NAME-four.h5, and in one process as NAME-one.h5."""
    folder = tmp_path_factory.mktemp("real")
    wanted = selected(request, "name") or {"rate", "asypfl"}
    commands = [["run", str(write(folder, name, CASES[name]))] for name in wanted]
    four = [["replay", f"results/{name}.h5", f"output={name}-four.h5"] for name in wanted]
    one = [["replay", f"results/{name}.h5", f"output={name}-one.h5"] for name in wanted]
    replies = succeed(folder, 4, commands + four, 300) + succeed(folder, 0, one, 300)
    assert all(len(reply.changed) == 1 for reply in replies)
    yield folder
    assert verify_files(folder) >= 3 * len(wanted)


@every_case
def test_a_run_is_whole(folder: Path, name: str) -> None:
    """Also one that ends by its accuracy, which was that of an earlier model; `mpifl verify` looks at the rows."""
    with open_run(folder / f"results/{name}.h5") as run:
        stop = CASES[name]["stop"]
        assert run.status == "completed" and run.attrs["clock"] == "real" and run.attrs["ranks"] == 4
        assert run.clients["rank"].tolist() == [1 + i % 3 for i in range(CASES[name]["problem"]["clients"])]
        assert len(run.updates) > 0
        assert run.updates.time.max() < stop["time"] + 0.5  # one that came with the last look
        assert run.evaluations.updates.iloc[-1] == len(run.updates)
        assert run.evaluations.version.iloc[-1] == run.model_version == len(run.aggregations)
        waiting = CASES[name]["algorithm"].get("reply") == "deferred"  # at the end perhaps all, for an aggregation
        assert run.events.kind.tolist().count("dropped") == 1 or (waiting and len(run.events) == 0)
        if "updates" in stop:
            assert len(run.updates) == stop["updates"]
        if "accuracy" in stop:
            assert run.evaluations.test_accuracy.max() >= stop["accuracy"] and run.updates.time.max() < stop["time"]


@pytest.mark.parametrize("how", ["four", "one"])
@every_case
def test_a_replay_has_the_same_bits(folder: Path, name: str, how: str) -> None:
    """Rows, staleness, versions, losses and the final model; only updates in flight at the end are not recorded."""
    one, other = folder / f"results/{name}.h5", folder / f"{name}-{how}.h5"
    assert not differing(one, other, but=("events",))
    assert attribute(other, "clock") == "replay"


def test_measured_computing_and_exchange_times_cover_the_delay(folder: Path) -> None:
    """By the clients' clocks and the server's: together at least as long as the client holds its update back, less what
    testing its own model took, which is neither."""
    with open_run(folder / "results/asypfl.h5") as run:
        rows = run.updates
        assert (rows.compute > 0).all() and (rows.exchange > 0).all() and rows.local_steps.nunique() > 1
        assert (rows.compute + rows.exchange >= 0.01 * (rows.client + 1) - 0.02).all()
        assert run.evaluations.personal_accuracy_mean.notna().all()


def test_updates_come_at_the_rate_of_the_delay_model(folder: Path) -> None:
    """27 s of 9 clients in all, at 20 a second: 540 updates, minus what a busy machine costs."""
    with open_run(folder / "results/rate.h5") as run:
        assert 200 < len(run.updates) < 540 + 6 * 540**0.5
        (text,) = run.events.text[run.events.kind == "dropped"]
        assert text == "9 updates were under way at the end and not applied"
        assert (run.clients.updates > 0).all()
        assert 2.9 < run.attrs["wall_seconds"] < 8 and run.attrs["server_cpu_share"] < 0.9


@pytest.mark.smoke
@pytest.mark.long
def test_one_rank_hosts_hundreds(tmp_path: Path) -> None:
    many = {**NINE, "clients": 300}
    jobs = {"many": job(AREA, many, **{**SECOND, "clock": exponential(2)}), "large": CASES["area-large"]}
    run_all(tmp_path, 2, jobs, 60)
    with open_run(tmp_path / "many.h5") as run:
        assert 150 < len(run.updates) < 600 + 6 * 600**0.5
        assert set(run.clients["rank"]) == {1}
