"""Writes the section of WHOLE_NETWORKS.md on fine-tuned networks, and results/fine_tuned.csv, from the stored runs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from claims import ALL
from rows import SCALES, Row, means, of_difference, write_rows
from sections import replace_section
from statistics_of_pairs import HEADINGS, HOLDS, REVERSED, Difference, level_of_family, verdict
from store import VALIDATION, Store
from tested import Tested

START = "<!-- fine_tuned.py -->"
FROZEN = "frozen"
BEYOND = "beyond"  # stage of the runs with more steps
NAMES = {
    FROZEN: "frozen network",
    "softmax": "cross-entropy",
    "softmax + triplet": "+ `TripletMarginLoss`",
    "softmax + contrastive": "+ `ContrastiveLoss` on cosines",
    "softmax + tcm": "+ `TCMLoss`",
    "softmax + cit": "+ `CITLoss`",
    "multi_similarity": "`MultiSimilarityLoss`",
    "ms": "with its miner",
    "loop_multi_similarity": '`LoOp`, `positives="arc"`',
    "loop_multi_similarity@all": "`LoOp`",
    "triplet": "`TripletMarginLoss`",
    "tcm": "`TCMLoss`",
}
# side -> what it is compared with
BASES = {
    "softmax": FROZEN,
    **{f"softmax + {term}": "softmax" for term in ("triplet", "contrastive", "tcm", "cit")},
    "multi_similarity": FROZEN,
    **dict.fromkeys(("ms", "loop_multi_similarity", "loop_multi_similarity@all"), "multi_similarity"),
    "triplet": FROZEN,
    "tcm": "triplet",
}
# paper -> its sides, with the words before the verdict on each
PAPERS = {
    "TCM": {
        "softmax + tcm": "next to the cross-entropy",
        "softmax + triplet": "PML's `TripletMarginLoss` there",
        "softmax + contrastive": "PML's `ContrastiveLoss` on cosines there",
        "tcm": "in place of the triplet loss",
    },
    "CIT": {"softmax + cit": "next to the cross-entropy"},
    "LoOp": {
        "loop_multi_similarity@all": "around `MultiSimilarityLoss`, by default",
        "loop_multi_similarity": 'with `positives="arc"`, the paper\'s choice',
    },
    "MS": {"multi_similarity": "against the frozen network", "ms": "its miner"},
}
SUFFIXES = {"r1": ", %", "map_at_r": ", %", "opis": " × 1000", "tar": " at FAR 0.1 %, %"}
EXPECTED = dict(ALL)
SECTION = """## Fine-tuned ImageNet networks

Changes of mAP@R, in brackets on how many sets they are decidedly better/worse:

{papers}

All layers of EfficientNet-Lite0 were trained from its ImageNet weights, its batch norms' statistics kept: {runs} \
runs, {hours:.1f} hours of one core.

Each side had {trials} trials on validation classes (30 % of the training classes): three rates of the backbone, each \
with a batch-norm neck and with a linear layer of 128 dimensions; its own settings were drawn. Only a cross-entropy \
reads what follows the neck. A trial was measured after 20, 60 and 180 steps of 16 classes × 4 images, until its \
mAP@R fell. The best setting was trained on all training classes with five seeds, and tested on classes that nothing \
had seen.

Cross-entropy, `MultiSimilarityLoss` and `TripletMarginLoss` are compared with the frozen network, the sides below \
them with them. In brackets is the change: points ± half of the 95 % interval by Student's t over seeds and test \
classes, for OPIS per cent. Values are means over queries, changes over classes. Bold: decided at a false discovery \
rate of 5 % over the {family} changes.

{tables}
The best trial of each head on validation classes, mAP@R in %:

{heads}
Each side was tuned once, and intervals do not contain the spread of tuning. {edges} of {chosen} chosen backbone \
rates are at an end of the range.{beyond} Images had 64 × 64 pixels, photographs 96 × \
96. `python examples/evidence/fine_tuned.py` trains what is missing and writes this section; \
[fine_tuned.csv](results/fine_tuned.csv) has every value and the chosen settings.
"""


class Compared(NamedTuple):
    """A side against its base on one set, in one measure."""

    set_name: str
    side: str
    measure: str
    difference: Difference
    verdict: str


def write_section(folder: Path, store: Store, sets: Sequence[str]) -> None:
    """Write the section and the table, of the sets on which a side was tested."""
    results = Tested(store)
    tested = [(name, side) for name in sets for side in BASES if (name, side) in results.tests]
    sets = [name for name in sets if any(of_set == name for of_set, _ in tested)]
    compared = _compared(results, tested)
    write_rows(folder / "results" / "fine_tuned.csv", _rows(results, tested, sets, compared))
    validated = [result for name, side in tested for result in _validated(store, name, side)]
    rates = {result["settings"]["backbone_rate"] for result in validated}
    chosen = [results.settings(name, side)["backbone_rate"] for name, side in tested]
    section = SECTION.format(
        papers="\n".join(f"- **{paper}** {_sentence(sides, compared)}" for paper, sides in PAPERS.items()),
        runs=len(store.found),
        hours=sum(result["seconds"] for result in store.found.values()) / 3600,
        trials=max((_number_of_trials(store, name, side) for name, side in tested), default=0),
        family=len(compared),
        tables="\n".join(_table(store, results, name, compared) for name in sets),
        heads=_heads(store, sets),
        edges=sum(rate in (min(rates), max(rates)) for rate in chosen),
        chosen=len(chosen),
        beyond=_beyond(store, sets),
    )
    replace_section(folder / "WHOLE_NETWORKS.md", section, START)


def _compared(results: Tested, tested: Sequence[tuple[str, str]]) -> list[Compared]:
    """Every change with its verdict; all of them are one family."""
    differences = {}
    for set_name, side in tested:
        for measure in HEADINGS:
            difference = results.difference(set_name, BASES[side], side, measure)
            if difference is not None:
                differences[set_name, side, measure] = difference
    level = level_of_family([difference.p() for difference in differences.values()])
    return [
        Compared(*of, difference, verdict(difference, EXPECTED[of[2]], of[2], level=level))
        for of, difference in differences.items()
    ]


def _sentence(sides: Mapping[str, str], compared: Sequence[Compared]) -> str:
    """On how many sets a paper's sides changed mAP@R, and by how much."""
    parts = []
    for side, words in sides.items():
        changes = [of for of in compared if (of.side, of.measure) == (side, "map_at_r")]
        if changes:
            points = [of.difference.shown()[0] for of in changes]
            verdicts = [of.verdict for of in changes]
            low_to_high = f"{min(points):+.1f}" + (f" to {max(points):+.1f}" if len(points) > 1 else "")
            counts = f"{verdicts.count(HOLDS)}/{verdicts.count(REVERSED)} of {len(verdicts)}"
            parts.append(f"{words} {low_to_high} points ({counts})")
    return "; ".join(parts) + "." if parts else "has not been tested yet."


def _table(store: Store, results: Tested, set_name: str, compared: Sequence[Compared]) -> str:
    """A set's values and changes, and the sides that were not tested."""
    headings = [set_name, *(HEADINGS[measure] + SUFFIXES[measure] for measure in HEADINGS)]
    lines = [headings, ["---"] * len(headings), [NAMES[FROZEN], *_values(results, set_name, FROZEN)]]
    of_frozen = max(map(_accuracy, _validated(store, set_name, FROZEN)), default=0.0)
    failed, not_run = list[str](), list[str]()
    for side in BASES:
        if (set_name, side) in results.tests:
            changes = [of for of in compared if (of.set_name, of.side) == (set_name, side)]
            values = zip(_values(results, set_name, side), changes, strict=True)
            lines.append([NAMES[side], *(f"{value} ({_shown(change)})" for value, change in values)])
        elif max(map(_accuracy, _validated(store, set_name, side)), default=np.inf) <= of_frozen:
            failed.append(NAMES[side])
        else:
            not_run.append(NAMES[side])
    text = "\n".join(f"|{'|'.join(line)}|" for line in lines) + "\n"
    if not_run:
        text += f"\nNot run on {set_name}: {', '.join(not_run)}.\n"
    if failed:
        text += f"\nNo trial was better than the frozen network on {set_name}: {', '.join(failed)}.\n"
    return text


def _values(results: Tested, set_name: str, side: str) -> list[str]:
    return [f"{SCALES[measure] * results.values(set_name, side, measure).mean():.1f}" for measure in HEADINGS]


def _shown(compared: Compared) -> str:
    mean, low, high = compared.difference.shown()
    text = f"{mean:+.1f} ±{(high - low) / 2:.1f}"
    return f"**{text}**" if compared.verdict in (HOLDS, REVERSED) else text


def _validated(store: Store, set_name: str, side: str) -> list[dict[str, Any]]:
    """A side's results on a set's validation classes."""
    return _of_stage(store, set_name, side, VALIDATION)


def _of_stage(store: Store, set_name: str, side: str, stage: str) -> list[dict[str, Any]]:
    wanted = {"set": set_name, "stage": stage, "method": side}
    return [result for result in store.found.values() if wanted.items() <= result.items()]


def _accuracy(result: Mapping[str, Any]) -> float:
    return float(result["metrics"]["map_at_r"])


def _number_of_trials(store: Store, set_name: str, side: str) -> int:
    """A side's trials differ in the backbone's rate or in the head."""
    settings = [result["settings"] for result in _validated(store, set_name, side)]
    return len({(of_trial["backbone_rate"], of_trial["head"]) for of_trial in settings})


def _heads(store: Store, sets: Sequence[str]) -> str:
    """The best mAP@R with each head on each set's validation classes."""
    heads = ("neck", "linear")
    headings = ["", *(f"{name}, {head}" for name in sets for head in heads)]
    lines = [headings, ["---"] * len(headings)]
    for side in BASES:
        cells = []
        for set_name in sets:
            validated = _validated(store, set_name, side)
            for head in heads:
                values = [_accuracy(result) for result in validated if result["settings"]["head"] == head]
                cells.append(f"{100 * max(values):.1f}" if values else "")
        if any(cells):
            lines.append([NAMES[side], *cells])
    return "\n".join(f"|{'|'.join(line)}|" for line in lines) + "\n"


def _beyond(store: Store, sets: Sequence[str]) -> str:
    """The gain of the chosen settings with more steps."""
    sentences = []
    for set_name in sets:
        sides = [side for side in BASES if _of_stage(store, set_name, side, BEYOND)]
        gains = [_gain_beyond(store, set_name, side) for side in sides]
        if gains:
            shown = ", ".join(f"{NAMES[side]} {gain:+.1f}" for side, gain in zip(sides, gains, strict=True))
            sentences.append(
                f" On {set_name} the chosen settings were trained for 300 steps afterwards: mAP@R on validation "
                f"classes changed by {shown} points."
            )
    return "".join(sentences)


def _gain_beyond(store: Store, set_name: str, side: str) -> float:
    """Returns the points of mAP@R that the run with more steps has above the best trial."""
    within = max(map(_accuracy, _validated(store, set_name, side)))
    (beyond,) = _of_stage(store, set_name, side, BEYOND)
    return 100 * (_accuracy(beyond) - within)


def _rows(
    results: Tested, tested: Sequence[tuple[str, str]], sets: Sequence[str], compared: Sequence[Compared]
) -> Iterator[Row]:
    study = "fine-tuned networks"
    for of in compared:
        more = {"expected": EXPECTED[of.measure], "verdict": of.verdict}
        yield of_difference(study, of.set_name, (BASES[of.side], of.side), of.measure, of.difference, **more)
    for set_name, side in [*((name, FROZEN) for name in sets), *tested]:
        values = {measure: results.values(set_name, side, measure) for measure in HEADINGS}
        yield from means(study, set_name, side, values, json.dumps(results.settings(set_name, side)))
