"""The maths, tensors in and tensors out; torch only."""

from pml_ext.functional.centroids import discriminative_loss, kmeans_centroids, one_hot_centroids, simplex_centroids
from pml_ext.functional.clustering import clustering_f1
from pml_ext.functional.opis import (
    UtilityCurves,
    epsilon_opis,
    epsilon_opis_of_curves,
    opis,
    opis_of_curves,
    utility_curves,
)
from pml_ext.functional.pair_statistics import PairDistances
from pml_ext.functional.ranking import Ranking, cumulative_matches, rank_matches, rank_matches_from_distances
from pml_ext.functional.spectrum import spectral_variance
from pml_ext.functional.verification import tar_at_far

__all__ = [
    "PairDistances",
    "Ranking",
    "UtilityCurves",
    "clustering_f1",
    "cumulative_matches",
    "discriminative_loss",
    "epsilon_opis",
    "epsilon_opis_of_curves",
    "kmeans_centroids",
    "one_hot_centroids",
    "opis",
    "opis_of_curves",
    "rank_matches",
    "rank_matches_from_distances",
    "simplex_centroids",
    "spectral_variance",
    "tar_at_far",
    "utility_curves",
]
