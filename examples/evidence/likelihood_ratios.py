"""How often the intervals of likelihood ratios and probabilities hold the population's value.

`python examples/evidence/likelihood_ratios.py` writes its section of INTERVALS.md; --draws and --people for less.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import strangers
import torch
from torch import Tensor

from pml_ext.functional import PairDistances
from pml_ext.metrics.score_calibration import ScoreCalibration, calibrate_counts

FARS, IMAGES, BINS = (1e-2, 1e-3, 1e-4), 4, 300
REFERENCE_SETS, REFERENCE_PEOPLE, REFERENCE_BINS, FEWEST = 40, 2000, 400, 400
HERE = Path(__file__).parent
START = "<!-- likelihood_ratios.py -->"
SECTION = """## Do likelihood ratios and probabilities hold?

`python examples/evidence/likelihood_ratios.py --draws {draws} --people {people}` writes this section. Each
draw takes people with {images} images each, calibrates all of their pairs, and reads the likelihood ratio of the scores
at which the set's FAR is that of the column. The true ratio is that of {pairs:.0f} million impostor pairs and
{genuine:.1f} million genuine pairs of the population.

Each cell has the share of draws whose 95 % interval held the true ratio, the median of
estimated / true ratio, and the median width of the interval (high / low). (n) is the number of draws in which the
calibration covers the score, if not all: elsewhere the report refuses a ratio. The last column counts all scores of the
calibrations. The same intervals hold the probability at any prior as often, since it rises with the ratio.

| population, people | {heads} | all scores |
|---|{rule}---|
{rows}

For many people of a heavy-tailed population, the curve is too stiff at its upper end: the ratio there is too low, and
its interval holds the true one less often than in 95 %.
"""


def true_log_ratios(population: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns scores and their log-likelihood ratios, of many people of the population."""
    generator = torch.Generator().manual_seed(12345)
    edges = np.linspace(-1, 1, REFERENCE_BINS + 1)
    genuine, impostors = np.zeros(REFERENCE_BINS), np.zeros(REFERENCE_BINS)
    first, second = torch.triu_indices(IMAGES, IMAGES, 1)
    for _ in range(REFERENCE_SETS):
        images = strangers.draw_people(population, REFERENCE_PEOPLE, 1, generator).flatten(0, 1)
        unit = torch.nn.functional.normalize(images)
        cosines = (unit @ unit.T)[tuple(torch.triu_indices(len(unit), len(unit), 1))]
        impostors += torch.histc(cosines, REFERENCE_BINS, -1, 1).double().numpy()
        images = strangers.draw_people(population, 10 * REFERENCE_PEOPLE, IMAGES, generator)
        unit = torch.nn.functional.normalize(images, dim=2)
        cosines = (unit @ unit.transpose(1, 2))[:, first, second]
        genuine += torch.histc(cosines, REFERENCE_BINS, -1, 1).double().numpy()
    is_known = (genuine >= FEWEST) & (impostors >= FEWEST)
    shares = [counts[is_known] / counts.sum() for counts in (genuine, impostors)]
    return ((edges[1:] + edges[:-1]) / 2)[is_known], np.log(shares[0]) - np.log(shares[1])


def calibrate(embeddings: Tensor, labels: Tensor) -> tuple[ScoreCalibration | None, list[float]]:
    """Returns the calibration of all pairs, as a report computes it, and the scores with each of FARS."""
    pairs = PairDistances(embeddings, labels)
    farthest = float(pairs.negative_distances_at([pairs.total_negative_pairs]))
    distances = torch.linspace(0, farthest, BINS + 1, dtype=torch.float64)
    genuine, impostors = (counts.diff(dim=1).flip(1) for counts in pairs.accepted(distances))
    middles = 1 - (distances[1:] ** 2 + distances[:-1] ** 2) / 4
    ranks = [max(1, round(far * pairs.total_negative_pairs)) for far in FARS]
    scores = 1 - pairs.negative_distances_at(ranks).double() ** 2 / 2
    return calibrate_counts(middles.flip(0), genuine, impostors), scores.tolist()


def row_of(population: str, people: int, draws: int, truth: tuple[np.ndarray, np.ndarray]) -> str:
    """Returns the line of the table."""
    found: dict[float, list[tuple[bool, float, float]]] = {far: [] for far in FARS}
    all_scores = list[bool]()
    for seed in range(draws):
        generator = torch.Generator().manual_seed(seed)
        images = strangers.draw_people(population, people, IMAGES, generator).flatten(0, 1)
        calibration, at_fars = calibrate(images, torch.arange(people).repeat_interleave(IMAGES))
        if calibration is None:
            continue
        curves = (calibration.log_ratios, calibration.lows, calibration.highs)
        for far, score in zip(FARS, at_fars, strict=True):
            if calibration.scores[0] <= score <= calibration.scores[-1]:
                true = float(np.interp(score, *truth))
                value, low, high = (float(np.interp(score, calibration.scores, curve)) for curve in curves)
                found[far].append((low <= true <= high, math.exp(value - true), math.exp(high - low)))
        true_curve = np.interp(calibration.scores, *truth, left=np.nan, right=np.nan)
        is_known = ~np.isnan(true_curve)
        lows, highs = (np.array(curve)[is_known] for curve in curves[1:])
        all_scores += ((lows <= true_curve[is_known]) & (true_curve[is_known] <= highs)).tolist()
    cells = [f"{population}, {people:,} ({draws} draws)"]
    for of_far in found.values():
        cell = "refused"
        if of_far:
            held, ratio, width = (np.array(column) for column in zip(*of_far, strict=True))
            cell = f"{100 * held.mean():.0f} %, {np.median(ratio):.2f}, {np.median(width):.1f}"
            cell += f" ({len(of_far)})" if len(of_far) < draws else ""
        cells.append(cell)
    cells.append(f"{100 * np.mean(all_scores):.0f} %" if all_scores else "refused")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, nargs="+", default=[75, 300, 1200])
    parser.add_argument("--draws", type=int, nargs="+", default=[100, 100, 20], help="one for each number of people")
    parser.add_argument("--page", type=Path, default=HERE / "INTERVALS.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for population in strangers.POPULATIONS:
        truth = true_log_ratios(population)
        for people, draws in zip(arguments.people, arguments.draws, strict=True):
            rows.append(row_of(population, people, draws, truth))
            print(rows[-1], flush=True)
    section = SECTION.format(
        draws=" ".join(map(str, arguments.draws)),
        people=" ".join(map(str, arguments.people)),
        images=IMAGES,
        pairs=REFERENCE_SETS * math.comb(REFERENCE_PEOPLE, 2) / 1e6,
        genuine=REFERENCE_SETS * 10 * REFERENCE_PEOPLE * math.comb(IMAGES, 2) / 1e6,
        heads=" | ".join(f"FAR {far:g}" for far in FARS),
        rule="---|" * len(FARS),
        rows="\n".join(rows),
    )
    strangers.replace_section(arguments.page, section, START)


if __name__ == "__main__":
    main()
