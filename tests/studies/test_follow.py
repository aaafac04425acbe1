"""A study while it runs: what `mpifl show --follow` and `mpifl report --watch` show, and that they end."""

from __future__ import annotations

import fcntl
import re
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mpifl.cli import main
from mpifl.tools.analysis.options import Options
from mpifl.tools.analysis.trials import Group, Trial
from mpifl.tools.studies import follow
from mpifl.tools.studies.study import Study, StudyRun, load_study
from mpifl.tools.studies.sweep import sweep

Write = Callable[..., Path]
SMALL = (("  clock.delay.spread: [0, 5]\n", ""), ("[10, 100]", "[10]"), ("[0.1, 1]", "[1]"))


def group(name: str, values: list[float], status: str = "completed") -> Group:
    frame = pd.DataFrame({"time": np.arange(len(values), dtype=float), "test_accuracy": values})
    return Group({"method": name}, [Trial(Path(), status, "virtual", {}, frame, 1.0, 0.0, 1)])


def computed(study: Study, only: Callable[[StudyRun], bool] = lambda run: True) -> None:
    """Sweeps a study in this process."""
    with ThreadPoolExecutor(1) as executor:
        sweep(study, 1, executor=executor, only=only)


def test_curves_as_text() -> None:
    """Eight heights between the lowest and the highest mean of all; the best curve is the first."""
    rising, level = group("rising", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]), group("level", [0.5] * 5, "running")
    title, first, second = follow.curves([level, rising], 41, 5)
    assert title == "test accuracy (%), mean over the trials so far, from 0 to 7 s"
    name, bars, value, done = re.split(" {2,}", first)
    assert (name, bars, value, done) == ("rising", "▁▁▂▃▄▄▅▆▇█", "80", "1 of 1 done")
    assert second.startswith("level   ▅▅▅▅▅") and second.endswith("50  0 of 1 done")
    assert follow.curves([level, rising], 80, 1)[-1] == "... and 1 more"
    assert follow.curves([], 80, 5) == ["no evaluation yet"]


def test_a_study_that_has_ended_is_shown_once(write: Write, printed: Callable[..., Any]) -> None:
    path = write("", *SMALL)
    computed(load_study(path))
    for words in ([str(path)], [str(path.parent / "out" / "small")]):
        assert printed("show", *words, "--follow").out == f"{path.parent}/out/small: 4 runs: 4 completed\n"


def test_a_terminal_is_drawn_again_until_the_sweep_has_ended(
    write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = load_study(write("", *SMALL))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    sweeping = threading.Thread(target=computed, args=(study,))
    sweeping.start()
    follow.follow(study.folder, print, 0.05)
    sweeping.join()
    screens = capsys.readouterr().out.split(follow.CLEAR)[1:]
    assert len(screens) > 1 and "4 completed" in screens[-1]


def test_the_page_is_made_again_while_the_study_runs(write: Write, tmp_path: Path) -> None:
    study, page, lines = load_study(write("", *SMALL)), tmp_path / "page" / "report.html", list[str]()
    options = Options(formats=("html",))
    computed(study, lambda run: run.seed == 0)
    with (study.folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        watching = threading.Thread(target=follow.watch_report, args=(study, page.parent, options, lines.append, 0.05))
        watching.start()
        while not lines:
            watching.join(0.05)
        text = page.read_text()
        assert '<meta http-equiv="refresh" content="10">' in text and "2 runs in 2 groups" in text
        assert lines == [f"2 completed, 2 waiting: wrote {page}"]
    computed(study)
    watching.join()
    assert lines[1].startswith("4 completed") and "refresh" not in page.read_text()
    assert "4 runs in 2 groups" in page.read_text()


def test_the_page_waits_for_trials_that_are_reported(write: Write, tmp_path: Path) -> None:
    study = load_study(write("select: {over: method, seeds: [0]}\n", *SMALL))
    lines, out = list[str](), tmp_path / "page"
    computed(study, lambda run: run.seed == 0)
    watching = threading.Thread(
        target=follow.watch_report, args=(study, out, Options(formats=("html",)), lines.append, 0.05)
    )
    watching.start()
    while not lines and watching.is_alive():
        watching.join(0.05)
    assert lines == ["2 completed, 2 waiting: no run to report yet"]
    computed(study)
    watching.join()
    assert "completed: wrote" in lines[-2] and "2 runs in 2 groups" in (out / "report.html").read_text()


WATCHED = ["show study.yaml --follow", "report study.yaml --watch --out page --formats html"]


@pytest.mark.parametrize("line", WATCHED)
def test_a_study_that_has_not_begun_is_waited_for(
    write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """One line says so. The first looks find no folder, then an empty one; then the sweep begins."""
    path, looks, pause = write("trials: 1\n", *SMALL, ("trials: 2\n", "")), 0, time.sleep
    study = load_study(path)

    def sleep(seconds: float) -> None:
        nonlocal looks
        assert seconds == follow.PERIOD
        looks += 1
        if looks == 2:
            study.folder.mkdir(parents=True)
        if looks == 4:
            monkeypatch.setattr(time, "sleep", pause)
            computed(study)

    monkeypatch.chdir(path.parent)
    monkeypatch.setattr(time, "sleep", sleep)
    assert main(line.split()) == 0
    waiting, *later = capsys.readouterr().out.splitlines()
    assert waiting == f"{study.folder}: no run has started yet, waiting" and looks == 4
    assert later[0].startswith(f"{study.folder}: 2 runs: 2 completed" if "show" in line else "2 completed: wrote page")


@pytest.mark.parametrize("line", WATCHED)
def test_ctrl_c_ends_the_wait(
    write: Write, printed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    path = write("", *SMALL)
    monkeypatch.chdir(path.parent)
    monkeypatch.setattr(time, "sleep", lambda seconds: signal.raise_signal(signal.SIGINT))
    out, err = printed(*line.split(), code=130)
    assert out == f"{path.parent}/out/small: no run has started yet, waiting\n" and not err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("show none.yaml --follow", "study=none.yaml: no such file"),
        ("show study.yaml --follow trials=0", "trials=0: not a number of trials"),
        ("show study.yaml other.yaml", "show=other.yaml: not key=value"),
        ("show study.yaml --follow=yes", "argument --follow: it takes no value, but was given 'yes'"),
        ("report study.yaml --watch", "watch=True: without --out DIR no files are written; give it as well"),
        ("report none.h5 --out page --watch", "--watch=none.h5: not a study; expected a STUDY.yaml"),
        ("report study.yaml --out page --watch --formats htm", "formats=htm: unknown"),
        ("report study.yaml trials=none --out page --watch", "trials=none: not a number of trials"),
    ],
)
def test_wrong_words_are_refused(
    write: Write, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, line: str, says: str
) -> None:
    monkeypatch.chdir(write("", *SMALL).parent)
    assert says in refused(*line.split())
