"""Writes FINE_TUNED.md and results/fine_tuned.csv from the stored runs of fine_tuned.py."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from claims import ALL
from rows import SCALES, Row, means, of_difference, write_rows
from statistics_of_pairs import HEADINGS, HOLDS, REVERSED, Difference, level_of_family, verdict
from store import VALIDATION, Store
from tested import Tested

from pml_ext._shared.files import write_atomically

FROZEN = "frozen"
NAMES = {
    FROZEN: "frozen network",
    "softmax": "cross-entropy",
    "softmax + triplet": "cross-entropy + `TripletMarginLoss`",
    "softmax + contrastive": "cross-entropy + `ContrastiveLoss` on cosines",
    "softmax + tcm": "cross-entropy + `TCMLoss`",
    "softmax + cit": "cross-entropy + `CITLoss`",
    "multi_similarity": "`MultiSimilarityLoss`",
    "ms": "`MultiSimilarityLoss` with its miner",
    "loop_multi_similarity": '`LoOp(MultiSimilarityLoss(), positives="arc")`',
    "loop_multi_similarity@all": '`LoOp(MultiSimilarityLoss(), positives="all")`',
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
SUFFIXES = {"r1": ", %", "map_at_r": ", %", "opis": " × 1000", "tar": " at FAR 0.1 %, %"}
EXPECTED = dict(ALL)
PAGE = """# Fine-tuned ImageNet networks

{summary}
All layers of EfficientNet-Lite0 were trained from its ImageNet weights, with its batch norms' statistics kept, on \
photographs and drawings that it has not seen: {runs} runs, {hours:.1f} hours of one core. The frozen network is the \
same without training.

Each side had {trials} trials on validation classes (30 % of the training classes): three rates of the backbone, each \
with a batch-norm neck (which only a cross-entropy reads) and with a linear layer of 128 dimensions. The side's own \
settings were drawn. Each trial was measured after 20, 60 and 180 steps of 64 images, 4 of a class, until its mAP@R \
fell. The best setting was trained on all training classes with five seeds and tested on classes that nothing has \
seen. A side of which no trial was better than the frozen network was not tested.

Each cell has the value and, in brackets, the change from the side in the second column: points, for OPIS per cent, \
with the 95 % interval by Student's t over seeds and test classes. Bold: decided at a false discovery rate of 5 % over \
this page's {family} comparisons.

{tables}
## How far to trust it

- Each side was tuned once; the intervals do not contain the spread of tuning.
- Ranges were not extended: {edges} of {chosen} chosen backbone rates are the lowest or highest that was tried.
- Images are small: 96 × 96, of emoji and omniglot 64 × 64.

## Rerun

`python examples/evidence/fine_tuned.py` trains what is missing and writes this page; `--tables` only writes it. \
[results/fine_tuned.csv](results/fine_tuned.csv) has every value and the chosen settings.
"""


class Compared(NamedTuple):
    """A side against its base on one set, in one measure."""

    set_name: str
    side: str
    measure: str
    difference: Difference


def write_page(folder: Path, store: Store, sets: Sequence[str], sides: Sequence[str], trials: int) -> None:
    """Write the page and the table; of sets without runs nothing."""
    results = Tested(store)
    shown = [name for name in sets if (name, FROZEN) in results.tests]
    tested = [(name, side) for name in shown for side in sides if (name, side) in results.tests]
    compared = [of for name, side in tested for of in _compared(results, name, side)]
    level = level_of_family([of.difference.p() for of in compared])
    verdicts = {of[:3]: verdict(of.difference, EXPECTED[of.measure], of.measure, level=level) for of in compared}
    write_rows(folder / "results" / "fine_tuned.csv", _rows(results, shown, sides, compared, verdicts))
    rates = {result["settings"]["backbone_rate"] for result in store.found.values() if result["settings"]}
    chosen = [results.settings(name, side)["backbone_rate"] for name, side in tested]
    tables = [_table(store, results, name, sides, compared, verdicts) for name in shown]
    page = PAGE.format(
        summary=_summary(sides, shown, compared, verdicts),
        runs=len(store.found),
        hours=sum(result["seconds"] for result in store.found.values()) / 3600,
        trials=trials,
        family=len(compared),
        tables="\n".join(tables),
        edges=sum(rate in (min(rates), max(rates)) for rate in chosen),
        chosen=len(chosen),
    )
    write_atomically(folder / "FINE_TUNED.md", page)


def _compared(results: Tested, set_name: str, side: str) -> Iterator[Compared]:
    for measure in HEADINGS:
        difference = results.difference(set_name, BASES[side], side, measure)
        if difference is not None:
            yield Compared(set_name, side, measure, difference)


def _table(
    store: Store,
    results: Tested,
    set_name: str,
    sides: Sequence[str],
    compared: Sequence[Compared],
    verdicts: Mapping[tuple[Any, ...], str],
) -> str:
    """A set's values and changes, and the sides of which no trial was better than the frozen network."""
    trials = [result for result in store.found.values() if result["set"] == set_name and result["stage"] == VALIDATION]
    tuned = {result["method"] for result in trials}
    failed = [NAMES[side] for side in sides if side in tuned and (set_name, side) not in results.tests]
    headings = ["side", "against", *(HEADINGS[measure] + SUFFIXES[measure] for measure in HEADINGS)]
    lines = [headings, ["---"] * len(headings), [NAMES[FROZEN], "", *_values(results, set_name, FROZEN)]]
    for side in sides:
        if (set_name, side) in results.tests:
            changes = {of.measure: of for of in compared if (of.set_name, of.side) == (set_name, side)}
            cells = [
                f"{value} ({_shown(changes[measure], verdicts)})" if measure in changes else value
                for measure, value in zip(HEADINGS, _values(results, set_name, side), strict=True)
            ]
            lines.append([NAMES[side], NAMES[BASES[side]], *cells])
    text = f"## {set_name.capitalize()}\n\n"
    if len(lines) > 3:
        text += "\n".join(f"|{'|'.join(line)}|" for line in lines) + "\n"
    if failed:
        text += f"\nNo trial was better than the frozen network: {', '.join(failed)}.\n"
    return text


def _values(results: Tested, set_name: str, side: str) -> list[str]:
    return [f"{SCALES[measure] * results.values(set_name, side, measure).mean():.1f}" for measure in HEADINGS]


def _shown(compared: Compared, verdicts: Mapping[tuple[Any, ...], str]) -> str:
    mean, low, high = compared.difference.shown()
    text = f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"
    return f"**{text}**" if verdicts[compared[:3]] in (HOLDS, REVERSED) else text


def _summary(
    sides: Sequence[str], sets: Sequence[str], compared: Sequence[Compared], verdicts: Mapping[tuple[Any, ...], str]
) -> str:
    """Of how many sets each change is decided better / worse."""
    if not compared:
        return "No side has been tested yet.\n"
    lines = [["side", "against", *HEADINGS.values()], ["---"] * (2 + len(HEADINGS))]
    for side in sides:
        cells = []
        for measure in HEADINGS:
            of_side = [verdicts[of[:3]] for of in compared if (of.side, of.measure) == (side, measure)]
            cells.append(f"{of_side.count(HOLDS)} / {of_side.count(REVERSED)} of {len(of_side)}")
        if any(of.side == side for of in compared):
            lines.append([NAMES[side], NAMES[BASES[side]], *cells])
    table = "\n".join(f"|{'|'.join(line)}|" for line in lines)
    return f"On how many of {', '.join(sets)} each side is decidedly better / worse:\n\n{table}\n"


def _rows(
    results: Tested,
    sets: Sequence[str],
    sides: Sequence[str],
    compared: Sequence[Compared],
    verdicts: Mapping[tuple[Any, ...], str],
) -> Iterator[Row]:
    for of in compared:
        more = {"expected": EXPECTED[of.measure], "verdict": verdicts[of[:3]]}
        pair = (BASES[of.side], of.side)
        yield of_difference("fine-tuned networks", of.set_name, pair, of.measure, of.difference, **more)
    for set_name in sets:
        for side in (FROZEN, *sides):
            if (set_name, side) in results.tests:
                values = {measure: results.values(set_name, side, measure) for measure in HEADINGS}
                note = json.dumps(results.settings(set_name, side))
                yield from means("fine-tuned networks", set_name, side, values, note)
