"""`pml-ext report` and `pml-ext compare`: HTML pages of finished runs."""

from argparse import Namespace
from pathlib import Path

from pml_ext.cli.arguments import IMPORTS, Argument, Command


def _report(options: Namespace) -> None:
    from pml_ext.runner.engine.run import report_of_run

    report_of_run(Path(options.run))


REPORT = Command(
    "report",
    "Write the HTML report of a finished run.",
    _report,
    [Argument("RUN", "OUTPUT_DIR of the run."), *IMPORTS],
    "pml-ext report logs/glyphs",
    notes="Evaluates the run again and writes RUN/report.html.\n",
)


def _compare(options: Namespace) -> None:
    from pml_ext.runner.report import comparison

    comparison.compare([Path(run) for run in options.runs], Path(options.output))


COMPARE = Command(
    "compare",
    "Compare finished runs on one HTML page.",
    _compare,
    [
        Argument("RUN", "OUTPUT_DIRs of the runs.", dest="runs", nargs="+"),
        Argument("--output FILE", "Page to write", default="compare.html"),
    ],
    "pml-ext compare logs/triplet logs/triplet_tcm --output compare.html",
)
