"""How often the 95 % intervals of a threshold report hold the population's value.

1,000 sets are drawn from a population: people who look alike to different degrees, in two groups. Each gets a report
with a threshold for FAR 1 %, and its intervals are compared with what this threshold does to the population, measured
on 400 sets of 600 people (searches: on 40 of them). All that for sets of three sizes.

`python examples/evidence/interval_coverage.py` writes the first section of INTERVALS.md; fewer sets by --sets and
--reference.
"""

import argparse
import math
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sections import replace_section
from torch import Tensor

from pml_ext.functional import identification
from pml_ext.thresholds import SearchPlan, ThresholdReport

SAMPLES, FAR = 4, 0.01
SETS_OF_PAIRS = 10  # for each set of searches; pairs are cheap, and FAR varies by 10 % from one set of 600 to the next
SIZES = ((40, 8), (100, 20), (200, 40), (40, 20))  # people in a set, and in a gallery
EDGES = np.linspace(-1, 1, 4001)  # of bins of cosines
GRID = np.linspace(0.6, 0.98, 20)  # of cosines, between which the rates of searches are interpolated
START = "<!-- interval_coverage.py -->"
SECTION = """`python examples/evidence/interval_coverage.py --sets {sets} --reference {reference}` writes this
section: {sets} sets of each size from one synthetic population,
{samples} samples of each person, each set with a threshold for FAR {far:g}. An interval of 95 % should hold
the population's value in about 95 % of the sets; by chance, shares differ from that by ±{chance:.1f} points. In sets
of 40 people, intervals of FPIR are wider than they need be.

|interval|{heads}|
|---|{rule}
{rows}"""


def draw(people: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Embeddings and labels: 40 % are in a group whose faces are closer to each other."""
    crowded = torch.rand(people, 1, generator=generator) ** 2
    group = (torch.rand(people, generator=generator) < 0.4).long()
    faces = torch.randn(people, 8, generator=generator) + 1.2 * crowded + 0.4 * group[:, None]
    labels = torch.arange(people * SAMPLES) % people
    return faces[labels] + 0.6 * torch.randn(len(labels), 8, generator=generator), labels


class Population:
    """Pairs by cosine and rates of searches, from many sets of 600 people."""

    def __init__(self, sets: int, generator: torch.Generator) -> None:
        self.pairs = {kind: np.zeros(len(EDGES) - 1) for kind in ("genuine", "impostor")}
        searches: dict[int, list[list[tuple[float, float]]]] = {}
        for number in range(SETS_OF_PAIRS * sets):
            embeddings, labels = draw(600, generator)
            unit = torch.nn.functional.normalize(embeddings.double())
            rows, columns = torch.triu_indices(len(unit), len(unit), 1)
            cosines, same = (unit @ unit.T)[rows, columns], labels[rows] == labels[columns]
            for counts, kind in zip(self.pairs.values(), (same, ~same), strict=True):
                counts += np.histogram(cosines[kind].numpy(), EDGES)[0]
            if number % SETS_OF_PAIRS:
                continue
            for gallery in {gallery for _, gallery in SIZES}:
                found = [identification(embeddings, labels, gallery_size=gallery, threshold=t) for t in GRID.tolist()]
                searches.setdefault(gallery, []).append([(rates.fpir, rates.fnir) for rates in found])
        self._searches = {gallery: np.mean(found, axis=0) for gallery, found in searches.items()}

    def accepted(self, kind: str, cosine: float) -> float:
        """Share of a kind of pairs."""
        below = np.concatenate([[0], self.pairs[kind].cumsum()])
        return 1 - float(np.interp(cosine, EDGES, below)) / below[-1]

    def searches(self, gallery: int, cosine: float) -> tuple[float, float]:
        """FPIR and FNIR, interpolated in their logarithms."""
        logs = np.log(np.maximum(self._searches[gallery], 1e-12)).T
        fpir, fnir = (math.exp(np.interp(cosine, GRID, rate)) for rate in logs)
        return fpir, fnir

    def of(self, report: ThresholdReport, gallery: int) -> dict[str, float]:
        """What the report's intervals should hold."""
        far, genuine = (self.accepted(kind, report.cosine) for kind in ("impostor", "genuine"))
        fpir, fnir = self.searches(gallery, report.cosine)
        return {"FAR": far, "FRR": 1 - genuine, "FPIR": fpir, "FNIR": fnir}


def intervals(report: ThresholdReport) -> dict[str, tuple[float, float]]:
    """Name -> the ends of the report's interval."""
    assert report.searches is not None
    planned = report.searches.planned
    found: dict[str, Any] = {"FAR": report.far, "FRR": report.frr, "FPIR": planned.fpir, "FNIR": planned.fnir}
    return {name: (of.low, of.high) for name, of in found.items() if of is not None}


def measure(people: int, gallery: int, sets: int, population: Population) -> dict[str, str]:
    """Coverage by name, as text."""
    generator = torch.Generator().manual_seed(1000 * people + gallery)
    inside, known = Counter[str](), Counter[str]()
    for _ in range(sets):
        embeddings, labels = draw(people, generator)
        report = ThresholdReport.from_embeddings(embeddings, labels, far=FAR, search=SearchPlan(gallery))
        true = population.of(report, gallery)
        for name, (low, high) in intervals(report).items():
            known[name] += 1
            inside[name] += low <= true[name] <= high
    return {name: f"{100 * inside[name] / count:.1f} %" for name, count in known.items()}


def line_of(name: str, cells: list[str]) -> str:
    return f"|{name}|{'|'.join(cells)}|\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--reference", type=int, default=40, help="sets of 600 people for the true rates")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--page", type=Path, default=Path(__file__).parent / "INTERVALS.md")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    population = Population(arguments.reference, torch.Generator().manual_seed(7))
    with ProcessPoolExecutor(arguments.processes) as pool:
        futures = [pool.submit(measure, *size, arguments.sets, population) for size in SIZES]
        coverages = [future.result() for future in futures]
    rows = ""
    for name in coverages[0]:
        rows += line_of(name, [coverage[name] for coverage in coverages])
    values: dict[str, Any] = {
        "sets": arguments.sets,
        "reference": arguments.reference,
        "samples": SAMPLES,
        "far": FAR,
        "chance": 196 * math.sqrt(0.05 * 0.95 / arguments.sets),
        "heads": "|".join(f"{people} people, galleries of {gallery}" for people, gallery in SIZES),
        "rule": "---|" * len(SIZES),
        "rows": rows,
    }
    replace_section(arguments.page, SECTION.format(**values), START)


if __name__ == "__main__":
    main()
