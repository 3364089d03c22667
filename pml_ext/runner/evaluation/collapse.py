"""Sentences about collapsed embeddings, for the log, the results and the report."""

import torch

from pml_ext.functional.operating_points.utility import UtilityCurves, why_opis_says_nothing
from pml_ext.functional.spectrum import ADVICE_ON_COLLAPSE, embedding_spread
from pml_ext.runner.data.datasets import OpenSet, TestSet
from pml_ext.runner.evaluation.evaluate import Features


def describe_collapse(name: str, data: TestSet, features: Features) -> str:
    """One sentence if the embeddings of a test set have collapsed, with what to try; else ""."""
    identities = torch.cat([torch.from_numpy(part.identities) for part in data.parts])
    classes = len(identities.unique()) if isinstance(data, OpenSet) else None
    problem = embedding_spread(torch.cat(features)).problem(classes)
    if not problem:
        return ""
    about_opis = ", so a low OPIS or ε-OPIS is no merit" if isinstance(data, OpenSet) else ""
    return f"{name}: {problem}{about_opis}; {ADVICE_ON_COLLAPSE}."


def describe_opis(name: str, curves: UtilityCurves) -> str:
    """One sentence if OPIS says nothing of a test set, whose classes no threshold tells apart; else ""."""
    reason = why_opis_says_nothing(curves)
    return f"{name}: a low OPIS or ε-OPIS is no merit: {reason}." if reason else ""
