"""The files in which a threshold report is handed on."""

from pathlib import Path

from pml_ext._files import write_atomically
from pml_ext.metrics.threshold.fields import ThresholdFields
from pml_ext.metrics.threshold.json_file import write_report
from pml_ext.reports.threshold_page import page
from pml_ext.reports.threshold_plots import figure_png, panels


def write_files(report: ThresholdFields, stem: Path) -> list[Path]:
    """The report as <stem>.json, .html and .png; each is whole or not there."""
    files = [stem.with_name(f"{stem.name}{kind}") for kind in (".json", ".html", ".png")]
    # All are made before the first is written: a report that cannot be drawn leaves no files.
    text, png = page(report, panels(report)), figure_png(report)
    write_report(report, files[0])
    write_atomically(files[1], text)
    write_atomically(files[2], png)
    return files
