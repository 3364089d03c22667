"""Writes the section about normalised scores from the stored results of normalization.py."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from normalized_runs import NormalizedRuns
from statistics_of_pairs import paired_difference

PLAIN, NORMALIZED = 0, 1  # of the stored values by class
BY_CLASS = {"r1": 0, "map_at_r": 1, "opis": 2, "tar": 3}
KINDS = {"gallery": "the gallery itself", "train": "training samples"}
TCM = " + tcm@added"

Side = tuple[str, int]  # a method, and PLAIN or NORMALIZED


class Results(NamedTuple):
    """runs: by method and seed; chosen: by method; by_class: (2, 4, C) by "method.seed"."""

    runs: dict[tuple[str, int], dict[str, Any]]
    chosen: dict[str, dict[str, Any]]
    by_class: dict[str, np.ndarray]

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(method for method, _ in self.runs))

    def values(self, side: Side, metric: str, seeds: Iterable[int]) -> np.ndarray:
        """(S, C)"""
        method, which = side
        found = [self.by_class[f"{method}.{seed}"][which, BY_CLASS[metric]] for seed in seeds]
        return np.stack(found).astype(float)

    def seeds(self, *methods: str) -> list[int]:
        return sorted(seed for method, seed in self.runs if method == methods[0] and self._all(methods, seed))

    def _all(self, methods: Sequence[str], seed: int) -> bool:
        return all((method, seed) in self.runs for method in methods)

    def change(self, base: Side, other: Side, metric: str) -> tuple[float, float, float] | None:
        """Mean and 95 % interval; OPIS in % of the base, the others in points."""
        if not (seeds := self.seeds(base[0], other[0])):
            return None
        found = paired_difference(self.values(base, metric, seeds), self.values(other, metric, seeds))
        by = 100 / found.base if metric == "opis" else 100
        low, high = found.ends()
        return found.mean * by, low * by, high * by


def read_results(folder: Path, set_name: str) -> Results | None:
    kept = NormalizedRuns(folder, set_name)
    lines = kept.lines()
    if not lines or not kept.packed.is_file():
        return None
    with np.load(kept.packed) as arrays:
        by_class = dict(arrays)
    runs = {(line["method"], line["seed"]): line for line in lines if f"{line['method']}.{line['seed']}" in by_class}
    return Results(runs, {line["method"]: line["chosen"] for line in lines if line["seed"] is None}, by_class)


def section(folder: Path, sets: Sequence[str]) -> list[str]:
    """Lines of WHICH_LOSS.md; none without results."""
    found = {name: results for name in sets if (results := read_results(folder, name)) is not None}
    if not found:
        return []
    return [*_about(found), *_by_condition(found), *_by_loss(found), *_by_cohort(found), *_growth(found)]


def _about(found: dict[str, Results]) -> list[str]:
    bases = sorted({base for results in found.values() for base in _bases(results)})
    seeds = {name: [len(results.seeds(method)) for method in results.methods] for name, results in found.items()}
    ran = ", ".join(f"{name} {min(n)}" + (f" to {max(n)}" if max(n) > min(n) else "") for name, n in seeds.items())
    gains = [
        change
        for results in found.values()
        for base in _bases(results)
        if (change := results.change((base, PLAIN), (base, NORMALIZED), "opis"))
    ]
    lower, higher = sum(high < 0 for _, _, high in gains), sum(low > 0 for _, low, _ in gains)
    none = sum(best_kind(results.chosen[base]) is None for results in found.values() for base in _bases(results))
    further = [name for name, results in found.items() if _with_tcm_is_lower(results)]
    return [
        "## One threshold for all classes, without training: `CohortNormalization`",
        "",
        "From each cosine it subtracts how close the two samples are to a cohort of unlabelled ones: "
        f"s'(a, b) = cos(a, b) − ½ λ (m(a) + m(b)). It lowers OPIS in {lower} of {len(gains)} combinations of "
        f"{len(bases)} losses and {len(found)} sets and raises it in {higher}; in {none} the validation classes "
        "advised no cohort, so that cosines stay. A TCM term beside it lowers OPIS further on "
        f"{', '.join(further) or 'no set'}. Cohort (the gallery itself, where each sample leaves itself out, or the "
        "training samples), k and λ were chosen for each loss on validation classes, by the lowest OPIS that does not "
        "lower TAR at FAR 0.1 %, with a layer trained without these classes. Intervals are 95 %, by t over seeds and "
        f"test classes as crossed random effects; of one seed, over test classes only. Seeds: {ran}. "
        "`python examples/evidence/normalization.py` makes the missing runs.",
        "",
    ]


def _with_tcm_is_lower(results: Results) -> bool:
    """Whether OPIS of normalised scores is lower with TCM, over the losses that were run with both."""
    bases = [base for base in _bases(results) if base + TCM in results.methods]
    alone = _mean_change(results, bases, lambda base: (base, NORMALIZED), "opis")
    return _mean_change(results, bases, lambda base: (base + TCM, NORMALIZED), "opis") < alone


def _bases(results: Results) -> list[str]:
    return [method for method in results.methods if not method.endswith(TCM)]


def _by_condition(found: dict[str, Results]) -> list[str]:
    """Means over losses: TCM alone, normalisation alone, both."""
    lines = [
        "Means over losses, against the loss alone with plain cosines; all but the first row for the losses that were "
        "run with TCM too. OPIS in %, the others in points; highest FAR: of a class at a pooled FAR of 1 %.",
        "",
        "| set | condition | OPIS | TAR at FAR 0.1 % | R@1 | mAP@R | highest FAR of a class, % |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, results in found.items():
        bases = _bases(results)
        with_tcm = [base for base in bases if base + TCM in results.methods]
        for words, some, other in (
            ("normalised, all losses", bases, lambda base: (base, NORMALIZED)),
            ("normalised", with_tcm, lambda base: (base, NORMALIZED)),
            ("TCM", with_tcm, lambda base: (base + TCM, PLAIN)),
            ("both", with_tcm, lambda base: (base + TCM, NORMALIZED)),
        ):
            means = [_mean_change(results, some, other, metric) for metric in ("opis", "tar", "r1", "map_at_r")]
            worst = _mean_worst(results, [(base, PLAIN) for base in some]), _mean_worst(results, map(other, some))
            cells = [f"{value:+.1f}" for value in means]
            lines.append(f"| {name} | {words} | {' | '.join(cells)} | {worst[0]:.1f} → {worst[1]:.1f} |")
    return [*lines, ""]


def _mean_change(results: Results, bases: Iterable[str], other: Callable[[str], Side], metric: str) -> float:
    changes = [results.change((base, PLAIN), other(base), metric) for base in bases]
    return float(np.mean([change[0] for change in changes if change]))


def _mean_worst(results: Results, sides: Iterable[Side]) -> float:
    found = []
    for method, which in sides:
        kind = "plain" if which == PLAIN else best_kind(results.chosen[method]) or "plain"
        found += [run["metrics"][kind]["worst_far"] for (name, _), run in results.runs.items() if name == method]
    return 100 * float(np.mean(found))


def best_kind(chosen: dict[str, Any]) -> str | None:
    """The recommended cohort with the lowest OPIS on the validation classes; None: the tool advises against all."""
    advised = [kind for kind in chosen if chosen[kind]["recommended"]]
    return min(advised, key=lambda kind: chosen[kind]["used"][3], default=None)


def _by_loss(found: dict[str, Results]) -> list[str]:
    lines: list[str] = []
    for metric, words in (("opis", "OPIS, %"), ("tar", "TAR at FAR 0.1 %, points")):
        lines += [f"| {words} | {' | '.join(found)} |", f"|---|{'---|' * len(found)}"]
        for base in dict.fromkeys(base for results in found.values() for base in _bases(results)):
            cells = []
            for results in found.values():
                change = results.change((base, PLAIN), (base, NORMALIZED), metric)
                cells.append("–" if change is None else "{:+.1f} [{:+.1f}, {:+.1f}]".format(*change))
            lines.append(f"| {base} → normalised | {' | '.join(cells)} |")
        lines.append("")
    return lines


def _by_cohort(found: dict[str, Results]) -> list[str]:
    """What each kind of cohort did on the test classes, advised or not, and where it did harm."""
    lines = [
        "Both cohorts on the test classes, whether the validation classes advised them or not; harm: lower TAR. A "
        "cohort of training samples can do harm that validation classes do not show, where they are like the training "
        "classes and the test classes are not (other alphabets and scripts): take the gallery.",
        "",
        "| set | cohort | advised | OPIS, % | TAR, points | lowest change of TAR | harm | harm though advised |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, results in found.items():
        for kind, words in KINDS.items():
            opis, tar, advised = [], [], []
            for method in results.methods:
                of_method = [run["metrics"] for (other, _), run in results.runs.items() if other == method]
                base, here = (
                    {key: np.mean([m[k][key] for m in of_method]) for key in ("opis", "tar")} for k in ("plain", kind)
                )
                opis.append(100 * (here["opis"] / base["opis"] - 1))
                tar.append(100 * (here["tar"] - base["tar"]))
                advised.append(results.chosen[method][kind]["recommended"])
            harm = np.array(tar) < 0
            count = len(tar)
            lines.append(
                f"| {name} | {words} | {sum(advised)} of {count} | {np.mean(opis):+.1f} | {np.mean(tar):+.1f} | "
                f"{min(tar):+.1f} | {harm.sum()} | {(harm & np.array(advised)).sum()} |"
            )
    return [*lines, ""]


def whole_networks(folder: Path, sets: Sequence[str]) -> list[str]:
    """The section of WHOLE_NETWORKS.md; none without results."""
    rows = []
    for name in sets:
        if (results := read_results(folder, name)) is None:
            continue
        for method in results.methods:
            chosen, sides = results.chosen[method]["gallery"], ((method, PLAIN), (method, NORMALIZED))
            means = [np.nanmean(results.values(sides[0], metric, results.seeds(method))) for metric in ("opis", "tar")]
            changes = [results.change(*sides, metric) for metric in ("opis", "tar", "r1", "map_at_r")]
            cells = ["{:+.1f} [{:+.1f}, {:+.1f}]".format(*change) for change in changes if change]
            far = [_mean_worst(results, [side]) for side in sides]
            used = "k = {:.0f}, λ = {:g}".format(*chosen["used"]) if chosen["recommended"] else "none advised"
            rows.append(
                f"| {name} | {method} | {len(results.seeds(method))} | {used} | {1000 * means[0]:.2f} | {cells[0]} | "
                f"{100 * means[1]:.1f} | {' | '.join(cells[1:])} | {far[0]:.1f} → {far[1]:.1f} |"
            )
    if not rows:
        return []
    return [
        "## Scores normalised by the gallery",
        "",
        "`python examples/evidence/whole_normalization.py` trains these settings again and normalises the scores of "
        "the test images by these images themselves (`CohortNormalization`, [WHICH_LOSS.md](WHICH_LOSS.md)). k and λ "
        "were chosen on the validation classes, with the network of the trial, by the lowest OPIS that does not lower "
        "TAR at FAR 0.1 %. Changes against plain cosines of the same networks, OPIS in %, the others in points; 95 % "
        "intervals by t over seeds and test classes; highest FAR: of a class at a pooled FAR of 1 %, in %.",
        "",
        "| set | method | seeds | chosen | OPIS × 1000 | OPIS | TAR at FAR 0.1 % | TAR | R@1 | mAP@R | highest FAR |",
        f"|{'---|' * 11}",
        *rows,
        "",
    ]


def _growth(found: dict[str, Results]) -> list[str]:
    """A gallery that grows, and the FAR of its threshold once all identities have come."""
    lines = [
        "A gallery that grows and is its own cohort (mean of triplet, MS and ArcFace). With k kept, everybody comes "
        "closer to a larger gallery, so that a threshold of FAR 0.1 % from a small one becomes stricter (the last "
        "column); with k in proportion to the gallery it becomes laxer instead, and TAR gains less while the gallery "
        "is small. Choose the threshold again when the gallery has doubled.",
        "",
        "| set | identities | OPIS × 1000: cosine, k kept, k in proportion | TAR, % | FAR, %, once all have come |",
        "|---|---|---|---|---|",
    ]
    for name, results in found.items():
        grown = [run["growth"] for run in results.runs.values() if "growth" in run]
        for row in range(len(grown[0]) if grown else 0):
            cells = []
            for key, scale, digits in (("opis", 1000, 1), ("tar", 100, 1), ("far_of_all", 100, 3)):
                means = [scale * np.mean([of[row][way][key] for of in grown]) for way in ("plain", "k", "share")]
                cells.append(", ".join(f"{value:.{digits}f}" for value in means))
            lines.append(f"| {name} | {grown[0][row]['identities']} | {' | '.join(cells)} |")
    return [*lines, ""]
