"""The first results of queries and the most confused identities, with their images."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pml_ext._errors import UserError
from pml_ext._identities import JUNK
from pml_ext._ops.normalize import unit_rows
from pml_ext.metrics import ReIDEvaluator
from pml_ext.reports.drawing import Picture
from pml_ext.reports.page import Card, as_html, thumbnail
from pml_ext.runner.data.datasets import ImageSet, OpenSet
from pml_ext.runner.evaluation.evaluate import Features

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

    query, result: places of one such query and result, for a picture.
    """

    identity: int
    taken_for: int
    places: int
    of: int
    query: int
    result: int


def first_results(data: OpenSet, features: Features) -> RankedLists:
    """The first ten results of every query, without those of its own identity and camera, and without junk."""
    queries, items = (unit_rows(features[place]) for place in (0, -1))
    (query_ids, query_cameras), (ids, cameras) = (
        (torch.from_numpy(part.identities), torch.from_numpy(part.cameras)) for part in (data.parts[0], data.parts[-1])
    )
    found = []
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        rows = slice(start, start + _QUERIES_AT_ONCE)
        cosines = queries[rows] @ items.T
        same = query_ids[rows, None] == ids
        cosines[(same & (query_cameras[rows, None] == cameras)) | (ids == JUNK)] = -torch.inf
        best = cosines.topk(min(_SHOWN, len(items)), dim=1)
        found.append((best.indices, best.values, same.gather(1, best.indices), best.values > -torch.inf))
    ranking = ReIDEvaluator().per_query(queries, query_ids, query_cameras, items, ids, cameras)
    columns: list[Tensor] = [*map(torch.cat, zip(*found, strict=True)), ranking.average_precision]
    return RankedLists(*(column.numpy() for column in columns))


def confusions(data: OpenSet, lists: RankedLists, most: int) -> list[Confusion]:
    """The most confused pairs: those where one identity takes most of the first ten places of the other's queries."""
    asked, searched = data.query.identities, data.parts[-1].identities
    wrong = lists.counts & ~lists.right
    query, place = np.nonzero(wrong)
    found = lists.items[query, place]
    first: dict[tuple[int, int], tuple[int, int]] = {}
    pairs = list(zip(asked[query].tolist(), searched[found].tolist(), strict=True))
    for pair, q, item in zip(pairs, query.tolist(), found.tolist(), strict=True):
        first.setdefault(pair, (q, item))
    return [
        Confusion(*pair, places, int(lists.counts[asked == pair[0]].sum()), *first[pair])
        for pair, places in Counter(pairs).most_common(most)
    ]


def worst_and_random(lists: RankedLists, identities: np.ndarray, count: int, seed: int) -> tuple[list[int], list[int]]:
    """Queries of the lowest average precision, one an identity, and random others."""
    countable = np.flatnonzero(~np.isnan(lists.average_precision))
    ascending = countable[np.argsort(lists.average_precision[countable], kind="stable")]
    _, firsts = np.unique(identities[ascending], return_index=True)
    worst = ascending[np.sort(firsts)[:count]]
    others = np.setdiff1d(countable, worst)
    chosen = np.random.default_rng(seed).choice(others, min(count, len(others)), replace=False)
    return worst.tolist(), sorted(chosen.tolist())


def results_picture(
    data: OpenSet, lists: Mapping[str, RankedLists], queries: Sequence[int], name: str, title: str, caption: str
) -> Picture:
    """Queries, given by their places, with their first ten results by each model."""
    cameras = data.parts[-1].cameras
    has_cameras = 1 < len(np.unique(cameras)) < len(cameras)  # else one for all, or one of its own for each image
    rows = {}
    for number, query in enumerate(queries, start=1):
        asked = _side(data.query, query, has_cameras)
        for model, found in lists.items():
            results = _results(data.parts[-1], found, query, has_cameras)
            by_model = f", {model}" if len(lists) > 1 else ""
            rows[f"{number}. {asked[1][0]}{by_model}"] = [Card([asked], verdict="query", kind="query"), *results]
    caption += (
        " Each result has its cosine similarity to the query and its class: ✓ and a solid frame if that is the query's "
        "class, else ✗ and a dashed frame."
    )
    return Picture(name, title, caption, extra=as_html(cards=rows))


def confused_identities(data: OpenSet, found: Sequence[Confusion]) -> Picture:
    """Pairs of identities, one of which appears in the other's results."""
    searched = data.parts[-1]
    cards = [
        Card(
            [_side(data.query, one.query, False), _side(searched, one.result, False)],
            f"{one.places} of {one.of} results of the first are of the second",
        )
        for one in found
    ]
    caption = "Classes whose queries find another class most often among their first ten results, by the trained model."
    return Picture("confusions", "Most confused classes", caption, extra=as_html(cards={"": cards}))


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
        picture = thumbnail(images.images[row])
    except UserError:  # a set of embeddings has no images
        picture = None
    lines = [images.called(int(images.identities[row]))]
    if has_cameras:
        lines.append(f"camera {images.cameras[row]}")
    return picture, lines
