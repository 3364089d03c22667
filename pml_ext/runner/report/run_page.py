"""Writes report.html: figures for a run's test sets and its training."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import torch

from pml_ext._shared.files import in_file_name
from pml_ext.functional import UtilityCurves, utility_curves
from pml_ext.functional.pairwise.pair_distances import PairDistances, count_accepted
from pml_ext.functional.verification.threshold import threshold_at_far
from pml_ext.metrics.opis_settings import OPISSettings
from pml_ext.reports.drawing import FigureMakers, ReportFigure, drawn
from pml_ext.reports.page import as_html, metrics_table, write_page
from pml_ext.runner.data.datasets import ImageSet, OpenSet, PairSet, TemplateSet, TestSet
from pml_ext.runner.evaluation.run_metrics import (
    RAW_PIXELS,
    Features,
    Measured,
    query_and_gallery_embeddings,
    roc_of_listed_pairs,
)
from pml_ext.runner.report.curves import (
    curves_file,
    curves_of_pairs,
    curves_of_set,
    pair_roc_figure,
    read_series,
    save_curves,
    training_curves,
)
from pml_ext.runner.report.embedding_map import map_figure
from pml_ext.runner.report.ranked_results import (
    RankedLists,
    confused_identities,
    confusions,
    first_results,
    results_figure,
    worst_and_random,
)
from pml_ext.thresholds.fields import Target, ThresholdCurves, ThresholdFields, cosine_of
from pml_ext.thresholds.figures import error_figure, utility_figure
from pml_ext.thresholds.measure import error_rates
from pml_ext.thresholds.page import class_tables

_QUERIES = 5
_CONFUSIONS = 9
_DISTANCES = 401
TRAINED = "trained"


def write_report(
    run: Path,
    test_sets: Mapping[str, TestSet],
    trained: Measured,
    baselines: Mapping[str, Measured],
    *,
    far: float,
    opis: OPISSettings,
    seed: int,
    facts: Mapping[str, str],
    notes: Sequence[str] = (),
) -> Path:
    """Writes report.html and its figures into the run's folder; returns the page's path.

    Test sets of pairs or templates get a table and a ROC only.

    far: FAR of the operating point, at least 1 / impostor pairs.
    opis: settings of the utility figure.
    notes: paragraphs at the top of the page.
    """
    figures: list[ReportFigure] = []
    for name, data in test_sets.items():
        if isinstance(data, OpenSet):
            panels = _panels_of_set(run, name, data, trained, baselines, opis, far=far, seed=seed)
        else:
            models = {**baselines, TRAINED: trained}
            panels = {"ROC of the pairs": partial(_roc_of_pairs, run, name, data, models)}
        set_figures = [*drawn(panels, of=name)]
        if len(test_sets) > 1:
            suffix = "_" + in_file_name(name)
            set_figures = [replace(p, name=p.name + suffix, title=f"{name}: {p.title}") for p in set_figures]
        figures += set_figures
    figures += drawn({"Over the training": lambda: training_curves({run.name: read_series(run)})}, of=str(run))
    tables = []
    for name, values in trained.results.items():
        rows = {row: baseline.results[name] for row, baseline in baselines.items()}
        tables.append(metrics_table(name, rows | {TRAINED: values}))
    path = run / "report.html"
    write_page(
        path,
        title=f"{', '.join(trained.results) or run.name}: what the model learned",
        about="This run",
        facts=facts,
        notes=notes,
        tables=tables,
        marked=len(baselines),
        figures=figures,
    )
    return path


def _curves_of_set(data: OpenSet, features: Features, opis: OPISSettings) -> UtilityCurves:
    distances = torch.linspace(0, 2, _DISTANCES, dtype=torch.float64)
    embeddings, labels = query_and_gallery_embeddings(data, features)
    return utility_curves(embeddings, labels, far_range=opis.far_range, thresholds=distances)


def _utility_of_set(data: OpenSet, curves: UtilityCurves, far_range: tuple[float, float]) -> list[ReportFigure]:
    names = [data.query.name_of(identity) for identity in curves.classes.tolist()]
    low, high = curves.calibration_range.tolist()
    return [utility_figure(curves.thresholds, curves.utilities, names, (low, high), far_range)]


def _panels_of_set(
    run: Path,
    name: str,
    data: OpenSet,
    trained: Measured,
    baselines: Mapping[str, Measured],
    opis: OPISSettings,
    *,
    far: float,
    seed: int,
) -> FigureMakers:
    features = trained.features[name]
    searched = {TRAINED: features}
    if RAW_PIXELS in baselines:
        searched = {RAW_PIXELS: baselines[RAW_PIXELS].features[name], TRAINED: features}
    lists = cache(lambda: {model: first_results(data, part) for model, part in searched.items()})
    curves = cache(partial(_curves_of_set, data, features, opis))
    file, every = curves_file(run, name), ImageSet.concatenated(data.parts)
    panels: FigureMakers = {
        "What queries find": lambda: _results_of_queries(data, lists(), seed),
        "Most confused classes": lambda: _confusions(data, lists()[TRAINED]),
        "One threshold for all pairs": lambda: _threshold_figures(file, data, features, curves(), far),
        "Utility of each class": lambda: _utility_of_set(data, curves(), opis.far_range),
        "A map of the embeddings": lambda: [map_figure(every, torch.cat(features), seed=seed)],
    }
    return panels


def _roc_of_pairs(
    run: Path, name: str, data: PairSet | TemplateSet, models: Mapping[str, Measured]
) -> Iterator[ReportFigure]:
    rocs = {
        row: roc_of_listed_pairs(data, model.features[name]) for row, model in models.items() if name in model.features
    }
    save_curves(curves_file(run, name), curves_of_pairs(rocs[TRAINED]))
    yield pair_roc_figure(rocs)


def _results_of_queries(data: OpenSet, lists: Mapping[str, RankedLists], seed: int) -> Iterator[ReportFigure]:
    worst, others = worst_and_random(lists[TRAINED], data.query.identities, _QUERIES, seed)
    caption = "Random queries and the first ten results of each."
    yield results_figure(data, lists, others, "ranked_random", "What random queries find", caption)
    caption = "The queries with the lowest average precision of the trained model, at most one of each class."
    trained = {TRAINED: lists[TRAINED]}
    yield results_figure(data, trained, worst, "ranked_worst", "The worst queries", caption)


def _confusions(data: OpenSet, lists: RankedLists) -> Iterator[ReportFigure]:
    if confused := confusions(data, lists, _CONFUSIONS):
        yield confused_identities(data, confused)


def _threshold_figures(
    file: Path, data: OpenSet, features: Features, curves: UtilityCurves, far: float
) -> list[ReportFigure]:
    """Ignores cameras. Saves the curves in `file`, even if no threshold meets the FAR."""
    embeddings, identities = query_and_gallery_embeddings(data, features)
    pairs = PairDistances(embeddings, identities)
    counts = ThresholdCurves(curves.thresholds, *count_accepted(pairs, curves.thresholds), curves.utilities)
    if pairs.total_positive_pairs and pairs.total_negative_pairs:
        save_curves(file, curves_of_set(counts, pairs.total_positive_pairs, pairs.total_negative_pairs))
    far = max(far, 1 / max(pairs.total_negative_pairs, 1))
    distance = threshold_at_far(pairs, far)
    names = [data.query.name_of(identity) for identity in identities.unique().tolist()]
    far_rate, frr_rate, errors = error_rates(pairs, names, distance)
    fields = ThresholdFields(
        target=Target("far", far),
        cosine=cosine_of(distance),
        far=far_rate,
        frr=frr_rate,
        classes=errors,
        consistency=None,
        samples=len(embeddings),
        embedding_dim=embeddings.shape[1],
        copies=0,
        curves=counts,
    )
    caption = "The highest false accept and false reject rates at the threshold; rates of few pairs are uncertain."
    worst = ReportFigure(
        "worst_classes", "Classes with the most errors", caption, extra=as_html(tables=class_tables(fields))
    )
    return [error_figure(fields), worst]
