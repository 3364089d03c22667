"""Pictures in colours that differ in grey and for colour-blind readers."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from pml_ext.reports.thumbnails import shrink
from pml_ext.runner.evaluation.results import NO_RATES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# Okabe and Ito's palette; these colours differ in lightness too. Shapes and strokes repeat what colours say.
BLUE, ORANGE, SKY, BLACK, GREY, PALE = "#0072B2", "#D55E00", "#56B4E9", "#000000", "#767676", "#DDDDDD"
COLOURS = (BLUE, ORANGE, BLACK, "#009E73", "#CC79A7")
LINE_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = "osD^vP*X<>"

_WIDTH = 14  # inches
_DOTS_PER_INCH = 100
_SHARED_COLUMNS = 5


@dataclass(frozen=True)
class Picture:
    """A drawing for a page; its caption says how to read it, and `extra` is HTML below it.

    draw: draws on an empty figure, 14 inches wide. None: the caption says why not.
    height: inches.
    """

    name: str
    title: str
    caption: str
    draw: Callable[["Figure"], None] | None
    height: float
    extra: str = ""

    @cached_property
    def figure(self) -> "Figure":
        """Drawn once for every file and page that shows it."""
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("the pictures of a report need matplotlib: pip install matplotlib") from error
        # A constrained layout that is not compressed cuts the labels of axes with a fixed aspect.
        figure = Figure((_WIDTH, self.height), dpi=_DOTS_PER_INCH, layout="compressed")
        assert self.draw is not None
        self.draw(figure)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # everything has its place now
        return figure

    @cached_property
    def svg(self) -> bytes:
        """For pages: sharp at every size."""
        import matplotlib

        content = io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": self.name}):  # else the ids in the file are random
            self.figure.savefig(content, format="svg", metadata={"Date": None})
        return content.getvalue()

    @cached_property
    def pixels(self) -> np.ndarray:
        """(H, 1400, 3) uint8."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        canvas = FigureCanvasAgg(self.figure)
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def as_png(*pixels: np.ndarray) -> bytes:
    """Pictures of one width, one below the other, as a PNG."""
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(np.concatenate(pixels)).save(content, "PNG")
    return content.getvalue()


def row_of_axes(figure: "Figure", count: int) -> list["Axes"]:
    """Side by side."""
    return list(figure.subplots(1, count, squeeze=False).flat)


def look(place: int) -> dict[str, Any]:
    """Colour, stroke and marker of a line among others; 25 lines differ by colour and stroke."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": LINE_STYLES[(place + place // len(COLOURS)) % len(LINE_STYLES)],
        "marker": MARKERS[place % len(MARKERS)],
    }


def plot_series(
    axes: "Axes", steps: Sequence[float], values: Sequence[float], label: str, place: int
) -> list["Line2D"]:
    """One line among others, with a marker at each of a few points or at the first of many."""
    marks = 1 if len(steps) < 20 else (0, len(steps))
    return axes.plot(steps, values, label=label, markevery=marks, **look(place))


def shorten(name: str) -> str:
    """At most 24 characters, both ends of a longer name: names often differ in their last characters alone."""
    return name if len(name) <= 24 else f"{name[:11]}…{name[-12:]}"


def picture_name(what: str, test_set: str) -> str:
    """Of a picture of a test set, as `Picture.name` must be."""
    return f"{what}_" + "".join(c if c.isalnum() else "_" for c in test_set)


def in_legend(name: str) -> str:
    """matplotlib leaves out labels that begin with an underscore."""
    return f" {name}" if name.startswith("_") else name


def add_shared_legend(figure: "Figure", lines: Sequence["Line2D"]) -> None:
    """One legend for all axes, below them."""
    legend = figure.legend(handles=[*lines], fontsize=9, loc="outside lower center", ncols=_SHARED_COLUMNS)
    show_as_text(legend.get_texts())


def legend_height(names: Sequence[str]) -> float:
    """Inches of the shared legend."""
    return 0.25 * -(-len(names) // _SHARED_COLUMNS)


def add_legend(axes: "Axes", *, beside: bool, columns: int = 1) -> None:
    """A legend outside the axes, where it covers no curve: beside them or below."""
    if beside:
        legend = axes.legend(fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    else:
        below: dict[str, Any] = {"bbox_to_anchor": (0.5, 0), "borderaxespad": 4.5}  # room for ticks and their label
        legend = axes.legend(fontsize=9, loc="upper center", ncols=columns, **below)
    show_as_text(legend.get_texts())


def show_as_text(texts: Sequence[Any]) -> None:
    """Labels that come from data: a $ in them starts no formula."""
    for text in texts:
        text.set_parse_math(False)


def format_axis(axis: "Axis", metric: str, *, most: int = 6) -> None:
    """At most so many ticks, written as the tables write the metric: rates in percent, OPIS with its power of ten."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter

    axis.set_major_locator(MaxNLocator(most))
    axis.set_major_formatter(StrMethodFormatter("{x:.2e}") if metric in NO_RATES else PercentFormatter(1, symbol=" %"))


def format_roc(axes: "Axes", impostor_pairs: int) -> None:
    """Axes of true accept rate against false accept rate, from one false accept on."""
    axes.set(xscale="log", ylim=(0, 1.02), xlabel="false accept rate (FAR)", ylabel="true accept rate (TAR = 1 − FRR)")
    axes.set_xlim(min(1 / impostor_pairs, 0.1), 1)
    axes.minorticks_off()  # a third of the time to draw the picture
    axes.grid(color=PALE)


def label_above(axes: "Axes", label: str) -> None:
    """The label of the vertical axis, written above: turned by a quarter, an arrow in it would point sideways."""
    axes.set_title(label, loc="left", fontsize=10)


def place_picture(axes: "Axes", image: Tensor, left: float, top: float, size: float, frame: dict[str, Any]) -> None:
    """A framed picture in the square whose upper left corner is (left, top); y points down."""
    from matplotlib.patches import Rectangle

    pixels = shrink(image, 64)
    height, width = (side / max(pixels.shape[:2]) * size for side in pixels.shape[:2])
    x, y = left + (size - width) / 2, top + (size - height) / 2
    axes.imshow(pixels, extent=(x, x + width, y + height, y), aspect="equal", interpolation="antialiased", zorder=2)
    axes.add_patch(Rectangle((left, top), size, size, fill=False, zorder=3, **frame))
