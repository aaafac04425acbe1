"""The job and study files that the package contains."""

from __future__ import annotations

from pathlib import Path

JOBS = Path(__file__).parents[1] / "jobs"


def find_file(path: str | Path) -> Path:
    """The path of a job or study file: the package's where it begins with `jobs/`, and there is no such file here."""
    found = Path(path)
    if found.parts[:1] == ("jobs",) and ".." not in found.parts and not found.exists():
        packaged = JOBS.joinpath(*found.parts[1:])
        return packaged if packaged.is_file() else found
    return found


def find_jobs() -> dict[str, Path]:
    """All job files, by the path that commands take: those of the package, and those in the folder `jobs` here.

    Studies are left out.
    """
    files = {f"jobs/{path.relative_to(base)}": path for base in (JOBS, Path("jobs")) for path in base.rglob("*.yaml")}
    plain = [name for name in sorted(files) if files[name].is_file()]
    return {name: files[name] for name in plain if "\nproblem:" in "\n" + files[name].read_text("utf-8", "replace")}
