"""The pictures of a run's test sets, from what was measured."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from pml_ext.functional import UtilityCurves
from pml_ext.reports.drawing import Picture
from pml_ext.reports.embedding_map import map_picture, spectrum_picture
from pml_ext.reports.page import metrics_table, write_page
from pml_ext.reports.ranked_lists import confusions, first_results, worst_and_random
from pml_ext.reports.ranked_results import confused_identities, results_picture
from pml_ext.reports.thresholds import error_pictures, utility_picture
from pml_ext.reports.training_series import read_series, training_curves
from pml_ext.runner.data.datasets import ImageSet, OpenSet, TestSet
from pml_ext.runner.evaluation.baselines import RAW_PIXELS, Measured
from pml_ext.runner.evaluation.evaluate import Features, query_and_gallery_embeddings

_QUERIES = 5
_CONFUSIONS = 9
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
    """report.html and its pictures in the folder of a run.

    Args:
        run: the folder; the curves are of the metrics.csv there.
        test_sets: by name; those of pairs or templates have a table only.
        trained, baselines: what was measured on them.
        far: the rate for which the operating point is chosen.
        curves: utility by test set; a set without any has no pictures of thresholds.
        far_range: the rates that bound its calibration range.
        seed: of random choices.
        facts: what the page says of the run.
        extra: pictures for the end of the page.
    Returns:
        the page, and the PNG files.
    """
    pictures: list[Picture] = []
    open_sets = {name: data for name, data in test_sets.items() if isinstance(data, OpenSet)}
    for name, data in open_sets.items():
        raw = baselines[RAW_PIXELS].features[name] if RAW_PIXELS in baselines else None
        suffix = "" if len(open_sets) == 1 else "_" + re.sub("[^A-Za-z0-9_.-]", "_", name)
        before = {key: measured.features[name] for key, measured in baselines.items() if key != RAW_PIXELS}
        found = [*_of_set(data, trained.features[name], raw, before, seed=seed)]
        if name in curves:
            found[-2:-2] = _of_thresholds(data, trained.features[name], curves[name], far, far_range)
        for picture in found:
            title = picture.title if not suffix else f"{name}: {picture.title}"
            pictures.append(Picture(**{**vars(picture), "name": picture.name + suffix, "title": title}))
    series = read_series(run)
    if series:
        pictures.append(training_curves(series))
    tables = [
        metrics_table(name, {row: m.results[name] for row, m in baselines.items()} | {TRAINED: values})
        for name, values in trained.results.items()
    ]
    path = run / "report.html"
    title = f"{', '.join(trained.results)}: what the model learned"
    return path, write_page(
        path, title=title, about="This run", facts=facts, tables=tables, pictures=[*pictures, *extra]
    )


def _of_set(
    data: OpenSet,
    features: Features,
    raw: Features | None,
    before: Mapping[str, Features],
    *,
    seed: int,
) -> Iterator[Picture]:
    found = first_results(data, features)
    lists = {TRAINED: found} if raw is None else {RAW_PIXELS: first_results(data, raw), TRAINED: found}
    worst, others = worst_and_random(found, data.query.identities, _QUERIES, seed)
    yield results_picture(
        data, lists, others, name="ranked_random", title="What random queries find",
        caption="Queries chosen at random, and the first ten results of each.",
    )  # fmt: skip
    yield results_picture(
        data, lists, worst, name="ranked_worst", title="What fails worst",
        caption="The queries whose average precision by the trained model is lowest, one of an identity.",
    )  # fmt: skip
    confused = confusions(data, found, _CONFUSIONS)
    if confused:
        yield confused_identities(data, confused, name="confusions")
    everything = ImageSet.concatenated(data.parts)
    yield map_picture(everything, torch.cat(features), seed=seed)
    models = {name: torch.cat(parts) for name, parts in before.items()} | {TRAINED: torch.cat(features)}
    yield spectrum_picture(models)


def _of_thresholds(
    data: OpenSet, features: Features, curves: UtilityCurves, far: float, far_range: tuple[float, float]
) -> list[Picture]:
    embeddings, identities = query_and_gallery_embeddings(data, features)
    faces = dict(zip(data.query.identities.tolist(), data.query.images, strict=True))
    called = data.query.called
    return [
        utility_picture(curves, far_range, called=called),
        *error_pictures(embeddings, identities, far, faces, called=called),
    ]
