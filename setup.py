"""What pyproject.toml cannot say: the version comes from the repository's tag, and each build records it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from runpy import run_path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

VERSION = run_path("mpifl/version.py")
SOURCE = VERSION["source"]()


def record(folder: str) -> None:
    """Writes the package's file with the version and the commit."""
    path = Path(folder, "mpifl", VERSION["BUILD"])
    path.unlink(missing_ok=True)  # it may be a hard link to the file of the source
    path.write_text(f"{SOURCE.version}\n{SOURCE.commit}\n", encoding="ascii")


class BuildPy(build_py):
    """For a wheel; an editable install has a checkout, which knows its own version."""

    def run(self) -> None:
        if not self.editable_mode:  # files of an earlier build would be packed, too
            shutil.rmtree(Path(self.build_lib, "mpifl"), ignore_errors=True)
        super().run()
        if not self.editable_mode:
            record(self.build_lib)


class Sdist(sdist):
    def make_release_tree(self, base_dir: str, files: Sequence[str]) -> None:
        super().make_release_tree(base_dir, files)
        record(base_dir)


setup(version=SOURCE.version, cmdclass={"build_py": BuildPy, "sdist": Sdist})
