"""Pure functions of tensors: losses, metrics and statistics without state."""

from pml_ext.functional.clustering_metrics import clustering_f1
from pml_ext.functional.loop.arcs import arc_distance, closest_on_arcs, closest_on_segments, segment_distance
from pml_ext.functional.loop.pair_matrix import loop_pairs
from pml_ext.functional.losses.cit import concordance_index
from pml_ext.functional.losses.discriminative import (
    DiscriminativeTightness,
    discriminative_loss,
    discriminative_tightness,
    kmeans_centroids,
    one_hot_centroids,
    one_hot_discriminative_loss,
    simplex_centroids,
)
from pml_ext.functional.losses.hinges import lifted_hinges
from pml_ext.functional.losses.pair_weighting import WEIGHTINGS
from pml_ext.functional.losses.smooth_rank import smooth_recall_at_k
from pml_ext.functional.losses.tcm import margins_from_distance_range, shortfall_and_excess
from pml_ext.functional.open_set.extrapolation import ExtrapolatedRate, extrapolate_fpir
from pml_ext.functional.open_set.identification import Identification, identification
from pml_ext.functional.opis.score import OPISAtRange, epsilon_opis, opis, opis_sensitivity
from pml_ext.functional.opis.utility import UtilityCurves, epsilon_opis_of_curves, opis_of_curves, utility_curves
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.retrieval.cohort import cohort_offsets
from pml_ext.functional.retrieval.ranking import Ranking, cumulative_matches, rank_matches, rank_matches_from_distances
from pml_ext.functional.retrieval.reranking import expand_features, rerank, rerank_blocks
from pml_ext.functional.spectrum import EmbeddingSpread, embedding_spread, spectral_variance
from pml_ext.functional.tuples import count_triplet_kinds, hardest_triplets, triplets_of_kind
from pml_ext.functional.verification.all_pairs import labelled_pairs, labelled_pairs_roc
from pml_ext.functional.verification.error_rates import (
    FoldAccuracy,
    VerificationErrors,
    contiguous_folds,
    errors_at,
    fold_accuracy,
)
from pml_ext.functional.verification.histogram import ScoreHistogram, auc_bounds, eer_bounds, tar_bounds
from pml_ext.functional.verification.intervals import rate_interval
from pml_ext.functional.verification.roc import (
    ROC,
    OperatingPoint,
    equal_error_rate,
    operating_point,
    roc_auc,
    roc_curve,
    tar_at_far,
)
from pml_ext.functional.verification.templates import Templates, pair_cosines, template_embeddings

__all__ = [
    "ROC",
    "WEIGHTINGS",
    "DiscriminativeTightness",
    "EmbeddingSpread",
    "ExtrapolatedRate",
    "FoldAccuracy",
    "Identification",
    "OPISAtRange",
    "OperatingPoint",
    "PairDistances",
    "Ranking",
    "ScoreHistogram",
    "Templates",
    "UtilityCurves",
    "VerificationErrors",
    "arc_distance",
    "auc_bounds",
    "closest_on_arcs",
    "closest_on_segments",
    "clustering_f1",
    "cohort_offsets",
    "concordance_index",
    "contiguous_folds",
    "count_triplet_kinds",
    "cumulative_matches",
    "discriminative_loss",
    "discriminative_tightness",
    "eer_bounds",
    "embedding_spread",
    "epsilon_opis",
    "epsilon_opis_of_curves",
    "equal_error_rate",
    "errors_at",
    "expand_features",
    "extrapolate_fpir",
    "fold_accuracy",
    "hardest_triplets",
    "identification",
    "kmeans_centroids",
    "labelled_pairs",
    "labelled_pairs_roc",
    "lifted_hinges",
    "loop_pairs",
    "margins_from_distance_range",
    "one_hot_centroids",
    "one_hot_discriminative_loss",
    "operating_point",
    "opis",
    "opis_of_curves",
    "opis_sensitivity",
    "pair_cosines",
    "rank_matches",
    "rank_matches_from_distances",
    "rate_interval",
    "rerank",
    "rerank_blocks",
    "roc_auc",
    "roc_curve",
    "segment_distance",
    "shortfall_and_excess",
    "simplex_centroids",
    "smooth_recall_at_k",
    "spectral_variance",
    "tar_at_far",
    "tar_bounds",
    "template_embeddings",
    "triplets_of_kind",
    "utility_curves",
]


def __dir__() -> list[str]:
    return __all__
