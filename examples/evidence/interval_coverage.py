"""How often the 95 % intervals of a threshold report hold the population's value.

1,000 sets are drawn from a population: people who look alike to different degrees, in two groups. Each gets a report
with a threshold for FAR 1 %, and its intervals are compared with the population's rates at that threshold, measured on
ten sets of 600 people. Then the threshold is checked on new, unchanged data, ten times as at work.

`python examples/evidence/interval_coverage.py` writes INTERVALS.md beside it; --sets and --reference for fewer.
"""

import argparse
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pml_ext.functional import identification
from pml_ext.metrics import ThresholdReport

PEOPLE, SAMPLES, FAR, GALLERY, LOOKS = 100, 4, 0.01, 20, 10
GRID = np.linspace(0.7, 0.97, 28)  # of cosines, between which the population's rates are interpolated


def draw(people: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings, labels and groups: 40 % are in group 1, whose faces are closer to each other."""
    crowded = torch.rand(people, 1, generator=generator) ** 2
    group = (torch.rand(people, generator=generator) < 0.4).long()
    faces = torch.randn(people, 8, generator=generator) + 1.2 * crowded + 0.4 * group[:, None]
    labels = torch.arange(people * SAMPLES) % people
    return faces[labels] + 0.6 * torch.randn(len(labels), 8, generator=generator), labels, group[labels]


def rates_of_population(sets: int, generator: torch.Generator) -> dict[str, np.ndarray]:
    """FAR, FRR, FPIR, FNIR and the ratio of the groups' FARs by cosine, over GRID; mean over sets of 600 people."""
    found: dict[str, list[list[float]]] = {}
    for _ in range(sets):
        embeddings, labels, groups = draw(600, generator)
        unit = torch.nn.functional.normalize(embeddings.double())
        rows, columns = torch.triu_indices(len(unit), len(unit), 1)
        cosines, same = (unit @ unit.T)[rows, columns], labels[rows] == labels[columns]
        for name, of in {
            "FAR": ~same,
            "TAR": same,
            "0": ~same & (groups[rows] == 0) & (groups[columns] == 0),
            "1": ~same & (groups[rows] == 1) & (groups[columns] == 1),
        }.items():
            ordered = np.sort(cosines[of].numpy())
            found.setdefault(name, []).append(list(1 - np.searchsorted(ordered, GRID) / len(ordered)))
        searches = [identification(embeddings, labels, gallery_size=GALLERY, threshold=t) for t in GRID.tolist()]
        found.setdefault("FPIR", []).append([rates.fpir for rates in searches])
        found.setdefault("FNIR", []).append([rates.fnir for rates in searches])
    mean = {name: np.mean(values, axis=0) for name, values in found.items()}
    ratio = np.sqrt(mean["1"] / np.maximum(mean["0"], 1e-12))  # to the geometric mean of both
    return {**{name: mean[name] for name in ("FAR", "FPIR", "FNIR")}, "FRR": 1 - mean["TAR"], "FAR of group 1": ratio}


def intervals(report: ThresholdReport) -> dict[str, tuple[float, float]]:
    """Name -> the ends of the report's interval."""
    planned = report.searches.planned
    rates = {"FAR": report.far, "FRR": report.frr, "FPIR": planned.fpir, "FNIR": planned.fnir}
    ends = {name: (rate.low, rate.high) for name, rate in rates.items()}
    for ratio in report.groups.far_ratios:
        if ratio.one == 1 and ratio.to is None:
            ends["FAR of group 1"] = (ratio.low, ratio.high)
    return ends | {"C_llr": (report.calibration.cllr.low, report.calibration.cllr.high)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--reference", type=int, default=10, help="sets of 600 people that stand for the population")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "INTERVALS.md")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    generator = torch.Generator().manual_seed(7)
    population = rates_of_population(arguments.reference, generator)
    large = [draw(600, generator) for _ in range(arguments.reference)]
    reports = [ThresholdReport.from_embeddings(x, labels, far=FAR, splits=0) for x, labels, _ in large]
    evidence = np.mean([report.calibration.cllr.rate for report in reports])
    inside, sets, refuted = Counter[str](), Counter[str](), 0
    for _ in range(arguments.sets):
        embeddings, labels, groups = draw(PEOPLE, generator)
        report = ThresholdReport.from_embeddings(
            embeddings, labels, far=FAR, gallery_size=GALLERY, groups=groups, splits=0
        )
        for name, (low, high) in intervals(report).items():
            true = evidence if name == "C_llr" else np.interp(report.cosine, GRID, population[name])
            sets[name] += 1
            inside[name] += bool(low <= true <= high)
        for look in range(1, LOOKS + 1):
            today, same, _ = draw(PEOPLE, generator)
            if report.check(today, labels=same, look=look).verdict == "does not hold":
                refuted += 1
                break
    rows = [f"| {name} | {100 * inside[name] / count:.1f} % | {count} |" for name, count in sets.items()]
    arguments.output.write_text(
        f"""# Do the intervals hold what they promise?

`python examples/evidence/interval_coverage.py` writes this page: {arguments.sets} sets of {PEOPLE} people with
{SAMPLES} samples from one synthetic population, each with a threshold for FAR {FAR:g} and galleries of {GALLERY}. An
interval of 95 % should hold the population's value in about 95 % of the sets.

| interval | holds the population's value | sets |
|---|---|---|
{chr(10).join(rows)}

Of {arguments.sets} services that checked their threshold {LOOKS} times on unchanged data, {refuted}
({100 * refuted / arguments.sets:.1f} %) were told at some time that it does not hold; at most 5 % may be.
""",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
