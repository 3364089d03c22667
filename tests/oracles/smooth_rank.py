"""Smoothed ranks, recall at k (Patel et al., CVPR 2022) and AP (Brown et al., ECCV 2020) by plain loops in float64."""

import math


def sigmoid(z):
    return 1 / (1 + math.exp(-z)) if z > 0 else math.exp(z) / (1 + math.exp(z))


def smooth_rank(similarities, item, ranked, tau):
    rank = 1.0
    for other in ranked:
        if other != item:
            rank += sigmoid((similarities[other] - similarities[item]) / tau)
    return rank


def smooth_recall(similarities, positives, ranked, k, tau, tau_rank):
    """Of one query: similarities to every item, the indices of its positives, and of all items that it ranks."""
    total = 0.0
    for item in positives:
        total += sigmoid((k - smooth_rank(similarities, item, ranked, tau)) / tau_rank)
    return total / min(k, len(positives))


def smooth_precision(similarities, positives, ranked, tau):
    total = 0.0
    for item in positives:
        among_positives = smooth_rank(similarities, item, positives, tau)
        total += among_positives / smooth_rank(similarities, item, ranked, tau)
    return total / len(positives)


def smooth_recall_loss(similarities, labels, ref_labels, ks, tau, tau_rank):
    """1 − the mean over queries with a positive and over ks; without ref_labels a query ranks all but itself."""
    losses = []
    others = labels if ref_labels is None else ref_labels
    for q, row in enumerate(similarities):
        ranked = [z for z in range(len(others)) if ref_labels is not None or z != q]
        positives = [z for z in ranked if others[z] == labels[q]]
        if positives:
            values = [smooth_recall(row, positives, ranked, k, tau, tau_rank) for k in ks]
            losses.append(1 - sum(values) / len(values))
    return sum(losses) / len(losses)


def smooth_precision_loss(similarities, labels, tau):
    """1 − the mean over samples that are not alone; a sample is among its own positives, as in the authors' code."""
    losses = []
    for row, label in zip(similarities, labels, strict=True):
        positives = [i for i, other in enumerate(labels) if other == label]
        if len(positives) > 1:
            losses.append(1 - smooth_precision(row, positives, range(len(row)), tau))
    return sum(losses) / len(losses)
