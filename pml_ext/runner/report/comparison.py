"""Compares finished runs on one page."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from pml_ext._shared.errors import UserError, after_results
from pml_ext.metrics.headings import text_table
from pml_ext.reports.drawing import ReportFigure, drawn
from pml_ext.reports.page import Table, metrics_table, require_page, write_page
from pml_ext.runner.config.files import CONFIG_FILE, EVAL_METRICS, METRICS
from pml_ext.runner.config.yaml_file import leaves, read_tree
from pml_ext.runner.evaluation.results import Results, read_metrics
from pml_ext.runner.report.curves import compared_curves, read_series, training_curves

log = logging.getLogger("pml_ext")


def compare(runs: Sequence[Path], output: Path) -> Path:
    """Write a page with a table per test set, curves, and differing settings.

    Prints the tables and the path of the page.

    Each run is a folder with metrics.json (or eval_metrics.json) and config.yaml. UserError: one without them or listed
    twice, a single run, or no test set that all runs have.
    """
    require_page(output)
    folders = dict(zip(_short_names(runs), runs, strict=True))
    results, notes = dict[str, Results](), list[str]()
    for name, run in folders.items():
        results[name], of_run = read_metrics(_metrics_file(run))
        notes += [f"{name}: {note}" for note in of_run]
    if len(runs) < 2:
        raise UserError(f"compare needs two or more runs; got {runs[0]} alone. Its page is report.html")
    shared = _shared_test_sets(results)
    tables, texts = list[Table](), list[str]()
    makers: dict[str, Callable[[], Iterable[ReportFigure]]] = {}
    for test_set in shared:
        rows = {name: by_set[test_set] for name, by_set in results.items()}
        tables.append(metrics_table(test_set, rows))
        texts.append("\n".join(text_table(test_set, rows)))
        makers[f"{test_set}: utility and ROC"] = partial(compared_curves, test_set, folders)
    tables.append(_differences_table({name: _settings(run) for name, run in folders.items()}))
    makers["Over the training"] = lambda: training_curves({name: read_series(run) for name, run in folders.items()})
    print("\n\n".join(texts))
    with after_results(output):
        write_page(
            output,
            title=f"{len(runs)} runs compared",
            about="The runs",
            facts={name: str(run) for name, run in folders.items()},
            notes=notes,
            tables=tables,
            figures=[*drawn(makers, of="the runs")],
        )
    print(f"\nopen {output}")
    return output


def _shared_test_sets(results: Mapping[str, Results]) -> list[str]:
    """Returns the test sets that all runs have and logs the others; UserError if there is none."""
    shared = list(next(iter(results.values())))
    for by_set in results.values():
        shared = [name for name in shared if name in by_set]
    left_out = []
    for run, by_set in results.items():
        if more := [name for name in by_set if name not in shared]:
            left_out.append(f"{run} has {', '.join(more)}")
    if left_out and not shared:
        raise UserError(f"no test set is in all runs: {'; '.join(left_out)}")
    if left_out:
        log.warning("not compared, because not all runs have them: %s", "; ".join(left_out))
    return shared


def _differences_table(settings: Mapping[str, Mapping[str, str]]) -> Table:
    """Returns a table of the config keys in which runs differ."""
    rows = []
    for key in dict.fromkeys(key for values in settings.values() for key in values):
        row = [values.get(key, "") for values in settings.values()]
        if len(set(row)) > 1:
            rows.append([key, *row])
    return ["settings that differ", *settings], rows


def _metrics_file(run: Path) -> Path:
    for name in (METRICS, EVAL_METRICS):
        if (run / name).is_file():
            return run / name
    raise UserError(f"{run} is not the folder of a finished run: it has no {METRICS}")


def _settings(run: Path) -> dict[str, str]:
    """KEY -> value of the run's config."""
    path = run / CONFIG_FILE
    tree = read_tree(path)[0] if path.is_file() else {}
    return {key: str(value) for key, value in leaves(tree) if key != "OUTPUT_DIR"}  # which always differs


def _short_names(runs: Sequence[Path]) -> list[str]:
    """Returns folder names, or paths below their common parent if two names are equal.

    UserError: one folder listed twice.
    """
    paths = [run.resolve() for run in runs]
    for place, path in enumerate(paths):
        if path in paths[:place]:
            first = runs[paths.index(path)]
            also = "" if str(first) == str(runs[place]) else f", once as {first}"
            raise UserError(f"{runs[place]} is listed twice{also}; compare takes each run once")
    names = [path.name for path in paths]
    if len(set(names)) == len(names):
        return names
    parent = os.path.commonpath(paths)
    return [str(path.relative_to(parent)) for path in paths]
