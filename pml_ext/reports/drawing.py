"""Draws figures in colours that remain distinct in grey and for colour-blind readers."""

import io
import logging
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from unicodedata import east_asian_width

import numpy as np

from pml_ext._shared.errors import reason_of
from pml_ext._shared.progress import show_steps
from pml_ext._shared.text import printable
from pml_ext.metrics.headings import NO_RATES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

log = logging.getLogger("pml_ext")

# Okabe and Ito's palette, whose colours also differ in lightness. Shapes and strokes are redundant with colours.
BLUE, ORANGE, SKY, BLACK, PALE = "#0072B2", "#D55E00", "#56B4E9", "#000000", "#DDDDDD"
COLOURS = (BLUE, ORANGE, BLACK, "#009E73", "#CC79A7")
LINE_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = "osD^vP*X<>"

_WIDTH = 5.6  # inches: text of 10 points is readable on a phone, and two panels fit side by side on a screen
_DOTS_PER_INCH = 125
_LONGEST_OF_TWO, _LONGEST = 26, 60  # columns of a legend's label, two side by side and alone

Panel = Callable[["Axes"], None]
"""Draws on empty axes."""

FigureMakers = Mapping[str, Callable[[], Iterable["ReportFigure"]]]
"""Functions that draw figures, by figure title."""


@dataclass(frozen=True)
class ReportFigure:
    """A figure of a report, with a caption that explains how to read it.

    panels: drawn side by side if there is room, else stacked. Without panels, the figure is the caption and `extra`,
        which is HTML.
    height: inches of a panel without its legend.
    error: the unforeseen error in whose place the figure stands.
    """

    name: str
    title: str
    caption: str
    panels: Sequence[Panel] = ()
    height: float = 3.6
    extra: str = ""
    error: Exception | None = None

    @cached_property
    def panel_figures(self) -> list["Figure"]:
        """The panels, drawn once for every file and page that shows them."""
        return [_draw(panel, self.height) for panel in self.panels]

    @cached_property
    def svgs(self) -> list[bytes]:
        """The panels for pages. Text stays text, because browser fonts cover scripts that matplotlib's font lacks."""
        if not self.panels:
            return []
        import matplotlib

        # Without a salt, ids in the file are random.
        settings: dict[Any, Any] = {"svg.hashsalt": self.name, "svg.fonttype": "none"}
        svgs = []
        for figure in self.panel_figures:
            content = io.BytesIO()
            with matplotlib.rc_context(settings), _ignore_missing_glyphs():
                figure.savefig(content, format="svg", metadata={"Date": None})
            svgs.append(content.getvalue())
        return svgs

    @cached_property
    def pixels(self) -> np.ndarray:
        """(H, W, 3) uint8: the panels side by side."""
        return _joined([_pixels(figure) for figure in self.panel_figures], axis=1)


def drawn(makers: FigureMakers, *, of: str) -> Iterator[ReportFigure]:
    """Yields the drawn figures. A figure that fails becomes a heading with the reason and does not end the run.

    of: name of the data set or run, for the warning that the log gets if the data, such as a single class, are the
        reason. An unforeseen error is raised by `write_page`.
    """
    problems: dict[str, str] = {}
    with show_steps(len(makers)) as begin:
        for title, make in makers.items():
            begin(f"drawing {title}")
            try:
                for figure in make():
                    _ = figure.panel_figures
                    yield figure
            except Exception as error:  # any error: the numbers and the other figures are still of use
                unforeseen = None if isinstance(error, ValueError) else error
                if unforeseen is None:
                    problems[title] = str(error)
                name = re.sub(r"\W", "_", title.lower())
                yield ReportFigure(name, title, f"Not drawn: {reason_of(error)}", error=unforeseen)
    for title, problem in problems.items():
        log.warning("figure %r of %s was not drawn: %s", title, of, problem)


def as_png(*images: np.ndarray) -> bytes:
    """Returns a PNG with the images stacked vertically."""
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(_joined(images, axis=0)).save(content, "PNG")
    return content.getvalue()


def line_style(place: int) -> dict[str, Any]:
    """Returns colour, stroke and marker of the line at an index; 25 lines differ by colour and stroke."""
    stroke = place + place // len(COLOURS)
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": LINE_STYLES[stroke % len(LINE_STYLES)],
        "marker": MARKERS[place % len(MARKERS)],
    }


def shorten(name: str, most: int = 24) -> str:
    """Shorten a name to `most` columns, keeping both ends: names often differ in their last characters only."""
    name = printable(name)  # matplotlib refuses bytes that are not UTF-8
    width = _columns(name)
    if width <= most:
        return name
    half = most * len(name) // (2 * width)
    return f"{name[: half - 1]}…{name[-half:]}"


def in_legend(name: str) -> str:
    """Returns a legend label; matplotlib ignores labels that begin with an underscore."""
    return shorten(f" {name}" if name.startswith("_") else name)


def legend_labels(names: Iterable[str]) -> list[str]:
    """Returns the label of each name; names that are equal when shortened get a number.

    >>> legend_labels(["run", "_a", "a long name of a class, left", "a long name of a class, left"])
    ['run', ' _a', 'a long name…lass, left', 'a long name…lass, left (2)']
    """
    labels, counts = list[str](), Counter[str]()
    for name in names:
        label = in_legend(name)
        counts[label] += 1
        labels.append(label if counts[label] == 1 else f"{label} ({counts[label]})")
    return labels


def add_legend(axes: "Axes") -> None:
    """Add a legend below the axes; the figure grows by its height."""
    handles, names = axes.get_legend_handles_labels()
    labels = [shorten(name, _LONGEST) for name in names]
    columns = 2 if max(map(_columns, labels)) <= _LONGEST_OF_TWO else 1
    figure = axes.get_figure(root=True)
    assert figure is not None
    legend = figure.legend(
        handles,
        labels,
        fontsize=9,
        loc="outside lower center",
        ncols=columns,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a $ in a name starts no formula
    rows = math.ceil(len(labels) / columns)
    figure.set_figheight(figure.get_figheight() + 0.2 * rows + 0.15)


def format_axis(axis: "Axis", metric: str) -> None:
    """Set a few ticks, formatted as in the tables: rates in percent, OPIS with its power of ten."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter

    axis.set_major_locator(MaxNLocator(5))
    if metric in NO_RATES:
        axis.set_major_formatter(StrMethodFormatter("{x:.2e}"))
    else:
        axis.set_major_formatter(PercentFormatter(1, symbol=" %"))


def format_det(axes: "Axes", impostor_pairs: int) -> None:
    """Set up logarithmic axes of false reject rate against false accept rate, starting at one false accept."""
    axes.set(xlabel="false accept rate (FAR)", ylabel="false reject rate (FRR)", xscale="log", yscale="log")
    axes.set_xlim(min(1 / impostor_pairs, 0.1), 1)
    axes.set_ylim(top=1.1)
    axes.minorticks_off()  # a third of the time to draw the figure
    axes.grid(color=PALE)


def label_above(axes: "Axes", label: str) -> None:
    """Write the label of the vertical axis above it; rotated, an arrow in it would point sideways."""
    axes.set_title(shorten(label, _LONGEST), loc="left", fontsize=10, parse_math=False)


def _columns(text: str) -> int:
    """Returns the number of terminal columns; a Chinese character takes two."""
    wide = sum(east_asian_width(character) in "WF" for character in text)
    return len(text) + wide


def _draw(panel: Panel, height: float) -> "Figure":
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("the figures of a report need matplotlib: pip install matplotlib") from error
    # A constrained layout that is not compressed cuts the labels of axes with a fixed aspect.
    figure = Figure((_WIDTH, height), dpi=_DOTS_PER_INCH, layout="compressed")
    with _ignore_missing_glyphs():
        panel(figure.add_subplot())
        figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the layout is final
    return figure


@contextmanager
def _ignore_missing_glyphs() -> Iterator[None]:
    """A PNG shows a box for a character that matplotlib's font lacks; pages show the character."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ ")
        yield


def _pixels(figure: "Figure") -> np.ndarray:
    """(H, W, 3) uint8."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    with _ignore_missing_glyphs():
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _joined(images: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """Join images (H, W, 3) along an axis; shorter ones are padded with white below or to the right."""
    longest = max(image.shape[1 - axis] for image in images)
    padded = []
    for image in images:
        widths = [(0, 0), (0, 0), (0, 0)]
        widths[1 - axis] = (0, longest - image.shape[1 - axis])
        padded.append(np.pad(image, widths, constant_values=255))
    return np.concatenate(padded, axis)
