"""HPHN triplets and centroid triplets by plain loops over lists of float64."""

import math
from math import dist as distance


def unit(x):
    return [v / math.hypot(*x) for v in x]


def mean(vectors):
    return [sum(column) / len(vectors) for column in zip(*vectors, strict=True)]


def hphn_triplets(d, labels, ref_labels=None):
    """For each sample, the farthest positive; the one with the nearer negative is the anchor.

    d is (samples, samples), or (samples, ref): then the positive is no sample and only the sample can be the anchor.
    """
    others = labels if ref_labels is None else ref_labels
    triplets = []
    for a in range(len(labels)):
        positives = [p for p in range(len(others)) if others[p] == labels[a] and (ref_labels is not None or p != a)]
        negatives = [n for n in range(len(others)) if others[n] != labels[a]]
        if not positives or not negatives:
            continue
        p = max(positives, key=lambda i: d[a][i])
        ends = [(a, p)] if ref_labels is not None else [(a, p), (p, a)]
        triplets.append(min(((e, o, n) for e, o in ends for n in negatives), key=lambda t: d[t[0]][t[2]]))
    return triplets


def triplet_losses(d, triplets, margin):
    return [max(0.0, d[a][p] - d[a][n] + margin) for a, p, n in triplets]


def centroid_triplet_losses(
    x,
    labels,
    margin,
    *,
    ref=None,
    ref_labels=None,
    normalize=True,
    power=2,
    hardest=True,
    swap=False,
    smooth=False,
    unit_means=True,
):
    """relu(d(x, own centroid) − d(x, other centroid) + margin); by sample, and by the other class in order.

    swap: the smaller of the distances of x and of its own centroid to the other one; smooth: softplus for relu;
    unit_means: means of unit vectors.
    """
    convert = unit if normalize else list
    others = x if ref is None else ref
    if unit_means:
        others = [convert(v) for v in others]
    x = [convert(v) for v in x]
    other_labels = labels if ref_labels is None else ref_labels
    losses = []
    for a in range(len(x)):
        own = [others[i] for i in range(len(others)) if other_labels[i] == labels[a] and (ref is not None or i != a)]
        classes = [c for c in sorted(set(other_labels)) if c != labels[a]]
        if not own or not classes:
            continue
        starts = [x[a], convert(mean(own))]
        d_own = distance(*starts) ** power
        d_others = []
        for c in classes:
            centroid = convert(mean([others[i] for i in range(len(others)) if other_labels[i] == c]))
            d_others.append(min(distance(start, centroid) for start in starts[: 1 + swap]) ** power)
        violations = [d_own - d + margin for d in ([min(d_others)] if hardest else d_others)]
        losses += [math.log1p(math.exp(v)) if smooth else max(0.0, v) for v in violations]
    return losses
