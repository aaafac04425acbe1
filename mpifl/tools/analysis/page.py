"""`mpifl report --formats html`: one HTML page with curves, table, configurations and what is missing.

The page holds all that it shows: it makes no request, and its policy of content lets the browser make none. Text that
comes from run files is escaped, and only the scripts of this package are allowed to run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpifl.config import yaml_io
from mpifl.config.read import flatten
from mpifl.errors import ConfigError
from mpifl.runfile.reader import open_run
from mpifl.safe_input import printable
from mpifl.text import format_count
from mpifl.tools.analysis import style
from mpifl.tools.analysis.curves import metric_label, progress_label
from mpifl.tools.analysis.options import METRICS, Options, scale_of
from mpifl.tools.analysis.spread import BANDS
from mpifl.tools.analysis.tables import Table
from mpifl.tools.analysis.trials import PROGRESS, SCALES, Group, differing_keys, format_value, have_values, own_metrics
from mpifl.version import source

ASSETS = Path(__file__).with_name("assets")
MAX_NUMBERS = 250_000  # numbers in all curves of a page, about 2 MB
MAX_POINTS, MIN_POINTS = 1000, 40  # points in a curve
MAX_INCOMPLETE = 1000  # runs that are listed
MAX_CONFIG = 20_000  # characters of a configuration
DASH_PIXELS = 2.2  # pixels in a unit of a dash
RELOAD = 10  # s after which a page of a study that still runs loads itself again
DIGITS = 6  # significant digits in the values of a curve
MAX_BANDS = 6  # bands shown at first: more than this hide one another


class Incomplete(NamedTuple):
    """A run that is not in a report, or not to its end."""

    run: str
    """run file, or labels with the run file"""
    status: str
    reason: str


def write_page(
    path: Path, title: str, table: Table, groups: Sequence[Group], options: Options, incomplete: Sequence[Incomplete],
) -> None:  # fmt: skip
    """Writes the page. Raises OSError.

    table       of the groups, a row each; its notes are the caption, with the rule of a selection
    incomplete  runs that failed or are missing, with the reason
    """
    curves, notes = curve_data(groups, options)
    configs = [_config(group) for group in groups]
    parts = [
        _header(title, groups),
        _curves_section(curves, notes),
        _section("table", "Table", [_table(table), *(f"<p>{_text(note)}</p>" for note in table.notes)]),
        _section("incomplete", "Runs that are missing or not completed", [_incomplete(incomplete)]),
        _section("configurations", "Configurations", _configurations(groups, configs)),
    ]
    scripts = [_asset("uplot.js"), _asset("page.js")]
    allowed = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}; base-uri 'none'; form-action 'none'"
    reload = f'\n<meta http-equiv="refresh" content="{RELOAD}">' if options.watch else ""
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">{reload}
<title>{_text(title)}</title>
<style>{_asset("uplot.css")}{_asset("page.css")}</style>
</head>
<body>
{"".join(parts)}
<script id="data" type="application/json">{script_json(curves)}</script>
<!-- The next script is uPlot 1.6.32, under this licence:
{_asset("uplot.LICENSE")}
-->
<script>{scripts[0]}</script>
<script>{scripts[1]}</script>
</body>
</html>
"""
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(page, encoding="utf-8")
    temporary.replace(path)  # a browser may be loading it


# -- curves ------------------------------------------------------------------------------------------------------------
def curve_data(groups: Sequence[Group], options: Options) -> tuple[dict[str, Any], list[str]]:
    """The curves of all metrics against all columns of progress that the runs have, and notes on what was left out."""
    found: dict[tuple[str, str], list[Any]] = {}
    columns = set.intersection(*({*trial.evaluations} for group in groups for trial in group.trials))
    metrics = [name for name in (*METRICS, *sorted(own_metrics(groups))) if have_values(groups, name)]
    metrics.sort(key=lambda name: name != "test_accuracy")
    xs = [x for x, column in PROGRESS.items() if column in columns]
    limit = max(MIN_POINTS, min(MAX_POINTS, MAX_NUMBERS // max(1, 4 * len(groups) * len(metrics) * len(xs))))
    thinned = 0
    for metric in metrics:
        for x in xs:
            curves = found[metric, x] = []
            for group in groups:
                curve = group.curve(metric, x, options.spread) * scale_of(metric)
                thinned = max(thinned, len(curve) if len(curve) > limit else 0)
                rows = np.unique(np.linspace(0, len(curve) - 1, min(limit, len(curve))).round().astype(int))
                band = len(group.trials) > 1
                values = [curve["mean"], *([curve["low"], curve["high"]] if band else [])]
                places = curve.index.to_numpy(float) * SCALES.get(x, 1.0)
                curves.append([_numbers(column[rows]) for column in (places, *(v.to_numpy() for v in values))])
    notes = []
    if any(len(group.trials) > 1 for group in groups):
        notes.append(f"A line is the mean over the trials, its band {BANDS[options.spread]}.")
    if thinned:
        notes.append(f"Curves with more than {limit} points (the longest has {thinned}) are thinned to {limit} evenly "
                     "spaced ones; extremes between them are not shown.")  # fmt: skip
    return {
        "groups": [{"name": printable(group.name), **_line(k)} for k, group in enumerate(groups)],
        "metrics": [{"key": name, "label": metric_label(name), "loss": scale_of(name) == 1} for name in metrics],
        "xs": [{"key": x, "label": progress_label(x, groups)} for x in xs],
        "curves": {f"{metric} {x}": curves for (metric, x), curves in found.items()},
        "shown": style.MAX_LINES,
    }, notes


def _line(k: int) -> dict[str, Any]:
    """Colour and dash of the k-th line, those of the figures."""
    dash = style.DASHES[k % len(style.DASHES)]
    return {"colour": style.COLOURS[k % len(style.COLOURS)],
            "dash": [] if dash == "-" else [round(DASH_PIXELS * length, 1) for length in dash[1]]}  # fmt: skip


def _numbers(values: np.ndarray) -> list[float | int | None]:
    """The values rounded to DIGITS; null for a value that is not finite."""
    short = [float(f"{value:.{DIGITS}g}") if isfinite(value) else None for value in values.tolist()]
    return [int(value) if value is not None and value.is_integer() else value for value in short]


def _curves_section(curves: Mapping[str, Any], notes: Sequence[str]) -> str:
    if not curves["curves"]:
        return _section("curves", "Curves", ["<p>The runs have no evaluations.</p>"])
    metric, x = (_options(curves[name]) for name in ("metrics", "xs"))
    items = []
    for k, group in enumerate(curves["groups"]):
        dash = " ".join(map(str, group["dash"]))
        swatch = (f'<svg width="36" height="10" aria-hidden="true"><line x1="0" y1="5" x2="36" y2="5" '
                  f'stroke-width="2.4" stroke="{group["colour"]}" stroke-dasharray="{dash}"/></svg>')  # fmt: skip
        checked = " checked" if k < curves["shown"] else ""
        items.append(f'<li><label><input type="checkbox" data-group="{k}"{checked}>{swatch}'
                     f'<span class="name">{_text(group["name"])}</span></label><output></output></li>')  # fmt: skip
    more = len(items) - curves["shown"]
    if more > 0:
        notes = [*notes, f"{curves['shown']} of {len(items)} lines are shown at first; tick the others to see them."]
    return _section("curves", "Curves", [
        '<noscript><p class="note">The curves need JavaScript; the rest of the page does not.</p></noscript>',
        f'<div class="controls scripted"><label>Metric <select id="metric">{metric}</select></label>'
        f'<label>Against <select id="x">{x}</select></label>'
        '<label><input type="checkbox" id="log"> Logarithmic</label>'
        f'<label><input type="checkbox" id="bands"{" checked" if len(items) <= MAX_BANDS else ""}> Bands</label>'
        '<button type="button" id="reset">Reset zoom</button></div>',
        '<div class="figure scripted"><div id="plot" tabindex="0" role="group" '
        'aria-label="Curves. The left and right arrow keys move the cursor; the list has the values there."></div>'
        '<fieldset><legend>Lines <button type="button" id="all">all</button> '
        f'<button type="button" id="none">none</button></legend><p id="place" aria-live="polite">&nbsp;</p>'
        f'<ul id="lines">{"".join(items)}</ul></fieldset></div>',
        '<p class="hint scripted">Drag over the curves to zoom in; double-click to see all of them again.</p>',
        *(f"<p>{_text(note)}</p>" for note in notes),
    ])  # fmt: skip


def _options(items: Iterable[Mapping[str, str]]) -> str:
    return "".join(f'<option value="{_text(item["key"])}">{_text(item["label"])}</option>' for item in items)


# -- text --------------------------------------------------------------------------------------------------------------
def _header(title: str, groups: Sequence[Group]) -> str:
    trials = [trial for group in groups for trial in group.trials]
    done = sum(trial.status == "completed" for trial in trials)
    facts = f"{format_count(len(trials), 'run')} in {format_count(len(groups), 'group')}, {done} completed"
    return f"<header><h1>{_text(title)}</h1><p>{facts}. Made by mpifl {source().version} from run files.</p></header>"


def _section(key: str, title: str, parts: Iterable[str]) -> str:
    heading = f'<h2 id="{key}-title">{title}</h2>'
    return f'<section id="{key}" aria-labelledby="{key}-title">{heading}{"".join(parts)}</section>'


def _table(table: Table) -> str:
    """The table; a script makes its column titles buttons that sort."""
    titles = [*table.titles, *(["marked"] if any(table.marked) else [])]
    head = "".join(f'<th scope="col"{_align(k, table.left)}>{_text(title)}</th>' for k, title in enumerate(titles))
    body = []
    for k, (row, best) in enumerate(zip(table.rows, table.marked, strict=True)):
        cells = [*row, *(["*" if best else ""] if any(table.marked) else [])]
        first = f'<th scope="row">{_text(cells[0])}</th>'
        texts = [
            f"<strong>{_text(cell)}</strong>" if (k, j) in table.best else _text(cell) for j, cell in enumerate(cells)
        ]
        rest = "".join(f"<td{_align(j, table.left)}>{text}</td>" for j, text in enumerate(texts[1:], 1))
        body.append(f"<tr{' class=best' if best else ''}>{first}{rest}</tr>")
    return _rows("The table", head, "".join(body), ' class="sortable"')


def _align(k: int, left: int) -> str:
    return "" if k < left else ' class="number"'


def _rows(label: str, head: str, body: str, options: str = "") -> str:
    """A table in a box that scrolls sideways on a narrow screen, by keyboard too."""
    table = f"<table{options}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{table}</div>'


def _incomplete(runs: Sequence[Incomplete]) -> str:
    if not runs:
        return "<p>None.</p>"
    rows = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in run)}</tr>" for run in runs[:MAX_INCOMPLETE])
    left = len(runs) - MAX_INCOMPLETE
    more = f"<p>... and {left} more.</p>" if left > 0 else ""
    head = "<th scope=col>run</th><th scope=col>status</th><th scope=col>reason</th>"
    return _rows("Runs that are missing or not completed", head, rows) + more


def _configurations(groups: Sequence[Group], configs: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Yields the keys in which the groups differ, and the job of each group's first trial."""
    flat = [flatten(config) for config in configs]
    skipped = ("seed", "name", "output", "overwrite")
    keys = [key for key in differing_keys(flat) if key not in skipped]
    if len(groups) > 1 and keys:
        head = "".join(f"<th scope=col><code>{_text(key)}</code></th>" for key in keys)
        rows = "".join(
            f"<tr><th scope=row>{_text(group.name)}</th>"
            + "".join(f"<td>{_text(format_value(each[key]) if key in each else '')}</td>" for key in keys)
            + "</tr>"
            for group, each in zip(groups, flat, strict=True)
        )
        table = _rows("What differs", f"<th scope=col>group</th>{head}", rows, ' class="sortable"')
        yield f"<h3>What differs</h3>{table}"
    yield "<h3>The job of each group</h3>"
    yield "<p>That of its first trial, all defaults filled in; what differs comes first.</p>"
    for group, config, each in zip(groups, configs, flat, strict=True):
        own = {key: each[key] for key in keys if key in each}
        text = "# what differs\n" + yaml_io.dump(own) + "\n# all of it\n" if own and len(groups) > 1 else ""
        text = printable(text + yaml_io.dump(dict(config)), lines=True, most=MAX_CONFIG)
        yield f"<details><summary>{_text(group.name)}</summary><pre>{_text(text)}</pre></details>"


def _config(group: Group) -> dict[str, Any]:
    """The configuration of a group's first trial that can still be read; empty where none can."""
    for trial in group.trials:
        try:
            with open_run(trial.path) as run:
                return run.config
        except ConfigError:
            continue
    return {}


def script_json(value: Any) -> str:
    """A value as JSON in a script element, which no text of it can end."""
    data = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for letter in "<>&":
        data = data.replace(letter, f"\\u{ord(letter):04x}")
    return data


def _text(value: object) -> str:
    """Text for the page: markup and control characters are escaped."""
    return escape(printable(value, lines=True))


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8").strip()
