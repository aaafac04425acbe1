"""`python -m mpifl`: the command line, where no console script is installed."""

from __future__ import annotations

import sys

from mpifl.cli import main

sys.exit(main())
