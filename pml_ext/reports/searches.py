"""Searches in galleries of several sizes: the law of gallery size as a picture, and a table."""

from typing import TYPE_CHECKING, Any

from pml_ext.metrics.threshold.fields import ThresholdFields
from pml_ext.reports.drawing import BLACK, BLUE, ORANGE, PALE, SKY, Picture, add_legend, label_above, row_of_axes
from pml_ext.reports.wording import NOT_EXTRAPOLATED, held_out_in_words, percent, with_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BEYOND: dict[str, Any] = {"linestyle": "", "marker": "o", "markerfacecolor": "white", "zorder": 3}

Table = tuple[list[str], list[list[str]]]
"""Heads and rows."""


def gallery_picture(report: ThresholdFields) -> Picture | None:
    """FPIR as measured and if all probes were alike, and FNIR, against the size; None where there are no two sizes."""
    found = report.searches
    if found is None or len(found.sizes) < 2:
        return None
    sizes, planned = found.sizes, found.gallery_size

    def draw(figure: "Figure") -> None:
        mated = [one.fnir for one in sizes if one.fnir]
        fpir, *rest = row_of_axes(figure, 2 if len(mated) == len(sizes) else 1)
        enrolled = [one.enrolled for one in sizes]
        known = [one for one in sizes if one.fpir]
        alike = [one.fpir_if_alike for one in sizes]
        style: dict[str, Any] = {"color": BLACK, "linestyle": "--", "marker": "s", "markersize": 4}
        fpir.plot(enrolled, alike, label="if all probes were alike", **style)
        of_fpir = [one.fpir for one in known if one.fpir]
        for axes, rates, of, colour, name in zip(
            [fpir, *rest], [of_fpir, mated], [known, sizes], (BLUE, ORANGE), ("FPIR", "FNIR"), strict=False
        ):
            at = [one.enrolled for one in of]
            axes.fill_between(at, [r.low for r in rates], [r.high for r in rates], color=SKY, alpha=0.5)
            axes.plot(at, [r.rate for r in rates], color=colour, marker="o", label=f"{name}, 95 % interval")
            beyond = [(one.enrolled, r.rate) for one, r in zip(of, rates, strict=True) if one.extrapolated]
            if beyond:
                axes.plot(*zip(*beyond, strict=True), label="extrapolated", **(_BEYOND | {"markeredgecolor": colour}))
            axes.axvline(planned, color=BLACK, linewidth=1, linestyle=":", label=f"planned: {planned:,}")
            _format(axes)
        label_above(fpir, "unknown probes that find somebody (FPIR)")
        for axes in rest:
            label_above(axes, f"known probes not found among the first {found.rank} (FNIR)")

    caption = (
        f"Searches at this threshold, cosine {report.cosine:.4f}, in all galleries of so many of the "
        f"{found.identities:,} identities. The dashed curve is what FPIR would be if every probe resembled as "
        "many others as the mean probe does: the further it lies from the measured one, the more the probes differ."
        + (f" Checked: {held_out_in_words(found.held_out)}." if found.held_out else "")
    )
    return Picture("galleries", "Searches in galleries of other sizes", caption, draw, 4.2)


def _format(axes: "Axes") -> None:
    from matplotlib.ticker import NullLocator, PercentFormatter, StrMethodFormatter

    axes.set(xscale="log", xlabel="enrolled identities")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    axes.grid(color=PALE)
    add_legend(axes, beside=False)


def searches_table(report: ThresholdFields) -> Table | None:
    """A row for each size of gallery."""
    found = report.searches
    if found is None:
        return None
    heads = [
        "enrolled",
        "FPIR",
        "if all alike",
        "FNIR",
        "first",
        "found at once",
        "cosine for the target",
        "FNIR there",
    ]
    rows, planned = [], " (planned)"
    for one in found.sizes:
        rows.append(
            [
                f"{one.enrolled:,}{planned if one.enrolled == found.gallery_size else ''}"
                f"{' (extrapolated)' if one.extrapolated else ''}",
                with_interval(one.fpir) if one.fpir else f"unknown, {NOT_EXTRAPOLATED}",
                percent(one.fpir_if_alike),
                with_interval(one.fnir) if one.fnir else "–",
                percent(one.cmc[0]) if one.cmc else "–",
                f"{one.selectivity.rate:.3g}",
                "–" if one.cosine is None else f"{one.cosine:.4f}",
                "–" if one.cosine_fnir is None else percent(one.cosine_fnir),
            ]
        )
    return heads, rows
