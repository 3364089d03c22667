"""Detects collapsed embeddings and losses without a training signal; sentences for log, results and report."""

import logging
from collections.abc import Mapping

import torch
from torch import Tensor

from pml_ext._ops.numerics import unit_rows
from pml_ext.functional.spectrum import ADVICE_ON_COLLAPSE, embedding_spread

log = logging.getLogger("pml_ext")

_ROWS = 1024  # sampled embeddings, evenly over the identities; all of 19,281 × 2,048 would take seconds


def describe_collapse(name: str, embeddings: Tensor, labels: Tensor | None) -> str:
    """Returns a sentence with advice if the embeddings of a set have collapsed, else "".

    embeddings: (N, D); labels: (N,) class ids, or None for a set of listed pairs, which has no OPIS.
    """
    some = embeddings[:: max(1, len(embeddings) // _ROWS)]
    problem = embedding_spread(some).problem(None if labels is None else len(labels.unique()))
    if not problem:
        return ""
    about_opis = "" if labels is None else ", so a low OPIS or ε-OPIS is meaningless"
    return f"{name}: {problem}{about_opis}; {ADVICE_ON_COLLAPSE}."


# A loss may reach this value by chance, so the embeddings of the batch must also be nearly equal. Measured on
# batches of Glyphs and Digits: a variance of 0.2 to 0.9 in and before training, 0.006 and less after collapses, by
# which the losses then deviated by up to 0.8 %.
_VARIANCE, _DEVIATION = 0.01, 0.01


@torch.no_grad()
def are_nearly_equal(embeddings: Tensor) -> bool:
    """Returns whether the embeddings of a batch, (B, D), have so little variance that they may have collapsed."""
    variance = unit_rows(embeddings).var(dim=0, correction=0).sum()
    return float(variance) < _VARIANCE


SMALLEST_SHARE = 0.01
"""Share of the gradient below which a loss hardly changes the training."""


class EpochLosses:
    """Mean losses of an epoch, compared with the losses of its last batch for equal embeddings.

    weight_keys: config key of each loss's weight, by the loss's name.
    problem: a sentence about the last epoch; "" if no loss was stuck or without effect.
    shares: each loss's share of the gradient on the embeddings of the last epoch's last batch; empty for one loss.
    """

    def __init__(self, weight_keys: Mapping[str, str] | None = None) -> None:
        self.problem = ""
        self.shares: dict[str, float] = {}
        self._weight_keys = weight_keys or {}
        self._sums: dict[str, Tensor] = {}
        self._collapsed: dict[str, Tensor] = {}
        self._steps = 0

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Add the losses of a step."""
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0) + value.detach()
        self._steps += 1

    def means(self) -> dict[str, float]:
        """Mean of each loss in the epoch so far."""
        return {name: float(value) / self._steps for name, value in self._sums.items()}

    def compare(self, collapsed: Mapping[str, Tensor]) -> None:
        """Record the losses of the epoch's last batch for equal embeddings; `shares` of earlier batches go."""
        self._collapsed = dict(collapsed)
        self.shares = {}

    def end_epoch(self, epoch: int, *, is_first: bool) -> None:
        """Evaluate the epoch; rank 0 logs changes."""
        means, was_stuck = self.means(), bool(self.problem)
        zero = [name for name, value in means.items() if value == 0]
        # An architecture's `losses` may name the terms otherwise.
        values = {name: float(value) for name, value in self._collapsed.items() if name in means}
        stuck = [name for name, value in values.items() if abs(means[name] - value) <= _DEVIATION * abs(value)]
        self.problem = ""
        if stuck:
            shown = " and ".join(f"{name} stayed at {values[name]:.4g}" for name in stuck)
            self.problem = f"In epoch {epoch} {shown}, the value if all embeddings are equal; {ADVICE_ON_COLLAPSE}."
        elif zero:
            self.problem = (
                f"{' and '.join(zero)} was exactly 0 in all of epoch {epoch}, so it had no effect; try a "
                "larger margin, a miner of harder tuples, or more identities in a batch."
            )
        elif small := [name for name, share in self.shares.items() if share < SMALLEST_SHARE]:
            shown = " and ".join(f"{name} had {100 * self.shares[name]:.3g} %" for name in small)
            keys = [self._weight_keys[name] for name in small if name in self._weight_keys]
            self.problem = (
                f"In epoch {epoch} {shown} of the gradient on the embeddings, so that it hardly changes the training; "
                f"raise {' and '.join(keys) or 'its weight'}, or leave it out."
            )
        if is_first and self.problem and not was_stuck:
            log.warning("%s", self.problem)
        self._sums, self._collapsed, self._steps = {}, {}, 0
