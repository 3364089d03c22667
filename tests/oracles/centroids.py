"""Do et al., CVPR 2019, as nested loops in float64."""

from math import dist as distance


def bracket(x, label, centroids):
    """The bracket of eq. 8 for one sample."""
    others = [distance(x, c) for m, c in enumerate(centroids) if m != label]
    return distance(x, centroids[label]) - sum(others) / (3 * (len(centroids) - 1))


def eq_8(points, labels, centroids):
    n, c = len(points), len(centroids)
    scale = 3 * (c - 1) * (n / c - 1) * (n / c)
    return scale * sum(bracket(x, y, centroids) for x, y in zip(points, labels, strict=True))


def triplet_sum(points, labels):
    """L_t: anchor-positive minus anchor-negative distance over every triplet, without hinge."""
    total = 0.0
    for i, anchor in enumerate(points):
        for j, positive in enumerate(points):
            for k, negative in enumerate(points):
                if i != j and labels[i] == labels[j] and labels[i] != labels[k]:
                    total += distance(anchor, positive) - distance(anchor, negative)
    return total
