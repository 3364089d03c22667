"""Thresholds and error rates as loops over all pairs, in float64."""

import itertools
import math

from scipy.stats import beta, norm, t


def pair_distances(embeddings, labels):
    """(distance, label of one, label of the other) of every unordered pair."""
    units = []
    for row in embeddings:
        length = math.sqrt(sum(float(v) ** 2 for v in row))
        units.append([float(v) / length for v in row])
    found = []
    for i, j in itertools.combinations(range(len(labels)), 2):
        cosine = sum(a * b for a, b in zip(units[i], units[j], strict=True))
        found.append((math.sqrt(max(0.0, 2 - 2 * cosine)), labels[i], labels[j]))
    return found


def rates(pairs, threshold):
    """FAR, FRR over all pairs; a pair is accepted if distance <= threshold."""
    genuine = [d for d, a, b in pairs if a == b]
    impostors = [d for d, a, b in pairs if a != b]
    return (
        sum(d <= threshold for d in impostors) / len(impostors),
        sum(d > threshold for d in genuine) / len(genuine),
    )


def class_errors(pairs, threshold):
    """{class: (false accepts, impostor pairs, false rejects, genuine pairs)}."""
    result = {}
    for c in sorted({a for _, a, _ in pairs} | {b for _, _, b in pairs}):
        genuine = [d for d, a, b in pairs if a == b == c]
        impostors = [d for d, a, b in pairs if (a == c) != (b == c)]
        result[c] = (
            sum(d <= threshold for d in impostors),
            len(impostors),
            sum(d > threshold for d in genuine),
            len(genuine),
        )
    return result


def utility(pairs, threshold):
    far, frr = rates(pairs, threshold)
    return 0.0 if 2 - far - frr == 0 else 2 * (1 - far) * (1 - frr) / (2 - far - frr)


def best_frr_within_far(pairs, far):
    """The smallest FRR of a threshold whose FAR is at most far."""
    found = []
    for threshold in candidates(pairs):  # ascending: the FAR only grows
        far_there, frr = rates(pairs, threshold)
        if far_there > far:
            break
        found.append(frr)
    return min(found)


def best_far_within_frr(pairs, frr):
    return min(rates(pairs, t)[0] for t in candidates(pairs) if rates(pairs, t)[1] <= frr)


def candidates(pairs):
    """Thresholds below all distances and between all neighbours: every possible decision, free of rounding."""
    ends = sorted({round(d, 12) for d, _, _ in pairs})
    return [-1.0, *((a + b) / 2 for a, b in itertools.pairwise(ends)), ends[-1] + 1]


def jackknife_variance(errors, pairs, share):
    """The pooled rate without one class at a time; a pair is in `share` classes."""
    total_errors, total_pairs = sum(errors) / share, sum(pairs) / share
    without = [(total_errors - e) / (total_pairs - n) for e, n in zip(errors, pairs, strict=True) if n]
    mean = sum(without) / len(without)
    return (len(without) - 1) / len(without) * sum((w - mean) ** 2 for w in without)


def jeffreys(rate, trials, weights):
    """Ends of a 95 % interval of a share; the fewer classes, and the more unlike their weights, the fewer trials."""
    classes = sum(weights) ** 2 / sum(w**2 for w in weights)
    trials *= (norm.ppf(0.975) / t.ppf(0.975, classes - 1)) ** 2
    return [float(beta.ppf(end, rate * trials + 0.5, (1 - rate) * trials + 0.5)) for end in (0.025, 0.975)]
