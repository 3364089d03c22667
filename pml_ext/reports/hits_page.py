"""What a search has found, as one HTML page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pml_ext.reports.page import render, write_html

MOST = 100
"""Queries on a page."""


@dataclass(frozen=True)
class Hit:
    """A row that was found: its path in the index, the file to show if any, and the threshold's decision if any."""

    row: int
    cosine: float
    path: str
    picture: Path | None
    accepted: bool | None


@dataclass(frozen=True)
class Answer:
    """What a query has found; the query's own picture where there is one."""

    query: str
    picture: Path | None
    hits: Sequence[Hit]


def write_hits(path: str | Path, answers: Sequence[Answer], facts: Mapping[str, str], *, score: str = "cosine") -> None:
    """Write the page; score: what the hits' numbers are called."""
    about = {"title": "The closest pictures", "about": "This search", "facts": facts.items()}
    write_html(Path(path), render("hits.html", answers=answers, most=MOST, score=score, **about))
