"""`mpifl export`: writes a run file's content in another format, to new files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, NamedTuple

from mpifl.errors import ConfigError
from mpifl.runfile.durable import durable_file, error_text
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
    path: str | Path, to: str, out: str | Path | None = None, overwrite: bool = False, full: bool = False,
    trust: bool = False, best: bool = False,
) -> list[Path]:  # fmt: skip
    """Writes a run file in another format; returns the files that it wrote.

    to         a key of FORMATS
    out        the file or, for a format of several files, their folder; None: NAME with the format's suffix
    overwrite  replace files of an earlier export
    full       of a model, also what the run file does not have; `problem.entry` makes the module again
    trust      import and run that function
    best       of a model, that of `keep.best` in place of the final one

    Nothing is replaced before all new files are complete. Raises ConfigError for a run file that cannot be read, for
    one that does not have what the format holds, for outputs that exist, and where a package is missing.
    """
    if to not in FORMATS:
        raise ConfigError("to", to, "no such format", f"one of {', '.join(FORMATS)}")
    form, source = FORMATS[to], Path(path)
    model_options = {} if form.folder else {"full": full, "trust": trust, "best": best}
    for name in [name for name, given in (("full", full), ("best", best)) if given and form.folder]:
        raise ConfigError(name, "true", f"to={to} has tables", "to=torch or safetensors, which have the model")
    if form.package:
        require(form.package, "to", to)
    with open_run(source) as run:
        if to == "safetensors" and model.is_torch(run):
            require("torch", "to", to)
        target = Path(out) if out is not None else source.with_name(f"{source.stem}{form.suffix}")
        files = {target / name if form.folder else target: write for name, write in form.files(run, **model_options)}
        _check_target(source, target, form)
        old = [file for file in target.glob(form.old) if form.old] if form.old and target.is_dir() else []
        if existing := [file for file in (*files, *old) if os.path.lexists(file)]:
            if not overwrite:
                raise ConfigError(
                    "out", existing[0], "the file exists", remedy="choose another name, or overwrite=true"
                )
            if any(file.is_dir() for file in existing):
                directory = next(f for f in existing if f.is_dir())
                raise ConfigError("out", directory, "this is a directory", "the name of a file")
        try:
            (target if form.folder else target.parent).mkdir(parents=True, exist_ok=True)
            with ExitStack() as stack:
                for file, write in files.items():
                    write(stack.enter_context(durable_file(file)))
            for file in old:
                file.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(
                "out", target, f"cannot be written: {error_text(error)}", "a place that can be written"
            ) from error
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
