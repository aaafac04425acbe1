"""What `import mpifl` and one `mpifl.run` leave changed in the process that calls them.

    python benchmarks/sideeffects.py

Prints each property of the process, and exits with 1 and one line for each that differs: before and after the import,
and before and after a virtual run of quadratics in this process. Another process allocates 500 MB in arrays of 1 MB and
frees them, before a run and after it. What it then keeps may be 150 MB more than in a process that does so without a
run: the libraries that a run imports, and what glibc keeps of the memory that the run itself has freed.
"""

from __future__ import annotations

import ctypes
import gc
import locale
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from typing import Any

TOLERANCE = 150e6  # bytes of resident memory that a run may add
HELD = 500_000_000  # bytes that the caller allocates and frees before the run
ARRAY = 1_000_000  # bytes of each of its arrays
PR_GET_TIMERSLACK = 30


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def warning_filters() -> list[Any]:
    return [str(each) for each in warnings.filters]


def numpy_generator() -> Any:
    import numpy as np

    kind, keys, *rest = np.random.get_state()
    return [kind, keys.tobytes(), *rest]


def float_errors() -> Any:
    import numpy as np

    return np.geterr()


def torch_generator() -> Any:
    torch = sys.modules.get("torch")
    return torch.get_rng_state().numpy().tobytes() if torch else None


PROPERTIES: dict[str, Callable[[], Any]] = {
    "timer slack (ns)": lambda: ctypes.CDLL(None).prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0),
    "environment": lambda: dict(os.environ),
    "garbage collector": lambda: (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
    "signal handlers": lambda: {number.name: signal.getsignal(number) for number in signal.valid_signals()
                                if isinstance(number, signal.Signals)},
    "signal wakeup": lambda: signal.set_wakeup_fd(signal.set_wakeup_fd(-1)) or None,
    "threads": lambda: sorted(thread.name for thread in threading.enumerate()),
    "native threads": lambda: len(os.listdir("/proc/self/task")),
    "warning filters": warning_filters,
    "random's generator": random.getstate,
    "NumPy's global generator": numpy_generator,
    "torch's generator": torch_generator,
    "NumPy's float errors": float_errors,
    "folder": os.getcwd,
    "sys.path": lambda: list(sys.path),
    "locale": lambda: locale.setlocale(locale.LC_ALL),
    "umask": umask,
    "exception hooks": lambda: (sys.excepthook, threading.excepthook, sys.unraisablehook),
    "open files": lambda: sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                                 if os.path.exists(f"/proc/self/fd/{fd}")),
}  # fmt: skip


def state() -> dict[str, Any]:
    return {name: read() for name, read in PROPERTIES.items()}


def differences(before: dict[str, Any], after: dict[str, Any], what: str) -> list[str]:
    """One line for each property that differs."""
    found = []
    for name in PROPERTIES:
        one, other = before[name], after[name]
        if one == other:
            continue
        if isinstance(one, dict):
            changed = [key for key in {*one, *other} if one.get(key) != other.get(key)]
            one, other = {key: one.get(key) for key in changed}, {key: other.get(key) for key in changed}
        found.append(f"{name}: {str(one)[:200]} before {what}, {str(other)[:200]} after it")
    return found


def run(folder: str) -> None:
    """A virtual run in this process, with 40 MB of data and states."""
    import mpifl

    mpifl.run(
        {
            "name": "sideeffects", "seed": 0, "output": f"{folder}/run.h5",
            "problem": {"model": {"name": "quadratic", "dim": 20_000}, "clients": 100},
            "algorithm": {"name": "area", "step_size": 0.1},
            "clock": {"mode": "virtual", "delay": {"name": "exponential", "rate": 1.0}},
            "stop": {"updates": 1_000}, "evaluate": {"updates": 500},
        }
    ).close()  # fmt: skip


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def left_resident(with_run: bool) -> int:
    """Resident bytes of a new process that has allocated and freed HELD bytes twice, with a run in between or not."""
    words = [sys.executable, __file__, "memory", "run" if with_run else "none"]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def memory(with_run: bool) -> None:
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        for again in False, True:  # before the run and after it
            held = [np.ones(ARRAY, np.uint8) for _ in range(HELD // ARRAY)]
            del held
            if with_run and not again:
                run(folder)
    print(resident())


def main() -> int:
    if sys.argv[1:2] == ["memory"]:
        memory(sys.argv[2] == "run")
        return 0
    import numpy as np  # noqa: F401 - it starts its threads at its import, by the caller's environment

    before = state()
    import mpifl

    imported = state()
    wrong = differences(before, imported, "the import of mpifl")
    with tempfile.TemporaryDirectory() as folder:
        mpifl.load_job  # noqa: B018 - imported at its first use
        before = state()
        run(folder)
        after = state()
    wrong += differences(before, after, "mpifl.run")
    for name in PROPERTIES:
        print(f"{name}: {str(after[name])[:100]}")
    alone, ran = left_resident(False), left_resident(True)
    print(f"resident memory: {alone / 1e6:.0f} MB without a run, {ran / 1e6:.0f} MB after it")
    if ran - alone > TOLERANCE:
        wrong.append(f"resident memory: {(ran - alone) / 1e6:.0f} MB more after mpifl.run than without it")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
