"""Problems whose models are torch modules. Imported only by jobs that have one: torch takes seconds and memory."""

from __future__ import annotations

import os

# Read once, when these libraries start: the same bits wherever in memory a flat vector happens to lie.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
