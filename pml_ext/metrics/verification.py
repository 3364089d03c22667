"""Metrics of verification (faces, speakers, signatures, …): TAR at FAR, AUC, equal error rate, accuracy."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from pml_ext._shared.checks import check_finite_embeddings, check_floating, check_items, check_whole, tensor_of
from pml_ext._shared.errors import ArgumentError
from pml_ext._shared.settings import CheckedSettings
from pml_ext._shared.text import first_of
from pml_ext.functional.verification.all_pairs import labelled_pairs_roc
from pml_ext.functional.verification.error_rates import contiguous_folds, fold_accuracy
from pml_ext.functional.verification.histogram import ScoreHistogram, auc_bounds, eer_bounds, tar_bounds
from pml_ext.functional.verification.roc import (
    ROC,
    check_far,
    equal_error_rate,
    nearest_to_equal_errors,
    operating_point,
    roc_auc,
    roc_curve,
)
from pml_ext.functional.verification.templates import pair_cosines, template_embeddings
from pml_ext.metrics import keys
from pml_ext.metrics.protocol_files import ImagePairs, TemplatePairs
from pml_ext.metrics.undefined import lacking_pairs, warn_undefined

_ACCURACIES = (keys.ACCURACY, keys.ACCURACY_STD, keys.ACCURACY_STANDARD_ERROR)
FARS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


class VerificationEvaluator(CheckedSettings):
    """Computes TAR at FAR, AUC, equal error rate and k-fold accuracy of embedding pairs, compared by cosine.

    All methods return a dictionary of floats, with rates as fractions:

    - tar_at_far_1e-3, threshold_at_far_1e-3 (one of each per rate): the largest true accept rate whose false accept
      rate is at most 10⁻³, and its threshold (a cosine); a pair is accepted if its score >= threshold. nan for
      rates below smallest_far = 1 / impostors, which need more impostor pairs. See
      `functional.operating_point`.
    - auc, eer: see `functional.roc_auc`, `functional.equal_error_rate`.
    - eer_threshold, far_at_eer_threshold, frr_at_eer_threshold: the threshold with the smallest difference between the
      false accept and the false reject rate, and these rates. Tied scores can make them differ.
    - accuracy, accuracy_std, accuracy_standard_error: mean over folds, sample standard deviation, and the latter
      divided by sqrt(folds), which LFW reports. Only for pairs with folds. See `functional.fold_accuracy`.
    - genuine, impostors: numbers of pairs. If one of them is 0, all other values are nan, with a warning.

    Args:
        fars: false accept rates to report, in (0, 1].
        folds: number of contiguous folds for pairs without fold ids; None skips the accuracy.

    >>> scores = torch.tensor([0.9, 0.6, 0.3, 0.7, 0.2, 0.1])
    >>> same = [True, True, True, False, False, False]
    >>> metrics = VerificationEvaluator(fars=(0.34,), folds=None).of_scores(scores, same)
    >>> {name: round(metrics[name], 3) for name in ("auc", "eer", "tar_at_far_3.4e-1")}
    {'auc': 0.778, 'eer': 0.333, 'tar_at_far_3.4e-1': 1.0}
    """

    def __init__(self, fars: Sequence[float] = FARS, folds: int | None = 10) -> None:
        self.fars = checked_fars(fars)
        if folds is not None:
            check_whole(folds, "folds")
            if folds < 2:
                raise ArgumentError("folds", f"must be at least 2, or None for no accuracy; got {folds}")
        self.folds = folds

    def __call__(
        self,
        embeddings_a: Tensor,
        embeddings_b: Tensor,
        same: Tensor | Sequence[bool],
        *,
        fold_ids: Tensor | None = None,
    ) -> dict[str, float]:
        """Computes the rates of pairs of rows. For consecutive pairs (AgeDB-30, CFP-FP), pass x[0::2] and x[1::2].

        Args:
            embeddings_a, embeddings_b: (P, D) each, finite; row p of one is compared with row p of the other.
            same: (P,) bool, True for pairs of one subject.
            fold_ids: (P,) integers; None: `folds` contiguous blocks.
        Raises:
            ValueError: different shapes, values that are not finite, folds with only one kind of pair although the list
                has both (pass fold_ids, or folds=None to skip the accuracy).
        """
        for name, x in (("embeddings_a", embeddings_a), ("embeddings_b", embeddings_b)):
            check_finite_embeddings(x, name)
        if embeddings_a.shape != embeddings_b.shape:
            raise ValueError(
                f"embeddings_b must have the shape of embeddings_a, {tuple(embeddings_a.shape)}; "
                f"got {tuple(embeddings_b.shape)}"
            )
        rows = torch.arange(len(embeddings_a), device="cpu")
        return self.of_scores(pair_cosines(embeddings_a, embeddings_b, rows, rows), same, fold_ids=fold_ids)

    def of_scores(
        self, scores: Tensor, same: Tensor | Sequence[bool], *, fold_ids: Tensor | None = None
    ) -> dict[str, float]:
        """Computes the rates from scores; higher is closer. Pass −distance for distances; thresholds are then negative.

        Args:
            scores: (P,), finite.
            same, fold_ids: see `__call__`.
        Raises:
            ValueError: see `__call__`.
        """
        check_floating(scores, "scores", "(P,)")
        same = tensor_of(same, scores.device)
        accuracies = () if fold_ids is None and self.folds is None else _ACCURACIES
        results = rates_of(roc_curve(scores, same), self.fars, accuracies)
        if not accuracies or keys.ACCURACY in results:
            return results
        if fold_ids is None:
            fold_ids = contiguous_folds(len(scores), self.folds or 0, device=scores.device)
        fold_results = fold_accuracy(scores, same, fold_ids)
        values = (fold_results.mean, fold_results.accuracies.std(), fold_results.standard_error)
        return results | dict(zip(accuracies, map(float, values), strict=True))

    def of_image_pairs(
        self, embeddings: Mapping[str, Tensor] | Callable[[str], Tensor], pairs: ImagePairs
    ) -> dict[str, float]:
        """Computes the rates of a list of image pairs such as LFW's (`read_lfw_pairs`), in the list's folds.

        Args:
            embeddings: mapping from key ("name/number") to (D,) embedding, or a function called once per key.
            pairs: list of pairs. A list with one fold gives no accuracy.
        Raises:
            ValueError: a key is missing in the mapping; see also `__call__`.
        """
        images = list(dict.fromkeys([*pairs.first, *pairs.second]))
        if isinstance(embeddings, Mapping):
            if missing := [key for key in images if key not in embeddings]:
                raise ValueError(
                    f"embeddings lacks {len(missing)} of the {len(images)} images of the list: {first_of(missing)}"
                )
            look_up: Callable[[str], Tensor] = embeddings.__getitem__
        else:
            look_up = embeddings
        x = torch.stack([tensor_of(look_up(key)) for key in images])
        row = {key: place for place, key in enumerate(images)}
        first = torch.tensor([row[key] for key in pairs.first], device="cpu")
        second = torch.tensor([row[key] for key in pairs.second], device="cpu")
        scores = pair_cosines(x, x, first, second)
        if int(pairs.fold_ids.max()) == 0:
            return rates_of(roc_curve(scores, pairs.same.to(scores.device)), self.fars)
        return self.of_scores(scores, pairs.same, fold_ids=pairs.fold_ids)

    def of_templates(
        self, embeddings: Tensor, template_ids: Tensor, media_ids: Tensor, pairs: TemplatePairs
    ) -> dict[str, float]:
        """Computes the rates of template pairs (IJB-B, IJB-C), averaged by medium, then by template; no folds.

        Args:
            embeddings, template_ids, media_ids: (N, D), (N,), (N,): see `functional.template_embeddings`.
            pairs: from `read_template_pairs`, or tensors.
        Raises:
            ValueError: see `functional.template_embeddings`; a pair with a template without an image.
        """
        if not isinstance(pairs, TemplatePairs):
            raise TypeError(f"pairs must be TemplatePairs; got {type(pairs).__name__}")
        return rates_of(roc_of_templates(embeddings, template_ids, media_ids, pairs), self.fars)

    def of_all_pairs(self, embeddings: Tensor, labels: Tensor) -> dict[str, float]:
        """Computes the rates over every unordered pair of a labelled set, without storing scores; no folds.

        TARs, thresholds and the equal error rate are exact; the AUC is exact up to pairs that share a bin of 1.9e-6.
        See `functional.labelled_pairs_roc`.

        Args:
            embeddings: (N, D), finite.
            labels: (N,) integer ids of the subjects.
        Raises:
            ValueError: embeddings or labels of a wrong shape or type.
        """
        return rates_of(labelled_pairs_roc(embeddings, labels, fars=self.fars), self.fars)


def roc_of_templates(embeddings: Tensor, template_ids: Tensor, media_ids: Tensor, pairs: TemplatePairs) -> ROC:
    """Returns the ROC of `VerificationEvaluator.of_templates`."""
    templates = template_embeddings(embeddings, template_ids, media_ids)
    rows = (templates.rows(pairs.first), templates.rows(pairs.second))
    scores = pair_cosines(templates.embeddings, templates.embeddings, *rows)
    return roc_curve(scores, pairs.same.to(scores.device))


def checked_fars(fars: Sequence[float]) -> tuple[float, ...]:
    check_items(fars, "fars", "false accept rates")
    for far in fars:
        check_far(far)
    if len(set(map(keys.rate, fars))) < len(fars):
        raise ArgumentError("fars", f"must differ; got {tuple(fars)!r}")
    return tuple(fars)


def rates_of(roc: ROC, fars: Sequence[float], others: Sequence[str] = ()) -> dict[str, float]:
    """Returns a ROC's metrics; if it lacks a kind of pair, these and the `others` are nan, with a warning."""
    results = {}
    for far in fars:
        point = operating_point(roc, far)
        results[keys.tar_at_far(far)] = float(point.tar)
        results[keys.threshold_at_far(far)] = float(point.threshold)
    nearest = nearest_to_equal_errors(roc)
    results |= {keys.AUC: float(roc_auc(roc)), keys.EER: float(equal_error_rate(roc).far)}
    results |= {
        keys.EER_THRESHOLD: float(nearest.threshold),
        keys.FAR_AT_EER_THRESHOLD: float(nearest.far),
        keys.FRR_AT_EER_THRESHOLD: float(1 - nearest.tar),
    }
    if lacking := lacking_pairs(roc):
        results |= dict.fromkeys(others, float("nan"))
        warn_undefined((name, lacking) for name in results)
    return results | {
        keys.SMALLEST_FAR: 1 / roc.impostors if roc.impostors else float("nan"),
        keys.GENUINE: float(roc.genuine),
        keys.IMPOSTORS: float(roc.impostors),
    }


class StreamingVerification(CheckedSettings, Metric):
    """Computes `VerificationEvaluator`'s rates batch by batch, in constant memory (17 MB for cosines).

    A torchmetrics.Metric. Scores are counted in bins of 2⁻¹⁹ (1.9e-6). A reported threshold is a bin edge; its TAR is
    exact over all pairs, and its FAR never exceeds the target. The optimal TAR can be higher by pairs of one bin, which
    `bounds` limits. If torch.distributed is initialised, every rank counts its pairs, and `compute`, called on all
    ranks, sums the counts.

    Args:
        fars: false accept rates to report, in (0, 1].
        low, high: range of the scores, integers: −1 and 1 for cosines. Scores outside are clamped.
        device: device of the counts.
        options: options of torchmetrics.Metric, such as process_group.
    Attributes:
        histogram: the counts.

    >>> metric = StreamingVerification(fars=(0.5,))
    >>> metric.update(torch.tensor([0.9, 0.6, 0.7]), torch.tensor([True, True, False]))
    >>> metric.update(torch.tensor([0.3, 0.2]), torch.tensor([True, False]))
    >>> round(metric.compute()["tar_at_far_5e-1"], 3)
    1.0
    """

    is_differentiable = False
    full_state_update = False

    def __init__(
        self,
        fars: Sequence[float] = FARS,
        *,
        low: int = -1,
        high: int = 1,
        device: torch.device | str = "cpu",
        **options: Any,
    ) -> None:
        # A cached result would ignore merged counts.
        super().__init__(**{"compute_with_cache": False} | options)
        self.fars = checked_fars(fars)
        self.histogram = ScoreHistogram(low, high, device=device)
        self.add_state("counts", self.histogram.counts, dist_reduce_fx="sum")
        # Zeros for reset(), expanded to avoid storing 17 MB.
        self._defaults["counts"] = self.counts.new_zeros(()).expand_as(self.counts)

    @property
    def counts(self) -> Tensor:
        """The histogram's counts, the state that torchmetrics sums, moves and resets."""
        return self.histogram.counts

    @counts.setter
    def counts(self, counts: Tensor) -> None:
        self.histogram.counts = counts

    def update(self, scores: Tensor, same: Tensor) -> None:
        """Adds pairs: (P,) finite scores, higher is closer; (P,) bool, True for pairs of one subject."""
        self.histogram.update(scores, same)

    def merge(self, other: "StreamingVerification") -> None:
        """Adds the pairs of another object with the same low and high."""
        self.histogram.merge(other.histogram)
        self._update_count += other._update_count

    def compute(self) -> dict[str, float]:
        """Returns `VerificationEvaluator`'s keys except accuracies; nan, with a warning, without pairs of a kind."""
        return rates_of(self.histogram.roc(), self.fars)

    def bounds(self) -> dict[str, tuple[float, float]]:
        """Returns (lower, upper) bounds of the exact tar_at_far_…, auc and eer; nan if the rate is nan.

        The bounds cover the pairs of this process. compute() returns the lower bound of a TAR, which is attained, and a
        value between the bounds of auc and eer.
        """
        roc = self.histogram.roc()
        limits = {keys.tar_at_far(far): tar_bounds(roc, far) for far in self.fars}
        limits |= {keys.AUC: auc_bounds(roc), keys.EER: eer_bounds(roc)}
        if lacking := lacking_pairs(roc):
            warn_undefined((name, lacking) for name in limits)
        return {name: (float(lower), float(upper)) for name, (lower, upper) in limits.items()}
