"""How often targets hold for strangers: those chosen with a confidence, and those of galleries larger than the set.

The populations are those of strangers.py. `python examples/evidence/target_coverage.py` writes the section of
INTERVALS.md on targets that are chosen with a confidence, and results/confidence.csv; with `--galleries` the section on
galleries larger than the set.
"""

import argparse
import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sections import replace_section
from strangers import BASE, HERE, POPULATIONS, draw_people, write_csv

from pml_ext.functional import PairDistances
from pml_ext.thresholds import SearchPlan
from pml_ext.thresholds.fields import Target
from pml_ext.thresholds.samples import Samples
from pml_ext.thresholds.searches import PlannedSearch
from pml_ext.thresholds.targets import threshold_for

CONFIDENCE, TARGETS, PEOPLE = 0.95, (1e-2, 1e-3, 1e-4, 1e-5), (60, 300, 1200)
REFERENCE_SETS, REFERENCE_PEOPLE, BINS = 40, 2000, 200_000
CONFIDENCE_START = "<!-- target_coverage.py -->"
CONFIDENCE_SECTION = """## Does a target that is chosen with a confidence hold?

`python examples/evidence/target_coverage.py` writes this section. Each cell draws people with {images} images
each, and chooses a threshold for the FAR of the column with confidence {confidence:g}. It then computes the true FAR of
strangers at this threshold, from {pairs:.0f} million pairs of the population. A cell has the share of thresholds whose
true FAR was at most the target, the median of true FAR / target, and (thresholds / draws): a draw with too few
independent errors for the target is refused. By chance, shares differ from 95 % by ±{chance:.0f} points in 100 draws,
and by ±{more:.0f} in {fewer}. Without a confidence, {point_low:.0f} to {point_high:.0f} % of the true rates were at
most the target.

|people|{heads}|
|---|{rule}
{rows}
"""


GALLERY_FPIR, GALLERY_PEOPLE, GALLERY_FACTORS, GALLERY_DRAWS = 0.3, 200, (10, 50), 40
PROBES = 2000
GALLERY_START = "<!-- target_coverage.py --galleries -->"
GALLERY_SECTION = """## Does an extrapolated FPIR hold?

`python examples/evidence/target_coverage.py --galleries` writes this section. It draws {people} people with {images}
images each {draws} times, and chooses a threshold for an FPIR of {fpir:g} in galleries that are larger than the set.
The true FPIR at this threshold is that of {probes:,} images of strangers in a gallery of this size.

|population|enrolled|chosen|interval holds the true FPIR|median of true / extrapolated|10 to 90 % of draws|
|---|---|---|---|---|---|
{rows}

A draw that is not chosen was refused: too few pairs of the set support the threshold.
"""


class TrueRates:
    """FAR of strangers of a population at any cosine, from counts of pairs of many sets of people."""

    def __init__(self, population: str, sets: int) -> None:
        generator = torch.Generator().manual_seed(12345)
        counts = np.zeros(BINS)
        for _ in range(sets):
            people = draw_people(population, REFERENCE_PEOPLE, 1, generator).flatten(0, 1)
            samples = torch.nn.functional.normalize(people)
            cosines = (samples @ samples.T)[tuple(torch.triu_indices(len(samples), len(samples), 1))]
            counts += torch.histc(cosines, BINS, -1, 1).double().numpy()
        self._edges = np.linspace(-1, 1, BINS + 1)
        self._accepted = 1 - np.concatenate([[0], counts.cumsum()]) / counts.sum()

    def far(self, cosine: float) -> float:
        return float(np.interp(cosine, self._edges, self._accepted))


def far_with_confidence(
    population: str, people: int, true: TrueRates, draws: int, targets: Sequence[float]
) -> list[dict[str, Any]]:
    """Returns the lines of the CSV file, a target each; the ratio is nan where every draw was refused."""
    ratios: dict[tuple[float, bool], list[float]] = {(far, sure): [] for far in targets for sure in (True, False)}
    for seed in range(draws):
        generator = torch.Generator().manual_seed(seed)
        images = draw_people(population, people, BASE.images, generator).flatten(0, 1)
        pairs = PairDistances(images, torch.arange(people).repeat_interleave(BASE.images))
        for far, sure in ratios:
            try:
                distance, _ = threshold_for(Target("far", far, CONFIDENCE if sure else None), pairs)
            except ValueError as error:
                if "needs at least" not in str(error):
                    raise
            else:
                ratios[far, sure].append(true.far(1 - distance**2 / 2) / far)
    rows = []
    for far in targets:
        chosen, point = np.array(ratios[far, True]), np.array(ratios[far, False])
        row = {"population": population, "people": people, "target": far, "draws": draws, "chosen": len(chosen)}
        row |= {"held": int((chosen <= 1).sum()), "ratio": f"{np.median(chosen):.2f}" if len(chosen) else "nan"}
        rows.append(row | {"chosen without": len(point), "held without": int((point <= 1).sum())})
    return rows


def confidence_section(rows: list[dict[str, Any]]) -> str:
    """Returns the section of the page."""
    lines: dict[str, list[str]] = {}
    for row in rows:
        draws, chosen = int(row["draws"]), int(row["chosen"])
        share = f"{100 * int(row['held']) / chosen:.0f} %, {float(row['ratio']):.2f}" if chosen else "refused"
        cell, name = f"{share} ({chosen}/{draws})", f"{row['population']}, {int(row['people']):,}"
        lines.setdefault(name, []).append(cell)
    shares = [
        100 * int(row["held without"]) / int(row["draws"]) for row in rows if row["chosen without"] == row["draws"]
    ]
    draws = sorted({int(row["draws"]) for row in rows})
    return CONFIDENCE_SECTION.format(
        images=BASE.images,
        confidence=CONFIDENCE,
        pairs=REFERENCE_SETS * math.comb(REFERENCE_PEOPLE, 2) / 1e6,
        fewer=draws[0],
        more=196 * math.sqrt(0.05 * 0.95 / draws[0]),
        chance=196 * math.sqrt(0.05 * 0.95 / 100),
        point_low=min(shares),
        point_high=max(shares),
        heads="|".join(f"FAR {far:g}" for far in TARGETS),
        rule="---|" * len(TARGETS),
        rows="\n".join(f"|{name}|{'|'.join(cells)}|" for name, cells in lines.items()),
    )


def extrapolated_rows(population: str) -> list[str]:
    """Returns the lines of the section, one for each gallery size."""
    lines = []
    for factor in GALLERY_FACTORS:
        size, generator = factor * GALLERY_PEOPLE, torch.Generator().manual_seed(54321)
        gallery = torch.nn.functional.normalize(draw_people(population, size, BASE.images, generator).flatten(0, 1))
        probes = torch.nn.functional.normalize(draw_people(population, PROBES, 1, generator).flatten(0, 1))
        best = torch.cat([(some @ gallery.T).amax(dim=1) for some in probes.split(100)])
        ratios, is_covered = [], []
        for seed in range(GALLERY_DRAWS):
            generator = torch.Generator().manual_seed(seed)
            images = draw_people(population, GALLERY_PEOPLE, BASE.images, generator).flatten(0, 1)
            samples = Samples(images, torch.arange(GALLERY_PEOPLE).repeat_interleave(BASE.images))
            planned = PlannedSearch(SearchPlan(size, fpir=GALLERY_FPIR), samples)
            try:
                cosine, _ = planned.threshold(Target("fpir", GALLERY_FPIR))
            except ValueError as error:
                if "too few pairs" not in str(error):
                    raise
                continue
            rate, true = planned.extrapolated_fpir(cosine), float((best >= cosine).double().mean())
            ratios.append(true / rate.rate)
            is_covered.append(rate.low <= true <= rate.high)
        cells = [population, f"{size:,}", f"{len(ratios)} of {GALLERY_DRAWS}", "–", "–", "–"]
        if ratios:
            low, middle, high = np.quantile(ratios, (0.1, 0.5, 0.9))
            cells[3:] = f"{sum(is_covered)} of {len(ratios)}", f"{middle:.2f}", f"{low:.2f} to {high:.2f}"
        lines.append(f"|{'|'.join(cells)}|")
        print(lines[-1], flush=True)
    return lines


def with_other_rows(rows: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """Returns the rows of the CSV file, with those of the same cells replaced."""
    cells = {}
    if path.exists():
        with path.open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                cells[row["population"], int(row["people"]), float(row["target"])] = row
    for row in rows:
        cells[row["population"], row["people"], row["target"]] = row
    return list(cells.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--page", type=Path, default=HERE / "INTERVALS.md")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "confidence.csv")
    parser.add_argument("--populations", nargs="+", default=["crowded", "heavy-tailed"])
    parser.add_argument("--people", type=int, nargs="+", default=PEOPLE)
    parser.add_argument("--targets", type=float, nargs="+", default=TARGETS)
    parser.add_argument("--galleries", action="store_true", help="the section on galleries larger than the set")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.galleries:
        lines = [line for population in POPULATIONS for line in extrapolated_rows(population)]
        setting = {"people": GALLERY_PEOPLE, "images": BASE.images, "draws": GALLERY_DRAWS, "probes": PROBES}
        section = GALLERY_SECTION.format(**setting, fpir=GALLERY_FPIR, rows="\n".join(lines))
        replace_section(arguments.page, section, GALLERY_START)
        return
    rows: list[dict[str, Any]] = []
    for population in arguments.populations:
        true = TrueRates(population, REFERENCE_SETS)
        for people in arguments.people:
            rows += far_with_confidence(population, people, true, arguments.draws, arguments.targets)
            print(*rows[-len(arguments.targets) :], sep="\n", flush=True)
    rows = with_other_rows(rows, arguments.results)
    write_csv(arguments.results, rows)
    replace_section(arguments.page, confidence_section(rows), CONFIDENCE_START)


if __name__ == "__main__":
    main()
