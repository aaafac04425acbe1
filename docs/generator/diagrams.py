"""Draws the diagrams of the architecture page: `python docs/generator/diagrams.py` writes docs/assets/*.svg.

Lines and text have the colour of the text around them, so that a diagram can be read on light and on dark ground; the
hook puts it into the page. Beside a page (in a repository browser) it follows the reader's preference.
"""

from __future__ import annotations

from pathlib import Path

ASSETS = Path(__file__).parents[1] / "assets"
STYLE = (
    ".diagram{color:#222;max-width:100%;height:auto}"
    "@media (prefers-color-scheme:dark){.diagram{color:#ddd}}"
    ".diagram text{fill:currentColor;font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}"
    ".diagram .name{font-size:15px;font-weight:600}.diagram .what{font-size:12px}"
    ".diagram .box{fill:currentColor;fill-opacity:.06;stroke:currentColor;stroke-opacity:.55}"
    ".diagram .lane{fill:none;stroke:currentColor;stroke-opacity:.35;stroke-dasharray:4 4}"
    ".diagram .arrow{fill:none;stroke:currentColor;stroke-width:1.4}.diagram .head{fill:currentColor}"
)


def box(x: float, y: float, width: float, height: float, name: str, *lines: str) -> str:
    """A rectangle with a name and up to some lines of text, centred."""
    middle, top = x + width / 2, y + height / 2 - 8 * len(lines) + 5
    text = f'<text class="name" x="{middle:g}" y="{top:g}" text-anchor="middle">{name}</text>'
    for k, line in enumerate(lines, 1):
        text += f'<text class="what" x="{middle:g}" y="{top + 17 * k:g}" text-anchor="middle">{line}</text>'
    return f'<rect class="box" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>{text}'


def arrow(x1: float, y1: float, x2: float, y2: float, label: str = "") -> str:
    """A straight arrow; the label stands right of its middle."""
    size, length = 5, ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    bx, by = x2 - 2 * size * dx, y2 - 2 * size * dy
    head = f"{x2:g},{y2:g} {bx - size * dy:g},{by + size * dx:g} {bx + size * dy:g},{by - size * dx:g}"
    text = f'<text class="what" x="{(x1 + x2) / 2 + 8:g}" y="{(y1 + y2) / 2 + 4:g}">{label}</text>' if label else ""
    return f'<path class="arrow" d="M{x1:g} {y1:g}L{bx:g} {by:g}"/><polygon class="head" points="{head}"/>{text}'


def lane(x: float, y: float, width: float, height: float, label: str) -> str:
    text = f'<text class="name" x="{x + 12:g}" y="{y + 24:g}">{label}</text>'
    return f'<rect class="lane" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"/>{text}'


def drawing(width: int, height: int, title: str, *parts: str) -> str:
    return (
        f'<svg class="diagram" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{title}"><style>{STYLE}</style>{"".join(parts)}</svg>\n'
    )


def packages() -> str:
    """Who may import whom: everything below."""
    rows = [
        [("cli", "the commands, a module for each group"), ("api", "the Python API")],
        [("tools", "analysis, export, studies, submit, reproduce, verify, selftest")],
        [("execution", "one run on all ranks")],
        [("server", "loop, client table, failures, evaluator, session")],
        [("client", "the worker, its states, the main loop of a client rank")],
        [("transport", "frames, MPI, in process"), ("config", "the job: read, check, describe")],
        [("scheduling", "clocks, delays, availability, schedules of events")],
        [
            ("algorithms", "one file a method"),
            ("problems", "data, models, torch, custom loops"),
            ("adapters", "other frameworks"),
        ],
        [("checkpoint", "records of a snapshot and their files")],
        [("runfile", "tables, writer, reader, lock")],
        [
            (
                "objective, vector_memory, cuda_mpi, rng, errors, text, user_code",
                "version, signals, interpreter_turns, host_memory, safe_input, safe_pickle, safe_hdf5",
            )
        ],
    ]
    parts, y, width, height, gap = [], 10, 620, 56, 26
    above: list[float] = []  # centres of the boxes in the row above
    for row in rows:
        each = (width - 20 * (len(row) - 1)) / len(row)
        centres = [10 + j * (each + 20) + each / 2 for j in range(len(row))]
        parts += [box(centre - each / 2, y, each, height, *text) for text, centre in zip(row, centres)]
        parts += [arrow(x, y - gap, x, y) for x in (max(above, centres, key=len) if above else [])]
        above = centres
        y += height + gap
    return drawing(640, y - gap + 10, "Packages of mpifl, each importing only what is below it", *parts)


def update_path() -> str:
    """One update, from the client's train to its row."""
    parts = [lane(10, 10, 340, 430, "client rank"), lane(450, 10, 380, 520, "rank 0, the server")]
    left = [
        ("Algorithm.train", "algorithms/NAME.py: local steps, vectors"),
        ("Worker", "client/worker.py: checks it, holds it for the delay"),
        ("client end", "transport/mpi_client.py: sends it"),
        ("frame", "transport/frames.py: header and vectors"),
    ]
    right = [
        ("server end", "transport/mpi_server.py: receives the frame"),
        ("schedule", "scheduling/live_schedule.py: which update is next"),
        ("loop", "server/loop.py: staleness, trigger, answer"),
        ("Algorithm.receive", "algorithms/NAME.py: the server's rule"),
        ("row of /updates", "runfile/writer.py, columns of runfile/tables.py"),
    ]
    for k, (name, what) in enumerate(left):
        parts.append(box(30, 48 + 98 * k, 300, 64, name, what))
        if k:
            parts.append(arrow(180, 48 + 98 * k - 34, 180, 48 + 98 * k))
    for k, (name, what) in enumerate(right):
        parts.append(box(470, 48 + 96 * k, 340, 64, name, what))
        if k:
            parts.append(arrow(640, 48 + 96 * k - 32, 640, 48 + 96 * k))
    parts.append(arrow(330, 374, 470, 80))
    parts.append('<text class="what" x="362" y="212">MPI</text>')
    return drawing(840, 540, "The path of one update from the client's train to its row in the run file", *parts)


DIAGRAMS = {"packages.svg": packages, "update-path.svg": update_path}

if __name__ == "__main__":
    for name, draw in DIAGRAMS.items():
        (ASSETS / name).write_text(draw(), encoding="utf-8")
