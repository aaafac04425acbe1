"""Under the virtual clock a run is the same, bit for bit, in one process and on any number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpifl.algorithms import ALIASES, names
from tests.mpi.cases import CASES
from tests.mpi.conftest import MPIFL, RUN, Start, run_all, write
from tests.mpi.files import all_differences, attribute, differing
from tests.tiers import long, selected

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(180)]
DEADLINE = 120.0


METHODS = [*{case["algorithm"]["name"]: name for name, case in CASES.items()}.values()]  # a case of each
SETS = {"all": [*CASES], "methods": METHODS}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The folder with the cases of the tests that run, run in one process."""
    folder = tmp_path_factory.mktemp("virtual") / "alone"
    chosen = "methods" if selected(request, "cases") == ["methods"] else "all"
    return run_all(folder, 0, {name: CASES[name] for name in SETS[chosen]}, DEADLINE)


@pytest.mark.parametrize(
    ("cases", "ranks"),
    [*(long("all", ranks) for ranks in (0, 1, 2, 3, 5, 9)), ("methods", 3)],
)
def test_every_rank_count_gives_the_same_bits(alone: Path, tmp_path: Path, cases: str, ranks: int) -> None:
    again = run_all(tmp_path / "again", ranks, {name: CASES[name] for name in SETS[cases]}, DEADLINE)
    assert not all_differences(alone, again, SETS[cases])
    assert {attribute(again / f"{name}.h5", "ranks") for name in SETS[cases]} == {max(1, ranks)}


def test_no_method_is_left_out() -> None:
    assert {CASES[name]["algorithm"]["name"] for name in METHODS} == {*names(), *ALIASES}


@pytest.mark.smoke
def test_each_way_to_start_it_gives_the_same_bits(run: Start, tmp_path: Path) -> None:
    name = next(name for name in METHODS if CASES[name]["algorithm"]["name"] == "area")
    job = write(tmp_path, name, CASES[name])
    for n, (ranks, words) in enumerate([(0, RUN), (1, RUN), (3, RUN), (3, [*MPIFL, "run"])]):
        assert not run(ranks, *words, job, f"output={n}.h5", code=0).err
        assert not differing(tmp_path / "0.h5", tmp_path / f"{n}.h5")
