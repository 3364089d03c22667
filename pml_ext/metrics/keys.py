"""Registry of metrics by key: table heading, better direction, and computation from a measured set.

Keys on one line are the same quantity under the name that its field uses. All values are fractions, never × 100.

| quantity | AccuracyCalculator | ReIDEvaluator | VerificationEvaluator, StreamingVerification | OPIS |
|---|---|---|---|---|
| share of queries matched within r (CMC) | cmc_rank_r; precision_at_1 for r = 1 | rank_r | | |
| mean average precision over all matches | reid_mean_average_precision; mean_average_precision | mAP | | |
| mean inverse negative penalty | mean_inverse_negative_penalty | mINP | | |
| true accept rate at a false accept rate | tar_at_far_1e-3 | | tar_at_far_1e-3 | |
| area under the ROC | verification_auc | | auc | |
| equal error rate | equal_error_rate | | eer | |
| spread of the classes' utilities | opis, epsilon_opis | | | opis, epsilon_opis |

normalized_<name> is the metric by normalised scores (`pml-ext metrics --cohort`), csls_<name> by CSLS (`TEST.CSLS`).

mean_average_precision and precision_at_1 are PML's. They equal this package's, apart from ties, if k is None or larger
than the gallery (`functional.rank_matches` counts ties against the query).

This module does not import torch, so that configs can be checked without it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pml_ext.metrics.evaluation_set import EvaluationSet

# Retrieval, in PML's names.
PRECISION_AT_1 = "precision_at_1"
MEAN_AVERAGE_PRECISION = "mean_average_precision"
MEAN_AVERAGE_PRECISION_AT_R = "mean_average_precision_at_r"
R_PRECISION = "r_precision"
MEAN_RECIPROCAL_RANK = "mean_reciprocal_rank"
# Retrieval, ours in the calculator.
REID_MEAN_AVERAGE_PRECISION = "reid_mean_average_precision"
MEAN_INVERSE_NEGATIVE_PENALTY = "mean_inverse_negative_penalty"
# Retrieval, in the names of re-identification papers.
MAP = "mAP"
MINP = "mINP"
QUERIES = "queries"
QUERIES_WITHOUT_MATCH = "queries_without_match"
# Clustering.
NMI = "NMI"
AMI = "AMI"
F1 = "f1"
# Consistency of classes under one threshold.
OPIS = "opis"
EPSILON_OPIS = "epsilon_opis"
# Verification, in the calculator.
VERIFICATION_AUC = "verification_auc"
EQUAL_ERROR_RATE = "equal_error_rate"
# Verification, in the names of its papers.
AUC = "auc"
EER = "eer"
EER_THRESHOLD = "eer_threshold"
FAR_AT_EER_THRESHOLD = "far_at_eer_threshold"
FRR_AT_EER_THRESHOLD = "frr_at_eer_threshold"
SMALLEST_FAR = "smallest_far"
GENUINE = "genuine"
IMPOSTORS = "impostors"
ACCURACY = "accuracy"
ACCURACY_STD = "accuracy_std"
ACCURACY_STANDARD_ERROR = "accuracy_standard_error"
# Identification, in galleries.
MATED = "mated"
NON_MATED = "non_mated"
# The embeddings themselves.
SPECTRAL_VARIANCE = "spectral_variance"

_CMC_RANK = "cmc_rank_"
_NEGATIVE = "negative_"
_NORMALIZED, _CSLS = "normalized_", "csls_"
OTHER_SCORES = {_NORMALIZED: "normalised scores", _CSLS: "CSLS"}
"""Prefixes of metrics that are not by cosines, and their names in tables."""


def cmc_rank(rank: int) -> str:
    """cmc_rank_5: the calculator's share of queries with a match among the first 5."""
    return f"{_CMC_RANK}{rank}"


def rank(rank: int) -> str:
    """rank_5: the same share in re-identification."""
    return f"rank_{rank}"


def rate(far: float) -> str:
    """A false accept rate in keys: 1e-3 for 0.001, 2.5e-3 for 0.0025."""
    return f"{Decimal(repr(float(far))).normalize():e}"


def tar_at_far(far: float) -> str:
    """tar_at_far_1e-3: the largest true accept rate at this false accept rate."""
    return f"tar_at_far_{rate(far)}"


def threshold_at_far(far: float) -> str:
    """threshold_at_far_1e-3: the threshold there."""
    return f"threshold_at_far_{rate(far)}"


def tpir_at_fpir(fpir: float) -> str:
    """tpir_at_fpir_1e-2: the true positive identification rate at this false positive one."""
    return f"tpir_at_fpir_{rate(fpir)}"


def normalized(name: str) -> str:
    """normalized_opis: the same metric of normalised scores."""
    return f"{_NORMALIZED}{name}"


def csls(name: str) -> str:
    """csls_precision_at_1: the same metric of a ranking by CSLS."""
    return f"{_CSLS}{name}"


def plain(name: str) -> str:
    """Returns the name without the prefix of OTHER_SCORES."""
    return name.removeprefix(_NORMALIZED).removeprefix(_CSLS)


NO_MATCH = "no query has a match to find"


@dataclass(frozen=True)
class Metric:
    """A metric's table entry.

    heading: column heading; "" if the runner does not offer the metric.
    lower_is_better: None if the metric has no better direction.
    is_rate: whether the value is a fraction, shown in percent.
    standard: whether a run computes it by default.
    """

    heading: str
    lower_is_better: bool | None = False
    is_rate: bool = True
    standard: bool = False


@dataclass(frozen=True, kw_only=True)
class CalculatorMetric(Metric):
    """A metric of the calculator. The metrics of a subclass share one pass over the set.

    compute: function of the set that returns (Q,) per-query values, or one value.
    """

    compute: Callable[["EvaluationSet"], Any]

    follows_scores: ClassVar[bool] = True
    """Whether normalised scores change the metric; clusterings and the spectrum depend on the embeddings only."""

    def why_undefined(self, measured: "EvaluationSet") -> str:
        """Returns the reason for a nan value; "" if a rate needs more pairs."""
        raise NotImplementedError


class RankMetric(CalculatorMetric):
    """Metric of the ranks of all matches."""

    def why_undefined(self, measured: "EvaluationSet") -> str:
        return NO_MATCH


class NeighborMetric(RankMetric):
    """PML's rank metric: limited to its k, and by its label_comparison_fn."""


class ClusterMetric(CalculatorMetric):
    """Metric of a clustering of the queries."""

    follows_scores = False

    def why_undefined(self, measured: "EvaluationSet") -> str:
        return "no two samples share a class or a cluster"


class SpectrumMetric(CalculatorMetric):
    """Metric of the singular values of the queries."""

    follows_scores = False

    def why_undefined(self, measured: "EvaluationSet") -> str:
        return "the embeddings overflow"


class ClassMetric(CalculatorMetric):
    """Metric of the utility curves of the classes."""

    def why_undefined(self, measured: "EvaluationSet") -> str:
        return str(measured.curves)  # the error


class AllPairsMetric(CalculatorMetric):
    """Metric of the ROC of all pairs."""

    def why_undefined(self, measured: "EvaluationSet") -> str:
        return measured.lacking_pairs


def _tar_at_far(far: float) -> AllPairsMetric:
    return AllPairsMetric(f"TAR@{rate(far)}", compute=lambda measured: measured.tar_at_far(far))


FARS = (1e-2, 1e-3, 1e-4)
CALCULATED: dict[str, CalculatorMetric] = {
    PRECISION_AT_1: NeighborMetric("R@1", compute=lambda measured: measured.nearest.first_match_rank == 1),
    MEAN_AVERAGE_PRECISION: NeighborMetric("", compute=lambda measured: measured.nearest.average_precision),
    MEAN_AVERAGE_PRECISION_AT_R: NeighborMetric(
        "mAP@R", standard=True, compute=lambda measured: measured.nearest.average_precision_at_r
    ),
    REID_MEAN_AVERAGE_PRECISION: RankMetric(
        "mAP", standard=True, compute=lambda measured: measured.ranking.average_precision
    ),
    MEAN_INVERSE_NEGATIVE_PENALTY: RankMetric(
        "mINP", standard=True, compute=lambda measured: measured.ranking.inverse_negative_penalty
    ),
    R_PRECISION: NeighborMetric("RP", compute=lambda measured: measured.nearest.r_precision),
    MEAN_RECIPROCAL_RANK: NeighborMetric("MRR", compute=lambda measured: measured.reciprocal_rank),
    OPIS: ClassMetric(
        "OPIS", lower_is_better=True, is_rate=False, standard=True, compute=lambda measured: measured.opis
    ),
    EPSILON_OPIS: ClassMetric(
        "ε-OPIS",
        lower_is_better=True,
        is_rate=False,
        standard=True,
        compute=lambda measured: measured.epsilon_opis,
    ),
    NMI: ClusterMetric("NMI", standard=True, compute=lambda measured: measured.nmi),
    AMI: ClusterMetric("AMI", compute=lambda measured: measured.ami),
    F1: ClusterMetric("F1", compute=lambda measured: measured.f1),
    SPECTRAL_VARIANCE: SpectrumMetric(
        "SV", lower_is_better=True, is_rate=False, compute=lambda measured: measured.spectral_variance
    ),
    VERIFICATION_AUC: AllPairsMetric("AUC", compute=lambda measured: measured.auc),
    EQUAL_ERROR_RATE: AllPairsMetric("EER", lower_is_better=True, compute=lambda measured: measured.equal_error_rate),
    **{tar_at_far(far): _tar_at_far(far) for far in FARS},
}
LISTED_PAIRS = {
    ACCURACY: Metric("accuracy"),
    ACCURACY_STD: Metric("± std", lower_is_better=None),
    AUC: Metric("AUC"),
    EER: Metric("EER", lower_is_better=True),
}
"""The metrics of `VerificationEvaluator` that the runner shows."""
METRICS: dict[str, Metric] = {**CALCULATED, **LISTED_PAIRS}
"""Metrics by key, in table order; keys of cmc_rank_<r> and further tar_at_far rates are created on demand."""

_FALLING = [name for name, metric in CALCULATED.items() if metric.lower_is_better]
_SQL_NAMES = {tar_at_far(far).replace("-", "m"): tar_at_far(far) for far in FARS}
OTHER_SPELLINGS = (*(f"{_NEGATIVE}{name}" for name in _FALLING), *_SQL_NAMES)
"""Further keys of the calculator: negative_opis rises as opis falls; tar_at_far_1em3 is a valid SQL column."""


def names_of(kind: type[CalculatorMetric]) -> list[str]:
    """Returns the calculator's keys of this kind."""
    return [name for name, metric in CALCULATED.items() if isinstance(metric, kind)]


def metric_of(name: str) -> CalculatorMetric:
    """Returns the metric of a calculator key, including cmc_rank_<r> and the alternative spellings."""
    if name.startswith(_CMC_RANK):
        within = int(name.removeprefix(_CMC_RANK))
        return RankMetric(f"R@{within}", compute=lambda measured: measured.ranking.first_match_rank <= within)
    if name.startswith(_NEGATIVE):
        falling = CALCULATED[name.removeprefix(_NEGATIVE)]
        return replace(falling, compute=lambda measured: -falling.compute(measured), lower_is_better=False)
    return CALCULATED[_SQL_NAMES.get(name, name)]


def is_ranking(name: str) -> bool:
    """Returns whether a metric depends on the ranks of matches only."""
    return isinstance(metric_of(name), RankMetric)


def follows_scores(name: str) -> bool:
    """Returns whether normalised scores change a metric."""
    return metric_of(name).follows_scores
