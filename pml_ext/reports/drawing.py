"""One picture at two widths, in colours that stay apart in grey and for colour-blind people."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from pml_ext.runner.evaluation.results import NO_RATES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Okabe and Ito's palette, of which these differ in lightness too. What matters is told by shape besides.
BLUE, ORANGE, SKY, BLACK, GREY = "#0072B2", "#D55E00", "#56B4E9", "#000000", "#767676"
COLOURS = (BLUE, ORANGE, BLACK, "#009E73", "#CC79A7")
LINE_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = "osD^vP*X<>"

WIDTHS = (1400, 500)
"""Pixels: of a page on a screen, and on a telephone."""

_DOTS_PER_INCH = 100


@dataclass(frozen=True)
class Picture:
    """What is drawn, and what is said of it.

    Attributes:
        name: of the files.
        title, caption: of the page; the caption says how to read the picture.
        draw: draws on an empty figure; called for each width.
        heights: inches at the wide and at the narrow width.
        extra: HTML that stands below the picture.
    """

    name: str
    title: str
    caption: str
    draw: Callable[["Figure", bool], None]
    heights: tuple[float, float]
    extra: str = ""

    def figure(self, wide: bool) -> "Figure":
        """Drawn, 1,400 or 500 pixels wide."""
        from matplotlib.figure import Figure

        width = WIDTHS[0 if wide else 1] / _DOTS_PER_INCH
        # A constrained layout that is not compressed cuts the labels of axes with a fixed aspect.
        figure = Figure((width, self.heights[0 if wide else 1]), dpi=_DOTS_PER_INCH, layout="compressed")
        self.draw(figure, wide)
        return figure

    def png(self, wide: bool) -> bytes:
        """The bytes of a PNG of the figure."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        content = io.BytesIO()
        FigureCanvasAgg(self.figure(wide)).print_png(content)
        return content.getvalue()


def row_of_axes(figure: "Figure", count: int, wide: bool) -> list["Axes"]:
    """Side by side where there is room, else one below the other."""
    grid = figure.subplots(1 if wide else count, count if wide else 1, squeeze=False)
    return list(grid.flat)


def look(place: int) -> dict[str, Any]:
    """Colour, stroke and mark of the line at a place among others; 25 differ by colour and stroke."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": LINE_STYLES[(place + place // len(COLOURS)) % len(LINE_STYLES)],
        "marker": MARKERS[place % len(MARKERS)],
    }


def short(name: str) -> str:
    """A name of up to 24 characters; of a longer one both ends: names often differ in their last characters alone."""
    return name if len(name) <= 24 else f"{name[:11]}…{name[-12:]}"


def columns_for(names: Sequence[str]) -> int:
    """Of a legend on the narrow picture: two, but for long names."""
    return 2 if max(map(len, names), default=0) <= 20 else 1


def legend_of_names(drawn: "Axes | Figure", **options: Any) -> None:
    """A legend whose labels come from data: a $ in them is no formula."""
    for text in drawn.legend(**options).get_texts():
        text.set_parse_math(False)


def in_notation(axis: "Axis", metric: str, *, most: int = 6) -> None:
    """Ticks as the tables write the metric: rates in percent, OPIS with its power of ten; at most so many ticks."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter

    axis.set_major_locator(MaxNLocator(most))
    axis.set_major_formatter(StrMethodFormatter("{x:.2e}") if metric in NO_RATES else PercentFormatter(1, symbol=" %"))


def headed(axes: "Axes", title: str) -> None:
    """What is drawn upwards, said above the axes and not along them, where an arrow in it would point sideways."""
    axes.set_title(title, loc="left", fontsize=10)


def thumbnail(image: Tensor, side: int = 64) -> np.ndarray:
    """(1 or 3, h, w) uint8 to (h', w', 3) uint8 with no side above `side`."""
    from PIL import Image

    pixels = image.permute(1, 2, 0).expand(-1, -1, 3).contiguous().numpy()
    small = Image.fromarray(pixels)
    small.thumbnail((side, side))
    return np.asarray(small)


def place_picture(axes: "Axes", image: Tensor, left: float, top: float, size: float, frame: dict[str, Any]) -> None:
    """A picture in the square with its upper left corner at (left, top), y pointing down, with a frame around it."""
    from matplotlib.patches import Rectangle

    pixels = thumbnail(image)
    height, width = (side / max(pixels.shape[:2]) * size for side in pixels.shape[:2])
    x, y = left + (size - width) / 2, top + (size - height) / 2
    axes.imshow(pixels, extent=(x, x + width, y + height, y), aspect="equal", interpolation="antialiased", zorder=2)
    axes.add_patch(Rectangle((left, top), size, size, fill=False, zorder=3, **frame))
