"""report.html: the pictures of a run's test sets, and what its losses and its training looked like."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from pml_ext.functional import UtilityCurves
from pml_ext.functional.operating_points.calibration import TooFewClassesError
from pml_ext.functional.pairwise.pair_distances import PairDistances, count_accepted
from pml_ext.functional.verification.threshold import threshold_at_far
from pml_ext.metrics.opis_settings import OPISSettings
from pml_ext.metrics.threshold.fields import Target, ThresholdCurves, ThresholdFields
from pml_ext.metrics.threshold.rates import error_rates
from pml_ext.reports.drawing import Picture
from pml_ext.reports.embedding_map import map_picture, spectrum_picture
from pml_ext.reports.page import metrics_table, write_page
from pml_ext.reports.ranked_results import (
    confused_identities,
    confusions,
    first_results,
    results_picture,
    worst_and_random,
)
from pml_ext.reports.thresholds import error_pictures, utility_picture
from pml_ext.reports.training_series import read_series, training_curves
from pml_ext.runner.data.datasets import ImageSet, OpenSet, TestSet
from pml_ext.runner.evaluation.baselines import RAW_PIXELS, Measured
from pml_ext.runner.evaluation.evaluate import Features, query_and_gallery_embeddings

log = logging.getLogger("pml_ext")

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
    curves: Mapping[str, UtilityCurves],
    far_range: tuple[float, float],
    seed: int,
    facts: Mapping[str, str],
    extra: Sequence[Picture] = (),
) -> tuple[Path, list[Path]]:
    """Write report.html and its pictures in the folder of a run, return the page and the PNGs.

    test_sets of pairs or templates have a table only; far: of the operating point, 1 / impostor pairs where those are
    fewer; curves: of `measure_utility`, no pictures of thresholds without; far_range: bounds the calibration range.
    """
    open_sets = {name: data for name, data in test_sets.items() if isinstance(data, OpenSet)}
    pictures: list[Picture] = []
    for name, data in open_sets.items():
        found = [*_pictures_of_set(name, data, trained, baselines, seed=seed)]
        if name in curves:
            found[-2:-2] = _pictures_of_thresholds(name, data, trained.features[name], curves[name], far, far_range)
        if len(open_sets) > 1:
            suffix = "_" + re.sub("[^A-Za-z0-9_.-]", "_", name)
            found = [replace(p, name=p.name + suffix, title=f"{name}: {p.title}") for p in found]
        pictures += found
    if series := read_series(run):
        pictures.append(training_curves(series))
    tables = [
        metrics_table(name, {row: m.results[name] for row, m in baselines.items()} | {TRAINED: values})
        for name, values in trained.results.items()
    ]
    path, pictures = run / "report.html", [*pictures, *extra]
    title = f"{', '.join(trained.results)}: what the model learned"
    return path, write_page(path, title=title, about="This run", facts=facts, tables=tables, pictures=pictures)


def measure_utility(
    test_sets: Mapping[str, TestSet], features: Mapping[str, Features], opis: OPISSettings
) -> dict[str, UtilityCurves]:
    """Utility against threshold of each set with queries; one with too few classes or pairs is skipped and logged."""
    distances = torch.linspace(0, 2, _DISTANCES, dtype=torch.float64)
    found = {}
    for name, data in test_sets.items():
        if isinstance(data, OpenSet):
            try:
                found[name] = opis.curves_at(distances, *query_and_gallery_embeddings(data, features[name]))
            except TooFewClassesError as error:
                log.warning("no pictures of thresholds of %s: %s", name, error)
    return found


def utility_of_set(data: OpenSet, curves: UtilityCurves, far_range: tuple[float, float]) -> Picture:
    """The picture of `measure_utility`'s curves."""
    names = [data.query.called(identity) for identity in curves.classes.tolist()]
    low, high = curves.calibration_range.tolist()
    return utility_picture(curves.thresholds, curves.utilities, names, (low, high), far_range)


def _pictures_of_set(
    name: str, data: OpenSet, trained: Measured, baselines: Mapping[str, Measured], *, seed: int
) -> Iterator[Picture]:
    found = first_results(data, trained.features[name])
    raw = {RAW_PIXELS: first_results(data, baselines[RAW_PIXELS].features[name])} if RAW_PIXELS in baselines else {}
    worst, others = worst_and_random(found, data.query.identities, _QUERIES, seed)
    show = partial(results_picture, data, raw | {TRAINED: found})
    caption = "Queries chosen at random, and the first ten results of each."
    yield show(others, "ranked_random", "What random queries find", caption)
    caption = "The queries with the lowest average precision by the trained model, at most one of each identity."
    yield show(worst, "ranked_worst", "The worst queries", caption)
    if confused := confusions(data, found, _CONFUSIONS):
        yield confused_identities(data, confused)
    embeddings = torch.cat(trained.features[name])
    yield map_picture(ImageSet.concatenated(data.parts), embeddings, seed=seed)
    before = {row: torch.cat(m.features[name]) for row, m in baselines.items() if row != RAW_PIXELS}
    yield spectrum_picture(before | {TRAINED: embeddings})


def _pictures_of_thresholds(
    name: str, data: OpenSet, features: Features, curves: UtilityCurves, far: float, far_range: tuple[float, float]
) -> list[Picture]:
    """Cameras are ignored here."""
    pictures = [utility_of_set(data, curves, far_range)]
    embeddings, identities = query_and_gallery_embeddings(data, features)
    pairs = PairDistances(embeddings, identities)
    far = max(far, 1 / pairs.total_negative_pairs)
    try:
        distance = threshold_at_far(pairs, far)
    except ValueError as error:
        log.warning("no picture of one threshold of %s: %s", name, error)
        return pictures
    classes, samples = identities.unique(return_counts=True)
    names = tuple(data.query.called(identity) for identity in classes.tolist())
    counts = ThresholdCurves(curves.thresholds, *count_accepted(pairs, curves.thresholds), curves.utilities)
    rates = error_rates(pairs, samples, names, distance)
    found = ThresholdFields(
        Target("far", far), 1 - distance**2 / 2, *rates, None, None, len(embeddings), embeddings.shape[1], 0,
        curves=counts,
    )  # fmt: skip
    faces = {data.query.called(identity): row for row, identity in enumerate(data.query.identities.tolist())}
    return [*pictures, *error_pictures(found, lambda label: data.query.images[faces[str(label)]])]
