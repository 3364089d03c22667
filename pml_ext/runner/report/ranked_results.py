"""The first results of queries and the most confused identities, with their images."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pml_ext._ops.numerics import unit_rows
from pml_ext._shared.errors import UserError
from pml_ext._shared.identities import is_ranked
from pml_ext.metrics import ReIDEvaluator
from pml_ext.reports.drawing import ReportFigure
from pml_ext.reports.page import Card, as_html, thumbnail
from pml_ext.runner.data.datasets import ImageSet, OpenSet
from pml_ext.runner.evaluation.run_metrics import Features

_SHOWN = 10
_QUERIES_AT_ONCE = 512


@dataclass(frozen=True)
class RankedLists:
    """The first results of each query under the camera protocol: items (Q, K), the closest first, and their cosines.

    right, counts: (Q, K) of the query's identity, is a result at all; average_precision: (Q,), nan if nothing to find.
    """

    items: np.ndarray
    cosines: np.ndarray
    right: np.ndarray
    counts: np.ndarray
    average_precision: np.ndarray


@dataclass(frozen=True)
class Confusion:
    """Wrong results of the identity `taken_for` take `places` of the `of` first places of an identity's queries.

    query, result: places of one such query and result, to show their images.
    """

    identity: int
    taken_for: int
    places: int
    of: int
    query: int
    result: int


def first_results(data: OpenSet, features: Features) -> RankedLists:
    """Returns the first ten results of every query, without items of its identity and camera, and without junk."""
    query, gallery = data.parts[0], data.parts[-1]
    query_vectors, gallery_vectors = unit_rows(features[0]), unit_rows(features[-1])
    query_ids, query_cameras = torch.from_numpy(query.identities), torch.from_numpy(query.cameras)
    ids, cameras = torch.from_numpy(gallery.identities), torch.from_numpy(gallery.cameras)
    blocks = []
    for start in range(0, len(query_vectors), _QUERIES_AT_ONCE):
        rows = slice(start, start + _QUERIES_AT_ONCE)
        cosines = query_vectors[rows] @ gallery_vectors.T
        is_same = query_ids[rows, None] == ids
        cosines[~is_ranked((query_ids[rows, None], query_cameras[rows, None]), (ids, cameras))] = -torch.inf
        values, places = cosines.topk(min(_SHOWN, len(gallery_vectors)), dim=1)
        blocks.append((places, values, is_same.gather(1, places), values > -torch.inf))
    items, cosines, right, counts = map(torch.cat, zip(*blocks, strict=True))
    ranking = ReIDEvaluator().per_query(
        query_vectors,
        query_ids,
        query_cameras,
        gallery_vectors,
        ids,
        cameras,
    )
    return RankedLists(
        items=items.numpy(),
        cosines=cosines.numpy(),
        right=right.numpy(),
        counts=counts.numpy(),
        average_precision=ranking.average_precision.numpy(),
    )


def confusions(data: OpenSet, lists: RankedLists, most: int) -> list[Confusion]:
    """Returns the identity pairs with the largest share of one in the other's first ten results."""
    query_ids, gallery_ids = data.query.identities, data.parts[-1].identities
    queries, places = np.nonzero(lists.counts & ~lists.right)
    items = lists.items[queries, places]
    asked, result_ids = query_ids[queries].tolist(), gallery_ids[items].tolist()
    pairs = list(zip(asked, result_ids, strict=True))
    first: dict[tuple[int, int], tuple[int, int]] = {}
    hits = zip(pairs, queries.tolist(), items.tolist(), strict=True)
    for pair, query, item in hits:
        first.setdefault(pair, (query, item))
    confusions_by_count = []
    for pair, count in Counter(pairs).most_common(most):
        total = int(lists.counts[query_ids == pair[0]].sum())
        confusions_by_count.append(Confusion(*pair, count, total, *first[pair]))
    return confusions_by_count


def worst_and_random(
    lists: RankedLists,
    identities: np.ndarray,
    count: int,
    seed: int,
) -> tuple[list[int], list[int]]:
    """Returns the queries with the lowest average precision, one per identity, and random others."""
    countable = np.flatnonzero(~np.isnan(lists.average_precision))
    ascending = countable[np.argsort(lists.average_precision[countable], kind="stable")]
    _, firsts = np.unique(identities[ascending], return_index=True)
    worst = ascending[np.sort(firsts)[:count]]
    others = np.setdiff1d(countable, worst)
    generator = np.random.default_rng(seed)
    chosen = generator.choice(others, min(count, len(others)), replace=False)
    return worst.tolist(), sorted(chosen.tolist())


def results_figure(
    data: OpenSet,
    lists: Mapping[str, RankedLists],
    queries: Sequence[int],
    name: str,
    title: str,
    caption: str,
) -> ReportFigure:
    """Returns a figure of queries, by index, with their first ten results by each model."""
    has_cameras = data.parts[-1].has_cameras
    rows = {}
    for number, query in enumerate(queries, start=1):
        asked = _side(data.query, query, has_cameras)
        for model, ranked in lists.items():
            results = _results(data.parts[-1], ranked, query, has_cameras)
            by_model = f", {model}" if len(lists) > 1 else ""
            rows[f"{number}. {asked[1][0]}{by_model}"] = [Card([asked], verdict="query", kind="query"), *results]
    caption += (
        " Each result has its cosine similarity to the query and its class: ✓ and a solid frame if that is the query's "
        "class, else ✗ and a dashed frame."
    )
    return ReportFigure(name, title, caption, extra=as_html(cards=rows))


def confused_identities(data: OpenSet, confused: Sequence[Confusion]) -> ReportFigure:
    """Pairs of identities, one of which appears in the other's results."""
    searched = data.parts[-1]
    cards = []
    for confusion in confused:
        sides = [_side(data.query, confusion.query, False), _side(searched, confusion.result, False)]
        count = f"{confusion.places} of {confusion.of} results of the first are of the second"
        cards.append(Card(sides, count))
    caption = "Classes whose queries find another class most often among their first ten results, by the trained model."
    return ReportFigure("confusions", "Most confused classes", caption, extra=as_html(cards={"": cards}))


def _results(searched: ImageSet, lists: RankedLists, query: int, has_cameras: bool) -> list[Card]:
    cards = []
    for place in np.flatnonzero(lists.counts[query]):
        side = _side(searched, int(lists.items[query, place]), has_cameras)
        verdict, kind = ("✓", "right") if lists.right[query, place] else ("✗", "wrong")
        cards.append(Card([side], f"{lists.cosines[query, place]:.3f}", verdict, kind))
    return cards


def _side(images: ImageSet, row: int, has_cameras: bool) -> tuple[str | None, list[str]]:
    """Thumbnail, class and, if the set has cameras, the camera of an image."""
    try:
        image = thumbnail(images.images[row])
    except UserError:  # a set of embeddings has no images
        image = None
    lines = [images.name_of(int(images.identities[row]))]
    if has_cameras:
        lines.append(f"camera {images.cameras[row]}")
    return image, lines
