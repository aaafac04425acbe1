"""The version of mpifl, from the repository's tag, and the commit of the source.

A wheel and an sdist have both in the file BUILD, which setup.py writes; a checkout asks git. An archive made by git has
them in this file.
"""

from __future__ import annotations

import functools
import platform
import re
import sys
from pathlib import Path
from typing import NamedTuple

UNTAGGED = "0.1.0"  # the version where there is no tag
BUILD = "BUILD"  # file of the package with a line for the version and one for the commit
ARCHIVE = "$Format:%(describe:tags=true,abbrev=40,match=v[0-9]*)|%H$"  # git archive fills this in (.gitattributes)


class Source(NamedTuple):
    """The version and the commit of the running code."""

    version: str
    """as in PEP 440: 0.2.0 at the tag v0.2.0, and 0.2.1.dev3+gCOMMIT three commits later"""
    commit: str
    """hash, with -dirty where files differ from it; empty where it is not known"""


@functools.cache
def source() -> Source:
    """The version and the commit of this package. Git is asked once, and only in a checkout."""
    package = Path(__file__).parent
    try:
        version, commit = (package / BUILD).read_text(encoding="ascii").split("\n")[:2]
    except (FileNotFoundError, NotADirectoryError):  # the second for a package in a zip file
        return _from_git(package.parent) if (package.parent / ".git").exists() else _from_archive(ARCHIVE)
    return Source(version, commit)


def _from_git(folder: Path) -> Source:
    options = ["--abbrev=40", "--dirty"]
    if described := _git(folder, "describe", "--tags", "--long", "--match=v[0-9]*", *options):
        return _parse(described)
    commit = _git(folder, "describe", "--always", "--exclude=*", *options)
    return _parse(f"-{_git(folder, 'rev-list', '--count', 'HEAD')}-g{commit}")


def _git(folder: Path, *words: str) -> str:
    """What git prints; empty where it fails."""
    import subprocess

    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *words], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _parse(described: str) -> Source:
    """Reads TAG-COUNT-gCOMMIT[-dirty], with the whole hash. A tag that is not a version is ignored."""
    found = re.fullmatch(r"(.*)-(\d+)-g([0-9a-f]{40})(-dirty)?", described)
    if not found:
        return Source(UNTAGGED, "")
    tag, count, commit, dirty = found.groups(default="")
    version = re.fullmatch(r"v((?:\d+\.)+(?:\d+rc)?)(\d+)", tag)
    if version and count == "0" and not dirty:
        return Source(tag[1:], commit)
    following = f"{version[1]}{int(version[2]) + 1}" if version else UNTAGGED
    return Source(f"{following}.dev{count}+g{commit[:12]}{dirty.replace('-', '.')}", commit + dirty)


def _from_archive(text: str) -> Source:
    """Reads [TAG[-COUNT-gCOMMIT]]|COMMIT, with the whole hash."""
    described, _, commit = text.partition("|")
    return _parse(described if "-g" in described else f"{described}-0-g{commit}")


def installation() -> str:
    """What all ranks must have in common: the version of Python, and that of mpifl or the folder of a checkout."""
    package = Path(__file__).parent
    try:
        version = (package / BUILD).read_text(encoding="ascii").split("\n")[0]
    except (FileNotFoundError, NotADirectoryError):
        version = f"in {str(package.parent)!a}"
    return f"{sys.implementation.name} {platform.python_version()}, mpifl {version}"


def __getattr__(name: str) -> str:
    """`__version__`: not asked for where nobody needs it, as on the ranks of clients."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return source().version
