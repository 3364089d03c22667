"""Sentences about collapsed embeddings and losses that teach nothing, for the log, the results and the report."""

import logging
from collections.abc import Mapping

import torch
from torch import Tensor

from pml_ext._ops.normalize import unit_rows
from pml_ext.functional.spectrum import ADVICE_ON_COLLAPSE, embedding_spread

log = logging.getLogger("pml_ext")

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


# A loss may pass this value by chance, so that the embeddings of the batch must be close to equal, too. Measured on
# batches of Glyphs and Digits: a variance of 0.2 to 0.9 in and before training, 0.006 and less after collapses, by
# which the losses then deviated by up to 0.8 %.
_VARIANCE, _DEVIATION = 0.01, 0.01


class EpochLosses:
    """Means of the losses over an epoch, compared with their values on its last batch if all embeddings were equal.

    problem: a sentence about the last epoch; "" where no loss was stuck.
    """

    def __init__(self) -> None:
        self.problem = ""
        self._sums: dict[str, Tensor] = {}
        self._collapsed: dict[str, Tensor] = {}
        self._steps = 0

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Add the losses of a step."""
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0) + value.detach()
        self._steps += 1

    def means(self) -> dict[str, float]:
        """The mean of each loss in the epoch so far."""
        return {name: float(value) / self._steps for name, value in self._sums.items()}

    @torch.no_grad()
    def compare(self, embeddings: Tensor, collapsed: Mapping[str, Tensor]) -> None:
        """Give the epoch's last batch, (B, D), and its losses if all embeddings were equal."""
        variance = unit_rows(embeddings).var(dim=0, correction=0).sum()
        self._collapsed = dict(collapsed) if float(variance) < _VARIANCE else {}

    def end_epoch(self, epoch: int, *, is_first: bool) -> None:
        """Judge the epoch of this number; the first rank logs what changes."""
        means, was_stuck = self.means(), bool(self.problem)
        zero = [name for name, value in means.items() if value == 0]
        values = {name: float(value) for name, value in self._collapsed.items()}
        stuck = [name for name, value in values.items() if abs(means[name] - value) <= _DEVIATION * abs(value)]
        self.problem = ""
        if stuck:
            shown = " and ".join(f"{name} stayed at {values[name]:.4g}" for name in stuck)
            self.problem = f"In epoch {epoch} {shown}, the value if all embeddings are equal; {ADVICE_ON_COLLAPSE}."
        elif zero:
            self.problem = (
                f"{' and '.join(zero)} was exactly 0 in all of epoch {epoch}, so nothing was learned from it; try a "
                "larger margin, a miner of harder tuples, or more identities in a batch."
            )
        if is_first and self.problem and not was_stuck:
            log.warning("%s", self.problem)
        self._sums, self._collapsed, self._steps = {}, {}, 0
