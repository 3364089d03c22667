"""Writes the section about normalised scores from the stored results of normalization.py."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from image_sets import COUNTED
from normalized_runs import AS_BASE, BASES, FOLDER, NORMALIZED, OF_CLASSES, PLAIN, TCM, Results, Side, compared
from statistics_of_pairs import HIGHER, HOLDS, LOWER, OPEN, REVERSED, Difference, level_of_family, verdict
from store import Store, run_of
from tested import Tested

KINDS = {"gallery": "the gallery itself", "train": "training samples"}
CHANGED = ("", PLAIN), ("", NORMALIZED)  # two sides: what follows the base's name, and which scores
ADDED = (AS_BASE, NORMALIZED), (TCM, NORMALIZED)
CONDITIONS = {
    "normalised, all losses": CHANGED,
    "normalised": ((AS_BASE, PLAIN), (AS_BASE, NORMALIZED)),
    "TCM": ((AS_BASE, PLAIN), (TCM, PLAIN)),
    "both": ((AS_BASE, PLAIN), (TCM, NORMALIZED)),
}

Found = Mapping[str, Results]
Differences = Mapping[tuple[str, str], Difference]  # by base and set


def section(results: Tested, sets: Sequence[str]) -> list[str]:
    """Lines of WHICH_LOSS.md; none without results."""
    store = Store(results.store.folder / FOLDER)
    found = {name: of_set for name in sets if (of_set := Results.read(store, compared(results, name))).runs}
    if not found:
        return []
    opis, tar = (differences(found, *CHANGED, metric) for metric in ("opis", "tar"))
    added = _added(found, results)
    return [
        *_about(found, *map(_counted, (opis, tar, added))),
        *_by_condition(found),
        *_by_loss(found, "OPIS, %", {" → normalised": opis, ", normalised → with TCM": added}),
        *_by_loss(found, "TAR at FAR 0.1 %, points", {" → normalised": tar}),
        *_by_cohort(found),
        *_growth(found),
    ]


def summary(results: Tested, sets: Sequence[str]) -> dict[str, Any]:
    """Numbers of the README: mean changes by set, and in how many combinations TAR is higher and lower."""
    store = Store(results.store.folder / FOLDER)
    found = {name: Results.read(store, compared(results, name)) for name in sets if name in COUNTED}
    found = {name: of_set for name, of_set in found.items() if of_set.runs}
    opis, tar = (differences(found, *CHANGED, metric) for metric in ("opis", "tar"))
    level = _level(opis, tar, _added(found, results))
    higher = counts(tar.values(), level)
    return {
        "opis": {name: mean_change(opis, name) for name in found},
        "tar": {name: mean_change(tar, name) for name in found},
        "combinations": len(tar),
        "tar_higher": higher[HIGHER],
        "tar_lower": higher[LOWER],
    }


def mean_change(differences: Differences, set_name: str) -> float:
    """Over the losses of a set: of OPIS in per cent of the base's, of others in points."""
    found = [difference for (_, name), difference in differences.items() if name == set_name]
    mean = float(np.mean([difference.mean for difference in found]))
    return 100 * float(np.expm1(mean) if found[0].is_log_ratio else mean)


def _added(found: Found, results: Tested) -> Differences:
    """Of TCM, added to normalised scores, with a cohort on both sides or on neither."""
    return {
        (base, name): difference
        for (base, name), difference in differences(found, *ADDED, "opis", tuned=results).items()
        if len({best_kind(found[name].chosen[base + end]) is None for end, _ in ADDED}) == 1  # else it is normalisation
    }


def _level(*families: Differences) -> float:
    return level_of_family(difference.p() for family in families for difference in family.values())


def differences(found: Found, before: Side, after: Side, metric: str, tuned: Tested | None = None) -> Differences:
    """Of each base and set that has both sides; tuned: has the spread of tuning of the second side."""
    every = {
        (base, name): of_set.difference(
            (base + before[0], before[1]),
            (base + after[0], after[1]),
            metric,
            [spread] if tuned and (spread := tuned.tuning_of(name, base + after[0], metric)) else [],
        )
        for base in BASES
        for name, of_set in found.items()
    }
    return {of: difference for of, difference in every.items() if difference}


def _counted(differences: Differences) -> Differences:
    """Without the sets that have another's objects."""
    return {(base, name): difference for (base, name), difference in differences.items() if name in COUNTED}


def counts(differences: Iterable[Difference], level: float) -> Counter[str]:
    """How many are LOWER, HIGHER and OPEN by intervals of the level."""
    names = {HOLDS: LOWER, REVERSED: HIGHER, OPEN: OPEN}
    return Counter(names[verdict(difference, LOWER, "opis", level=level)] for difference in differences)


def _about(found: Found, opis: Differences, tar: Differences, added: Differences) -> list[str]:
    seeds = {name: [len(of_set.seeds(method)) for method in of_set.names] for name, of_set in found.items()}
    ran = ", ".join(f"{name} {min(n)}" + (f" to {max(n)}" if max(n) > min(n) else "") for name, n in seeds.items())
    cohorts = Counter(best_kind(found[name].chosen[base]) for base, name in opis)
    level = _level(opis, tar, added)
    of_opis, of_tar = counts(opis.values(), level), counts(tar.values(), level)
    of_classes, of_others = (
        counts([d for (base, _), d in added.items() if (base in OF_CLASSES) == classes], level)
        for classes in (True, False)
    )
    return [
        "## One threshold for all classes, without training: `CohortNormalization`",
        "",
        "From each cosine it subtracts how close the two samples are to a cohort of unlabelled ones: s'(a, b) = "
        "cos(a, b) − ½ λ (m(a) + m(b)). The cohort is the gallery of the test set, unlabelled, where each sample "
        f"leaves itself out ({cohorts['gallery']} of {len(opis)} combinations of {len({base for base, _ in opis})} "
        f"losses and {len({name for _, name in opis})} sets), or the training samples ({cohorts['train']}); no loss "
        f"on this page has seen test images. In {cohorts[None]} the validation classes advised no cohort, so that "
        f"cosines stay. It lowers OPIS in {of_opis[LOWER]} and raises it in {of_opis[HIGHER]}; TAR at FAR 0.1 % is "
        f"higher in {of_tar[HIGHER]} and lower in {of_tar[LOWER]}. With a TCM term too, OPIS is lower still in "
        f"{of_classes[LOWER]}, higher in {of_classes[HIGHER]} and undecided in {of_classes[OPEN]} combinations (with "
        f"a cohort on both sides or neither) with losses that have proxies or classes ({', '.join(OF_CLASSES)}), and "
        f"lower in {of_others[LOWER]}, higher in {of_others[HIGHER]} and undecided in {of_others[OPEN]} with others. "
        "These counts allow for the number of comparisons in this section (Benjamini and Hochberg, intervals at "
        f"{100 * level:.1f} %).",
        "",
        "Cohort, k and λ were chosen for each loss on the validation classes of one split and seed, by the lowest OPIS "
        "that does not lower TAR at FAR 0.1 %, with a layer trained without these classes; the luck of this choice is "
        "not in the intervals. Intervals are 95 %, by t over seeds and test classes as crossed random effects, with "
        "TCM also over tunings, with the spread of plain cosines; OPIS as ratios, computed as logarithms. "
        f"Seeds: {ran}. "
        "`python examples/evidence/normalization.py` makes the missing runs.",
        "",
    ]


def _by_condition(found: Found) -> list[str]:
    """Means over losses: TCM alone, normalisation alone, both."""
    lines = [
        "Means over losses (of OPIS geometric), against the loss alone with plain cosines; all but the first row for "
        "the losses that were run with TCM too, at the settings that TCM was added to. OPIS in %, the others in "
        "points; highest FAR: of a class at a pooled FAR of 1 %.",
        "",
        "| set | condition | OPIS | TAR at FAR 0.1 % | R@1 | mAP@R | highest FAR of a class, % |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, results in found.items():
        for words, sides in CONDITIONS.items():
            changes = [differences({name: results}, *sides, metric) for metric in ("opis", "tar", "r1", "map_at_r")]
            if changes[0]:
                opis, *others = (float(np.mean([d.mean for d in of.values()])) for of in changes)
                cells = [f"{100 * value:+.1f}" for value in (np.expm1(opis), *others)]
                worst = [_mean_worst(results, [(base + end, side) for base, _ in changes[0]]) for end, side in sides]
                lines.append(f"| {name} | {words} | {' | '.join(cells)} | {worst[0]:.1f} → {worst[1]:.1f} |")
    return [*lines, ""]


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


def _by_loss(found: Found, words: str, changes: Mapping[str, Differences]) -> list[str]:
    lines = [f"| {words} | {' | '.join(found)} |", f"|---|{'---|' * len(found)}"]
    for change, of in changes.items():
        for base in dict.fromkeys(base for base, _ in of):
            cells = [interval(of[base, name]) if (base, name) in of else "–" for name in found]
            lines.append(f"| {base}{change} | {' | '.join(cells)} |")
    return [*lines, ""]


def interval(difference: Difference) -> str:
    return "{:+.1f} [{:+.1f}, {:+.1f}]".format(*difference.shown())


def _by_cohort(found: Found) -> list[str]:
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
            for method in (name for name in results.names if not name.endswith(AS_BASE)):
                of_method = [run["metrics"] for (other, _), run in results.runs.items() if other == method]
                base, here = (
                    {key: np.mean([m[k][key] for m in of_method]) for key in ("opis", "tar")} for k in ("plain", kind)
                )
                opis.append(np.log(here["opis"] / base["opis"]))
                tar.append(100 * (here["tar"] - base["tar"]))
                advised.append(results.chosen[method][kind]["recommended"])
            harm = np.array(tar) < 0
            count = len(tar)
            lines.append(
                f"| {name} | {words} | {sum(advised)} of {count} | {100 * np.expm1(np.mean(opis)):+.1f} | "
                f"{np.mean(tar):+.1f} | {min(tar):+.1f} | {harm.sum()} | {(harm & np.array(advised)).sum()} |"
            )
    return [*lines, ""]


def read_results(whole: Tested, set_name: str) -> Results:
    """Of whole networks, with the settings of their tests."""
    tests = {method: run_of(runs[0]) for (name, method), runs in whole.tests.items() if name == set_name}
    return Results.read(Store(whole.store.folder / FOLDER), tests)


def whole_networks(whole: Tested, sets: Sequence[str]) -> list[str]:
    """The section of WHOLE_NETWORKS.md; none without results."""
    rows = []
    for name in sets:
        results = read_results(whole, name)
        for method in results.names:
            chosen, sides = results.chosen[method]["gallery"], ((method, PLAIN), (method, NORMALIZED))
            means = [np.nanmean(results.values(sides[0], metric, results.seeds(method))) for metric in ("opis", "tar")]
            changes = [results.difference(*sides, metric) for metric in ("opis", "tar", "r1", "map_at_r")]
            cells = [interval(change) for change in changes if change]
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


def _growth(found: Found) -> list[str]:
    """A gallery that grows, and the FAR of its threshold once all identities have come."""
    lines = [
        "A gallery that grows and is its own cohort (mean of triplet, MS and ArcFace). With k kept, everybody comes "
        "closer to a larger gallery, so that a threshold of FAR 0.1 % from a small one becomes stricter (the last "
        "column); with k in proportion to the gallery it becomes laxer instead, and TAR gains less while the gallery "
        "is small, or is lower than with cosines. Choose the threshold again when the gallery has doubled.",
        "",
        "| set | identities | OPIS × 1000: cosine, k kept, k in proportion | TAR, % | FAR, %, once all have come |",
        "|---|---|---|---|---|",
    ]
    for name, results in found.items():
        grown = [run["growth"] for (of, _), run in results.runs.items() if "growth" in run and not of.endswith(AS_BASE)]
        for row in range(len(grown[0]) if grown else 0):
            cells = []
            for key, scale, digits in (("opis", 1000, 1), ("tar", 100, 1), ("far_of_all", 100, 3)):
                means = [scale * np.mean([of[row][way][key] for of in grown]) for way in ("plain", "k", "share")]
                cells.append(", ".join(f"{value:.{digits}f}" for value in means))
            lines.append(f"| {name} | {grown[0][row]['identities']} | {' | '.join(cells)} |")
    return [*lines, ""]
