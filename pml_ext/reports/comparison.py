"""compare.html: finished runs side by side."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pml_ext._errors import UserError
from pml_ext._files import in_file_name
from pml_ext.metrics.keys import MEAN_AVERAGE_PRECISION_AT_R, OPIS, PRECISION_AT_1, REID_MEAN_AVERAGE_PRECISION
from pml_ext.reports import drawing
from pml_ext.reports.drawing import Picture, drawn, format_axis, label_above
from pml_ext.reports.page import differences_table, metrics_table, require_page, write_page
from pml_ext.reports.run_curves import HARD_TRIPLETS, Series, compared_curves, read_series
from pml_ext.runner.config.yaml_file import read_tree
from pml_ext.runner.evaluation.results import (
    METRICS,
    Results,
    heading,
    label_of,
    labels_of,
    read_notes,
    read_results,
    text_table,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

log = logging.getLogger("pml_ext")


def compare(runs: Sequence[Path], output: Path) -> Path:
    """Write a page: a table for each test set, accuracy against OPIS, curves, and where settings differ.

    Prints the tables and the path of the page.

    Each run is a folder with metrics.json (or eval_metrics.json) and config.yaml. UserError: one without them or given
    twice, a single run, or no test set that all runs have.
    """
    require_page(output)
    names = _short_names(runs)
    results = {name: _results(run) for name, run in zip(names, runs, strict=True)}
    if len(runs) < 2:
        raise UserError(f"compare needs two or more runs; got {runs[0]} alone. Its own page is its report.html")
    first = next(iter(results.values()))
    shared = [s for s in first if all(s in found for found in results.values())]
    more = {name: ", ".join(s for s in found if s not in shared) for name, found in results.items()}
    others = [f"{name} has {sets}" for name, sets in more.items() if sets]
    if not shared:
        raise UserError(f"no test set is in all runs: {'; '.join(others)}")
    if others:
        log.warning("not compared, because not all runs have them: %s", "; ".join(others))
    measured = {s: {name: found[s] for name, found in results.items()} for s in shared}
    tables = [metrics_table(s, rows) for s, rows in measured.items()]
    folders = dict(zip(names, runs, strict=True))
    tables.append(differences_table({name: _settings(run) for name, run in folders.items()}))
    makers: dict[str, Callable[[], Iterable[Picture]]] = {"Accuracy and OPIS": partial(_trade_offs, shared, results)}
    for s in shared:
        makers[f"{s}: utility and ROC"] = partial(_set_curves, s, folders)
    makers["Over the training"] = lambda: _curves({name: read_series(run) for name, run in folders.items()})
    pictures = drawn(makers, of="the runs")
    title = f"{len(runs)} runs compared"
    facts = {name: str(run) for name, run in folders.items()}
    notes = [f"{name}: {note}" for name, run in folders.items() for note in read_notes(_metrics_file(run))]
    write_page(output, title=title, about="The runs", facts=facts, notes=notes, tables=tables, pictures=[*pictures])
    texts = ["\n".join(text_table(s, rows)) for s, rows in measured.items()]
    print("\n\n".join([*texts, f"page  {output}"]))
    return output


def _set_curves(test_set: str, runs: Mapping[str, Path]) -> list[Picture]:
    return [compared_curves(test_set, runs)]


def _trade_offs(test_sets: Sequence[str], runs: Mapping[str, Results]) -> Iterator[Picture]:
    """Of each test set whose accuracy and OPIS all runs have."""
    for test_set in test_sets:
        results = {name: found[test_set] for name, found in runs.items()}
        accuracy = next(iter(labels_of(next(iter(results.values())))), OPIS)
        if all({accuracy, OPIS} <= values.keys() for values in results.values()):
            yield _trade_off(test_set, accuracy, results)


def _trade_off(test_set: str, accuracy: str, results: Results) -> Picture:

    def draw(axes: "Axes") -> None:
        for i, (name, values) in enumerate(results.items()):
            style = drawing.look(i) | {"linestyle": "", "markersize": 10, "markeredgecolor": drawing.BLACK}
            axes.plot(values[OPIS], values[accuracy], label=drawing.in_legend(name), **style)
        axes.set(xlabel=heading(OPIS, METRICS[OPIS]))
        label_above(axes, heading(accuracy, label_of(accuracy) or accuracy))
        format_axis(axes.xaxis, OPIS)
        format_axis(axes.yaxis, accuracy)
        axes.margins(0.15)
        axes.grid(color=drawing.PALE)
        drawing.add_legend(axes)

    caption = (
        "Accuracy against threshold inconsistency: higher is more accurate, further left treats classes more alike."
    )
    return Picture(f"trade_off_{in_file_name(test_set)}", f"{test_set}: accuracy and OPIS", caption, [draw])


def _curves(series: Mapping[str, Mapping[str, Series]]) -> list[Picture]:
    """A panel for each loss that a run adds to others, for the hard triplets and for the main validation metrics."""
    names = list(dict.fromkeys(name for found in series.values() for name in found))
    terms = [name for name in names if name.startswith("loss/")]
    are_added = any(len(found.keys() & terms) > 1 for found in series.values())
    wanted = ["loss", *(terms if are_added else ()), HARD_TRIPLETS, PRECISION_AT_1, REID_MEAN_AVERAGE_PRECISION]
    wanted += [MEAN_AVERAGE_PRECISION_AT_R, OPIS]
    panels = [partial(_draw_series, key, series) for key in wanted if key in names]
    caption = "Losses of different kinds are not comparable with each other; the metrics are those of every validation."
    return [Picture("curves", "Over the training", caption, panels)] if panels else []


def _draw_series(key: str, series: Mapping[str, Mapping[str, Series]], axes: "Axes") -> None:
    for place, (run, found) in enumerate(series.items()):
        steps, values = found.get(key, ([], []))
        drawing.plot_series(axes, steps, values, drawing.in_legend(run), place)
    axes.set(xlabel="step")
    label_above(axes, heading(key, METRICS[key]) if key in METRICS else key)
    if key in METRICS:
        format_axis(axes.yaxis, key)
    drawing.add_legend(axes)


def _results(run: Path) -> Results:
    path = _metrics_file(run)
    try:
        return read_results(path)
    except (OSError, ArithmeticError, LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is not a file that a run writes: {error}") from error


def _metrics_file(run: Path) -> Path:
    for name in ("metrics.json", "eval_metrics.json"):
        if (run / name).is_file():
            return run / name
    raise UserError(f"{run} is not the folder of a finished run: it has no metrics.json")


def _settings(run: Path) -> dict[str, str]:
    """KEY -> value of the run's config."""
    path = run / "config.yaml"
    tree = read_tree(path)[0] if path.is_file() else {}
    return {key: value for key, value in _flat(tree, "") if key != "OUTPUT_DIR"}  # which always differs


def _flat(tree: Any, prefix: str) -> list[tuple[str, str]]:
    if not isinstance(tree, dict):
        return [(prefix, str(tree))]
    return [pair for key, value in tree.items() for pair in _flat(value, f"{prefix}.{key}".removeprefix("."))]


def _short_names(runs: Sequence[Path]) -> list[str]:
    """The end of each path, as long as it takes to tell the runs apart; UserError for one folder given twice."""
    paths = [run.resolve() for run in runs]
    for i, path in enumerate(paths):
        if path in paths[:i]:
            first = runs[paths.index(path)]
            also = "" if str(first) == str(runs[i]) else f", once as {first}"
            raise UserError(f"{runs[i]} is given twice{also}; compare takes each run once")
    names = [path.name for path in paths]
    length = 1
    while len(set(names)) < len(names):
        length += 1
        clash = [names.count(name) > 1 for name in names]
        longer = [str(Path(*path.parts[-length:])) for path in paths]
        names = [more if clashes else name for name, more, clashes in zip(names, longer, clash, strict=True)]
    return names
