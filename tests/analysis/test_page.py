"""The HTML page of a report: what it holds, that nothing in a run file becomes markup, and how a browser shows it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifl.cli import main
from mpifl.tools.analysis import page as page_module
from mpifl.tools.analysis.options import Options
from mpifl.tools.analysis.report import report
from tests.analysis.test_analysis import OWN, run_file

HTML = Options(formats=("html",))
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">'&\x1b[31m"


class Parsed(HTMLParser):
    """Elements of a page, and their attributes that load something or are scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        loading = ("src", "href", "srcset", "action", "data")
        self.loads += [key for key, _ in attrs if key in loading or key.startswith("on")]


def rows_of(text: str) -> list[list[str]]:
    """The rows of a page's tables."""
    rows = re.findall(r"<tr.*?</tr>", text, re.S)
    cells = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.S) for row in rows]
    return [[unescape(re.sub("<.*?>", "", cell)) for cell in row] for row in cells]


def made(paths: list[Path], out: Path, options: Options = HTML) -> str:
    assert report(paths, out, options).endswith(f"wrote {out / 'report.html'}")
    return (out / "report.html").read_text(encoding="utf-8")


def data_of(text: str) -> Any:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    assert found
    return json.loads(found[1])


def three(folder: Path) -> list[Path]:
    return [
        run_file(folder / "a0.h5", [0.1, 0.7, 0.9], [2.0, 1.0, 0.5], seed=0),
        run_file(folder / "a1.h5", [0.1, 0.8, 0.8], [2.0, 1.0, 0.25], seed=1),
        run_file(folder / "b0.h5", [0.1, 0.5, 0.6], [2.0, 1.5, 1.0], seed=0, step_size=2.0),
    ]


def test_the_curves_and_the_table(tmp_path: Path) -> None:
    text = made(three(tmp_path), tmp_path / "out")
    data = data_of(text)
    assert [metric["key"] for metric in data["metrics"]] == ["test_accuracy", "train_loss"]
    assert [x["key"] for x in data["xs"]] == ["time", "updates", "rounds"]
    first, second = data["curves"]["test_accuracy updates"]
    assert first == [[0, 2, 4], [10, 75, 85], [10, 70, 80], [10, 80, 90]], "percent: mean, smallest, largest"
    assert second == [[0, 2, 4], [10, 50, 60]], "one trial has no band"
    assert [group["name"] for group in data["groups"]] == ["step size 1", "step size 2"]
    assert data["groups"][0]["dash"] == [] and data["groups"][1]["dash"], "lines differ by more than colour"
    rows = rows_of(text)
    head = rows[0]
    assert dict(zip(head, rows[1], strict=True))["accuracy %"] == "85.00 (80.00–90.00)"
    assert dict(zip(head, rows[2], strict=True))["accuracy %"] == "60.00"
    assert ["group", "algorithm.step_size"] in rows and ["step size 2", "2"] in rows
    assert "<p>None.</p>" in text and "3 runs in 2 groups, 3 completed" in text
    assert "its band the range from the smallest value to the largest" in text


def test_what_failed_is_named_with_the_reason(tmp_path: Path) -> None:
    paths = three(tmp_path)
    paths.append(run_file(tmp_path / "c0.h5", [0.1], status="failed", seed=5))
    (tmp_path / "d.h5").write_bytes(b"no run file")
    rows = rows_of(made([tmp_path], tmp_path / "out"))
    listed = {row[0]: row[1:] for row in rows if row[0].endswith(".h5")}
    assert listed[str(tmp_path / "d.h5")] == ["cannot be read", "no HDF5 file; expected a run file of mpifl"]
    assert listed[str(tmp_path / "c0.h5")][0] == "failed" and len(listed) == 2


@pytest.mark.damaged
def test_text_of_run_files_is_no_markup(tmp_path: Path) -> None:
    paths = [run_file(tmp_path / f"{k}.h5", [0.1, 0.2], name=f"{HOSTILE}{k}", option=HOSTILE + str(k)) for k in (0, 1)]
    bad = tmp_path / f"{HOSTILE[:9].replace('/', '')}'\"<b>.h5"
    bad.write_bytes(b"x" * 20)
    text = made([*paths, tmp_path], tmp_path / "out<i>")
    found = Parsed(text)
    assert found.tags.count("script") == 3 and not {"img", "b", "i"} & set(found.tags)
    assert not found.loads and "\x1b" not in text
    assert [group["name"].count("</script>") for group in data_of(text)["groups"]] == [4, 4], "twice in each label"
    assert unescape(text).count("document.title='owned'") > 4


def test_only_the_scripts_of_the_package_may_run(tmp_path: Path) -> None:
    text = made([run_file(tmp_path / "a.h5", [0.1])], tmp_path / "out")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")
    scripts = re.findall(r"<script>(.*?)</script>", text, re.S)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert re.findall(r"'sha256-([^']*)'", policy) == hashes and len(hashes) == 2
    assert "url(" not in text and "@import" not in text and "src=" not in text


def test_thinned_curves_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "MAX_POINTS", 5)
    monkeypatch.setattr(page_module, "MIN_POINTS", 5)
    text = made([run_file(tmp_path / "a.h5", np.linspace(0, 1, 21).tolist(), horizon=20.0)], tmp_path / "out")
    assert data_of(text)["curves"]["test_accuracy time"] == [[[0, 5, 10, 15, 20], [0, 25, 50, 75, 100]]]
    assert "Curves with more than 5 points (the longest has 21) are thinned to 5 evenly spaced ones" in text
    assert "are thinned" not in made([run_file(tmp_path / "b.h5", [0.1, 0.2])], tmp_path / "two")


def test_the_curves_and_the_figures_of_metrics(tmp_path: Path) -> None:
    """Built-in ones and accuracies in percent, the variance in squares of percent; beside a run without them."""
    metrics = {"auroc": 0.75, OWN: 3.5}, {"auroc": 0.25, OWN: 2.5}, None
    paths = [run_file(tmp_path / f"{seed}.h5", [0.5], seed=seed, by_client=[0.2, 0.6], metrics=values)
             for seed, values in enumerate(metrics)]  # fmt: skip
    for count in (2, 3):
        out = tmp_path / str(count)
        report(paths[:count], out, Options(formats=("html", "png"), figures=("auroc", OWN)))
        data = data_of((out / "report.html").read_text(encoding="utf-8"))
        labels = {metric["key"]: metric["label"] for metric in data["metrics"]}
        assert (labels["auroc"], labels[OWN]) == ("auroc (%)", OWN)
        first = {key: data["curves"][f"{key} time"][0][1:] for key in ("auroc", OWN, "client_accuracy_variance")}
        assert first == {"auroc": [[50], [25], [75]], OWN: [[3], [2.5], [3.5]],
                         "client_accuracy_variance": [[400], [400], [400]]}  # fmt: skip
        assert {"auroc.png", "mine_f.png"} <= {path.name for path in out.iterdir()}
    paths.append(run_file(tmp_path / "other.h5", [0.5], step_size=0.5))  # a group without the metric
    report([paths[0], paths[3]], tmp_path / "groups", Options(formats=("png",), figures=("auroc",)))
    assert (tmp_path / "groups" / "auroc.png").exists()


def test_a_study_is_compared_at_its_selected_steps_and_its_page_names_a_missing_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text(json.dumps({
        "name": "base", "seed": 0, "problem": {"clients": 2, "model": {"name": "quadratic", "dim": 2}},
        "algorithm": {"name": "area", "step_size": 0.1}, "clock": {"mode": "virtual", "delay": "exponential"},
        "stop": {"updates": 6}, "evaluate": {"updates": 2},
    }))  # fmt: skip
    methods = {
        m: {"algorithm.name": name, "algorithm.step_size": [0.1, 0.2]} for m, name in (("A", "area"), ("B", "fedavg"))
    }
    study = {"name": "tiny", "job": "base.yaml", "axes": {"method": methods}, "trials": 2,
             "select": {"over": "algorithm.step_size", "by": "train_loss"}}  # fmt: skip
    Path("study.yaml").write_text(json.dumps(study))
    assert main(["sweep", "study.yaml", "--processes", "1"]) == 0
    capsys.readouterr()
    assert main(["compare", "study.yaml", "--baseline", "B"]) == 0
    out = capsys.readouterr().out
    assert "step_size" not in out.splitlines()[0] and "Caution: selected at the edge of its grid" in out
    assert "Caution: with 2 pairs p is at least 0.5" in out
    next(Path("results/tiny").glob("*A-0.2-0*.h5")).unlink()
    assert main(["report", "study.yaml", "--out", "out", "--formats", "html"]) == 0
    text = Path("out/report.html").read_text(encoding="utf-8")
    assert "<title>tiny</title>" in text
    assert "the value of algorithm.step_size with the smallest mean train_loss" in text, "the selection, in the caption"
    (row,) = [row for row in rows_of(text) if row[0].startswith("method A, algorithm.step_size 0.2, seed 0 (")]
    assert row[1:] == ["waiting", "not begun; mpifl sweep runs it"]


# -- in a browser ------------------------------------------------------------------------------------------------------
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OWN_SERVICES = r"https?://[\w.-]*\b(google|googleapis|gvt1)\.com/"  # that the browser asks for by itself
DRIVE = """
<script>addEventListener('load', () => setTimeout(async () => {
  const pause = () => new Promise((go) => setTimeout(go, 200));
  const all = (s) => [...document.querySelectorAll(s)], one = (s) => document.querySelector(s), facts = {};
  const column = (k) => all('#table tbody tr').map((row) => row.cells[k].textContent);
  const press = (key, times = 1) => { for (let k = 0; k < times; k++)
    one('#plot').dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true})); };
  const mouse = (type, x, y, where = one('.u-over')) => { const box = one('.u-over').getBoundingClientRect();
    where.dispatchEvent(new MouseEvent(type, {clientX: box.left + x * box.width, clientY: box.top + y * box.height,
      bubbles: true, button: 0, movementX: 9, movementY: 1})); };
  facts.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  facts.canvas = all('canvas').length;
  const pixels = (c) => new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer));
  facts.colours = pixels(one('canvas')).size;
  press('ArrowRight', 60);
  facts.values = all('#lines output').map((o) => o.textContent);
  facts.place = one('#place').textContent;
  one('#lines input').click();
  await pause();
  press('ArrowRight', 60);
  facts.hidden = all('#lines output').map((o) => o.textContent);
  one('#lines input').click();
  await pause();
  mouse('mousedown', 0.5, 0.2); mouse('mousemove', 0.5, 0.2); mouse('mousemove', 0.9, 0.25, document);
  mouse('mousemove', 0.9, 0.25); mouse('mouseup', 0.9, 0.25, document);
  await pause();
  press('ArrowLeft', 60);
  facts.zoomed = one('#place').textContent;
  one('#reset').click();
  await pause();
  press('ArrowRight', 1);
  facts.reset = one('#place').textContent;
  facts.before = column(4);
  all('#table th button')[4].click();
  facts.sorted = column(4);
  all('#table th button')[4].click();
  facts.reversed = column(4);
  facts.sort = all('#table th')[4].getAttribute('aria-sort');
  one('#metric').value = 'train_loss'; one('#metric').dispatchEvent(new Event('change'));
  facts.log = one('#log').checked;
  const names = all('select, input, button, summary, [tabindex]').map((e) => e.getAttribute('aria-label')
      || (e.labels && e.labels[0] ? e.labels[0].textContent.trim() : '') || e.textContent.trim());
  facts.unnamed = names.filter((name) => !name).length;
  facts.title = document.title;
  document.documentElement.setAttribute('data-check', JSON.stringify(facts));
}, 300))</script>
"""


def in_a_browser(test: Any) -> Any:
    return pytest.mark.long(pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")(test))


def browse(path: Path, folder: Path, width: int) -> tuple[str, Any]:
    """The page's document after its scripts ran, and what one of them found; it logs nothing and asks for nothing."""
    assert CHROMIUM
    log = folder / "net.json"
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
        "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--virtual-time-budget=8000",
        f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}", "--net-log-capture-mode=Everything",
        f"--window-size={width},900", "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    urls = re.findall(r'"url":"((?:https?|wss?|ftp)[^"]*)"', log.read_text())
    asked = [url for url in urls if not re.match(OWN_SERVICES, url)]
    assert "CONSOLE" not in done.stderr and not asked, (path, width, done.stderr, asked)
    found = re.search(r'data-check="([^"]*)"', done.stdout)
    return done.stdout, json.loads(unescape(found[1])) if found else None


@in_a_browser
def test_a_browser_shows_the_page(tmp_path: Path) -> None:
    """With its policy as it is: no console error, no request. With a script that drives it: zoom, hover, hide, sort."""
    names = [f"{HOSTILE}", "b"]
    paths = [
        run_file(tmp_path / f"{k}{seed}.h5", [0.1, 0.3 + 0.2 * k, 0.5 + 0.1 * k + seed / 100, 0.6 + 0.3 * k],
                 [9.0, 1.0, 0.5, 0.1], seed=seed, name=names[k])
        for k in (0, 1) for seed in (0, 1)
    ]  # fmt: skip
    text = made(paths, tmp_path / "out")
    for width in (1400, 390):
        document, _ = browse(tmp_path / "out/report.html", tmp_path, width)
        assert "<title>out</title>" in document and document.count("<canvas") == 1
        driven = tmp_path / "driven.html"
        driven.write_text(re.sub(r'<meta http-equiv="Content[^>]*>', "", text).replace("</body>", f"{DRIVE}</body>"))
        _, facts = browse(driven, tmp_path, width)
        assert facts["title"] == "out" and facts["wide"] <= 0 and facts["canvas"] == 1 and facts["colours"] > 20
        assert facts["values"] == ["60", "90"] and facts["place"] == "virtual time (s): 3"
        assert facts["hidden"] == ["", "90"]
        zoomed = float(facts["zoomed"].partition(": ")[2])
        assert zoomed == pytest.approx(1.5, abs=0.1), "from the middle of 0 .. 3 s"
        assert facts["reset"] == "virtual time (s): 0"
        assert len(facts["before"]) == 2 and facts["sorted"] == sorted(facts["before"])
        assert facts["reversed"] == facts["sorted"][::-1] and facts["sort"] == "descending"
        assert facts["log"] is True and facts["unnamed"] == 0
