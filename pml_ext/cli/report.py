"""`pml-ext report` and `pml-ext compare`: HTML pages of finished runs."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pml_ext.cli.arguments import Command, add_import


def _add_report(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="OUTPUT_DIR of the run")
    add_import(parser)


def _report(options: Namespace) -> None:
    from pml_ext.runner.engine.run import report_of_run

    report_of_run(Path(options.run))


REPORT = Command(
    "report",
    "Evaluate a finished run again and write its HTML report, RUN/report.html.",
    _add_report,
    _report,
    "pml-ext report logs/glyphs",
    notes="For precomputed embeddings: `pml-ext evaluate FILE --report`.\n",
)


def _add_comparison(parser: ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="OUTPUT_DIRs of the runs")
    parser.add_argument(
        "--output", default="compare.html", metavar="FILE", help="Page to write [default: compare.html]"
    )


def _compare(options: Namespace) -> None:
    from pml_ext.reports import comparison

    comparison.compare([Path(run) for run in options.runs], Path(options.output))


COMPARE = Command(
    "compare",
    "Compare finished runs on one HTML page.",
    _add_comparison,
    _compare,
    "pml-ext compare logs/triplet logs/triplet_tcm --output compare.html",
)
