"""Searches in galleries of several sizes: the law of gallery size as a picture, and a table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pml_ext.metrics.threshold.structures import GalleryRates, MeanRate, ThresholdFields
from pml_ext.reports.drawing import BLACK, BLUE, ORANGE, PALE, SKY, Picture, add_legend, format_axis, label_above
from pml_ext.reports.page import Table
from pml_ext.reports.wording import NOT_EXTRAPOLATED, held_out_in_words, percent, with_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BEYOND: dict[str, Any] = {"linestyle": "", "marker": "o", "markerfacecolor": "white", "zorder": 3}


def gallery_picture(report: ThresholdFields) -> Picture | None:
    """FPIR as measured and if all probes were alike, and FNIR, against the size; None where there are no two sizes."""
    found = report.searches
    if found is None or len(found.sizes) < 2:
        return None
    sizes = found.sizes

    def draw_fpir(axes: "Axes") -> None:
        alike = [one.fpir_if_alike for one in sizes]
        style: dict[str, Any] = {"color": BLACK, "linestyle": "--", "marker": "s", "markersize": 4}
        axes.plot([one.enrolled for one in sizes], alike, label="if all probes were alike", **style)
        _plot_rates(axes, [(one, one.fpir) for one in sizes if one.fpir], BLUE, "FPIR", found.gallery_size)
        label_above(axes, "unknown probes with a match (FPIR)")

    def draw_fnir(axes: "Axes") -> None:
        _plot_rates(axes, [(one, one.fnir) for one in sizes if one.fnir], ORANGE, "FNIR", found.gallery_size)
        label_above(axes, f"known probes not found in the top {found.rank} (FNIR)")

    caption = (
        f"Searches at this threshold, cosine {report.cosine:.4f}, in all galleries of so many of the "
        f"{found.identities:,} identities. The dashed curve is what FPIR would be if every probe resembled as "
        "many others as the mean probe does: the further it lies from the measured one, the more the probes differ."
        + (f" Checked: {held_out_in_words(found.held_out)}." if found.held_out else "")
    )
    panels = [draw_fpir, draw_fnir] if all(one.fnir for one in sizes) else [draw_fpir]
    return Picture("galleries", "Searches in galleries of other sizes", caption, panels)


def _plot_rates(
    axes: "Axes", rates: Sequence[tuple[GalleryRates, MeanRate]], colour: str, name: str, planned: int
) -> None:
    enrolled = [one.enrolled for one, _ in rates]
    axes.fill_between(enrolled, [rate.low for _, rate in rates], [rate.high for _, rate in rates], color=SKY, alpha=0.5)
    axes.plot(enrolled, [rate.rate for _, rate in rates], color=colour, marker="o", label=f"{name}, 95 % interval")
    beyond = [(one.enrolled, rate.rate) for one, rate in rates if one.extrapolated]
    if beyond:
        axes.plot(*zip(*beyond, strict=True), label="extrapolated", **(_BEYOND | {"markeredgecolor": colour}))
    axes.axvline(planned, color=BLACK, linewidth=1, linestyle=":", label=f"planned: {planned:,}")
    axes.set(xscale="log", xlabel="enrolled identities")
    axes.set_ylim(bottom=0)
    axes.set_xticks(enrolled, [f"{size:,}" for size in enrolled], fontsize=8)
    axes.minorticks_off()
    format_axis(axes.yaxis, "fpir")
    axes.grid(color=PALE)
    add_legend(axes)


def searches_table(report: ThresholdFields) -> Table | None:
    """A row for each size of gallery."""
    found = report.searches
    if found is None:
        return None
    heads = ["enrolled", "FPIR", "if all alike", "FNIR", "first"]
    heads += ["matches of an unknown probe", "cosine for the target", "FNIR there"]
    return heads, [_row(one, found.gallery_size) for one in found.sizes]


def _row(one: GalleryRates, planned: int) -> list[str]:
    enrolled = f"{one.enrolled:,}"
    if one.enrolled == planned:
        enrolled += " (planned)"
    if one.extrapolated:
        enrolled += " (extrapolated)"
    fpir = with_interval(one.fpir) if one.fpir else f"unknown, {NOT_EXTRAPOLATED}"
    fnir = with_interval(one.fnir) if one.fnir else "–"
    first = percent(one.cmc[0]) if one.cmc else "–"
    cosine = "–" if one.cosine is None else f"{one.cosine:.4f}"
    fnir_there = "–" if one.cosine_fnir is None else percent(one.cosine_fnir)
    return [enrolled, fpir, percent(one.fpir_if_alike), fnir, first, f"{one.selectivity.rate:.3g}", cosine, fnir_there]
