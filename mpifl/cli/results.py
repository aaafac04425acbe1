"""Commands that read run files: show, verify, report, export."""

from __future__ import annotations

import argparse
from pathlib import Path

from mpifl.cli.command import TRUST, Command, file_and_overrides, flag, one_path, value
from mpifl.cli.output import print_result
from mpifl.errors import ConfigError


def _show(args: argparse.Namespace) -> None:
    if study := _is_study(args.arguments):
        from mpifl.tools.studies.study import load_study

        path = load_study(*file_and_overrides("show", "STUDY.yaml", args.arguments)).folder
    else:
        path = one_path("show", args.arguments, "one RUN.h5, one folder of run files, or one STUDY.yaml")
    if study or path.is_dir():
        if args.follow:
            from mpifl.tools.studies.follow import follow

            follow(path, print_result)
        else:
            from mpifl.tools.studies.index import show_folder

            print_result(show_folder(path))
    else:
        from mpifl.tools.analysis.show import show

        show(path, args.follow, print_result)


def _is_study(arguments: list[str]) -> bool:
    """Whether the first argument is a study file."""
    return bool(arguments) and Path(arguments[0]).suffix in (".yaml", ".yml")


def _verify(args: argparse.Namespace) -> None:
    from mpifl.tools.verify.run_file import verify_file

    print_result(verify_file(one_path("verify", args.arguments, "one RUN.h5"), args.replay, args.trust))


def _report(args: argparse.Namespace) -> None:
    from mpifl.tools.analysis.options import parse_options

    if not args.arguments:
        raise ConfigError(
            "report", "''", "nothing to report", "at least one RUN.h5, a folder of run files, or one STUDY.yaml"
        )
    options = parse_options(vars(args))
    if args.reach_in is not None and args.reach is None:
        raise ConfigError(
            "reach-in", args.reach_in, "--reach, whose columns have this unit, is not given", remedy="give it as well"
        )
    for name in ("label", "caption", "siunitx"):
        if args.pivot is None and (given := getattr(args, name)):
            raise ConfigError(name, given, "without --pivot AXIS there is no pivot", remedy="give it as well")
    if args.watch and not _is_study(args.arguments):
        raise ConfigError("--watch", args.arguments[0], "not a study", "a STUDY.yaml")
    for name in ("formats", "figures", "x", "width", "trials", "window", "watch"):
        if args.out is None and (given := getattr(args, name)):
            raise ConfigError(name, given, "without --out DIR no files are written", remedy="give it as well")
    if _is_study(args.arguments):
        from mpifl.tools.studies.select import report_study
        from mpifl.tools.studies.study import load_study

        study = load_study(*file_and_overrides("report", "STUDY.yaml", args.arguments))
        if args.watch:
            from mpifl.tools.studies.follow import watch_report

            watch_report(study, args.out, options, print_result)
        else:
            print_result(report_study(study, args.out, options))
    else:
        from mpifl.tools.analysis.report import report

        print_result(report(args.arguments, args.out, options))


def _compare(args: argparse.Namespace) -> None:
    from mpifl.tools.analysis.comparison import CompareOptions, write_comparison

    if not args.arguments:
        raise ConfigError("compare", "''", "nothing to compare", "one STUDY.yaml, or run files or folders of them")
    if args.baseline is None:
        raise ConfigError("--baseline", "''", "required", "the method that the others are compared with")
    tuned = tuple(part.strip() for part in (args.tuned or "").split(",") if part.strip())
    options = CompareOptions(args.baseline, args.by, tuned, args.metric, args.test, args.better, args.power)
    if _is_study(args.arguments):
        from mpifl.tools.studies.select import compare_study
        from mpifl.tools.studies.study import load_study

        found = compare_study(load_study(*file_and_overrides("compare", "STUDY.yaml", args.arguments)), options)
    else:
        from mpifl.tools.analysis.comparison import compare_files

        found = compare_files(args.arguments, options)
    written = write_comparison(args.out, found) if args.out else []
    print_result("\n".join([found.table.text(), "", *found.table.notes, *(f"wrote {path}" for path in written)]))


def _export(args: argparse.Namespace) -> None:
    from mpifl.config import read
    from mpifl.tools.export.files import export_run

    path, overrides = file_and_overrides("export", "RUN.h5", args.arguments)
    if args.to is None:
        raise ConfigError("--to", "''", "required", "one of csv, parquet, tensorboard, safetensors, torch")
    overwrite = False
    for key, given in map(read.parse_override, overrides):
        if key != "overwrite" or not isinstance(given, bool):
            raise ConfigError(key, given, "not an option of mpifl export", "overwrite=true or overwrite=false")
        overwrite = given
    written = export_run(path, args.to, args.out, overwrite, full=args.full, trust=args.trust, best=args.best)
    print_result("\n".join(f"wrote {file}" for file in written))


SHOW = Command(
    _show,
    "RUN.h5|FOLDER|STUDY.yaml [key=value ...]",
    "print a summary of a run file, or the status of each run of a study",
    {
        "--follow": flag(
            "go on while the run is live, with its new evaluations, or while the study runs, with its curves"
        )
    },
)

VERIFY = Command(
    _verify,
    "RUN.h5",
    "check that a run file is undamaged, and that its rows are consistent with its job",
    {
        "--replay": flag("replay the run too, and compare every row and the model"),
        **TRUST,
    },
)

REPORT = Command(
    _report,
    "RUN.h5|FOLDER ...|STUDY.yaml [key=value ...]",
    "make tables and figures from run files, from folders of them or from a study",
    {
        "--out": value("DIR", "write the table and the figures into this folder; default: print the table", Path),
        "--spread": value(
            "KIND",
            "spread over the trials: range (min to max, the default), sd (standard deviation) or ci95 "
            "(95 %% interval of the mean)",
        ),
        "--columns": value(
            "NAMES",
            "columns of the table, separated by commas: columns of /evaluations such as test_accuracy, and rho, "
            "global_steps, updates_per_second, staleness",
        ),
        "--reach": value(
            "ACCURACIES",
            "add columns with the time at which the test accuracy first reaches these values, such as 0.8,0.9",
        ),
        "--reach-in": value(
            "UNITS", "units of the columns of --reach: time (the default), updates, rounds, bytes, local-steps"
        ),
        "--pivot": value(
            "AXIS",
            "a table with methods as rows, the values of this axis as columns, and one metric (--columns) in the cells",
        ),
        "--label": value("NAME", "label of the pivot in LaTeX, such as tab:accuracy"),
        "--caption": value("TEXT", "caption of the pivot in LaTeX; default: the metric"),
        "--siunitx": flag("align the numbers of the pivot in LaTeX with the package siunitx"),
        "--all": flag("of a study: show all values, and mark those that its rule selects"),
        "--formats": value("NAMES", "files to write: md,csv,tex,png,pdf (the default), svg, html"),
        "--watch": flag("make the page of a study (html) again while it runs"),
        "--figures": value(
            "NAMES",
            "figures to draw: accuracy, loss, gradient, gradient-mapping, staleness, client-updates, "
            "step-size-accuracy, step-size-loss, timeline (default: those that the runs have values for); updates, "
            "staleness-accuracy, staleness-loss, profile (with --reach), ranks-accuracy, ranks-loss, and columns of "
            "/evaluations",
        ),
        "--x": value("UNITS", "draw curves against time (the default), updates, rounds, bytes, local-steps"),
        "--panels": value("AXIS", "draw a panel for each value of this axis of the study, or key of the job"),
        "--trials": flag("draw a thin line for each trial in figures of curves"),
        "--window": value("FROM,TO", "draw timelines between these times (s); default: from the beginning"),
        "--width": value(
            "INCHES", "width of figures and of a pivot in LaTeX: 3.3 for a column, 7 (the default) for a page"
        ),
    },
)

COMPARE = Command(
    _compare,
    "STUDY.yaml --baseline METHOD|RUN.h5|FOLDER ... --baseline METHOD",
    "test whether methods differ from a baseline, over trials paired by seed and setting",
    {
        "--baseline": value("METHOD", "the method that the others are compared with, as the report's table names it"),
        "--by": value("AXIS", "compare the values of this axis of the study, or key of the job; default: the first"),
        "--tuned": value(
            "KEYS",
            "keys that were tuned for each method, separated by commas: they do not distinguish settings; those that "
            "the rule of a study selects are always among them",
        ),
        "--metric": value(
            "NAME", "metric of the last evaluations; default: test_accuracy where the runs have it, else train_loss"
        ),
        "--better": value(
            "WHICH", "whether large or small values of the metric are good; default: large for accuracies, else small"
        ),
        "--test": value("NAME", "signed-rank (Wilcoxon's, the default) or permutation", default="signed-rank"),
        "--power": value(
            "DIFFERENCE",
            "add the number of trials that detects a difference of this size, in the table's unit, with power 0.8",
            float,
        ),
        "--out": value("DIR", "write compare.md, compare.csv, compare.tex and sentences.tex into this folder", Path),
    },
)

EXPORT = Command(
    _export,
    "RUN.h5 --to FORMAT [overwrite=true]",
    "write a run file as CSV, Parquet, TensorBoard events, safetensors or a state_dict of PyTorch",
    {
        "--to": value("FORMAT", "csv, parquet, tensorboard, safetensors or torch"),
        "--out": value("PATH", "the file or folder; default: beside the run file", Path),
        "--best": flag("the model of keep.best in place of the final one"),
        "--full": flag("of a torch model, also what the run file does not have, such as a large frozen base"),
        **TRUST,
    },
)
