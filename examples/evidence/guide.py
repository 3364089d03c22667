"""Writes WHICH_LOSS.md and its figure, and the numbers of the README's table, from the stored results."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from claims import AVERAGES, Comparison
from statistics_of_pairs import HOLDS, REVERSED, Difference, Spread, sum_of
from tested import Judged, Tested, Verdicts

from pml_ext._files import replacing, write_atomically

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FIGURE = "opis_and_accuracy.png"
WHOLE_NETWORKS = Path(__file__).parent / "results" / "whole_networks.csv"
# method -> its name in the figure, and where that stands: points to the right and up
NAMES = {
    "triplet@0.05": ("triplet, default margin", (8, -4)),
    "ms": ("MultiSimilarity with miner", (-40, 10)),
    "gpw@weighting": ("PairWeighting", (-10, 9)),
    "circle": ("Circle", (4, -16)),
    "smoothap": ("SmoothAP", (8, -4)),
    "cit@1.0": ("CIT", (8, -4)),
    "discriminative@one_hot": ("Discriminative", (8, -12)),
    "id": ("normalised softmax", (-60, -16)),
    "proxy_nca": ("ProxyNCA", (8, -10)),
    "arcface": ("ArcFace", (8, 4)),
    "id + tcm@added": ("normalised softmax + TCM", (-150, -14)),
    "proxy_nca + tcm@added": ("ProxyNCA + TCM", (8, 4)),
    "arcface + tcm@added": ("ArcFace + TCM", (-94, -6)),
}
PAGE = """# Which loss

|you have|use|measured|
|---|---|---|
|no loss yet|PML's `MultiSimilarityLoss` with `MultiSimilarityMiner`, or `TripletMarginLoss()`|OPIS {opis[ms]} and \
{opis[triplet@0.05]}, mAP@R {accuracy[ms]} and {accuracy[triplet@0.05]}|
|any loss, one threshold|[`CohortNormalization`](../NORMALISED_SCORES.md); cohort: training samples and other \
identities|{normalised}|
|normalised softmax|`TCMLoss` beside it, both tuned|{beside[TCM beside]}|
|the same|`TripletMarginLoss` beside it, both tuned|{beside[triplet beside]}|
|the same|`CITLoss` beside it, both tuned|{beside[CIT beside]}; alone mAP@R {gain[CIT]} points against \
`TripletMarginLoss()`|
|ArcFace, ProxyNCA or normalised softmax, tuned|`TCMRegularizer(loss)`, margins tuned|OPIS {gain[TCM]} %, yet \
{with_tcm[0]} to {with_tcm[1]}: above the first row|
|a tuple loss|`LoOp(loss)` on the same tuples|mAP@R {gain[LoOp]} points; {counts[LoOp][0]} of {counts[LoOp][2]} \
comparisons decided for it, {counts[LoOp][1]} against it|
|no class weights to learn|`DiscriminativeLoss`|mAP@R {gain[Discriminative]} points against softmax; cost linear in \
the batch|
|your own pair weights|`PairWeightingLoss`|with MultiSimilarity's weights OPIS {opis[gpw@weighting]}, mAP@R \
{accuracy[gpw@weighting]}|
|a ranking metric as loss|`SmoothAPLoss`|OPIS {opis[smoothap]}, mAP@R {accuracy[smoothap]}|

Means over {sets}; OPIS × 1000. Each loss trained a linear layer on frozen ImageNet features, with the same tuning \
budget and five seeds. Neighbours often differ by less than their intervals.

![mAP@R against OPIS of thirteen losses](figures/{figure})

[OPIS](../OPIS.md) is the variance of the classes' utility at one threshold: 2 × 10⁻³ is a spread of \
about ±4.5 points. Rejecting every pair lowers it, too, so read it with mAP@R.

- **Normalised scores.** [All cohorts](NORMALISED.md). Gains stated here earlier were measured with \
judged \
identities in the cohort, and were wrong.
- **TCM.** On [whole networks](WHOLE_NETWORKS.md) it lowered OPIS in some cases and raised it in others. At its \
default \
weights it hardly acts beside a loss with large gradients: [measure its \
share](../LOSSES.md#see-whether-every-term-of-a-sum-acts).
- **CIT.** Do not use it alone: whole networks lost {cit_loss:.0f} points of R@1 against a triplet loss.

[EVIDENCE.md](EVIDENCE.md) has the method and the papers' claims, [results/](results/README.md) every comparison.
"""


def mean_of(by_set: Sequence[Sequence[Judged]]) -> Difference:
    """Mean over comparisons and sets, for these sets.

    Comparisons on one set share its classes and often the base: their deviations are averaged as if fully dependent;
    sets are independent.
    """
    means, parts = [], []
    for of_set in by_set:
        differences = [judged.difference for judged in of_set]
        deviation = np.mean([difference.spread.variance**0.5 for difference in differences]) / len(by_set)
        freedom = min(difference.spread.freedom for difference in differences)
        parts.append(Spread(float(deviation) ** 2, freedom))
        means.append(np.mean([difference.mean for difference in differences]))
    return by_set[0][0].difference._replace(mean=float(np.mean(means)), spread=sum_of(*parts))


def _judged(verdicts: Verdicts, comparisons: Sequence[Comparison], sets: Sequence[str]) -> list[list[Judged]]:
    """The comparisons by set, without the sets on which fewer of them were run."""
    by_set = []
    for set_name in sets:
        by_set.append([judged for comparison in comparisons for judged in verdicts.of(set_name, comparison)])
    most = max(map(len, by_set))
    return [of_set for of_set in by_set if len(of_set) == most > 0]


def write_guide(folder: Path, verdicts: Verdicts, sets: Sequence[str], normalised: Mapping[str, Any]) -> None:
    """Write WHICH_LOSS.md and its figure, and the numbers of both tables to results/guide.json."""
    gains, counts = {}, {}
    for name, comparisons in AVERAGES.items():
        for measure, key in (("opis", f"{name}, OPIS"), ("map_at_r", name)):
            by_set = []
            for of_set in _judged(verdicts, comparisons, sets):
                by_set.append([judged for judged in of_set if judged.measure == measure])
            if all(by_set) and by_set:
                gains[key] = mean_of(by_set).shown()
                found = [judged.verdict for of_set in by_set for judged in of_set]
                counts[key] = [found.count(HOLDS), found.count(REVERSED), len(found)]
    losses = _over_sets(verdicts.results, sets)
    numbers = {"losses": losses, "gains": gains, "counts": counts, "normalised": normalised}
    write_atomically(folder / "results" / "guide.json", json.dumps(numbers, indent=1) + "\n")
    (folder / "figures").mkdir(exist_ok=True)
    draw_losses(losses, folder / "figures" / FIGURE)
    if losses.keys() == NAMES.keys() and normalised:
        write_atomically(folder / "WHICH_LOSS.md", _page(numbers, sets))


def _over_sets(results: Tested, sets: Sequence[str]) -> dict[str, dict[str, float]]:
    """OPIS (geometric mean) and mAP@R (mean) over the sets, of methods that were tested on all of them."""
    means = {}
    for method in NAMES:
        if all((name, method) in results.tests for name in sets):
            opis = [results.values(name, method, "opis").mean() for name in sets]
            map_at_r = [results.values(name, method, "map_at_r").mean() for name in sets]
            means[method] = {"opis": float(np.exp(np.log(opis).mean())), "map_at_r": float(np.mean(map_at_r))}
    return means


def _page(numbers: Mapping[str, Any], sets: Sequence[str]) -> str:
    losses = numbers["losses"]
    opis = {name: f"{1000 * means['opis']:.1f}" for name, means in losses.items()}
    accuracy = {name: f"{100 * means['map_at_r']:.1f} %" for name, means in losses.items()}
    gain = {name: f"{values[0]:+.1f}" for name, values in numbers["gains"].items()}
    with_tcm = sorted((opis[name] for name in losses if "+ tcm" in name), key=float)
    return PAGE.format(
        opis=opis,
        accuracy=accuracy,
        gain=gain | {"TCM": gain["TCM, OPIS"]},
        beside={name: _beside(numbers, name) for name in ("TCM beside", "triplet beside", "CIT beside")},
        normalised=_of_normalised(numbers["normalised"]),
        with_tcm=(with_tcm[0], with_tcm[-1]),
        counts=numbers["counts"],
        sets=", ".join(sets),
        figure=FIGURE,
        cit_loss=_points_that_cit_loses(),
    )


def _beside(numbers: Mapping[str, Any], name: str) -> str:
    """What a term beside an identity loss changes."""
    texts = []
    for key, unit, measure in ((f"{name}, OPIS", "%", "OPIS"), (name, "points", "mAP@R")):
        better, worse, total = numbers["counts"][key]
        change = f"{numbers['gains'][key][0]:+.1f} {unit}"
        texts.append(f"{measure} {change} (better on {better}, worse on {worse} of {total} sets)")
    return ", ".join(texts)


def _of_normalised(numbers: Mapping[str, Any]) -> str:
    opis, tar, total = numbers["opis"], numbers["tar"], numbers["combinations"]
    return (
        f"OPIS {opis[0]} to {opis[-1]} % lower (decided in {numbers['opis_better']} of {total} combinations of loss "
        f"and set, higher in {numbers['opis_worse']}), TAR at FAR 0.1 % {tar[0]} to {tar[-1]} points higher "
        f"(decided in {numbers['tar_better']}, lower in {numbers['tar_worse']})"
    )


def _points_that_cit_loses() -> float:
    """Mean loss of R@1 of whole networks trained with CIT instead of a triplet loss, in points."""
    with WHOLE_NETWORKS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    wanted = {"study": "whole networks", "method": "cit", "base": "triplet", "measure": "r1"}
    return -float(np.mean([float(row["value"]) for row in rows if wanted.items() <= row.items()]))


def draw_losses(losses: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """A point for each loss, and an arrow from a loss to the same with TCM."""
    figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    places = {name: (1000 * means["opis"], 100 * means["map_at_r"]) for name, means in losses.items()}
    for name, place in places.items():
        base = name.partition(" + tcm")[0]
        has_term = base != name
        if has_term and base in places:
            style = {"arrowstyle": "->", "color": "#d55e00", "shrinkA": 4, "shrinkB": 4}
            axes.annotate("", place, places[base], arrowprops=style)
        words, offset = NAMES[name]
        axes.plot(*place, "^" if has_term else "o", color="#d55e00" if has_term else "#0072b2", markersize=7)
        axes.annotate(words, place, offset, textcoords="offset points", fontsize=10)
    axes.set_xlabel("OPIS × 1000 (left: one threshold serves the classes more evenly)")
    axes.set_ylabel("mAP@R, % (up: more accurate)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.margins(0.12)
    with replacing(path) as file:
        figure.savefig(file, dpi=110)
    plt.close(figure)
