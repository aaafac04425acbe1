"""Runs mpifl commands one after the other in one process, as most of the time that a command takes is its start.

A line of JSON on stdin, {folder, words}, for each; one on stdout, a `fuzz.Reply`. What the command writes to its stdout
and stderr, C libraries included, is caught.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback
import warnings
from pathlib import Path
from tempfile import TemporaryFile

from mpifl import cli
from mpifl.runfile import reader

# bytes of address space: what an input claims beyond is refused, not taken from the machine
MEMORY = int(os.environ.get("FUZZ_MEMORY", 12 << 30))


def run(folder: str, words: list[str]) -> int:
    """The exit code of one command, started in `folder`."""
    path = list(sys.path)
    os.chdir(folder)
    os.environ["MPIFL_CACHE"] = str(Path(folder) / "cache")
    try:
        return cli.main(words)
    except BaseException:  # main itself lets nothing through
        traceback.print_exc()
        return -1
    finally:
        sys.path[:] = path


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("always")  # not only once: each command is its own process for a user
    for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", kind)  # as Python does
    reader.OPEN_INTERVAL = 0.001  # s; a damaged run file is opened many times
    replies = os.fdopen(os.dup(1), "w")
    with TemporaryFile() as out, TemporaryFile() as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        for line in sys.stdin:
            begin = time.process_time()
            code = run(**json.loads(line))
            seconds = time.process_time() - begin
            sys.stdout.flush()
            sys.stderr.flush()
            err.seek(0)
            said = err.read().decode("utf-8", "replace")
            out.seek(0)
            printed = out.read() + said.encode()
            raw = any(c < 32 and c not in (9, 10, 13) for c in printed)
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            for file in (out, err):
                file.seek(0)
                file.truncate()
            replies.write(
                json.dumps({"code": code, "err": said[:20000], "seconds": seconds, "memory": memory, "raw": raw}) + "\n"
            )
            replies.flush()


if __name__ == "__main__":
    main()
