"""The numbers a verification (face, speaker, signature, …) paper prints."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from pml_ext._checks import check_embeddings, check_finite, check_items, check_whole
from pml_ext.functional.verification.all_pairs import labelled_pairs_roc
from pml_ext.functional.verification.checks import check_far
from pml_ext.functional.verification.folds import contiguous_folds, fold_accuracy
from pml_ext.functional.verification.roc import ROC, equal_error_rate, roc_auc, roc_curve
from pml_ext.functional.verification.tar_at_far_rule import operating_point
from pml_ext.functional.verification.templates import pair_cosines, template_embeddings
from pml_ext.metrics import keys
from pml_ext.metrics.pair_lists import ImagePairs, TemplatePairs
from pml_ext.metrics.undefined import lacking_pairs, warn_undefined

_ACCURACIES = (keys.ACCURACY, keys.ACCURACY_STD, keys.ACCURACY_STANDARD_ERROR)
FARS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


class VerificationEvaluator:
    """TAR at FAR, AUC, equal error rate and accuracy in folds of pairs of embeddings, compared by cosine.

    Each way of handing in pairs returns a dictionary of floats, rates as fractions:

    - tar_at_far_1e-3, threshold_at_far_1e-3 (one of each per rate): the largest true accept rate whose false accept
      rate is at most 10^-3, and its threshold (a cosine); a pair is accepted when its score >= threshold. nan where
      there are too few impostor pairs to support the rate, i.e. below smallest_far = 1 / impostors. See
      `functional.operating_point`.
    - auc, eer, eer_threshold: see `functional.roc_auc`, `functional.equal_error_rate`.
    - accuracy, accuracy_std, accuracy_standard_error: mean over folds, sample standard deviation, and the latter
      divided by sqrt(folds), which LFW reports. Only for pairs that come in folds. See `functional.fold_accuracy`.
    - genuine, impostors: how many pairs there are. Where there are none of a kind, all else is nan, with a warning.

    Args:
        fars: the false accept rates to report, in (0, 1].
        folds: contiguous blocks that pairs without fold ids are cut into; None for no accuracy.

    >>> scores, same = torch.tensor([0.9, 0.6, 0.3, 0.7, 0.2, 0.1]), [True, True, True, False, False, False]
    >>> found = VerificationEvaluator(fars=(0.34,), folds=None).of_scores(scores, same)
    >>> {name: round(value, 3) for name, value in found.items() if name in ("tar_at_far_3.4e-1", "auc", "eer")}
    {'tar_at_far_3.4e-1': 1.0, 'auc': 0.778, 'eer': 0.333}
    """

    def __init__(self, fars: Sequence[float] = FARS, folds: int | None = 10) -> None:
        self.fars = checked_fars(fars)
        if folds is not None:
            check_whole(folds, "folds")
            if folds < 2:
                raise ValueError(f"folds must be at least 2, or None for no accuracy; got {folds}")
        self.folds = folds

    def __call__(
        self,
        embeddings_a: Tensor,
        embeddings_b: Tensor,
        same: Tensor | Sequence[bool],
        *,
        fold_ids: Tensor | None = None,
    ) -> dict[str, float]:
        """Pairs of rows. AgeDB-30, CFP-FP and others list embeddings in consecutive pairs: x[0::2] and x[1::2].

        Args:
            embeddings_a, embeddings_b: (P, D) each, finite; row p of the one is compared with row p of the other.
            same: (P,) bool, True for pairs of one subject.
            fold_ids: (P,) integers; None: `folds` contiguous blocks.
        Raises:
            ValueError: shapes that differ, values that are not finite, folds that hold only one kind of pair of a
                list with both (pass fold_ids, or folds=None for no accuracy).
        """
        for name, x in (("embeddings_a", embeddings_a), ("embeddings_b", embeddings_b)):
            check_embeddings(x, name)
            check_finite(x, name)
        if embeddings_a.shape != embeddings_b.shape:
            raise ValueError(
                f"embeddings_b must have the shape of embeddings_a, {tuple(embeddings_a.shape)}; "
                f"got {tuple(embeddings_b.shape)}"
            )
        rows = torch.arange(len(embeddings_a))
        return self.of_scores(pair_cosines(embeddings_a, embeddings_b, rows, rows), same, fold_ids=fold_ids)

    def of_scores(
        self, scores: Tensor, same: Tensor | Sequence[bool], *, fold_ids: Tensor | None = None
    ) -> dict[str, float]:
        """Scores of any matcher, higher is more alike. Hand in −distance for a distance; thresholds are then negative.

        Args:
            scores: (P,), finite.
            same, fold_ids: as in `__call__`.
        Raises:
            ValueError: as in `__call__`.
        """
        same = torch.as_tensor(same, device=scores.device)
        accuracies = () if fold_ids is None and self.folds is None else _ACCURACIES
        results = rates_of(roc_curve(scores, same), self.fars, accuracies)
        if not accuracies or keys.ACCURACY in results:
            return results
        if fold_ids is None:
            fold_ids = contiguous_folds(len(scores), self.folds or 0, device=scores.device)
        found = fold_accuracy(scores, same, fold_ids)
        values = (found.mean, found.accuracies.std(), found.standard_error)
        return results | dict(zip(accuracies, map(float, values), strict=True))

    def of_image_pairs(
        self, embeddings: Mapping[str, Tensor] | Callable[[str], Tensor], pairs: ImagePairs
    ) -> dict[str, float]:
        """A list of image pairs such as LFW's (`read_lfw_pairs`), in the folds of the list.

        Args:
            embeddings: key ("name/number") to (D,) embedding: a mapping, or a function called once for each key.
            pairs: the list.
        Raises:
            ValueError: a key that the mapping lacks; and as in `__call__`. A list of one fold has no accuracy.
        """
        keys = list(dict.fromkeys([*pairs.first, *pairs.second]))
        if isinstance(embeddings, Mapping):
            if missing := [key for key in keys if key not in embeddings]:
                shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
                raise ValueError(f"embeddings lacks {len(missing)} of the {len(keys)} images of the list: {shown}")
            look_up: Callable[[str], Tensor] = embeddings.__getitem__
        else:
            look_up = embeddings
        x = torch.stack([torch.as_tensor(look_up(key)) for key in keys])
        row = {key: place for place, key in enumerate(keys)}
        first, second = (torch.tensor([row[key] for key in side]) for side in (pairs.first, pairs.second))
        scores = pair_cosines(x, x, first, second)
        if int(pairs.fold_ids.max()) == 0:
            return rates_of(roc_curve(scores, pairs.same.to(scores.device)), self.fars)
        return self.of_scores(scores, pairs.same, fold_ids=pairs.fold_ids)

    def of_templates(
        self, embeddings: Tensor, template_ids: Tensor, media_ids: Tensor, pairs: TemplatePairs
    ) -> dict[str, float]:
        """Pairs of templates, as in IJB-B and IJB-C: means over each medium, then over the template; no folds.

        Args:
            embeddings, template_ids, media_ids: (N, D), (N,), (N,): see `functional.template_embeddings`.
            pairs: `read_template_pairs`, or tensors of one's own.
        Raises:
            ValueError: as of `functional.template_embeddings`; a pair of a template without an image.
        """
        if not isinstance(pairs, TemplatePairs):
            raise TypeError(f"pairs must be TemplatePairs; got {type(pairs).__name__}")
        return rates_of(roc_of_templates(embeddings, template_ids, media_ids, pairs), self.fars)

    def of_all_pairs(self, embeddings: Tensor, labels: Tensor) -> dict[str, float]:
        """Every unordered pair of a labelled set, without storing a score; no folds.

        TARs, thresholds and the equal error rate are exact, the AUC within the pairs that share a bin of 1.9e-6: see
        `functional.labelled_pairs_roc`.

        Args:
            embeddings: (N, D), finite.
            labels: (N,) integer ids of the subjects.
        Raises:
            ValueError: embeddings or labels of another shape or type.
        """
        return rates_of(labelled_pairs_roc(embeddings, labels, fars=self.fars), self.fars)


def roc_of_templates(embeddings: Tensor, template_ids: Tensor, media_ids: Tensor, pairs: TemplatePairs) -> ROC:
    """The curve of `VerificationEvaluator.of_templates`."""
    templates = template_embeddings(embeddings, template_ids, media_ids)
    rows = (templates.rows(pairs.first), templates.rows(pairs.second))
    scores = pair_cosines(templates.embeddings, templates.embeddings, *rows)
    return roc_curve(scores, pairs.same.to(scores.device))


def checked_fars(fars: Sequence[float]) -> tuple[float, ...]:
    check_items(fars, "fars", "false accept rates")
    for far in fars:
        check_far(far)
    if len(set(map(keys.rate, fars))) < len(fars):
        raise ValueError(f"fars must differ; got {tuple(fars)!r}")
    return tuple(fars)


def rates_of(roc: ROC, fars: Sequence[float], others: Sequence[str] = ()) -> dict[str, float]:
    """A ROC's metrics; where it lacks a kind of pair, these and the `others` asked for are nan, with a warning."""
    results = {}
    for far in fars:
        point = operating_point(roc, far)
        results[keys.tar_at_far(far)] = float(point.tar)
        results[keys.threshold_at_far(far)] = float(point.threshold)
    equal = equal_error_rate(roc)
    results |= {keys.AUC: float(roc_auc(roc)), keys.EER: float(equal.far), keys.EER_THRESHOLD: float(equal.threshold)}
    if lacking := lacking_pairs(roc):
        results |= dict.fromkeys(others, float("nan"))
        warn_undefined((name, lacking) for name in results)
    return results | {
        keys.SMALLEST_FAR: 1 / roc.impostors if roc.impostors else float("nan"),
        keys.GENUINE: float(roc.genuine),
        keys.IMPOSTORS: float(roc.impostors),
    }
