"""Sentences about collapsed embeddings, for the log, the results and the report."""

from torch import Tensor

from pml_ext.functional.operating_points.utility import UtilityCurves, why_opis_says_nothing
from pml_ext.functional.spectrum import ADVICE_ON_COLLAPSE, embedding_spread

_ROWS = 1024  # that are looked at, of all identities alike; all of 19,281 × 2,048 take seconds


def describe_collapse(name: str, embeddings: Tensor, labels: Tensor | None) -> str:
    """One sentence if the embeddings of a set have collapsed, with what to try; else "".

    embeddings: (N, D); labels: (N,) class ids; None: the set lists its pairs, and has no OPIS.
    """
    some = embeddings[:: max(1, len(embeddings) // _ROWS)]
    problem = embedding_spread(some).problem(None if labels is None else len(labels.unique()))
    if not problem:
        return ""
    about_opis = "" if labels is None else ", so a low OPIS or ε-OPIS is no merit"
    return f"{name}: {problem}{about_opis}; {ADVICE_ON_COLLAPSE}."


def describe_opis(name: str, curves: UtilityCurves) -> str:
    """One sentence if OPIS says nothing of a set, whose classes no threshold tells apart; else ""."""
    reason = why_opis_says_nothing(curves)
    return f"{name}: a low OPIS or ε-OPIS is no merit: {reason}." if reason else ""
