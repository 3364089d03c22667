"""Ranked results as pictures: queries with what they find first."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pml_ext.reports.drawing import BLACK, BLUE, ORANGE, Picture, place_picture
from pml_ext.reports.ranked_lists import SHOWN, Confusion, RankedLists
from pml_ext.runner.data.datasets import OpenSet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIDE, _GAP = 0.86, 0.45
_ROW = {True: 1.34, False: 1.5}  # on the narrow picture the same text is higher than a third of a cell
_FRAMES: dict[bool, dict[str, Any]] = {
    True: {"edgecolor": BLUE, "linewidth": 2.2, "linestyle": "-"},
    False: {"edgecolor": ORANGE, "linewidth": 1.6, "linestyle": (0, (2, 1.2))},
}
_NARROW = 6.5
_LONGEST = 16  # characters of an identity's name
_MARKS = {True: "✓", False: "✗"}


def results_picture(
    data: OpenSet, lists: Mapping[str, RankedLists], queries: Sequence[int], *, name: str, title: str, caption: str
) -> Picture:
    """Queries with their first ten results by each model.

    Args:
        data: the test set.
        lists: the results by the model's name.
        queries: places of the queries.
    """

    def draw(figure: "Figure", wide: bool) -> None:
        shape = (1, len(lists)) if wide else (len(lists), 1)
        for axes, (model, found) in zip(figure.subplots(*shape, squeeze=False).flat, lists.items(), strict=True):
            _draw_lists(axes, data, found, queries, _ROW[wide])
            axes.set_title(model, fontsize=13, loc="left")

    rows = len(queries)
    caption += " Right: solid blue frame and ✓; wrong: dashed orange frame and ✗; below each picture its camera."
    wide_height = 0.35 + 14 / len(lists) / 11.6 * rows * _ROW[True]
    return Picture(name, title, caption, draw, (wide_height, len(lists) * (0.35 + 5 / 11.6 * rows * _ROW[False])))


def confused_identities(data: OpenSet, found: Sequence[Confusion], *, name: str) -> Picture:
    """Pairs of identities, one of which appears in the other's results."""

    def draw(figure: "Figure", wide: bool) -> None:
        axes = figure.add_subplot()
        columns = 3 if wide else 1
        for i, confusion in enumerate(found):
            left, top = i % columns * 4.6, i // columns * 1.25
            place_picture(axes, data.query.images[confusion.query], left, top, _SIDE, _FRAMES[True])
            axes.text(left + 1.1, top + 0.45, "→", fontsize=16, ha="center", va="center")
            place_picture(axes, data.parts[-1].images[confusion.result], left + 1.35, top, _SIDE, _FRAMES[False])
            pair = data.query.called(confusion.identity), data.parts[-1].called(confusion.taken_for)
            said = f"{confusion.places} of {confusion.of} places\n{' → '.join(name[:_LONGEST] for name in pair)}"
            axes.text(left + 2.35, top + 0.43, said, fontsize=10, va="center", parse_math=False)
        _bare(axes, columns * 4.6 if wide else _NARROW, -(-len(found) // columns) * 1.25)

    caption = (
        "How many of the first ten results of one identity's queries (solid frame) show another identity (dashed "
        "frame), by the trained model; below, their names in the data set."
    )
    rows = (-(-len(found) // 3), len(found))
    return Picture(
        name, "Most confused identities", caption, draw, (1.25 * rows[0] + 0.2, 1.25 * 5 / _NARROW * rows[1])
    )


def _draw_lists(axes: "Axes", data: OpenSet, lists: RankedLists, queries: Sequence[int], height: float) -> None:
    searched = data.parts[-1]
    with_cameras = len(np.unique(searched.cameras)) < len(searched)
    for row, query in enumerate(queries):
        top = row * height
        frame = {"edgecolor": BLACK, "linewidth": 2.2}
        place_picture(axes, data.query.images[query], 0, top, _SIDE, frame)
        _below(axes, 0, top, "query" if not with_cameras else f"q, c{data.query.cameras[query]}")
        for place in range(SHOWN):
            if place >= lists.items.shape[1] or not lists.counts[query, place]:
                break
            item, right = int(lists.items[query, place]), bool(lists.right[query, place])
            left = 1 + _GAP + place
            place_picture(axes, searched.images[item], left, top, _SIDE, _FRAMES[right])
            camera = f" c{searched.cameras[item]}" if with_cameras else ""
            _below(axes, left, top, f"{_MARKS[right]}{camera}", BLUE if right else ORANGE)
    _bare(axes, SHOWN + 1 + _GAP, len(queries) * height)


def _below(axes: "Axes", left: float, top: float, text: str, colour: str = BLACK) -> None:
    axes.text(left + _SIDE / 2, top + _SIDE + 0.06, text, fontsize=8, ha="center", va="top", color=colour)


def _bare(axes: "Axes", width: float, height: float) -> None:
    axes.set(xlim=(-0.1, width), ylim=(height, -0.1), aspect="equal")
    axes.axis("off")
