"""How often the rates and intervals of a threshold report hold for people whom the report has not seen.

Each draw of a condition takes a set of judged people and a cohort from a population, and chooses a threshold by a
report. The true rates at this threshold are then measured on new people (strangers), who are in neither set, and on new
images of the judged people (enrolled).

`python examples/evidence/strangers.py` writes its section of INTERVALS.md and results/strangers.csv.
"""

import argparse
import csv
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from sections import replace_section
from torch import Tensor

from pml_ext.functional import cohort_offsets
from pml_ext.metrics import CohortNormalization
from pml_ext.thresholds import SearchPlan, ThresholdReport, measure, searches

DIM, K, FAR = 64, 10, 0.001
COHORT_IMAGES, HIDDEN = 4, 0.05
STRANGER_SETS, ENROLLED_SETS = 20, 5  # sets of as many people as were judged, for the true rates
RATES, WHOM = ("FAR", "FRR", "FPIR", "FNIR"), ("strangers", "enrolled")
HERE = Path(__file__).parent
START = "<!-- strangers.py -->"
SECTION = """## Do they hold for strangers?

`python examples/evidence/strangers.py --draws {draws}` writes this section. For each row it draws judged people and a
cohort {draws} times ({fewer} times for the largest sets), and chooses a threshold for FAR {far:g} on scores that the
cohort normalises. It then measures the true rates at this threshold for strangers: new people, who are in neither set.
FPIR and FNIR are those of galleries of half as many people as were judged.

Base: people of crowded and sparse groups, {base.people} judged with {base.images} images each, a cohort of
{base.cohort_people} others with {cohort_images} images each, k = {k}, strength 1. A row names its difference from the
base. Each cell has the share of draws whose 95 % interval held the true rate, and the median of true / reported rate.
By chance, shares differ from 95 % by ±{chance:.0f} points in {draws} draws and ±{more:.0f} in {fewer}; rows with the
same judged people share their draws.

|condition|{heads}|
|---|{rule}
{rows}

With a cohort of other people the intervals held about as often as for plain cosines. With the judged set as its own
cohort no interval of FPIR held: its true value was 2.6 to 3.1 times the reported one, that of FAR 2.6 to 8.3 times.

[strangers.csv](results/strangers.csv) also has the rates of new images of the judged people.
"""


def gaussian(people: int, generator: torch.Generator) -> Tensor:
    """Returns (P, DIM) centres of people, all of one normal distribution."""
    return torch.randn(people, DIM, generator=generator)


def crowded(people: int, generator: torch.Generator) -> Tensor:
    """Returns centres of people in 20 groups, half of which are tight."""
    groups = torch.randn(20, DIM, generator=torch.Generator().manual_seed(0))
    group = torch.randint(20, (people,), generator=generator)
    spread = torch.where(group < 10, 0.5, 1.0)[:, None]
    return groups[group] + spread * torch.randn(people, DIM, generator=generator)


def heavy_tailed(people: int, generator: torch.Generator) -> Tensor:
    """Returns centres of people who share a direction, to degrees of Student's t distribution with 3 degrees."""
    direction = torch.randn(DIM, generator=torch.Generator().manual_seed(0))
    scale = torch.randn(people, 3, generator=generator).square().mean(dim=1, keepdim=True).sqrt()
    degree = torch.randn(people, 1, generator=generator) / scale
    return degree.abs() * direction + torch.randn(people, DIM, generator=generator)


POPULATIONS = {"Gaussian": (gaussian, 1.0), "crowded": (crowded, 0.6), "heavy-tailed": (heavy_tailed, 1.0)}
"""Name -> function for the centres of people, and the noise of their images: FRR is then not close to 0."""


@dataclass(frozen=True)
class Condition:
    """What is drawn. cohort: "same" or another population, or a key of `make_cohort`.

    share: of the draws, for sets that take long.
    """

    name: str
    population: str = "crowded"
    people: int = 200
    images: int = 4
    cohort: str = "same"
    cohort_people: int = 150
    share: float = 1.0


BASE = Condition("base")
CONDITIONS = (
    BASE,
    Condition("one Gaussian population", population="Gaussian"),
    Condition("heavy-tailed population", population="heavy-tailed"),
    Condition("plain cosines, no cohort", cohort="none", cohort_people=0),
    Condition("2 images each", images=2),
    Condition("12 images each", images=12, share=0.5),
    Condition("60 judged people", people=60),
    Condition("60 judged people, 60 images each", people=60, images=60, share=0.3),
    Condition("1,200 judged people, 2 images each", people=1200, images=2, share=0.3),
    Condition("cohort of 20 people", cohort_people=20),
    Condition("cohort of 600 people", cohort_people=600),
    Condition("cohort of another population", cohort="Gaussian"),
    Condition("cohort of noise", cohort="noise"),
    Condition("5 % of the judged people hidden in the cohort", cohort="hidden"),
    Condition("copies of judged images in the cohort", cohort="copies"),
    Condition("the judged set as its own cohort (refused now)", cohort="judged", cohort_people=200),
    Condition("the same, one Gaussian population", population="Gaussian", cohort="judged", cohort_people=200),
    Condition("the same, heavy-tailed population", population="heavy-tailed", cohort="judged", cohort_people=200),
)


def draw_images(population: str, centres: Tensor, images: int, generator: torch.Generator) -> Tensor:
    """Returns (P, images, DIM) new images of people."""
    noise = POPULATIONS[population][1]
    return centres[:, None] + noise * torch.randn(len(centres), images, DIM, generator=generator)


def draw_people(population: str, people: int, images: int, generator: torch.Generator) -> Tensor:
    """Returns (people, images, DIM) images of new people."""
    return draw_images(population, POPULATIONS[population][0](people, generator), images, generator)


class JudgedSet(CohortNormalization):
    """The judged samples as their own cohort, as reports computed it before: each sample leaves out only itself.

    Other samples, such as those of strangers, are compared with all of them.
    """

    def __init__(self, judged: Tensor) -> None:
        super().__init__(judged, K)
        self.judged = judged

    def corrections_of_judged(self, embeddings: Tensor, *_: Any, **__: Any) -> Tensor:
        """Returns the corrections of the judged samples, which `CohortNormalization` refuses."""
        return self.corrections(embeddings)

    def corrections(self, embeddings: Tensor, **_: Any) -> Tensor:
        rows = torch.arange(len(embeddings)) if embeddings is self.judged else None
        return 0.5 * cohort_offsets(embeddings, self.cohort, K, rows=rows)


def make_cohort(
    condition: Condition, judged: Tensor, centres: Tensor, generator: torch.Generator
) -> CohortNormalization | None:
    """Returns the normalisation of a condition, or None for plain cosines.

    judged: (N, DIM) images; centres: (P, DIM) of the people on them.
    """
    if condition.cohort == "none":
        return None
    if condition.cohort == "judged":
        return JudgedSet(judged)
    size, population = condition.cohort_people, condition.population
    if condition.cohort == "noise":
        cohort = torch.randn(size, COHORT_IMAGES, DIM, generator=generator)
    else:
        source = condition.cohort if condition.cohort in POPULATIONS else population
        cohort = draw_people(source, size, COHORT_IMAGES, generator)
    if condition.cohort == "hidden":
        hidden = round(HIDDEN * len(centres))
        cohort[:hidden] = draw_images(population, centres[:hidden], COHORT_IMAGES, generator)
    cohort = cohort.flatten(0, 1)
    if condition.cohort == "copies":
        cohort[0] = judged[0]
    labels = [f"other {row // COHORT_IMAGES}" for row in range(len(cohort))]
    return CohortNormalization.fit(cohort, K, labels=labels)


def make_report(judged: Tensor, labels: Tensor, gallery: int, normalize: CohortNormalization | None) -> ThresholdReport:
    """Returns the report, without parts that no rate here needs: they take two thirds of the time."""
    skipped = {name: lambda *_, **__: None for name in ("worst_pairs", "_plain_cosines", "_consistency", "_curves")}
    with patch.multiple(measure, **skipped), patch.object(searches, "CMC_RANKS", (1,)):
        return ThresholdReport.from_embeddings(judged, labels, far=FAR, search=SearchPlan(gallery), normalize=normalize)


def true_rates(sets: Iterable[Tensor], normalization: CohortNormalization | None, threshold: float) -> dict[str, float]:
    """Returns the mean rates of sets of people, each (P, images, D).

    Every image is a probe. One half of the people is enrolled and the other half searches, and the reverse.
    """
    totals, number = torch.zeros(len(RATES), dtype=torch.float64), 0
    for images in sets:
        people, count, _ = images.shape
        samples = torch.nn.functional.normalize(images.flatten(0, 1))
        scores = samples @ samples.T
        if normalization is not None:
            corrections = normalization.corrections(samples)
            scores -= corrections[:, None]
            scores -= corrections
        scores.fill_diagonal_(-math.inf)  # no sample is compared with itself
        scores = scores.view(people, count, people, count)
        accepted = scores >= threshold
        genuine = int(accepted.diagonal(dim1=0, dim2=2).sum())
        far = (int(accepted.sum()) - genuine) / (people * (people - 1) * count**2)
        frr = 1 - genuine / (people * count * (count - 1))
        best = scores.amax(dim=3)  # score of each probe with each identity
        own = best.diagonal(dim1=0, dim2=2).T.clone()
        best.diagonal(dim1=0, dim2=2).fill_(-math.inf)
        wrong, missed = 0.0, 0.0
        halves = slice(0, people // 2), slice(people // 2, None)
        for enrolled, strangers in (halves, halves[::-1]):
            wrong += float((best[strangers, :, enrolled].amax(dim=2) >= threshold).double().mean()) / 2
            others = best[enrolled, :, enrolled].amax(dim=2)
            found = (own[enrolled] >= threshold) & (own[enrolled] > others)
            missed += float((~found).double().mean()) / 2
        totals += torch.tensor([far, frr, wrong, missed], dtype=torch.float64)
        number += 1
    return dict(zip(RATES, (totals / number).tolist(), strict=True))


class Outcome(NamedTuple):
    """A rate as reported, with its interval, and as measured on new images."""

    low: float
    reported: float
    high: float
    true: float

    @property
    def is_covered(self) -> bool:
        return self.low <= self.true <= self.high

    @property
    def ratio(self) -> float:
        """True / reported; infinite for a reported rate of 0."""
        return self.true / self.reported if self.reported else math.inf


def simulate(condition: Condition, seed: int) -> dict[tuple[str, str], Outcome]:
    """Returns the outcomes of one draw by whom ("strangers" or "enrolled") and rate.

    Raises:
        ValueError: the report refused the cohort.
    """
    generator = torch.Generator().manual_seed(seed)
    population, people, images = condition.population, condition.people, condition.images
    centres = POPULATIONS[population][0](people, generator)
    judged = draw_images(population, centres, images, generator).flatten(0, 1)
    labels = torch.arange(people).repeat_interleave(images)
    normalization = make_cohort(condition, judged, centres, generator)
    report = make_report(judged, labels, people // 2, normalization)
    planned = report.searches.planned
    reported: dict[str, Any] = {"FAR": report.far, "FRR": report.frr, "FPIR": planned.fpir, "FNIR": planned.fnir}
    orders = (torch.randperm(people, generator=generator) for _ in range(ENROLLED_SETS))
    sets = {
        "strangers": (draw_people(population, people, images, generator) for _ in range(STRANGER_SETS)),
        "enrolled": (draw_images(population, centres[order], images, generator) for order in orders),
    }
    outcomes = {}
    for whom in WHOM:
        for name, true in true_rates(sets[whom], normalization, report.cosine).items():
            rate = reported[name]
            outcomes[whom, name] = Outcome(rate.low, rate.rate, rate.high, true)
    return outcomes


def run(condition: Condition, draws: int) -> list[dict[tuple[str, str], Outcome]]:
    """Returns the outcomes of seeds 0, 1, …; empty if the report refuses the cohort in every draw."""
    outcomes = []
    for seed in range(draws):
        try:
            outcomes.append(simulate(condition, seed))
        except ValueError as error:
            if "the cohort must hold other samples" not in str(error):
                raise
    assert len(outcomes) in (0, draws), f"{draws - len(outcomes)} of {draws} cohorts were refused"
    return outcomes


def rows_of(condition: Condition, draws: int, outcomes: list[dict[tuple[str, str], Outcome]]) -> list[dict[str, Any]]:
    """Returns the lines of the CSV file."""
    setting = {
        "condition": condition.name,
        "population": condition.population,
        "judged identities": condition.people,
        "images": condition.images,
        "cohort": condition.cohort,
        "cohort identities": condition.cohort_people,
    }
    rows = []
    for whom in WHOM:
        for rate in RATES:
            found = [outcome[whom, rate] for outcome in outcomes]
            coverage, ratio = "refused", "refused"
            if found:
                coverage = f"{np.mean([one.is_covered for one in found]):.3f}"
                ratio = f"{np.median([one.ratio for one in found]):.3f}"
            rows.append(setting | {"rate": rate, "whom": whom, "coverage": coverage, "ratio": ratio, "draws": draws})
    return rows


def section(rows: list[dict[str, Any]], draws: int) -> str:
    """Returns the section of the page."""
    lines: dict[str, list[str]] = {}
    for row in rows:
        if row["whom"] == "strangers":
            cell = row["coverage"]
            if cell != "refused":
                cell = f"{100 * float(cell):.0f} %, {float(row['ratio']):.2f}"
            lines.setdefault(row["condition"], []).append(cell)
    fewer = min(int(row["draws"]) for row in rows)
    return SECTION.format(
        base=BASE,
        draws=draws,
        fewer=fewer,
        far=FAR,
        cohort_images=COHORT_IMAGES,
        k=K,
        chance=196 * math.sqrt(0.05 * 0.95 / draws),
        more=196 * math.sqrt(0.05 * 0.95 / fewer),
        heads="|".join(RATES),
        rule="---|" * len(RATES),
        rows="\n".join(f"|{name}|{'|'.join(cells)}|" for name, cells in lines.items()),
    )


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--page", type=Path, default=HERE / "INTERVALS.md")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "strangers.csv")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for condition in CONDITIONS:
        start, draws = time.perf_counter(), max(1, round(condition.share * arguments.draws))
        rows += rows_of(condition, draws, run(condition, draws))
        cells = [f"{row['rate']} {row['coverage']} {row['ratio']}" for row in rows[-2 * len(RATES) :]]
        print(f"{condition.name} ({time.perf_counter() - start:.0f} s): {', '.join(cells)}", flush=True)
    write_csv(arguments.results, rows)
    replace_section(arguments.page, section(rows, arguments.draws), START)


if __name__ == "__main__":
    main()
