"""Metrics as nested loops in float64, written from the formulas."""

import math

import numpy as np
from sklearn.metrics import pair_confusion_matrix

from tests.oracles.thresholds import class_errors
from tests.oracles.thresholds import pair_distances as all_pairs
from tests.oracles.verification import operating_points


def calibration_range(pairs, far_range):
    """The smallest negative distance at which the pooled FAR reaches each rate."""
    negatives = sorted(d for d, a, b in pairs if a != b)
    ends = []
    for far in far_range:
        for d in negatives:
            if sum(other <= d for other in negatives) / len(negatives) >= far:
                ends.append(d)
                break
    return ends


def harmonic(phi, psi):
    return 0.0 if phi + psi == 0 else 2 * phi * psi / (phi + psi)


def rates(pairs, thresholds):
    """{class: ([tpr at each threshold], [tnr at each threshold])} of the classes with both kinds of pairs."""
    by_threshold = [class_errors(pairs, threshold) for threshold in thresholds]
    result = {}
    for c, (_, negatives, _, positives) in by_threshold[0].items():
        if positives and negatives:
            tpr = [(positives - errors[c][2]) / positives for errors in by_threshold]
            result[c] = tpr, [(negatives - errors[c][0]) / negatives for errors in by_threshold]
    return result


def grid_of(pairs, far_range, grid):
    low, high = calibration_range(pairs, far_range)
    # use the exact ends: rounding must not exclude the pairs that define them
    return [low] + [low + (high - low) * i / (grid - 1) for i in range(1, grid - 1)] + [high]


def opis(embeddings, labels, far_range, grid):
    pairs = all_pairs(embeddings, labels)
    curves = [
        [harmonic(phi, psi) for psi, phi in zip(tpr, tnr, strict=True)]
        for tpr, tnr in rates(pairs, grid_of(pairs, far_range, grid)).values()
    ]
    total = 0.0
    for at in range(grid):
        mean = sum(curve[at] for curve in curves) / len(curves)
        total += sum((curve[at] - mean) ** 2 for curve in curves) / len(curves)
    return total / grid


def epsilon_opis(embeddings, labels, far_range, grid, epsilon):
    pairs = all_pairs(embeddings, labels)
    by_class = list(rates(pairs, grid_of(pairs, far_range, grid)).values())
    by_class.sort(key=lambda r: sum(harmonic(phi, psi) for psi, phi in zip(*r, strict=True)))
    size = max(1, round(epsilon * len(by_class)))
    total = 0.0
    for at in range(grid):
        utilities = []
        for group in (by_class[:size], by_class[-size:]):
            tpr = sum(tpr[at] for tpr, _ in group) / size
            tnr = sum(tnr[at] for _, tnr in group) / size
            utilities.append(harmonic(tnr, tpr))
        total += (utilities[0] - utilities[1]) ** 2
    return total / grid


def ranking(distances, query_labels, gallery_labels, query_cameras=None, gallery_cameras=None, includes_query=False):
    """Per query (matches, first rank, AP, INP, AP at R, R-precision); None without a match.

    Ties: non-matches first.
    """
    results = []
    for q, label in enumerate(query_labels):
        items = []
        for g, other in enumerate(gallery_labels):
            same_camera = query_cameras is not None and query_cameras[q] == gallery_cameras[g]
            removed = (other == label and same_camera) or other == -1 or (includes_query and g == q)
            if not removed:
                items.append((distances[q][g], other == label))
        ranks = [rank for rank, (_, match) in enumerate(sorted(items), start=1) if match]
        if not ranks:
            results.append(None)
            continue
        r = len(ranks)
        precisions = [nth / rank for nth, rank in enumerate(ranks, start=1)]
        at_r = [precision for precision, rank in zip(precisions, ranks, strict=True) if rank <= r]
        results.append((r, ranks[0], sum(precisions) / r, r / ranks[-1], sum(at_r) / r, len(at_r) / r))
    return results


def clustering_f1(clusters, labels):
    (_, apart), (split, both) = pair_confusion_matrix(labels, clusters)
    return 2 * both / (2 * both + apart + split)


def spectral_variance(embeddings):
    s = np.linalg.svd(np.asarray(embeddings, dtype=np.float64), compute_uv=False)
    s = s / s.sum()
    return sum((1 / len(s)) * math.log((1 / len(s)) / value) for value in s)


def tar_at_far(scores, same, far):
    genuine = sum(same)
    impostors = len(same) - genuine
    points = operating_points(scores, same)
    return max(accepts for _, accepts, false_accepts in points if false_accepts / impostors <= far) / genuine
