"""Text from files and other ranks is printed without characters that a terminal would act on."""

from __future__ import annotations

import io
import logging
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import yaml

from mpifl.cli import main
from mpifl.config import yaml_io
from mpifl.errors import ConfigError
from mpifl.runfile.create import Start
from mpifl.runfile.tables import EvaluationRow, EventRow
from mpifl.runfile.writer import RunWriter
from mpifl.safe_input import printable
from mpifl.tools.analysis.report import report

EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\x7f\u202egnp.exe\u2066\u200f\u2028x\rover\n0.1 s  forged"
CONFIG: dict[str, Any] = {"name": EVIL, "algorithm": {"name": f"a|b<img src=x>[y](z)`{EVIL}", "step_size": 0.1}}
ALLOWED = re.compile(
    "[\n\t\x20-\x7e\xa0-\u061b\u061d-\u200d\u2010-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufefe\uff00-\uffff]*"
)


def write(path: Path, **algorithm: Any) -> Path:
    config = {**CONFIG, "algorithm": {**CONFIG["algorithm"], **algorithm}}
    attrs = {"name": EVIL, "algorithm": EVIL, "config": yaml.safe_dump(config), "clock": EVIL, "hosts": "[]"}
    clients = {"samples": np.arange(3), "rank": np.ones(3), "rate": None}
    writer = RunWriter(path, Start(attrs, clients, np.zeros(5), [("w", (5,))]))
    writer.append(EventRow(0.5, "lost", 1, EVIL))
    writer.append(EvaluationRow(0.5, 0, 0, test_accuracy=0.5, train_loss=1.0))
    writer.close("completed", np.ones(5))
    with h5py.File(path, "r+", libver="latest") as file:
        file.attrs["hosts"] = '["\\u001b[2J\\u202e"]'
        file["events/kind"][0] = "lo\x1b[1mst"
    return path


def check(text: str) -> None:
    assert ALLOWED.fullmatch(text), repr(text)


def test_show_escapes_what_a_file_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(write(tmp_path / "run.h5"))]) == 0
    out = capsys.readouterr().out
    check(out)
    assert "\\x1b[2J\\x1b]0;owned\\x07\\x9b31m\\x7f\\u202egnp.exe" in out and "\\u202e (1 rank)" in out
    assert not [line for line in out.splitlines() if line.startswith("0.1 s")], "no value makes a line of its own"
    assert "lo\\x1b[1mst client 1  \\x1b[2J" in out


def test_report_escapes_labels_in_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [write(tmp_path / "a.h5"), write(tmp_path / "b.h5", name="$\\frac{$x", **{"k\x1b[2J|": EVIL})]
    shown = ["--figures", "accuracy", "--formats", "md,csv,tex,pdf"]
    assert main(["report", *map(str, files), "--out", str(tmp_path / "out"), *shown]) == 0
    check(capsys.readouterr().out)
    for name in ("report.md", "report.csv", "report.tex"):
        check((tmp_path / "out" / name).read_text())
    table = [line for line in (tmp_path / "out" / "report.md").read_text().splitlines() if line.startswith("|")]
    assert len(table) == 4 and len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1, table
    assert "a\\|b\\<img src=x\\>\\[y\\](z)\\`" in "".join(table)
    check(report(files))


def test_errors_and_log_lines_are_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(str(ConfigError("key", EVIL, f"something else ({EVIL})", "right")))
    assert str(ConfigError("k", "\x1b[2J a\nb", "c", "d")) == "k=\\x1b[2J a b: c; expected d"
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)

    def fail(*_: object, **__: object) -> None:
        logging.getLogger("mpifl").warning("rank 3 said %s", EVIL)
        raise RuntimeError(EVIL)

    monkeypatch.setattr("mpifl.execution.replay_task", fail)
    assert main(["replay", "x.h5"]) == 3
    assert "rank 3 said \\x1b[2J" in stream.getvalue() and "RuntimeError: \\x1b[2J" in stream.getvalue()
    check(stream.getvalue())


def test_configurations_are_printed_so_that_they_read_back_equal() -> None:
    """As `mpifl check` prints them."""
    values = {"a": EVIL, "b": "düsseldorf"}
    text = yaml_io.dump(values)
    check(text)
    assert yaml_io.parse(text) == values and "düsseldorf" in text


def test_printable_text_has_no_control_characters() -> None:
    assert printable("a\tb\nc") == "a\\tb\\nc" and printable("a\tb\nc", lines=True) == "a\tb\nc"
    assert printable("über 北 \U0001f600") == "über 北 \U0001f600"
    assert printable("x" * 10, most=4) == "xxxx ..."
    for code in range(0x10000):
        check(printable(chr(code)))
