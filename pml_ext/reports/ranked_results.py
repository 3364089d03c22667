"""The first results of queries and the most confused identities, as lists and as pictures."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pml_ext._identities import JUNK
from pml_ext._ops.normalize import unit_rows
from pml_ext.metrics import ReIDEvaluator
from pml_ext.reports.drawing import BLACK, BLUE, ORANGE, Picture, place_picture, row_of_axes
from pml_ext.reports.thumbnails import why_no_pictures
from pml_ext.runner.data.datasets import OpenSet
from pml_ext.runner.evaluation.evaluate import Features

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHOWN = 10
_QUERIES_AT_ONCE = 512
_SIDE, _GAP = 0.86, 0.45
_ROW = 1.34
_FRAMES: dict[bool, dict[str, Any]] = {
    True: {"edgecolor": BLUE, "linewidth": 2.2, "linestyle": "-"},
    False: {"edgecolor": ORANGE, "linewidth": 1.6, "linestyle": (0, (2, 1.2))},
}
_COLUMNS = 3  # of confused identities
_LONGEST = 16  # characters of an identity's name
_MARKS = {True: "✓", False: "✗"}


@dataclass(frozen=True)
class RankedLists:
    """The first results of each query under the camera protocol: items (Q, K), the closest first.

    right, counts: (Q, K) of the query's identity, is a result at all; average_precision: (Q,), nan if nothing to find.
    """

    items: np.ndarray
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
    places, right, counts = [], [], []
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        rows = slice(start, start + _QUERIES_AT_ONCE)
        cosines = queries[rows] @ items.T
        same = query_ids[rows, None] == ids
        cosines[(same & (query_cameras[rows, None] == cameras)) | (ids == JUNK)] = -torch.inf
        best = cosines.topk(min(_SHOWN, len(items)), dim=1)
        places.append(best.indices)
        right.append(same.gather(1, best.indices))
        counts.append(best.values > -torch.inf)
    ranking = ReIDEvaluator().per_query(queries, query_ids, query_cameras, items, ids, cameras)
    columns: list[Tensor] = [torch.cat(places), torch.cat(right), torch.cat(counts), ranking.average_precision]
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

    def draw(figure: "Figure") -> None:
        for axes, (model, found) in zip(row_of_axes(figure, len(lists)), lists.items(), strict=True):
            _draw_lists(axes, data, found, queries)
            axes.set_title(model, fontsize=13, loc="left")

    rows = len(queries)
    caption += " Right: solid blue frame and ✓; wrong: dashed orange frame and ✗; below each picture its camera."
    return Picture(name, title, caption, draw, 0.35 + 14 / len(lists) / 11.6 * rows * _ROW)


def confused_identities(data: OpenSet, found: Sequence[Confusion]) -> Picture:
    """Pairs of identities, one of which appears in the other's results; names alone of a set without pictures."""
    with_pictures = all(why_no_pictures(part) is None for part in data.parts)
    height, right = (1.25, 2.35) if with_pictures else (0.7, 0)
    rows = -(-len(found) // _COLUMNS)

    def draw(figure: "Figure") -> None:
        axes = figure.add_subplot()
        for i, confusion in enumerate(found):
            left, top = i % _COLUMNS * 4.6, i // _COLUMNS * height
            if with_pictures:
                place_picture(axes, data.query.images[confusion.query], left, top, _SIDE, _FRAMES[True])
                axes.text(left + 1.1, top + 0.45, "→", fontsize=16, ha="center", va="center")
                place_picture(axes, data.parts[-1].images[confusion.result], left + 1.35, top, _SIDE, _FRAMES[False])
            pair = data.query.called(confusion.identity), data.parts[-1].called(confusion.taken_for)
            said = f"{confusion.places} of {confusion.of} places\n{' → '.join(name[:_LONGEST] for name in pair)}"
            axes.text(left + right, top + height / 3, said, fontsize=10, va="center", parse_math=False)
        _bare(axes, _COLUMNS * 4.6, rows * height)

    caption = (
        "How many of the first ten results of one identity's queries (solid frame) show another identity (dashed "
        "frame), by the trained model; below, their names in the data set."
    )
    if not with_pictures:
        caption = "How many of the first ten results of one identity's queries are of another identity."
    return Picture("confusions", "Most confused identities", caption, draw, rows * height + 0.2)


def _draw_lists(axes: "Axes", data: OpenSet, lists: RankedLists, queries: Sequence[int]) -> None:
    searched = data.parts[-1]
    with_cameras = len(np.unique(searched.cameras)) < len(searched)
    for row, query in enumerate(queries):
        top = row * _ROW
        place_picture(axes, data.query.images[query], 0, top, _SIDE, {"edgecolor": BLACK, "linewidth": 2.2})
        _below(axes, 0, top, "query" if not with_cameras else f"q, c{data.query.cameras[query]}")
        for place in range(_SHOWN):
            if place >= lists.items.shape[1] or not lists.counts[query, place]:
                break
            item, right = int(lists.items[query, place]), bool(lists.right[query, place])
            left = 1 + _GAP + place
            place_picture(axes, searched.images[item], left, top, _SIDE, _FRAMES[right])
            camera = f" c{searched.cameras[item]}" if with_cameras else ""
            _below(axes, left, top, f"{_MARKS[right]}{camera}", BLUE if right else ORANGE)
    _bare(axes, _SHOWN + 1 + _GAP, len(queries) * _ROW)


def _below(axes: "Axes", left: float, top: float, text: str, colour: str = BLACK) -> None:
    axes.text(left + _SIDE / 2, top + _SIDE + 0.06, text, fontsize=8, ha="center", va="top", color=colour)


def _bare(axes: "Axes", width: float, height: float) -> None:
    axes.set(xlim=(-0.1, width), ylim=(height, -0.1), aspect="equal")
    axes.axis("off")
