"""The keys of what the metrics return, and what is known of each metric beside its formula.

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

normalized_<name>, in the runner, is a metric of normalised scores (`TEST.NORMALIZE`).

mean_average_precision and precision_at_1 are PML's: the same as ours where k is None or larger than the gallery, up to
ties (`functional.rank_matches` counts them against the query).
"""

from dataclasses import dataclass
from decimal import Decimal

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


def cmc_rank(rank: int) -> str:
    """cmc_rank_5: the calculator's share of queries with a match among the first 5."""
    return f"cmc_rank_{rank}"


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


def plain(name: str) -> str:
    """The metric of which this is one of normalised scores, or itself."""
    return name.removeprefix(_NORMALIZED)


_NORMALIZED = "normalized_"

# What a metric is taken over.
NEIGHBORS = "neighbours"  # PML's metrics of ranks; a value per query
RANKS = "ranks"  # ours; a value per query
CLUSTERS = "clusters"
CLASSES = "classes"
SPECTRUM = "spectrum"
ALL_PAIRS = "all pairs"
LISTED_PAIRS = "listed pairs"


@dataclass(frozen=True)
class Metric:
    """What is known of a metric beside its formula."""

    heading: str  # what tables call it; "" where the runner does not offer it
    over: str  # one of the constants above
    lower_is_better: bool | None = False  # None where neither is
    is_rate: bool = True  # a fraction that people read in percent
    standard: bool = False  # whether a run measures it by default


FARS = (1e-2, 1e-3, 1e-4)
METRICS = {
    PRECISION_AT_1: Metric("R@1", NEIGHBORS),
    MEAN_AVERAGE_PRECISION: Metric("", NEIGHBORS),
    MEAN_AVERAGE_PRECISION_AT_R: Metric("mAP@R", NEIGHBORS, standard=True),
    REID_MEAN_AVERAGE_PRECISION: Metric("mAP", RANKS, standard=True),
    MEAN_INVERSE_NEGATIVE_PENALTY: Metric("mINP", RANKS, standard=True),
    R_PRECISION: Metric("RP", NEIGHBORS),
    MEAN_RECIPROCAL_RANK: Metric("MRR", NEIGHBORS),
    OPIS: Metric("OPIS", CLASSES, lower_is_better=True, is_rate=False, standard=True),
    EPSILON_OPIS: Metric("ε-OPIS", CLASSES, lower_is_better=True, is_rate=False, standard=True),
    NMI: Metric("NMI", CLUSTERS, standard=True),
    AMI: Metric("AMI", CLUSTERS),
    F1: Metric("F1", CLUSTERS),
    SPECTRAL_VARIANCE: Metric("SV", SPECTRUM, lower_is_better=True, is_rate=False),
    VERIFICATION_AUC: Metric("AUC", ALL_PAIRS),
    EQUAL_ERROR_RATE: Metric("EER", ALL_PAIRS, lower_is_better=True),
    **{tar_at_far(far): Metric(f"TAR@{rate(far)}", ALL_PAIRS) for far in FARS},
    ACCURACY: Metric("accuracy", LISTED_PAIRS),
    ACCURACY_STD: Metric("± std", LISTED_PAIRS, lower_is_better=None),
    AUC: Metric("AUC", LISTED_PAIRS),
    EER: Metric("EER", LISTED_PAIRS, lower_is_better=True),
}
"""By key, in the order in which tables show them; cmc_rank_<r> and other rates of tar_at_far are named as needed."""

IN_CALCULATOR = [name for name, metric in METRICS.items() if metric.over != LISTED_PAIRS]
OTHER_SPELLINGS = {
    **{f"negative_{name}": name for name in IN_CALCULATOR if METRICS[name].lower_is_better},
    **{tar_at_far(far).replace("-", "m"): tar_at_far(far) for far in FARS},
}
"""Names that the calculator also takes: negative_opis rises where opis falls; tar_at_far_1em3 is a column in SQL."""


def over(name: str) -> str:
    """What a metric of the calculator is taken over."""
    return RANKS if name.startswith("cmc_rank_") else METRICS[OTHER_SPELLINGS.get(name, name)].over


def names_over(*kinds: str) -> tuple[str, ...]:
    """The metrics that are taken over one of these."""
    return tuple(name for name, metric in METRICS.items() if metric.over in kinds)


def follows_scores(name: str) -> bool:
    """Whether normalised scores change a metric; clusterings and the spectrum are about the embeddings."""
    return over(name) not in (CLUSTERS, SPECTRUM)
