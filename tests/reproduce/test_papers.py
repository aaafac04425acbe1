"""What the papers' studies need: selection on seeds apart, measures, missing data, code beside a study."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mpifl
from mpifl.algorithms.base import Clients, Message
from mpifl.algorithms.common.local_solver import Gd
from mpifl.cli import main
from mpifl.errors import ConfigError
from mpifl.jobs.fedpd.warm import WarmFedProx
from mpifl.tools.analysis.panels import Panel
from mpifl.tools.analysis.trials import load_trial
from mpifl.tools.reproduce import page
from mpifl.tools.reproduce.claims import NOTE
from mpifl.tools.reproduce.items import JOBS
from mpifl.tools.reproduce.spec import Measure
from mpifl.tools.reproduce.values import largest_passed, trial_curve, trial_value
from mpifl.tools.studies.study import load_study
from tests.problems.conftest import idx_bytes
from tests.quadratic_runs import random_quadratics
from tests.reproduce.test_reproduce import changed

BASE = """
name: base
seed: 0
problem:   {data: digits, clients: 4, partition: {name: dirichlet, alpha: 1}, model: logistic, batch_size: 64}
algorithm: {name: fedavg, step_size: 0.1, local_steps: 3}
clock:     {mode: virtual, delay: {name: fixed, seconds: 1}}
stop:      {time: 4}
evaluate:  {every: 1, gradient: true}
"""
STUDY = """
name: tuned
job: base.yaml
axes:
  algorithm.local_steps: [2, 3]
  method:
    FedAvg:  {algorithm.name: fedavg}
    FedProx: {algorithm.name: fedprox, algorithm.mu: [0.1, 50]}
    FedDR:   {algorithm.name: feddr, algorithm.eta: [0.001, 10], algorithm.step_size: [0.1, 0.05]}
trials: {seeds: 3, vary: [problem.partition.seed]}
select: {over: [algorithm.mu, algorithm.eta, algorithm.step_size], by: train_loss, seeds: [0]}
page:
  title: Tuned
  tables: [{measures: [loss], columns: local_steps}]
  figures: [{y: train_loss, x: local_steps, panels: local_steps, x_label: steps}]
  blocks: ["code.py:block"]
  claims: [{left: {method: FedDR}, relation: above, right: {method: FedProx}, measure: loss, each: local_steps}]
"""
MISSING = """
name: missing
job: base.yaml
set: {problem.data: femnist, problem.clients: null, problem.partition: null}
trials: 1
page: {title: Missing}
"""
LIMITS = """
name: limits
job: base.yaml
axes:
  algorithm.local_steps: [1, 20]
  algorithm.step_size: [1.0e+5, 0.1, 0.05]
trials: 2
page:
  title: Limits
  measures:
    largest step: {metric: train_loss, over: step_size, at_most: 10}
    logarithm: {metric: train_loss, over: step_size, at_most: 10, log: true}
  figures: [{y: largest step, against: local_steps}]
  claims:
    - {left: {local_steps: 1}, relation: near, by: 1.0e-9, right: 0.1, measure: largest step}
    - {left: {local_steps: 1}, relation: above, right: {local_steps: 20}, measure: logarithm}
"""
PAPER = "{title: A paper, items: [tuned, missing], page: {measures: {loss: {metric: train_loss, digits: 4}}}}"
CODE = "def block(item, out):\n    return f'block of {item.name} with {len(item.study.runs)} runs'\n"


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a paper with one study that has run and one whose data are missing; its page is in `pages`."""
    folder = tmp_path_factory.mktemp("papers") / "tiny"
    folder.mkdir()
    study = STUDY + f"output: {folder}/runs\n"
    for name, text in (("base", BASE), ("tuned", study), ("missing", MISSING + f"output: {folder}/none\n")):
        (folder / f"{name}.yaml").write_text(text)
    (folder / "paper.yaml").write_text(PAPER)
    (folder / "code.py").write_text(CODE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPIFL_DATA", str(folder / "nowhere"))
        assert main(["reproduce", str(folder), "--processes", "1", "--out", str(folder / "pages")]) == 0
    return folder


def test_page_of_selected_values(paper: Path) -> None:
    """A method has one row, whatever was selected for it, with the selected value beside the number. Of 7 combinations
    in 2 settings seed 0 has all 14 runs, and seeds 1 and 2 have the 6 that it selects."""
    text = (paper / "pages" / "tiny.md").read_text()
    assert "26 of 26 runs, 2 trials of each setting" in text
    rows = [line for line in text.splitlines() if line.startswith("| Fed")]
    assert [row.split()[1] for row in rows] == ["FedAvg", "FedProx", "FedDR"]
    assert [row.count(f"; {key} ") for row, key in zip(rows, ("", "mu", "eta"), strict=True)] == [0, 2, 2]
    assert rows[2].count("; step size ") == 2 and ";" not in rows[0]
    assert "(over seed 0; the other seeds are reported)" in text
    assert "block of tiny/tuned with 42 runs" in text
    assert "raining loss against steps" in text and (paper / "pages" / "tiny-tuned-1.png").stat().st_size > 10_000
    assert "loss of FedDR, local steps 3 is above that of FedProx, local steps 3" in text


@pytest.mark.parametrize(("tail", "last"), [(2, "the last 2 evaluations"), ("all", "all evaluations")])
def test_a_table_says_over_which_evaluations_a_value_is_the_mean(
    tail: Any, last: str, paper: Path, tmp_path: Path
) -> None:  # fmt: skip
    with changed(paper / "paper.yaml", "digits: 4", f"digits: 4, tail: {tail}"):
        assert main(["reproduce", str(paper / "tuned.yaml"), "--no-runs", "--out", str(tmp_path)]) == 0
    text = (tmp_path / f"{paper.name}-tuned.md").read_text()
    assert f"over the trials. For loss: the mean of the metric over {last}.\n" in text
    assert "For loss" not in (paper / "pages" / "tiny.md").read_text()


def test_a_claim_about_some_values_of_an_axis(paper: Path, tmp_path: Path) -> None:
    with changed(paper / "tuned.yaml", "each: local_steps}", "each: local_steps, values: [3]}"):
        assert main(["reproduce", str(paper / "tuned.yaml"), "--no-runs", "--out", str(tmp_path)]) == 0
    text = (tmp_path / f"{paper.name}-tuned.md").read_text()
    (claim,) = [line for line in text.splitlines() if line.startswith("| loss of FedDR")]
    assert "local steps 3 is above that of FedProx, local steps 3" in claim


def test_values_and_difference_of_a_claim_are_means_over_the_trials(paper: Path, tmp_path: Path) -> None:
    """Also of the time to a level, where the tables have that of the mean curve; the bound's digits are shown."""
    runs = [load_trial(run) for run in sorted((paper / "runs").glob("tuned-2-FedAvg-[12]-*.h5"))]
    losses = np.array([run.evaluations.train_loss for run in runs])
    level = float(losses[:, 2].mean())
    times = [run.evaluations.time[np.argmax(run.evaluations.train_loss <= level)] for run in runs]
    assert len({*times}) == 2  # and the mean curve is at the level at 2 s
    claim = "{left: {method: FedAvg, local_steps: 2}, relation: below, right: 7.25, measure: time}"
    time = f"{{metric: train_loss, reaches: {level!r}, digits: 1}}"
    measures = f"{{loss: {{metric: train_loss, digits: 4}}, time: {time}}}"
    text = (paper / "tuned.yaml").read_text()
    old = text[text.index("claims: ") : text.index("output: ")]
    with changed(paper / "tuned.yaml", old, f"claims: [{claim}]\n  measures: {measures}\n"):
        assert main(["reproduce", str(paper / "tuned.yaml"), "--no-runs", "--out", str(tmp_path)]) == 0
    (line,) = [line for line in (tmp_path / "tiny-tuned.md").read_text().splitlines() if line.startswith("| time of")]
    assert f"| {np.mean(times):.1f}: {np.mean(times) - 7.25:+.2f} (" in line


def test_an_item_whose_data_are_missing_is_named(
    paper: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (paper / "pages" / "tiny.md").read_text()
    not_run = "## Missing\n\nNot run: these data are missing: femnist."
    assert text.endswith(f"{not_run}\n\n## How claims are judged\n\n{NOTE}\n")
    refused("reproduce", paper / "missing.yaml", "--no-runs", "--out", paper / "other")
    monkeypatch.setenv("MPIFL_DATA", str(paper / "nowhere"))
    error = refused("reproduce", paper / "missing.yaml", "--out", paper / "other")
    assert error.startswith("mpifl: tiny/missing=data femnist: ") and "--download" in error
    assert not (paper / "none").exists()


def test_the_part_of_an_item_whose_data_are_there_is_run(
    paper: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPIFL_DATA", str(paper / "nowhere"))
    femnist = "{problem.data: femnist, problem.clients: null, problem.partition: null}"
    axes = f"axes: {{data: {{digits: {{}}, FEMNIST: {femnist}}}}}\n"
    study = f"name: part\njob: base.yaml\n{axes}trials: 1\npage: {{title: Part}}\noutput: {tmp_path}/runs\n"
    (paper / "part.yaml").write_text(study)
    assert main(["reproduce", str(paper / "part.yaml"), "--processes", "1", "--out", str(tmp_path)]) == 0
    assert "not run: tiny/part=data femnist: cannot be read" in capsys.readouterr().out
    text = (tmp_path / "tiny-part.md").read_text()
    assert "1 of 2 runs, 1 trial of each setting" in text and "These data are missing: femnist." in text
    assert "| digits |" in text and "| FEMNIST |" not in text
    (paper / "part.yaml").write_text(study.replace("title: Part", "title: Part, measures: {}"))
    assert main(["reproduce", str(paper / "part.yaml"), "--no-runs", "--out", str(tmp_path)]) == 0
    assert "| digits |" not in (tmp_path / "tiny-part.md").read_text(), "a page without measures has no table of them"


def test_a_line_is_named_by_the_axes_that_its_runs_have(
    paper: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = "axes: {varied: {steps: {algorithm.local_steps: [2, 3]}, rate: {algorithm.step_size: [0.05]}}}\n"
    figure = "page: {title: Lines, figures: [{y: train_loss, panels: varied}]}\n"
    (paper / "lines.yaml").write_text(
        f"name: lines\njob: base.yaml\n{axes}trials: 1\n{figure}output: {tmp_path}/runs\n"
    )
    drawn: list[Panel] = []
    monkeypatch.setattr(page, "draw_panels", lambda path, panels, *rest, **options: drawn.extend(panels))
    assert main(["reproduce", str(paper / "lines.yaml"), "--processes", "1", "--out", str(tmp_path)]) == 0
    named = [(panel.title, [*panel.curves]) for panel in drawn]
    assert named == [("varied steps", ["local steps 2", "local steps 3"]), ("varied rate", ["step size 0.05"])]


def test_trials_on_the_command_line_keep_what_they_vary(paper: Path) -> None:
    runs = load_study(paper / "tuned.yaml", ["trials=5"]).runs
    assert {run.seed for run in runs} == set(range(5))
    assert all(run.job.problem.partition.seed == run.seed for run in runs)  # type: ignore[union-attr]


def test_measures_of_local_steps_logarithms_and_fallbacks(paper: Path) -> None:
    """4 rounds of 2 steps with all clients: 0, 2, 4, 6, 8 local steps of a client at the evaluations."""
    run = load_study(paper / "tuned.yaml").runs[0]
    trial = load_trial(run.path)
    assert trial_curve(trial, "train_loss", "local_steps").x.tolist() == [0, 2, 4, 6, 8]
    with mpifl.open_run(run.path) as file:
        norm, loss = file.evaluations.gradient_norm.to_numpy(), file.evaluations.train_loss.to_numpy()
    squared = Measure("gradient_norm", power=2, tail=2, log=True)
    assert trial_value(squared, trial) == pytest.approx(np.log10((norm[-1] ** 2 + norm[-2] ** 2) / 2))
    assert trial_value(Measure("train_loss", x="local_steps", until=4), trial) == loss[2]
    personal = Measure("personal_accuracy_mean", fallback="train_loss")
    assert trial_value(personal, trial) == loss[-1]
    assert np.isnan(trial_value(Measure("personal_accuracy_mean"), trial))


def test_largest_value_of_an_axis(paper: Path, tmp_path: Path) -> None:
    """Steps of 0.05 and 0.1 keep the loss below 10, a step of 100,000 does not."""
    (paper / "limits.yaml").write_text(LIMITS + f"output: {tmp_path}/runs\n")
    assert main(["reproduce", str(paper / "limits.yaml"), "--processes", "1", "--out", str(tmp_path)]) == 0
    text = (tmp_path / f"{paper.name}-limits.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith(("| 1 ", "| 20 "))]
    assert len(rows) == 2 and all("0.10 (0.10-0.10)" in row and "-1.00 (-1.00 to -1.00)" in row for row in rows)
    assert "12 of 12 runs, 2 trials of each setting" in text
    assert "argest step against local steps" in text and (tmp_path / f"{paper.name}-limits-1.png").exists()
    verdicts = [line.split("|")[-2].strip() for line in text.splitlines() if line.startswith("| largest step of")]
    assert verdicts == ["holds"] and "does not hold" in text


def test_the_largest_value_has_no_gap_below_it() -> None:
    """0.4 passes, but 0.2 does not; where the smallest value does not pass there is none."""
    assert largest_passed([(0.4, True), (0.1, True), (0.2, False)]) == 0.1
    assert largest_passed([(0.1, False), (0.2, True)]) == 0
    with pytest.raises(ConfigError, match="at_most"):
        Measure("train_loss", over="step_size")


FIGURE, EACH, OVER = "{y: train_loss, x", "each: local_steps}", "[algorithm.mu, algorithm.eta, algorithm.step_size]"
MISTAKES = [
    (FIGURE, "{y: train_loss, against: local_steps, x", "figures[0].y=train_loss: no such measure; expected one of "),
    (FIGURE, "{y: loss, against: steps, x", "figures[0].against=steps: no such axis; expected one of local_steps, "),
    ("code.py:block", "code.py:blok", "code.py:blok: code.py has no such function; expected a function of code.py"),
    ("code.py:block", "cod.py:block", "cod.py:block: no such file; expected FILE.py:NAME, a file beside the study"),
    ("x: local_steps", "x: local_step", "page.figures"),
    (OVER, "[algorithm.et]", "select.over=algorithm.et: no such axis"),
    (OVER, "[]", "select.over="),
    (EACH, "each: local_steps, values: [4]}", "page.claims[0].values=4: local_steps has no such value"),
    (EACH, "values: [3]}", "claims[0].values=[3]: there is no `each`, whose values they are"),
]


@pytest.mark.parametrize(("old", "new", "line"), MISTAKES)
def test_mistakes_are_one_line(
    paper: Path, tmp_path: Path, refused: Callable[..., str], old: str, new: str, line: str
) -> None:
    with changed(paper / "tuned.yaml", old, new):
        assert line in refused("reproduce", paper / "tuned.yaml", "--no-runs", "--out", tmp_path)


# -- the code beside the papers' studies -------------------------------------------------------------------------------
def module(name: str) -> ModuleType:
    """A module of `jobs`, by its path without .py."""
    spec = importlib.util.spec_from_file_location(name.replace("/", "_"), JOBS / f"{name}.py")
    assert spec and spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize("algorithm", ["{name: fedpd, eta: 10}", "{name: feddr, alpha: 1.95, eta: 100}"])
def test_losses_at_own_models(algorithm: str, tmp_path: Path) -> None:
    """The global model's loss is that of the run file; with one user and eta large its own model fits better."""
    job = mpifl.load_job(JOBS / "feddr/synthetic.yaml", f"algorithm={algorithm}", "algorithm.step_size=0.01",
                         "stop.updates=6", "problem.clients=3", output=str(tmp_path / "run.h5"))  # fmt: skip
    with mpifl.run(job) as run:
        last = float(run.evaluations.train_loss.iloc[-1])
    at_server, at_users = module("feddr/own_models").losses(job)
    assert at_server == pytest.approx(last, rel=1e-6) and at_users != pytest.approx(at_server, rel=1e-3)


def test_least_eigenvalues_with_one_device() -> None:
    """At W = 0 the Hessian is X'X/n (x) (I/C - 11'/C^2), largest/C its largest eigenvalue: with one device the least
    eigenvalue is 1/(1 + largest/C) with exact solutions and mu = 1, (1 - eta largest/C)^M after M steps with mu = 0."""
    job = mpifl.load_job(JOBS / "feddane/synthetic.yaml", "problem.data={name: synthetic-iid}", "problem.clients=1",
                         "algorithm={name: feddane, cohort: 1, step_size: 0.01, local_epochs: 2}")  # fmt: skip
    problem = mpifl.load_problem(job)
    rows: Any = np.asarray(problem.shard(0)[0], float)
    rows = np.column_stack([rows, np.ones(len(rows))])
    largest = np.linalg.eigvalsh(rows.T @ rows / len(rows))[-1]
    as_run, exact = module("feddane/stability").least_eigenvalues(job, np.zeros(problem.d))
    assert exact == pytest.approx(1 / (1 + largest / 10), rel=1e-6)
    assert as_run == pytest.approx((1 - 0.01 * largest / 10) ** (2 * -(-len(rows) // 10)), abs=1e-6)


def test_dissimilarity_of_gradients_and_the_error_of_a_cohort() -> None:
    """Orthogonal unit gradients: B = sqrt(N). Uniform draws without replacement, equal weights: E|g_t - grad f|^2 is
    (N - K)/(K (N - 1)) times the mean of |grad F_k - grad f|^2, here (1 - 1/N), and |grad f|^2 = 1/N."""
    dissimilarity, n = module("feddane/dissimilarity"), 5
    gradients, p = np.eye(n), np.full(n, 1 / n)
    assert dissimilarity.dissimilarity(gradients, p) == pytest.approx(n**0.5)
    assert dissimilarity.dissimilarity(np.ones((n, 2)), p) == pytest.approx(1)
    for cohort in (1, 2, 5):
        expected = (n - cohort) / (cohort * (n - 1)) * (1 - 1 / n) * n
        assert dissimilarity.cohort_error(gradients, p, cohort) == pytest.approx(expected**0.5, abs=1e-9)


def test_rho_by_the_interval_between_evaluations() -> None:
    """The first evaluation with 80 %, as a share of the horizon; mean and root mean square of the differences."""
    grids, mean = module("area/grids"), pd.Series([0.1, 0.81, 0.7, 0.8, 0.9], index=[0.0, 0.5, 1.0, 1.5, 2.0])
    assert grids.first_share(mean, 2.0) == 0.25 and grids.first_share(mean.iloc[::2], 2.0) == 1.0
    assert grids.first_share(mean.iloc[:1], 2.0) == np.inf
    assert grids.describe(np.array([0.3, -0.1, np.inf])) == "+0.100, 0.224 (2)"


def test_fedprox_from_the_last_model() -> None:
    """y <- y - eta (grad f(y) + mu (y - x)), from the y of the contact before; the first one is the initial model."""
    (client,), y = random_quadratics(3, 1), np.ones(3)
    algorithm = WarmFedProx(step_size=0.1, local_steps=3, mu=0.7, solver=Gd())
    state = algorithm.init_client(y, 0)
    for x in (np.ones(3), np.array([0.2, -1.0, 2.0])):
        update = algorithm.train(state, Message((x,)), client)
        for _ in range(3):
            y = y - 0.1 * (client.gradient(y) + 0.7 * (y - x))
        np.testing.assert_allclose(update.vectors[0], y, rtol=1e-12)


def test_the_printed_saving_of_fedpd() -> None:
    """Table III: p = sqrt(r/(36 eta^2)) below (1 - 2 L eta)/(1 + L eta), 1 - 2/log(r/(42 eta^2)) above."""
    saving, L = module("fedpd/saving"), 2.0
    eta = (np.sqrt(5) - 1) / (8 * L)
    for p in (0.01, 0.5, 0.7, 0.99):
        assert saving.printed_saving(saving.printed(p, eta, L), eta, L) == pytest.approx(p)
    assert saving.printed(0.5, eta, L) == pytest.approx(9 * eta**2)
    assert saving.printed(0.8, eta, L) == pytest.approx(42 * eta**2 * np.e**10)
    assert saving.printed_saving(1.0, eta, L) == pytest.approx((1 - 2 * L * eta) / (1 + L * eta))  # between the two


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("{name: fedpd, solver: gd, local_steps: 3}", 6 * 400),
        ("{name: fedpd, solver: sgd, local_steps: 3}", 6),
        ("{name: fedpd, solver: sarah, local_steps: 3, refresh: 2}", 2 * 6 + 400),
        ("{name: fedprox, solver: sarah, local_steps: 3}", 2 * 6 + 2 * 400),
    ],
)
def test_sample_gradients_are_those_that_a_client_computes(algorithm: str, expected: int) -> None:
    """Two rounds of one agent: the rows of all calls of its objective's gradient."""
    job = mpifl.load_job(JOBS / "fedpd/logistic.yaml", f"algorithm={algorithm}", "problem.clients=1")
    problem, method = mpifl.load_problem(job), job.algorithm
    parts = job.problem.settings, problem.meta
    objective = job.problem.model.objective(*parts, problem.shard(0), 0, 0)
    computed, gradient = [], objective.gradient

    def counted(x: np.ndarray, rows: Any = None) -> np.ndarray:
        computed.append(400 if rows is None else len(objective.x[rows]))
        return gradient(x, rows)

    objective.gradient = counted
    x0 = problem.initial(0)
    server, client = method.init_server(x0, Clients(problem.samples)), method.init_client(x0, 0)
    for k in range(2):
        method.begin_round(server, [0])
        method.train(client, method.message(server, 0)._replace(version=k, round=k), objective)
    assert sum(computed) == expected == module("fedpd/counts").sample_gradients(job, 400, 6, 2)


def test_irregular_clients_have_the_listed_times_and_others_the_mean() -> None:
    """The first quarter has the times of the list, the others their geometric mean, times the epochs."""
    from mpifl.jobs.asypfl.irregular_delays import Irregular

    delay = Irregular(compute=[1.0, 2.0, 4.0, 8.0], exchange=[1.0, 1.0, 1.0, 16.0], fraction=0.25, epochs=5)
    assert np.allclose(1 / delay.rates(4, 0), [6, *3 * [5 * 2**1.5 + 2]])


def test_letters_on_devices(tmp_path: Path) -> None:
    """Device k has the consecutive letters k to k + 4 of a to j, nine tenths of its rows to train on, no row twice."""
    from mpifl.jobs.feddane.letters import Letters

    folder, n = tmp_path / "emnist-letters", 26 * 40
    folder.mkdir()
    labels = np.arange(n) % 26 + 1
    images = np.arange(n, dtype=np.uint32).view(np.uint8).reshape(n, 4)
    pixels = np.zeros((n, 28, 28), np.uint8)
    pixels[:, 0, :4] = images
    for half in ("train", "test"):
        for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            (folder / f"emnist-letters-{half}-{kind}-ubyte").write_bytes(idx_bytes(array))
    rows = Letters().read(tmp_path, False, 3)
    assert rows.owner is not None and rows.owner_test is not None
    numbers = np.concatenate([rows.x, rows.x_test])
    assert len(np.unique(numbers, axis=0)) == len(numbers)
    for k in range(3):
        train, test = rows.y[rows.owner == k], rows.y_test[rows.owner_test == k]
        assert set(train) | set(test) <= {(k + j) % 10 for j in range(5)}
        assert len(train) == -(-9 * (len(train) + len(test)) // 10)


def test_rows_from_a_gradient_in_closed_form() -> None:
    """One row exactly at any model; at the zero model the means of the rows of each class, if a class has no rows."""
    from mpifl.jobs.exposure.attacks import class_means

    rng = np.random.default_rng(0)

    def gradient(x: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        scores = rows @ x[:24].reshape(6, 4) + x[24:]
        p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True) - np.eye(4)[labels]
        return np.concatenate([(rows.T @ p / len(rows)).ravel(), p.mean(0)])

    rows, labels = rng.random((3, 6)), np.array([2, 0, 2])
    x = rng.standard_normal(28)
    assert np.allclose(class_means(gradient(x, rows[:1], labels[:1]), x, labels[:1], 6), rows[:1])
    mean = (rows[0] + rows[2]) / 2
    assert np.allclose(class_means(gradient(0 * x, rows, labels), 0 * x, labels, 6), [mean, rows[1], mean])


def test_label_alone_leaves_out_the_row_that_is_attacked() -> None:
    from mpifl.jobs.exposure.attacks import other_means

    x, y = np.array([[1.0, 0.0], [3.0, 2.0], [5.0, 7.0], [2.0, 2.0]]), np.array([1, 1, 1, 0])
    found = other_means(x, y, x[[0, 1, 3]], y[[0, 1, 3]])
    assert np.array_equal(found, [[4.0, 4.5], [3.0, 3.5], [0.0, 0.0]])


@pytest.mark.parametrize(("sees", "exact"), [("messages", True), ("message", False)])
def test_the_sum_of_the_residuals_is_the_pseudo_gradient(sees: str, exact: bool, tmp_path: Path) -> None:
    """With M = 1 and batches of one row a server that keeps AREA's messages recovers every attacked row."""
    job = mpifl.load_job(JOBS / "exposure/digits.yaml", f"algorithm.sees={sees}", "problem.batch_size=1",
                         output=str(tmp_path / "run.h5"))  # fmt: skip
    with mpifl.run(job) as run:
        last = run.evaluations.iloc[-1]
    assert (last.gradient_error < 1e-9, last.recovered == 1, last.row_error < 1e-6) == (exact, exact, exact)


def test_passages_of_verse_and_prose() -> None:
    passages = module("torch/speeches").passages
    verse = "\n".join(["To be or not to be that is the question"] * 3)
    prose = (
        "What a piece of work is a man how noble in reason how infinite\n"
        "in faculty in form and moving how express and admirable in action"
    )
    assert [label for _, label in passages("\n".join([prose, verse, verse, verse, verse, verse]))] == [0, 1, 1]
