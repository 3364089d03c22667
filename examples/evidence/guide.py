"""Writes WHICH_LOSS.md, and the numbers of the README's table, from the stored results."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from claims import AVERAGES, CIT_CELLS, MS, SWAPS, TCM_WEIGHTS, Comparison
from rows import SCALES
from statistics_of_pairs import HEADINGS, HOLDS, MEASURES, REVERSED, Difference, Spread, sum_of, verdict
from tested import Judged, Tested, Verdicts

from pml_ext._shared.files import write_atomically

# method -> its name in the table of losses
NAMES = {
    MS: "MultiSimilarity, or PairWeighting with its weights",
    "ms": "MultiSimilarity with its miner",
    "circle": "Circle",
    "smoothap": "SmoothAP",
    "tcm": "TCM",
    "contrastive": "contrastive on cosines",
    "triplet": "triplet",
    "triplet@0.05": "triplet, default margin",
    "softmax": "cross-entropy of a linear layer",
    "id": "normalised softmax",
    "arcface": "ArcFace",
    "proxy_nca": "ProxyNCA",
    "cit@1.0": "CIT",
    "discriminative@one_hot": "Discriminative",
    "id + tcm@added": "normalised softmax, TCM added",
    "proxy_nca + tcm@added": "ProxyNCA, TCM added",
    "arcface + tcm@added": "ArcFace, TCM added",
    "id + triplet": "normalised softmax + triplet",
    "id + cit": "normalised softmax + CIT",
    "id + tcm": "normalised softmax + TCM",
    "id + contrastive": "normalised softmax + contrastive",
}
SHOWN = ("r1", "map_at_r", "opis")  # measured for all of them
TERMS = {
    "triplet": "`TripletMarginLoss`",
    "contrastive": "`ContrastiveLoss` on cosines",
    "tcm": "`TCMLoss`",
    "cit": "`CITLoss`",
}
SUFFIXES = {"r1": ", %", "map_at_r": ", %", "opis": " × 1000", "tar": " at FAR 0.1 %, %"}
PAGE = """# Which loss

|you have|use|measured|
|---|---|---|
|no loss yet|PML's `MultiSimilarityLoss`, or `TripletMarginLoss()`|OPIS {opis[gpw@weighting]} and \
{opis[triplet@0.05]}, mAP@R {accuracy[gpw@weighting]} and {accuracy[triplet@0.05]}; with `MultiSimilarityMiner` mAP@R \
{miner[map_at_r]}, OPIS {miner[opis]}|
|any loss, one threshold|[`CohortNormalization`](../guides/NORMALISED_SCORES.md); cohort: training samples and other \
identities|{normalised}|
|an identity loss|PML's `TripletMarginLoss`, its `ContrastiveLoss` on cosines, or `TCMLoss` next to it, \
tuned|[below](#next-to-an-identity-loss)|
|ArcFace, ProxyNCA or normalised softmax, tuned|`TCMRegularizer(loss)`, margins tuned|OPIS {TCM[opis]}, yet \
{with_tcm[0]} to {with_tcm[1]}: above the first row|
|a tuple loss|that loss|`LoOp` in its place: [below](#loop-in-place-of-a-loss)|
|class centroids that must not move|`DiscriminativeLoss`, which learns a projection to them|mAP@R \
{Discriminative[map_at_r]} against a cross-entropy; cost linear in the batch|
|your own pair weights|`PairWeightingLoss`|with MultiSimilarity's weights OPIS {opis[gpw@weighting]}, mAP@R \
{accuracy[gpw@weighting]}|
|a ranking metric as loss|`SmoothAPLoss`|OPIS {opis[smoothap]}, mAP@R {accuracy[smoothap]}|

Means over {sets}; OPIS × 1000. Each loss trained a linear layer on frozen ImageNet features, with five seeds, \
tuned on validation classes ([how](EVIDENCE.md#method)). OPIS is averaged geometrically. In brackets: \
of how many comparisons the change is decided better/worse. Neighbours often differ by less than their intervals.

[OPIS](../guides/OPIS.md) is the variance of the classes' utility at one threshold: 2 × 10⁻³ is a spread of \
about ±4.5 points. Rejecting every pair lowers it, too, so read it with mAP@R.

## Next to an identity loss

The identity loss is PML's `NormalizedSoftmaxLoss`. All settings of both terms were tuned. The first row has values, \
those below it changes. TAR is of three seeds, and its verdicts leave out the spread of tuning.

{identity}

OPIS is decided on emoji and glyphs only, where this identity loss is hardly better, or worse, than an untrained \
layer. Next to a cross-entropy of tuned rates, TCM at its defaults gained little \
([below](#how-strong-a-term-has-to-be)).

Without the identity loss the triplet loss and TCM reach as much, which was not tested: mAP@R {accuracy[triplet]} \
for the tuned triplet loss alone and {accuracy[tcm]} for TCM alone, OPIS {opis[triplet]} and {opis[tcm]}. With the \
identity loss: {accuracy[id + triplet]} and {accuracy[id + tcm]}, {opis[id + triplet]} and {opis[id + tcm]}. [Whole \
networks](WHOLE_NETWORKS.md) were trained with a cross-entropy and each of the four, too.

TCM with weights of 1, as here, has the value and gradient of PML's `ContrastiveLoss` on cosines with the same \
margins. The latter was tuned with other margins to try: mAP@R {accuracy[contrastive]} alone. The difference from TCM \
is that of two tunings.

## How strong a term has to be

The base is a cross-entropy of a linear layer, with its own tuned rates. The terms are added at stated settings, on \
{strength_sets}, with three seeds.

{strength}

A ratio is the norm of TCM's gradient on the embeddings of the first batch over the base's. With margins 0.9 and 0.5, \
the defaults. [How to set λ by it](../guides/LOSSES.md#see-whether-every-term-of-a-sum-acts).

## LoOp in place of a loss

The loss alone, with all its tuples, against the loss in LoOp, both tuned. With `positives="all"`, the default, only \
the distances of negatives change; with `"arc"`, the paper's choice, positive pairs without an arc are left out, too. \
With two images of a class the two are equal.

{swaps}

Against the same loss on LoOp's own tuples, of five losses: mAP@R {LoOp[map_at_r]}; with two images of a class \
{loop_of_two[map_at_r]}. The same in [fine-tuned networks](WHOLE_NETWORKS.md#fine-tuned-imagenet-networks).

## All losses

Means over the sets; margins, temperatures and scales tuned. “TCM added”: the loss keeps its own best settings.

{all}

## More

- **Normalised scores.** [All cohorts](NORMALISED.md).
- **CIT.** Do not use it alone: mAP@R {CIT[map_at_r]} against `TripletMarginLoss()`. Also in \
[small networks](WHOLE_NETWORKS.md#small-networks-from-scratch-next-to-an-identity-loss).

[How the evidence was made](EVIDENCE.md) has the method and the papers' claims, [Results as data](results/README.md) \
every comparison. `python examples/evidence/run.py --tables` writes this page from the stored runs.
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


def _average(verdicts: Verdicts, comparisons: Sequence[Comparison], sets: Sequence[str]) -> dict[str, Any]:
    """By measure: the mean change with its interval and verdict, and of how many comparisons it is decided each way.

    Without the sets on which fewer of the comparisons were run.
    """
    averages = {}
    for measure in MEASURES:
        by_set = []
        for set_name in sets:
            judged = [judged for comparison in comparisons for judged in verdicts.of(set_name, comparison)]
            by_set.append([of for of in judged if of.measure == measure])
        most = max(map(len, by_set))
        if most:
            by_set = [of_set for of_set in by_set if len(of_set) == most]
            decided = [judged.verdict for of_set in by_set for judged in of_set]
            average = mean_of(by_set)
            mean, low, high = average.shown()
            counts = {"better": decided.count(HOLDS), "worse": decided.count(REVERSED), "of": len(decided)}
            of_mean = verdict(average, by_set[0][0].direction, measure, level=verdicts.level)
            averages[measure] = {"mean": mean, "low": low, "high": high, **counts, "verdict": of_mean}
    return averages


def write_guide(folder: Path, verdicts: Verdicts, sets: Sequence[str], normalised: Mapping[str, Any]) -> None:
    """Write WHICH_LOSS.md, and the numbers of both tables to results/guide.json."""
    averages = {name: found for name, of in AVERAGES.items() if (found := _average(verdicts, of, sets))}
    losses = _over_sets(verdicts.results, sets)
    added = [name for name in sets if (name, f"softmax + tcm@{TCM_WEIGHTS[0]}") in verdicts.results.tests]
    strength = {"sets": added, "alone": _over_sets(verdicts.results, added).get("softmax")}
    numbers = {"losses": losses, "averages": averages, "strength": strength, "normalised": normalised}
    write_atomically(folder / "results" / "guide.json", json.dumps(numbers, indent=1) + "\n")
    if losses.keys() == NAMES.keys() and normalised:
        write_atomically(folder / "WHICH_LOSS.md", _page(numbers, sets))


def _over_sets(results: Tested, sets: Sequence[str]) -> dict[str, dict[str, float]]:
    """The measures over the sets (OPIS: geometric mean), of methods that were tested on all of them."""
    means: dict[str, dict[str, float]] = {}
    for method in NAMES:
        for measure in MEASURES:
            by_set = [results.values(name, method, measure) for name in sets if (name, method) in results.tests]
            if 0 < len(by_set) == len(sets) and all(map(len, by_set)):
                of_sets = [by_seed.mean() for by_seed in by_set]
                mean = np.exp(np.log(of_sets).mean()) if measure == "opis" else np.mean(of_sets)
                means.setdefault(method, {})[measure] = float(mean)
    return means


def _page(numbers: Mapping[str, Any], sets: Sequence[str]) -> str:
    losses, averages = numbers["losses"], numbers["averages"]
    opis = {name: f"{1000 * means['opis']:.1f}" for name, means in losses.items()}
    with_tcm = sorted((opis[name] for name in losses if "+ tcm@" in name), key=float)
    changes = {}
    for name in ("TCM", "LoOp", "Discriminative", "CIT"):
        changes[name] = {measure: _change(averages[name], measure) for measure in averages[name]}
    of_two = averages["LoOp, two images"]
    return PAGE.format(
        opis=opis,
        accuracy={name: f"{100 * means['map_at_r']:.1f} %" for name, means in losses.items()},
        normalised=_of_normalised(numbers["normalised"]),
        with_tcm=(with_tcm[0], with_tcm[-1]),
        sets=", ".join(sets),
        all=_table("loss", {NAMES[name]: _values(means, SHOWN) for name, means in losses.items()}, SHOWN),
        identity=_changes(losses["id"], {f"+ {TERMS[term]}": averages[f"id + {term}"] for term in TERMS}),
        strength_sets=", ".join(numbers["strength"]["sets"]),
        loop_of_two={measure: _change(of_two, measure) for measure in of_two},
        strength=_changes(numbers["strength"]["alone"], _strengths(averages)),
        miner={measure: _change(averages["miner of MS"], measure) for measure in averages["miner of MS"]},
        swaps=_swaps(averages),
        **changes,
    )


def _swaps(averages: Mapping[str, Any]) -> str:
    """The changes by LoOp that were measured."""
    lines = [["loss", "images of a class", "positives", *HEADINGS.values()], ["---"] * (3 + len(HEADINGS))]
    for swap in SWAPS:
        if swap.name in averages:
            changes = [_change(averages[swap.name], measure) for measure in HEADINGS]
            lines.append([f"`{swap.loss}`", str(swap.images), swap.positives, *changes])
    return "\n".join(f"|{'|'.join(line)}|" for line in lines)


def _strengths(averages: Mapping[str, Any]) -> dict[str, Any]:
    """The rows that were run."""
    words = {f"cit@{cell}": "+ {} × CIT, γ {}".format(*cell.split(",")) for cell in CIT_CELLS}
    words |= {f"tcm@{weight}": f"+ TCM, {weight.replace('weight', 'λ')}" for weight in TCM_WEIGHTS}
    return {shown: averages[name] for name, shown in words.items() if name in averages}


def _values(means: Mapping[str, float], measures: Iterable[str]) -> list[str]:
    return [f"{SCALES[measure] * means[measure]:.1f}" if measure in means else "" for measure in measures]


def _changes(base: Mapping[str, float], rows: Mapping[str, Mapping[str, Any]]) -> str:
    changes = {name: [_change(average, measure) for measure in HEADINGS] for name, average in rows.items()}
    return _table("", {"alone": _values(base, HEADINGS), **changes}, HEADINGS)


def _table(first: str, rows: Mapping[str, Sequence[str]], measures: Iterable[str]) -> str:
    headings = [first, *(HEADINGS[measure] + SUFFIXES[measure] for measure in measures)]
    lines = [headings, ["---"] * len(headings), *([name, *cells] for name, cells in rows.items())]
    return "\n".join(f"|{'|'.join(line)}|" for line in lines)


def _change(average: Mapping[str, Any], measure: str) -> str:
    """The mean change, and in brackets of how many comparisons it is decided better/worse."""
    if measure not in average:
        return ""
    found = average[measure]
    unit = " %" if measure == "opis" else " points"
    return f"{found['mean']:+.1f}{unit} ({found['better']}/{found['worse']} of {found['of']})"


def _of_normalised(numbers: Mapping[str, Any]) -> str:
    opis, tar, total = numbers["opis"], numbers["tar"], numbers["combinations"]
    of_opis = f"{numbers['opis_better']}/{numbers['opis_worse']} of {total}"
    of_tar = f"{numbers['tar_better']}/{numbers['tar_worse']} of {total}"
    return (
        f"OPIS {opis[0]} to {opis[-1]} % lower ({of_opis}), "
        f"TAR at FAR 0.1 % {tar[0]} to {tar[-1]} points higher ({of_tar})"
    )
