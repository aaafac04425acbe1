"""Runs the commands of FOLDER/commands.json one after the other on all ranks of this MPI job, each as if it were alone.

Every rank writes FOLDER/rank<r>.json after each: exit code, what was printed, and which files came, went or changed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import io
import json
import sys
from pathlib import Path

from mpifl.cli import main
from mpifl.transport.launcher import communicator


def contents(told: Path) -> dict[str, str]:
    """The files under the working directory, by name, and what they hold."""
    files = [p for p in Path().rglob("*") if p.is_file() and told.name not in p.parts]
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def run(told: Path) -> None:
    comm = communicator()
    rank = comm.rank if comm else 0
    replies = []
    before = contents(told) if rank == 0 else {}
    for words in json.loads((told / "commands.json").read_text()):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
        now = contents(told) if rank == 0 else {}
        changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        before = now
        replies.append({"code": code, "out": out.getvalue(), "err": err.getvalue(), "changed": changed})
        (told / f"rank{rank}.json").write_text(json.dumps(replies))


if __name__ == "__main__":
    faulthandler.dump_traceback_later(float(sys.argv[2]))  # where each rank is, should they hang
    run(Path(sys.argv[1]))
