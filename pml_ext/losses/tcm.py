"""The threshold-consistent margin term as a loss of its own."""

import torch
from torch import Tensor
from typing_extensions import Unpack

from pml_ext._checks import check_choice, check_in_range, check_switch
from pml_ext._pml import CosineSimilarity, DotProductSimilarity, reducer_of_terms, term
from pml_ext.distances.settings import describe_distance, is_on_sphere
from pml_ext.functional.losses.tcm import (
    AT_ONCE,
    DIVISORS,
    fast_threshold_consistency,
    hard_negatives,
    hard_positives,
    threshold_consistency_sums_of_rows,
)
from pml_ext.functional.tuples import class_sizes, class_spans, same_and_different
from pml_ext.losses._base import (
    EmbeddingLoss,
    PMLArguments,
    Terms,
    reduces_by_mean,
    undivided_unless_mean_of_cosines,
)
from pml_ext.losses._batch import Labels, Reference, Tuples, on_host
from pml_ext.losses._facts import LossFacts, Part, Sums


def _sums(loss: "TCMLoss", x: Tensor, labels: Tensor, part: Part) -> Sums:
    spans, margins = class_spans(labels), (loss.margin_plus, loss.margin_minus)
    sums, counts = threshold_consistency_sums_of_rows(x, part.own, spans, *margins, indicator=loss.indicator)
    weights = sums.new_tensor([loss.lambda_plus, loss.lambda_minus])
    if loss.divide_by == "all":
        size = spans.size[part.own]
        counts = torch.stack([(size - 1).sum(), (len(labels) - size).sum()]).to(sums.dtype)
    return sums * weights, counts


class TCMLoss(EmbeddingLoss):
    """Threshold-consistent margin: pulls positive pairs above one cosine margin, pushes negative pairs below another.

        λ⁺ · mean of (m⁺ − s) over positive pairs with s ≤ m⁺  +  λ⁻ · mean of (s − m⁻) over negative pairs with s ≥ m⁻

    A term without pairs is 0. The paper's ablations are TCM⁺ (lambda_minus=0), TCM⁻ (lambda_plus=0), TCM′
    (indicator=False) and ROADMAP's regularizer (divide_by="all").
    The pairs are *all* pairs of the batch (batch × ref_emb where that is given). An indices_tuple is accepted, since
    trainers pass one, and ignored: the paper's term does not depend on what a miner picked for the base loss.
    torch.compile makes one graph of it (fullgraph=True) with the default reducer and without ref_emb, and then warns of
    nothing; otherwise it breaks the graph.

    Args:
        lambda_plus, lambda_minus: weights of the two terms, >= 0; 0 leaves a term out.
        margin_plus, margin_minus: cosines in [-1, 1]; see functional.margins_from_distance_range.
        indicator: sum over the hard pairs, those at or beyond their margin; False: over all, also with a negative
            shortfall or excess.
        divide_by: the sums by the number of "hard" pairs or of "all" pairs, of positives and of negatives each.
        pml: distance (CosineSimilarity only), reducer, embedding_regularizer, embedding_reg_weight, collect_stats.
            A reducer gets two sub-losses, "pos_loss" and "neg_loss": λ⁺ (m⁺ − s) of every hard positive pair and
            λ⁻ (s − m⁻) of every hard negative one; of every pair with divide_by="all" (0 where it is not hard, with
            the indicator) or without the indicator (times all / hard pairs). The default, MeanReducer, makes the
            formula of them.
    Raises:
        TypeError: another distance: the margins are cosines.
        ValueError: a weight or margin out of range, margin_plus below margin_minus where both terms count, another
            divide_by, no labels.
    Source: Zhang et al., "Threshold-Consistent Margin Loss for Open-World Deep Metric Learning", arXiv 2307.04047,
        eq. 5; Tables 8 and 9 and eqs. 15–17. Paper: no word on eq. 17 without a hard pair; here: its term is 0.
        Paper: margins by a search on each data set, values not stated; here: 0.9 and 0.5 by default, about where its
        advice for ImageNet weights is.

    >>> x, labels = torch.tensor([[1, 0.0], [0.6, 0.8], [0, 1], [-0.6, 0.8]]), torch.tensor([0, 0, 1, 1])
    >>> round(TCMLoss()(x, labels).item(), 3), round(TCMLoss(lambda_minus=0)(x, labels).item(), 3)
    (0.5, 0.2)
    """

    default_distance = CosineSimilarity
    facts = LossFacts(
        takes_all_positives="it is defined over all positive pairs",
        sums=_sums,
        undivided=undivided_unless_mean_of_cosines,
    )
    labels_because = "TCM is defined over all pairs, an indices_tuple does not replace them"
    over_all_pairs = True  # whatever a miner picked

    def __init__(
        self, lambda_plus: float = 1.0, lambda_minus: float = 1.0, margin_plus: float = 0.9, margin_minus: float = 0.5,
        *, indicator: bool = True, divide_by: str = "hard", **pml: Unpack[PMLArguments],
    ) -> None:  # fmt: skip
        check_in_range(lambda_plus, 0, float("inf"), "lambda_plus")
        check_in_range(lambda_minus, 0, float("inf"), "lambda_minus")
        check_in_range(margin_plus, -1, 1, "margin_plus")
        check_in_range(margin_minus, -1, 1, "margin_minus")
        check_choice(divide_by, DIVISORS, "divide_by")
        check_switch(indicator, "indicator")
        if lambda_plus > 0 and lambda_minus > 0 and margin_plus < margin_minus:
            raise ValueError(
                f"margin_plus must not be below margin_minus; got {margin_plus} and {margin_minus}. Positive pairs "
                "should be closer than negative ones"
            )
        pml["reducer"] = reducer_of_terms(pml.get("reducer"), ("pos_loss", "neg_loss"))
        super().__init__(**pml)
        if not is_on_sphere(self.distance, CosineSimilarity, DotProductSimilarity):
            raise TypeError(
                "TCMLoss needs cosines, which its margins are: distance must be CosineSimilarity(); "
                f"got {describe_distance(self.distance)}"
            )
        self.lambda_plus = lambda_plus
        self.lambda_minus = lambda_minus
        self.margin_plus = margin_plus
        self.margin_minus = margin_minus
        self.indicator = indicator
        self.divide_by = divide_by
        self._record("lambda_plus", "lambda_minus", "margin_plus", "margin_minus")

    def _value_at_once(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The weighted sum of both terms."""
        spans = None
        if not torch.compiler.is_compiling():  # reading the sizes of classes would break the graph
            spans = class_spans(on_host(labels), embeddings.device) if len(labels) > AT_ONCE else None
            sizes = class_sizes(on_host(labels)) if spans is None else spans.sizes
            self._warn_of_missing_pairs(positives=len(sizes) < len(labels), negatives=len(sizes) > 1)
        options = (self.lambda_plus, self.lambda_minus, self.margin_plus, self.margin_minus)
        return fast_threshold_consistency(
            embeddings, labels, *options, indicator=self.indicator, divide_by=self.divide_by, spans=spans
        )

    def _terms(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: Tuples | None, ref_emb: Reference, ref_labels: Labels
    ) -> Terms:
        cosines = self.distance(embeddings, ref_emb)
        same, different = same_and_different(labels, ref_labels)
        self._warn_of_missing_pairs(positives=bool(same.any()), negatives=bool(different.any()))
        kinds = (
            ("pos_loss", -self.lambda_plus, self.margin_plus, same, hard_positives(cosines, self.margin_plus)),
            ("neg_loss", self.lambda_minus, self.margin_minus, different, hard_negatives(cosines, self.margin_minus)),
        )
        terms = {}
        for name, weight, margin, pairs, hard in kinds:
            losses, listed = self._losses(weight, margin, cosines, pairs, hard)
            if len(losses):
                terms[name] = term(losses, listed, of_negatives=pairs is different)
        if terms and reduces_by_mean(self):
            return {"loss": term(sum(one["losses"].mean() for one in terms.values()))}
        return terms

    def _losses(
        self, weight: float, margin: float, cosines: Tensor, pairs: Tensor, hard: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The losses of pairs, weight · (s − margin), whose mean is a term, and their indices.

        cosines, pairs, hard: (B, R); masks of the pairs of this kind, and of where such a pair is hard.
        """
        listed = torch.nonzero(pairs & hard if self.indicator and self.divide_by == "hard" else pairs, as_tuple=True)
        losses = weight * (cosines[listed] - margin)
        if self.indicator and self.divide_by == "all":
            losses = losses * hard[listed]
        elif not self.indicator and self.divide_by == "hard":
            count = int(hard[listed].sum())
            losses = losses * (len(losses) / count) if count else losses[:0]
        return losses, listed

    def _warn_of_missing_pairs(self, *, positives: bool, negatives: bool) -> None:
        kinds = ("positive", positives, self.lambda_plus), ("negative", negatives, self.lambda_minus)
        missing = [kind for kind, there, weight in kinds if weight > 0 and not there]
        if missing:
            self._warn(f"this batch has no {' and no '.join(missing)} pair, so that term is 0")
