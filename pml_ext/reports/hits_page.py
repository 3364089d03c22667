"""Writes the results of a search as one HTML page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from pml_ext.reports.page import Card, render, thumbnail, write_html

_VERDICTS = {None: ("", ""), True: ("accept", "right"), False: ("reject", "wrong")}
MOST = 100
"""Queries on a page."""


@dataclass(frozen=True)
class Hit:
    """A hit: its score, its path in the gallery, its image file, and the threshold's decision (both optional)."""

    row: int
    score: float
    path: str
    image: Path | None
    accepted: bool | None


@dataclass(frozen=True)
class Answer:
    """The hits of a query, and the query's image file if there is one."""

    query: str
    image: Path | None
    hits: Sequence[Hit]


def write_hits(
    path: str | Path,
    answers: Sequence[Answer],
    facts: Mapping[str, str],
    *,
    score_name: str = "cosine",
) -> None:
    """Write the page; score_name: of the hits, cosine or score. The name of an image's folder is shown as its class."""
    shown = [(answer.query, _cards(answer, score_name)) for answer in answers[:MOST]]
    about = {"title": "The most similar images", "about": "This search", "facts": facts.items()}
    write_html(Path(path), render("hits.html", answers=shown, count=len(answers), **about))


def _cards(answer: Answer, score_name: str) -> list[Card]:
    cards = [Card([(thumbnail(answer.image), [])], verdict="query", kind="query")]
    for place, hit in enumerate(answer.hits, start=1):
        lines = [f"row {hit.row}"]
        if hit.path:
            lines = [PurePath(hit.path).parent.name, hit.path]
        verdict, kind = _VERDICTS[hit.accepted]
        side = thumbnail(hit.image), lines
        text = f"{place}. {score_name} {hit.score:.4f}"
        cards.append(Card([side], text, verdict, kind))
    return cards
