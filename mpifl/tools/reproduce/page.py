"""The page of an item: its runs beside the published numbers. All its numbers and verdicts are computed here."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame
from tabulate import tabulate

from mpifl.text import capitalised, format_count, format_duration, progress
from mpifl.tools.analysis.curves import axis_label
from mpifl.tools.analysis.panels import Panel, draw_panels
from mpifl.tools.analysis.tables import escape_markdown
from mpifl.tools.analysis.trials import SCALES, Group, count_trials
from mpifl.tools.reproduce.claims import NOTE, claim_table, judge_claims
from mpifl.tools.reproduce.items import Item, PaperOptions, load_block, missing_data
from mpifl.tools.reproduce.published import Value, judge
from mpifl.tools.reproduce.spec import Figure, Measure, Table
from mpifl.tools.reproduce.spread import spread_section
from mpifl.tools.reproduce.values import (
    Summary,
    axis_number,
    axis_of,
    find,
    format_number,
    is_null_model,
    label_text,
    matches,
    mean_curve,
    summarise,
    trial_curve,
    units,
)
from mpifl.tools.studies.index import Index
from mpifl.tools.studies.select import reported_groups, selected_labels, without_rejected
from mpifl.tools.studies.study import Study

MAX_BANDS = 4  # a panel with more curves has no bands
NOTATION = (
    "A bound such as >1 is not judged. z is the difference of the means in standard errors, the published standard "
    "deviation being estimated as the range of ten trials divided by 3.08."
)
NULL_NOTE = (
    "The final model is the zero vector, or is measured as the first model is, to the last bit. Claims that compare "
    "such trials are not decided."
)
READINGS = "read off the mean curve", "as the mean over the trials", "as their median"
SKIP = "<!-- test: skip takes minutes to hours, and data -->"


def write_pages(options: PaperOptions, items: Sequence[Item], out: Path, whole: bool) -> list[Path]:
    """Writes the page of one item, or with `whole` those of a paper: its own, and that of each item of `own_pages` that
    has completed runs; returns their paths.

    Raises ConfigError where a single item has no completed run.
    """
    own = [item for item in items if not whole or item.path.stem in options.own_pages]
    written = []
    if whole:
        paper, shared = items[0].name.partition("/")[0], [item for item in items if item not in own]
        claims: list[list[str]] = []
        shown = progress(shared, "writing items")
        blocks = [block for item in shown for block in item_blocks(item, out, 2, False, claims)]
        table = claim_table(claims, ["section", "claim", "here", "seeds", "verdict"]) if options.summary else ()
        head = [f"# {options.title}", options.about.strip(), _made_by(paper, items[0])]
        note = ["## How claims are judged", NOTE] if claims else []
        written.append(_write(out / f"{paper}.md", [*head, *table, *blocks, *note, options.missing.strip()]))
    for item in own:
        if not whole or _has_results(*_needed(item)):
            path = out / f"{item.name.replace('/', '-')}.md"
            written.append(_write(path, list(item_blocks(item, out, 1, True, []))))
    return written


def _write(path: Path, parts: Sequence[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(filter(None, parts)) + "\n", encoding="utf-8")
    return path


def _made_by(name: str, item: Item) -> str:
    return f"Made by\n\n{SKIP}\n```sh\n{shlex.join(['mpifl', 'reproduce', name, *item.overrides])}\n```"


def item_blocks(item: Item, out: Path, level: int, made_by: bool, claims: list[list[str]]) -> Iterator[str]:
    """The blocks of an item's section. Its figures go to the folder `out`, rows of claims into the list `claims`."""
    needed, index = _needed(item)
    yield f"{'#' * level} {item.page.title}"
    yield item.page.about.strip()
    if made_by:
        yield _made_by(item.name, item)
    elif not _has_results(needed, index):
        yield f"Not run: {_missing_names(item) or 'no run that is reported is completed'}."
        if item.cells and item.page.spread is None:
            yield from _comparison(item, [])
        return
    groups, notes, *_ = reported_groups(needed, index)
    out.mkdir(parents=True, exist_ok=True)
    yield _runs(needed, index, groups)
    if index.counts()["completed"] < len(needed.runs) and (missing := _missing_names(item)):
        yield f"{capitalised(missing)}."
    yield "\n".join(notes)
    null = [trial.path for group in groups for trial in group.trials if is_null_model(trial)]
    yield _null_models(groups, null)
    for number, figure in enumerate(item.page.figures):
        yield _figure(item, figure, groups, out, f"{item.name.replace('/', '-')}-{number + 1}.png")
    if item.cells and item.page.spread is None:
        yield from _comparison(item, groups)
    tables = item.page.tables or ([] if item.cells else [Table()])
    blocks = [block for table in tables for block in _table(item, table, groups)]
    yield from blocks
    if blocks and not item.cells and any(len(group.trials) > 1 for group in groups):
        names = {name for table in tables for name in table.measures or item.page.measures}
        yield _contents({name: measure for name, measure in item.page.measures.items() if name in names})
    yield from spread_section(item.page, item.cells, groups, level)
    for name in item.page.blocks:
        yield load_block(item, name)(item, out)
    if item.page.claims:
        yield f"{'#' * (level + 1)} Claims: {item.page.title}"
        rows = judge_claims(item.page, item.cells, groups, null)
        *table, counts = claim_table(rows)
        yield from [*table, f"{counts} {NOTE}" if made_by else counts]
        claims.extend([item.page.title, row.claim, row.here, row.seeds, row.verdict] for row in rows)
    yield item.page.missing.strip()


def _missing_names(item: Item) -> str:
    """A clause that names the item's data sets that are missing; empty if there are none."""
    names = ", ".join(dict.fromkeys(data["name"] for data, _ in missing_data(item)))
    return names and f"these data are missing: {names}"


def _needed(item: Item) -> tuple[Study, Index]:
    """The runs that the page of an item needs."""
    needed = without_rejected(item.study, Index(item.study))
    return needed, Index(needed)


def _has_results(study: Study, index: Index) -> bool:
    """Whether a run that is reported is completed."""
    select = study.options.select
    reported = [run for run in study.runs if select is None or select.reports(run.seed)]
    return any(index.entries[run.identity].status == "completed" for run in reported)


def _null_models(groups: Sequence[Group], null: Sequence[Path]) -> str:
    """The rows with null models, in a sentence; "" where there is none."""
    counts = [(group, sum(trial.path in null for trial in group.trials)) for group in groups]
    axes = _varied_axes(groups)
    rows = [
        f"{', '.join(_label(group, a) for a in axes if group.labels[a] is not None) or 'all trials'} "
        f"({count} of {len(group.trials)} trials)" for group, count in counts if count
    ]  # fmt: skip
    return f"**Null models:** {'; '.join(rows)}. {NULL_NOTE}" if rows else ""


def _runs(study: Study, index: Index, groups: Sequence[Group]) -> str:
    """How many runs and trials the section has, how often they were evaluated, and how long they took."""
    done = [entry for entry in index.entries.values() if entry.status == "completed"]
    seconds = sum(entry.seconds or 0.0 for entry in done)
    each = (run.job.evaluate for run in study.runs)
    intervals = dict.fromkeys(f"{e.every:g} s" if e.every else format_count(e.updates or 0, "update") for e in each)
    return (f"{len(done)} of {len(study.runs)} runs, {count_trials(groups)} of each setting; "
            f"evaluated every {' or '.join(intervals)}; "
            f"the runs took {format_duration(seconds)} of wall time in all.")  # fmt: skip


# -- published numbers -------------------------------------------------------------------------------------------------
def _comparison(item: Item, groups: Sequence[Group]) -> Iterator[str]:
    """The table of published and own values with a verdict for each row, the rule, and how many are met."""
    rows, missed, judged, met = [], [], 0, 0
    z_scores: dict[str, list[float]] = {name: [] for name in item.page.measures}
    inside: dict[str, list[bool]] = {name: [] for name in item.page.measures}
    for cell in item.cells:
        found = find(groups, cell.labels)
        row = dict(cell.labels)
        verdicts = []
        for name, value in cell.values.items():
            measure = item.page.measures[name]
            ours = summarise(measure, found[0]) if found else Summary(np.array([]), math.nan)
            row |= {f"{name}, published": format_value(measure, value), f"{name}, here": format_summary(measure, ours)}
            verdict = judge(item.page, cell, name, ours)
            verdicts.append(verdict.text)
            if not math.isnan(value.low):
                row[f"z {name}"] = "-" if math.isnan(verdict.z) else f"{verdict.z:+.1f}"
                fits = not ours.diverged and value.low <= round(ours.mean, measure.digits) <= value.high
                inside[name] += [fits] if found else []
                z_scores[name] += [] if math.isnan(verdict.z) else [verdict.z]
        if all(math.isnan(value.mean) for value in cell.values.values()):
            row["verdict"] = "not published"
        elif not found:
            row["verdict"] = "not run"
        else:
            judged, text = judged + 1, ", ".join(filter(None, verdicts))
            row["verdict"] = text or "met"
            met += not text
            missed += [f"{_clause(cell.labels)}: {text}"] if text else []
        rows.append(row)
    yield markdown(rows)
    sentences = [f"{met} of {judged} published rows are met."] if judged else []
    for name in item.page.measures:
        if inside[name]:
            sentences.append(f"{name}: {sum(inside[name])} of {len(inside[name])} means are in the published range"
                             + (f", |z| is at most 2 in {sum(abs(z) <= 2 for z in z_scores[name])} of "
                                f"{len(z_scores[name])}." if z_scores[name] else "."))  # fmt: skip
    yield " ".join([*sentences, *_readings(item, groups)])
    if judged:
        yield _rules(item)
    if missed:
        yield "Rows that are not met:\n\n" + "\n".join(f"- {line}" for line in missed)


def _readings(item: Item, groups: Sequence[Group]) -> Iterator[str]:
    """For each measure with `reaches`: how far its value, read off in three ways, is from the printed values."""
    for name, measure in item.page.measures.items():
        if measure.reaches is None:
            continue
        printed, found = [], []
        for cell in item.cells:
            value, ours = cell.values.get(name), find(groups, cell.labels)
            if value and math.isfinite(value.mean) and ours:
                summary = summarise(measure, ours[0])
                printed.append(value.mean)
                found.append((summary.mean, float(np.mean(summary.values)), float(np.median(summary.values))))
        if printed:
            errors = np.array(found).T - printed  # (readings, cells)
            texts = [f"{reading}, {_errors(e, measure.digits)}" for reading, e in zip(READINGS, errors, strict=True)]
            yield f"{name} minus the printed {name}: {'; '.join(texts)}."


def _errors(errors: np.ndarray, digits: int) -> str:
    """Mean and root mean square of the finite differences, and their number."""
    known = errors[np.isfinite(errors)]
    if not len(known):
        return "has no value"
    mean, square = known.mean(), float(np.sqrt((known**2).mean()))
    return f"{mean:+.{digits}f} on average, root mean square {square:.{digits}f} ({len(known)} of {len(errors)} values)"


def _rules(item: Item) -> str:
    """The verdict's rule and the notation, in sentences."""
    page = item.page
    rules = {name: measure.within for name, measure in page.measures.items() if measure.within is not None}
    sentences = [f"A row is met if {_rule(rules)}."] if rules else []
    for strict in page.strict:
        if any(matches(cell.labels, strict.cells) for cell in item.cells):
            sentences.append(f"For {_clause(strict.cells)}, {_rule(strict.within)}.")
    return " ".join([*sentences, NOTATION, _contents(page.measures)])


def _contents(measures: Mapping[str, Measure]) -> str:
    """What a value and the numbers in brackets after it are, in sentences."""
    reached = [name for name, measure in measures.items() if measure.reaches is not None]
    notes = ["Values are the mean (min-max) over the trials."] if len(reached) < len(measures) else []
    if reached:
        notes.append(f"For {', '.join(reached)}: where the mean curve reaches the level (median over the trials).")
    ends = {name: measure for name, measure in measures.items() if measure.slope is None and measure.tail is not None}
    for tail in dict.fromkeys(measure.tail for measure in ends.values()):
        names = ", ".join(name for name, measure in ends.items() if measure.tail == tail)
        last = "all evaluations" if tail == "all" else f"the last {tail:,} evaluations"
        notes.append(f"For {names}: the mean of the metric over {last}.")
    return " ".join(notes)


def _rule(within: Mapping[str, Any]) -> str:
    """The rules for some measures, as a clause."""
    return " and ".join(
        f"{name} is {'inside the published range' if w == 'range' else f'within {w:g} of the published mean'}"
        for name, w in within.items()
    )


def format_value(measure: Measure, value: Value) -> str:
    """A published value: mean (min-max), or as it is printed."""
    if math.isnan(value.mean) or math.isnan(value.low):
        return value.printed
    d = measure.digits
    return f"{value.mean:.{d}f} ({_range(f'{value.low:.{d}f}', f'{value.high:.{d}f}')})"


def format_summary(measure: Measure, ours: Summary) -> str:
    """Our value: mean (min-max), or with `reaches` that of the mean curve (median); and how many trials diverged."""
    if ours.diverged:
        kept, count = ours.kept, f"{ours.diverged} of {len(ours.values)}"
        rest = f"{format_summary(measure, Summary(kept, ours.mean))}, {count} diverged"
        return rest if len(kept) else f"diverged, {count}"
    if math.isnan(ours.mean):
        return "-"
    if measure.reaches is not None:
        median = f" ({format_number(measure, float(np.median(ours.values)))})" if len(ours.values) > 1 else ""
        return format_number(measure, ours.mean) + median
    low, high = (format_number(measure, value) for value in (ours.values.min(), ours.values.max()))
    return format_number(measure, ours.mean) + (f" ({_range(low, high)})" if len(ours.values) > 1 else "")


def _range(low: str, high: str) -> str:
    return f"{low} to {high}" if "-" in low + high else f"{low}-{high}"


def _clause(labels: Mapping[str, Any]) -> str:
    """A cell's labels in one clause."""
    return ", ".join(f"{axis} {value}" for axis, value in labels.items()).replace("_", " ")


# -- tables and figures ------------------------------------------------------------------------------------------------
def _table(item: Item, table: Table, groups: Sequence[Group]) -> Iterator[str]:
    shown, names = find(groups, table.where), table.measures or list(item.page.measures)
    if not shown or not names:
        return
    rows: dict[str, dict[str, str]] = {}
    selected = _selected(item, groups) if table.columns else []
    over = item.page.measures[names[0]].over
    for unit in units(item.page.measures[names[0]], shown):
        group = unit[0]
        axis = axis_of(group.labels, table.columns) if table.columns else None
        left_out = [axis, axis_of(group.labels, over), *selected]
        labels = {k: label_text(v) if v is not None else "-" for k, v in group.labels.items() if k not in left_out}
        chosen = [_label(group, k) for k in selected if group.labels.get(k) is not None]
        row = rows.setdefault(json.dumps(labels), dict(labels))
        for name in names:
            measure = item.page.measures[name]
            heading = _heading(name, measure)
            if axis:
                heading = _value_label(group, axis) + (f": {heading}" if len(names) > 1 else "")
            row[heading] = "; ".join([format_summary(measure, summarise(measure, *unit)), *chosen])
    alone = _heading(names[0], item.page.measures[names[0]]) if table.columns and len(names) == 1 else ""
    title = table.title or alone
    if title:
        yield f"**{title}**"
    yield markdown(list(rows.values()))


def _selected(item: Item, groups: Sequence[Group]) -> list[str]:
    """The labels that have one selected value for each combination of the others."""
    select = item.study.options.select
    return selected_labels(groups, select) if select and select.count == 1 else []


def _figure(item: Item, figure: Figure, groups: Sequence[Group], out: Path, name: str) -> str:
    """Draws a figure; the Markdown that shows it."""
    found = find(groups, figure.where)
    if figure.against:
        return _points(item, figure, found, out, name)
    shown = [g for g in found if not all(trial_curve(trial, figure.y, "time").empty for trial in g.trials)]
    panels: dict[str, dict[str, DataFrame]] = {}
    scale = 100.0 if "accuracy" in figure.y else 1.0
    varied = _varied_axes(shown)
    selected = _selected(item, groups)
    for group in shown:
        axis = axis_of(group.labels, figure.panels) if figure.panels else None
        title = _label(group, axis) if axis else ""
        own = [a for a in varied if a != axis and a not in selected and group.labels[a] is not None]
        first, *rest = own or [""]
        others = ", ".join(_label(group, a) for a in rest)
        label = ", ".join(filter(None, [_value_label(group, first) if first else "all trials", others]))
        curve = mean_curve(group, figure.y, figure.x, figure.power) * scale
        curve.index = curve.index * SCALES.get(figure.x, 1.0)
        panels.setdefault(title, {})[label] = curve
    if not panels:
        return ""
    virtual = all(trial.clock.startswith("virtual") for group in shown for trial in group.trials)
    x = figure.x_label or axis_label(figure.x, virtual)
    y = figure.y_label or axis_label(figure.y).replace("(fraction)", "(%)")
    if max(map(len, panels.values())) > MAX_BANDS:
        panels = {title: {k: c[["mean"]] for k, c in curves.items()} for title, curves in panels.items()}
    draw_panels(out / name, [Panel(title, curves) for title, curves in panels.items()],
                x, y, figure.limits or ([0, 100] if scale == 100 else None), slope=figure.slope)  # fmt: skip
    bands = max(map(len, panels.values())) <= MAX_BANDS
    caption = figure.title or f"{capitalised(y)} against {x}"
    if any(len(group.trials) > 1 for group in shown):
        caption += f": mean{' and range' * bands} over the trials"
    return _image(caption + _dashed(figure), name)


def _points(item: Item, figure: Figure, groups: Sequence[Group], out: Path, name: str) -> str:
    """Draws a measure against the values of an axis; the Markdown that shows it."""
    measure, against = item.page.measures[figure.y], str(figure.against)
    varied = _varied_axes(groups)
    panels: dict[str, dict[str, dict[float, tuple[float, float, float]]]] = {}
    for unit in units(measure, groups):
        labels = unit[0].labels
        panel = axis_of(labels, figure.panels) if figure.panels else None
        rest = [a for a in varied if a not in (panel, axis_of(labels, against), axis_of(labels, measure.over))]
        line = ", ".join(label_text(labels[a]) for a in rest if labels[a] is not None) or "all trials"
        ours = summarise(measure, *unit)
        if np.isfinite(ours.mean) and not ours.diverged:
            curve = panels.setdefault(_label(unit[0], panel) if panel else "", {}).setdefault(line, {})
            curve[axis_number(unit[0], against)] = (ours.mean, ours.values.min(), ours.values.max())
    if not panels:
        return ""
    tables = {
        title: {
            line: DataFrame.from_dict(points, "index", columns=["mean", "low", "high"]).sort_index()
            for line, points in lines.items()
        }
        for title, lines in panels.items()
    }
    x = figure.x_label or against.replace("_", " ")
    y = figure.y_label or f"{figure.y}{f' ({measure.unit})' if measure.unit else ''}"
    shown = [Panel(title, lines) for title, lines in tables.items()]
    draw_panels(out / name, shown, x, y, figure.limits, markers=True, slope=figure.slope)
    caption = (figure.title or f"{capitalised(y)} against {x}") + ": mean and range over the trials"
    return _image(caption + _dashed(figure), name)


def _dashed(figure: Figure) -> str:
    """What the dashed lines of a figure are, in a clause."""
    return "" if figure.slope is None else f"; dashed: slope {figure.slope:.3g}"


def _varied_axes(groups: Sequence[Group]) -> list[str]:
    """The axes on which the groups have several values."""
    return [a for a in groups[0].labels if len({label_text(g.labels[a]) for g in groups}) > 1] if groups else []


def _image(caption: str, name: str) -> str:
    """The Markdown that shows an image, with its caption."""
    return f"![{caption}]({name})\n\n*{caption}.*"


def _label(group: Group, axis: str) -> str:
    return f"{axis} {label_text(group.labels[axis])}".replace("_", " ")


def _value_label(group: Group, axis: str) -> str:
    """The group's value on an axis, with the axis where it is a number."""
    value = group.labels[axis]
    return _label(group, axis) if isinstance(value, int | float) else label_text(value)


def _heading(name: str, measure: Measure) -> str:
    """A measure with its unit."""
    return f"{name}, {measure.unit}" if measure.unit else name


def markdown(rows: Sequence[dict[str, str]]) -> str:
    """Rows as a Markdown table."""
    headings = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[escape_markdown(row.get(key, "-")) for key in headings] for row in rows]
    return tabulate(cells, [escape_markdown(h.replace("_", " ")) for h in headings], "pipe", disable_numparse=True)
