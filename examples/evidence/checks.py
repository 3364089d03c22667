"""What `threshold check` answers where the truth is known, and what labels `choose` doubts.

`python examples/evidence/checks.py` writes both sections of CHECK_A_THRESHOLD.md, anew after each size. --draws and
--sizes for less.
"""

import argparse
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from sections import replace_section
from torch import Generator, Tensor

from pml_ext.thresholds import SampleSource, ThresholdReport
from pml_ext.thresholds.doubtful_labels import find_doubtful_labels
from pml_ext.thresholds.fields import DoubtfulLabel

LATENT, DIM, IMAGES, FAR, REPORTS = 32, 128, 4, 1e-3, 10
SPREAD, CLEAR = 0.6, 0.15  # of the images of a person
VERDICTS = ("holds", "cannot be told", "does not hold")
MODEL = torch.randn(LATENT, DIM, generator=Generator().manual_seed(0))
HERE = Path(__file__).parent
VERDICTS_START, DOUBTS_START = "<!-- checks.py -->", "<!-- checks.py, doubtful labels -->"
BEYOND = 1.5  # a true rate, as a factor of the limit
CLEAN = ("as above", "crowded", "heavy-tailed", "uneven quality", "siblings", "noise")


def draw(people: int, generator: Generator, spread: float = SPREAD, latent: int = LATENT) -> tuple[Tensor, Tensor]:
    """Returns latent points of images, and the people."""
    labels = torch.arange(IMAGES * people) % people
    centres = torch.randn(people, latent, generator=generator)
    return centres[labels] + spread * torch.randn(len(labels), latent, generator=generator), labels


@cache
def shift_of_four() -> float:
    """Returns the common shift of all points with which four times as many impostor pairs reach the same cosine."""
    points, _ = draw(1000, Generator().manual_seed(1))

    def impostor_cosines(shift: float) -> Tensor:
        unit = torch.nn.functional.normalize((points[:1000] + shift) @ MODEL)
        return (unit @ unit.T)[tuple(torch.triu_indices(1000, 1000, 1))]

    before = impostor_cosines(0.0)
    cosine = before.kthvalue(int(len(before) * (1 - FAR))).values
    low, high = 0.0, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        is_more = (impostor_cosines(middle) >= cosine).double().mean() > 4 * FAR
        low, high = (low, middle) if is_more else (middle, high)
    return low


class NewData(NamedTuple):
    """Embeddings, their labels, and the true labels."""

    embeddings: Tensor
    labels: Tensor
    people: Tensor


def same(people: int, generator: Generator) -> NewData:
    points, labels = draw(people, generator)
    return NewData(points @ MODEL, labels, labels)


def four_times(people: int, generator: Generator) -> NewData:
    points, labels = draw(people, generator)
    return NewData((points + shift_of_four()) @ MODEL, labels, labels)


def at_chance(people: int, generator: Generator) -> NewData:
    new = same(people, generator)
    return NewData(new.embeddings[torch.randperm(len(new.labels), generator=generator)], new.labels, new.labels)


def noise(people: int, generator: Generator) -> NewData:
    labels = torch.arange(IMAGES * people) % people
    return NewData(torch.randn(len(labels), DIM, generator=generator), labels, labels)


def no_false_accepts(people: int, generator: Generator) -> NewData:
    points, labels = draw(people, generator, latent=DIM)
    return NewData(points, labels, labels)


def no_false_rejects(people: int, generator: Generator) -> NewData:
    points, labels = draw(people, generator, CLEAR)
    return NewData(points @ MODEL, labels, labels)


def wrong_model(people: int, generator: Generator) -> NewData:
    points, labels = draw(people, generator)
    return NewData((points @ MODEL.flip(0)).relu(), labels, labels)


def permuted(share: float) -> Callable[[int, Generator], NewData]:
    def draw_set(people: int, generator: Generator) -> NewData:
        new = same(people, generator)
        wrong = torch.randperm(len(new.labels), generator=generator)[: round(share * len(new.labels))]
        labels = new.labels.clone()
        labels[wrong] = labels[wrong.roll(1)]
        return NewData(new.embeddings, labels, new.people)

    return draw_set


def enrolled_twice(people: int, generator: Generator) -> NewData:
    new = same(people, generator)
    is_second = (new.people < people // 10) & (torch.arange(len(new.people)) >= 2 * people)
    return NewData(new.embeddings, torch.where(is_second, new.people + people, new.people), new.people)


CASES: dict[str, tuple[Callable[[int, Generator], NewData], bool]] = {  # and whether labels are known
    "same": (same, True),
    "FAR × 4": (four_times, True),
    "at chance": (at_chance, True),
    "noise without labels": (noise, False),
    "same without labels": (same, False),
    "no false accepts": (no_false_accepts, True),
    "no false rejects": (no_false_rejects, True),
    "5 % wrong labels": (permuted(0.05), True),
    "10 % wrong labels": (permuted(0.1), True),
    "10 % enrolled twice": (enrolled_twice, True),
    "wrong model": (wrong_model, True),
}


@cache
def population() -> tuple[Tensor, Tensor]:
    """Returns many cosines of impostor pairs and of genuine pairs."""
    impostors, genuine = [], []
    for seed in range(6):
        points, _ = draw(1500, Generator().manual_seed(10**6 + seed))
        images = torch.nn.functional.normalize((points @ MODEL).double()).view(IMAGES, 1500, DIM)
        impostors.append((images[0] @ images[0].T)[tuple(torch.triu_indices(1500, 1500, 1))])
        genuine += [(images[i] * images[j]).sum(dim=1) for i in range(IMAGES) for j in range(i)]
    return torch.cat(impostors), torch.cat(genuine)


def true_rates(cosine: float) -> dict[str, float]:
    """Returns FAR and FRR of the population."""
    impostors, genuine = population()
    return {"far": float((impostors >= cosine).double().mean()), "frr": float((genuine < cosine).double().mean())}


def reports(people: int, spread: float) -> list[ThresholdReport]:
    """Returns reports of different sets."""
    chosen = []
    for seed in range(REPORTS):
        points, labels = draw(people, Generator().manual_seed(1000 * people + seed), spread)
        chosen.append(ThresholdReport.from_embeddings(points @ MODEL, labels, far=FAR))
    return chosen


def verdicts(name: str, people: int, draws: int, known: dict[float, list[ThresholdReport]]) -> Counter[str]:
    """Counts the verdicts of a case, and its labels that are wrong, listed, and listed rightly."""
    draw_set, has_labels = CASES[name]
    chosen = known[CLEAR if name == "no false rejects" else SPREAD]
    counts = Counter[str]()
    for number in range(draws):
        report, new = chosen[number % REPORTS], draw_set(people, Generator().manual_seed(7919 * people + number))
        if not has_labels:
            first = torch.arange(people)  # one image of each person
            counts[report.check(new.embeddings[first]).verdict] += 1
            continue
        counts[report.check(new.embeddings, labels=new.labels).verdict] += 1
        wrong = (new.labels != new.people).nonzero().flatten().tolist()
        if not wrong:
            continue
        listed = {sample.row for doubtful in _listed(new.embeddings, new.labels) for sample in doubtful.samples}
        counts["wrong"] += len(wrong)
        counts["listed"] += len(listed)
        counts["right"] += len(listed & set(wrong))
    return counts


def verdicts_beyond(rate: str, people: int, draws: int, chosen: list[ThresholdReport]) -> Counter[str]:
    """Counts the verdicts of one rate, "far" or "frr", with a limit that the true rate exceeds."""
    counts = Counter[str]()
    for number in range(draws):
        report, new = chosen[number % REPORTS], same(people, Generator().manual_seed(7919 * people + number))
        limits = {f"{rate}_limit": true_rates(report.cosine)[rate] / BEYOND}
        check = report.check(new.embeddings, labels=new.labels, **limits)
        counts[getattr(check, rate).verdict] += 1
    return counts


def clean_sets(kind: str, people: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Returns embeddings with right labels."""
    latent = 8 if kind == "crowded" else LATENT
    points, labels = draw(people, generator, latent=latent)
    if kind == "heavy-tailed":
        points[:, 0] += torch.randn(people, generator=generator)[labels].exp() * 2
    if kind == "uneven quality":
        noise = torch.randn(points.shape, generator=generator)
        points += torch.randn(len(points), 1, generator=generator).exp() * 0.3 * noise
    if kind == "siblings":
        sibling = labels < people // 10
        points[sibling] = 0.6 * points[sibling] + 0.8 * points[sibling.roll(people // 10)]
    if kind == "noise":
        points = torch.randn(points.shape, generator=generator)
    return points @ MODEL[:latent], labels


def listed_in_clean_sets(kind: str, draws: int) -> int:
    """Returns the number of sets of 300 people with a doubtful label."""
    count = 0
    for number in range(draws):
        embeddings, labels = clean_sets(kind, 300, Generator().manual_seed(number))
        count += bool(_listed(embeddings, labels))
    return count


def _listed(embeddings: Tensor, labels: Tensor) -> tuple[DoubtfulLabel, ...]:
    names, ids = torch.unique(labels, return_inverse=True)
    return find_doubtful_labels(embeddings, ids, names.tolist(), SampleSource(), [])[0]


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"|{'|'.join(cells)}|" for cells in lines)


def clean_sentence(draws: int) -> str:
    """Returns how often `choose` lists a label of clean sets."""
    counts = [f"{kind} {listed_in_clean_sets(kind, draws)}" for kind in CLEAN]
    return f"Of {draws} sets of 300 people with right labels, `choose` listed a label in: {', '.join(counts)}.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[75, 300, 600])
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--guide", type=Path, default=HERE.parent / "guides" / "CHECK_A_THRESHOLD.md")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    draws = arguments.draws
    clean = clean_sentence(draws)
    cells, doubts, heads = dict[str, list[str]](), dict[str, list[str]](), list[str]()
    for people in arguments.sizes:
        heads.append(f"{people:,} people")
        known = {spread: reports(people, spread) for spread in (SPREAD, CLEAR)}
        counts = {name: verdicts(name, people, draws, known) for name in CASES}
        for rate in ("far", "frr"):
            name = f"{rate.upper()} {BEYOND:g} × its limit"
            counts[name] = verdicts_beyond(rate, people, draws, known[SPREAD])
        for name, count in counts.items():
            cells.setdefault(name, [name]).append("/".join(str(count[verdict]) for verdict in VERDICTS))
            print(people, cells[name], dict(count), flush=True)
            if count["wrong"]:
                shares = count["right"] / count["wrong"], count["right"] / max(1, count["listed"])
                doubts.setdefault(name, [name]).append("/".join(f"{100 * share:.0f}" for share in shares) + " %")
        of_verdicts = table(["new data", *heads], list(cells.values()))
        of_doubts = table(["labels", *heads], list(doubts.values()))
        replace_section(arguments.guide, f"{of_verdicts}\n", VERDICTS_START)
        replace_section(arguments.guide, f"{of_doubts}\n\n{clean}", DOUBTS_START)


if __name__ == "__main__":
    main()
