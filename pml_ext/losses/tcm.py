"""The threshold-consistent margin (TCM) loss, alone or added to another loss."""

import inspect
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from typing_extensions import Unpack

from pml_ext._ops.custom_gradient import no_autocast
from pml_ext._pml import (
    BaseMiner,
    CosineSimilarity,
    DistributedLossWrapper,
    DotProductSimilarity,
    MeanReducer,
    SelfSupervisedLoss,
    term,
)
from pml_ext._shared.checks import check_choice, check_in_range, check_switch
from pml_ext._shared.settings import argument_names
from pml_ext.functional.losses.tcm import DIVISORS, hard_negatives, hard_positives, threshold_consistency
from pml_ext.functional.tuples import Tuples, count_pairs, same_and_different
from pml_ext.losses._base import (
    EmbeddingLoss,
    Labels,
    OurLoss,
    PMLArguments,
    Reference,
    SettingsOfTheWrapped,
    Terms,
    check_selection,
    labels_for,
    naming_reducer,
)
from pml_ext.losses._facts import LossFacts, loss_by_name
from pml_ext.losses._pairs import copies_in_reference
from pml_ext.losses.injected_distance import describe_distance, is_on_sphere

MARGIN_PLUS, MARGIN_MINUS = 0.9, 0.5


class TCMLoss(EmbeddingLoss):
    r"""Threshold-consistent margin: pulls positive pairs above one cosine margin, pushes negative pairs below another.

    $$L = \frac{λ^+}{|H^+|} \sum_{s ∈ H^+} (m^+ - s) + \frac{λ^-}{|H^-|} \sum_{s ∈ H^-} (s - m^-)$$

    H⁺ are the cosines s ≤ m⁺ of positive pairs, H⁻ the cosines s ≥ m⁻ of negative pairs.

    With λ⁺ = λ⁻ = 1, the default, it equals PML's contrastive loss on cosines, in value and gradient:
    `ContrastiveLoss(pos_margin=m⁺, neg_margin=m⁻, distance=CosineSimilarity())`.

    A term without pairs is 0. The loss uses *all* pairs of the batch, or of batch × ref_emb. It
    accepts an indices_tuple, because trainers pass one, but ignores it: in the paper TCM does not depend on mining.
    In a CrossBatchMemory a sample does not pair with its copy.

    The paper's ablations are TCM⁺ (lambda_minus=0), TCM⁻ (lambda_plus=0), TCM′ (indicator=False) and ROADMAP's
    regularizer (divide_by="all").

    Args:
        lambda_plus, lambda_minus: weights λ⁺ and λ⁻ of the two terms, >= 0; 0 turns a term off.
        margin_plus, margin_minus: m⁺ and m⁻, cosines in [-1, 1], by default 0.9 and 0.5; see
            functional.margins_from_distance_range.
        indicator: True sums over hard pairs only, those at or beyond their margin. False sums over all pairs, including
            negative shortfalls and excesses.
        divide_by: "hard" divides each sum by its number of hard pairs, "all" by its number of pairs.
        pml: distance (CosineSimilarity only), reducer, embedding_regularizer, embedding_reg_weight, collect_stats.
            A reducer receives two sub-losses: "pos_loss" with λ⁺ (m⁺ − s) of each hard positive pair, and "neg_loss"
            with λ⁻ (s − m⁻) of each hard negative pair. With divide_by="all" they contain every pair, as 0 if it is
            not hard. Without the indicator they contain every pair, scaled by all / hard pairs if divide_by="hard".
            Reducers that select by value (ThresholdReducer, AvgNonZeroReducer) then are refused.
            The default, MeanReducer, gives the formula.
    Raises:
        TypeError: a distance other than CosineSimilarity (the margins are cosines); without the indicator, a reducer
            that selects by value.
        ValueError: a weight or margin out of range, margin_plus below margin_minus with both terms on, an unknown
            divide_by, no labels.
    Source: Zhang et al., "Threshold-Consistent Margin Loss for Open-World Deep Metric Learning", arXiv 2307.04047,
        eq. 5; Tables 8 and 9 and eqs. 15–17. Paper: eq. 17 without a hard pair is not defined; here: its term is 0.
        Paper: margins are tuned on each data set, values not stated; here: 0.9 and 0.5 by default, close to its advice
        for ImageNet weights.

    >>> import torch
    >>> x, labels = torch.tensor([[1, 0.0], [0.6, 0.8], [0, 1], [-0.6, 0.8]]), torch.tensor([0, 0, 1, 1])
    >>> round(TCMLoss()(x, labels).item(), 3), round(TCMLoss(lambda_minus=0)(x, labels).item(), 3)
    (0.5, 0.2)

    The same, step by step:

    >>> unit = torch.nn.functional.normalize(x)
    >>> sims, same = unit @ unit.T, labels[:, None] == labels
    >>> pos_sims, neg_sims = sims[same & ~torch.eye(4, dtype=torch.bool)], sims[~same]
    >>> hard_pos, hard_neg = pos_sims[pos_sims <= 0.9], neg_sims[neg_sims >= 0.5]
    >>> round(((0.9 - hard_pos).mean() + (hard_neg - 0.5).mean()).item(), 3)
    0.5
    """

    default_distance = CosineSimilarity
    term_names = ("pos_loss", "neg_loss")
    passed_on = ("distance", "reducer")
    facts = LossFacts(takes_all_positives=True)
    labels_because = "TCM is defined over all pairs, so an indices_tuple does not replace them"

    def __init__(
        self, lambda_plus: float = 1.0, lambda_minus: float = 1.0, margin_plus: float = MARGIN_PLUS,
        margin_minus: float = MARGIN_MINUS, *, indicator: bool = True, divide_by: str = "hard",
        **pml: Unpack[PMLArguments],
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
        super().__init__(**pml)
        if not is_on_sphere(self.distance, CosineSimilarity, DotProductSimilarity):
            raise TypeError(
                "TCMLoss needs cosines, because its margins are cosines: distance must be CosineSimilarity(); "
                f"got {describe_distance(self.distance)}"
            )
        if not indicator:
            check_selection(self, self.reducer)
        self.lambda_plus = lambda_plus
        self.lambda_minus = lambda_minus
        self.margin_plus = margin_plus
        self.margin_minus = margin_minus
        self.indicator = indicator
        self.divide_by = divide_by
        self._record("lambda_plus", "lambda_minus", "margin_plus", "margin_minus")

    def compute_loss(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: Tuples | None, ref_emb: Reference, ref_labels: Labels
    ) -> Terms:
        if ref_emb is None and self.is_mean_of_cosines():
            value = threshold_consistency(
                embeddings, labels, self.lambda_plus, self.lambda_minus, self.margin_plus, self.margin_minus,
                self.indicator, self.divide_by,
            )  # fmt: skip
            self._warn_of_missing_pairs(*count_pairs(labels))
            return {"loss": term(value)}
        cosines = self.distance(embeddings, ref_emb)
        copies = copies_in_reference(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        same, different = same_and_different(labels, ref_labels, copies, device=cosines.device)
        positives, negatives = count_pairs(labels, ref_labels)
        self._warn_of_missing_pairs(positives if copies is None else positives - len(copies), negatives)
        kinds = (
            ("pos_loss", -self.lambda_plus, self.margin_plus, same, hard_positives(cosines, self.margin_plus)),
            ("neg_loss", self.lambda_minus, self.margin_minus, different, hard_negatives(cosines, self.margin_minus)),
        )
        terms = {}
        for name, weight, margin, pairs, is_hard in kinds:
            losses, listed = self._losses(weight, margin, cosines, pairs, is_hard)
            if len(losses):
                terms[name] = term(losses, listed, of_negatives=pairs is different)
        if terms and type(self.reducer) is MeanReducer:
            return {"loss": term(sum(sub_loss["losses"].mean() for sub_loss in terms.values()))}
        return self.zero_terms() | terms if len(terms) < 2 else terms

    def _losses(
        self, weight: float, margin: float, cosines: Tensor, pairs: Tensor, is_hard: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Returns the pair losses, weight · (s − margin), whose mean is a term, and the pair indices.

        cosines: (B, R); pairs, is_hard: (B, R) masks of the pairs of this kind, and of the hard ones.
        """
        if self.indicator and self.divide_by == "hard":
            pairs = pairs & is_hard
        listed = pairs.nonzero(as_tuple=True)
        losses = weight * (cosines[listed] - margin)
        if self.indicator and self.divide_by == "all":
            losses = losses * is_hard[listed]
        elif not self.indicator and self.divide_by == "hard":
            num_hard = int(is_hard[listed].sum())
            losses = losses * (len(losses) / num_hard) if num_hard else losses[:0]
        return losses, listed

    def _warn_of_missing_pairs(self, positives: int, negatives: int) -> None:
        kinds = ("positive", positives, self.lambda_plus), ("negative", negatives, self.lambda_minus)
        missing = [kind for kind, count, weight in kinds if weight > 0 and not count]
        if missing:
            self._warn(f"this batch has no {' and no '.join(missing)} pair, so that term is 0")


class TCMRegularizer(SettingsOfTheWrapped, OurLoss):
    """Adds the threshold-consistent margin (TCM) over all pairs of the batch to another loss.

    $$L = L_{base} + L_{TCM}$$

    The wrapped loss receives all arguments, including a miner's indices_tuple. TCM uses all pairs of the batch, or of
    batch × ref_emb.

    TCMRegularizer(CrossBatchMemory(…)): only the wrapped loss uses the memory. CrossBatchMemory(TCMRegularizer(…)):
    both use batch × memory. Put SelfSupervisedLoss and DistributedLossWrapper outside of TCMRegularizer.

    16-bit embeddings are converted to float32, because most of PML's losses fail or are inaccurate in 16 bits.

    Args:
        loss: any loss of pytorch-metric-learning or of this package, with parameters or without; MultipleLosses;
            CrossBatchMemory; or any module whose forward accepts (embeddings, labels) and optionally indices_tuple,
            ref_emb and ref_labels.
            Or the name of a loss with default options, such as "TripletMarginLoss".
            Its parameters are in state_dict under "loss.".
        lambda_plus, lambda_minus, margin_plus, margin_minus, indicator, divide_by: see TCMLoss.
    Attributes:
        tcm: the TCMLoss.
        lambda_plus, lambda_minus, margin_plus, margin_minus, indicator, divide_by: those of tcm, also when set.
        distance, reducer, embedding_regularizer, embedding_reg_weight: those of the wrapped loss, also when set.
    Raises:
        TypeError: not a loss, a loss that does not return a tensor (DoNothingReducer), or an unknown argument.
        ValueError: ref_emb or indices_tuple for a loss that does not accept it, missing labels, a weight or margin out
            of range, an unknown divide_by.
    Source: Zhang et al., arXiv 2307.04047, eq. 6.

    >>> import torch
    >>> x, labels = torch.tensor([[1.0, 0], [0.6, 0.8], [0, 1]]), torch.tensor([0, 0, 1])
    >>> loss = TCMRegularizer("TripletMarginLoss", margin_plus=0.9)
    >>> round(loss(x, labels).item(), 3), round(TCMLoss()(x, labels).item(), 3)
    (0.912, 0.6)
    """

    labels_because = TCMLoss.labels_because
    OPTIONS_OF = dict.fromkeys(argument_names(TCMLoss), "tcm")

    if TYPE_CHECKING:  # a type checker finds nn.Module's first, because it does not know PML's classes
        __call__ = OurLoss.forward

    def __init__(
        self, loss: nn.Module | str, *, lambda_plus: float = 1.0, lambda_minus: float = 1.0,
        margin_plus: float = MARGIN_PLUS, margin_minus: float = MARGIN_MINUS, indicator: bool = True,
        divide_by: str = "hard",
    ) -> None:  # fmt: skip
        wrapped: Any = loss_by_name(loss)
        super().__init__()
        _optional_arguments(wrapped)  # refuses a loss that takes no embeddings and labels
        self._wrap(wrapped)
        margins = lambda_plus, lambda_minus, margin_plus, margin_minus
        self.tcm = TCMLoss(*margins, indicator=indicator, divide_by=divide_by)

    def compute_value(
        self, embeddings: Tensor, labels: Any, indices_tuple: Tuples | None, ref_emb: Reference, ref_labels: Any
    ) -> Tensor:
        """Returns the wrapped loss plus TCM."""
        tcm = self.tcm.compute_value(
            embeddings, labels, None if ref_emb is None else indices_tuple, ref_emb, ref_labels
        )
        labels, ref_labels = (labels_for(self.loss, ids, embeddings) for ids in (labels, ref_labels))
        arguments = {"indices_tuple": indices_tuple, "ref_emb": ref_emb, "ref_labels": ref_labels}
        accepted = _optional_arguments(self.loss)
        for name, value in arguments.items():
            if value is not None and name not in accepted:
                kind = type(self.loss).__name__
                raise ValueError(
                    f"{name} must be None with {kind}, which does not accept it; got {type(value).__name__}"
                )
        with no_autocast(embeddings.device), naming_reducer(self.loss, KeyError, NotImplementedError):
            base: Any = self.loss(embeddings, labels, **{name: arguments[name] for name in accepted})
        if not isinstance(base, Tensor):
            raise TypeError(
                f"{type(self.loss).__name__} must return a tensor that TCM can be added to; got "
                f"{type(base).__name__}. Use a reducer other than DoNothingReducer"
            )
        return base + tcm


def _optional_arguments(loss: Any) -> tuple[str, ...]:
    """Names of the optional arguments after (embeddings, labels) that a loss accepts; TypeError if it is not a loss."""
    if isinstance(loss, (DistributedLossWrapper, SelfSupervisedLoss)):
        name = type(loss).__name__
        raise TypeError(f"TCMRegularizer cannot wrap {name}; use {name}(TCMRegularizer(...))")
    is_loss = isinstance(loss, nn.Module) and not isinstance(loss, BaseMiner)
    names = list(inspect.signature(loss.forward).parameters) if is_loss else []
    if names[:2] != ["embeddings", "labels"]:
        raise TypeError(
            "loss must be a loss of pytorch-metric-learning or pml_ext, or a module with forward(embeddings, labels); "
            f"got {type(loss).__name__}"
        )
    return tuple(name for name in ("indices_tuple", "ref_emb", "ref_labels") if name in names)
