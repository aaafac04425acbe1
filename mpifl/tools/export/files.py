"""`mpifl export`: writes a run file's content in another format, to new files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, NamedTuple

from mpifl.errors import ConfigError, as_unwritable
from mpifl.runfile.durable import durable_files
from mpifl.runfile.reader import open_run
from mpifl.tools.export import model, scalars, tables


class Format(NamedTuple):
    """A format that a run file can be written in."""

    files: Callable[..., Iterator[tuple[str, Callable[[BinaryIO], None]]]]
    """names of the files and the function that writes each, from the open run file; of a model with `full`, `trust`"""
    suffix: str
    """suffix of the output beside the run file"""
    folder: bool = True
    """true: the output is a folder; false: it is one file"""
    package: str = ""
    """optional package that the format needs"""
    old: str = ""
    """pattern of the files that an output replaces besides those of the same names"""


FORMATS = {
    "csv": Format(tables.csv_files, "-csv"),
    "parquet": Format(tables.parquet_files, "-parquet", package="pyarrow"),
    "tensorboard": Format(scalars.event_files, scalars.SUFFIX, package="tensorboard", old=scalars.EVENT_FILES),
    "safetensors": Format(model.safetensors_file, ".safetensors", folder=False, package="safetensors"),
    "torch": Format(model.torch_file, ".pt", folder=False, package="torch"),
}


def export_run(
    path: str | Path, to: str, out: str | Path | None = None, overwrite: bool = False, *, full: bool = False,
    trust: bool = False, best: bool = False,
) -> list[Path]:  # fmt: skip
    """Writes a run file in the format of another tool; returns the files that it wrote.

    Nothing is replaced before all new files are complete.

    Args:
        path: The run file.
        to: "csv", "parquet", "tensorboard", "safetensors" or "torch".
        out: The file, or for the first three formats the folder; None: beside the run file.
        overwrite: Replace files of an earlier export.
        full: Of a torch model, the whole `state_dict`, also where the run file lacks parts of it, such as a large
            frozen base: `problem.entry` makes the module again.
        trust: As for `resume`; needed where `full` runs `problem.entry`.
        best: The model of `keep.best` in place of the final one.

    Raises:
        ConfigError: The run file cannot be read or lacks what the format holds, a file exists, or the package that
            writes the format is not installed.
    """
    if to not in FORMATS:
        raise ConfigError("to", to, "no such format", f"one of {', '.join(FORMATS)}")
    form, source = FORMATS[to], Path(path)
    model_options = {} if form.folder else {"full": full, "trust": trust, "best": best}
    if form.folder and (full or best):
        wrong, expected = f"to={to} has tables", "to=torch or safetensors, which have the model"
        raise ConfigError("full" if full else "best", "true", wrong, expected)
    if form.package:
        require(form.package, "to", to)
    with open_run(source) as run:
        if to == "safetensors" and model.is_torch(run):
            require("torch", "to", to)
        target = Path(out) if out is not None else source.with_name(f"{source.stem}{form.suffix}")
        files = {target / name if form.folder else target: write for name, write in form.files(run, **model_options)}
        _check_target(source, target, form)
        old = list(target.glob(form.old)) if form.old and target.is_dir() else []
        if existing := [file for file in (*files, *old) if os.path.lexists(file)]:
            if not overwrite:
                raise ConfigError(
                    "out", existing[0], "the file exists", remedy="choose another name, or overwrite=true"
                )
            if directories := [file for file in existing if file.is_dir()]:
                raise ConfigError("out", directories[0], "this is a directory", "the name of a file")
        with as_unwritable("out", target, "a place that can be written"):
            (target if form.folder else target.parent).mkdir(parents=True, exist_ok=True)
            with durable_files([*files]) as opened:
                for file, write in zip(opened, files.values(), strict=True):
                    write(file)
            for path in old:
                path.unlink(missing_ok=True)
    return list(files)


def _check_target(source: Path, target: Path, form: Format) -> None:
    """Raises ConfigError for an output of the wrong kind, and for the run file itself."""
    if target.exists() and target.samefile(source):
        raise ConfigError("out", target, "this is the run file itself", "another file")
    if form.folder and os.path.lexists(target) and not target.is_dir():
        raise ConfigError("out", target, "this is a file", "a folder")
    if not form.folder and target.is_dir():
        raise ConfigError("out", target, "this is a directory", "the name of a file")


def require(package: str, key: str, value: object) -> None:
    """Imports a package. Raises ConfigError(key, value, ...), with the command that installs it, where that fails."""
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        wrong = f"the package {package} is not installed"
        if error.name != package:
            wrong = f"the package {package} cannot be imported: {error}"
        raise ConfigError(key, value, wrong, remedy=f"pip install {package}") from error
    except Exception as error:  # the installation is broken: a library is missing, or versions do not fit
        wrong = f"the package {package} cannot be imported: {error}"
        raise ConfigError(key, value, wrong, remedy=f"pip install --upgrade {package}") from error
