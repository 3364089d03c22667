"""Smoothed and exact recall at k by plain loops in float64, from the formulas of Patel et al., CVPR 2022."""

import math


def sigmoid(z):
    return 1 / (1 + math.exp(-z)) if z > 0 else math.exp(z) / (1 + math.exp(z))


def smooth_recall(similarities, positives, ranked, k, tau, tau_rank):
    """Of one query: similarities to every item, the indices of its positives, and of all items that it ranks."""
    total = 0.0
    for x in positives:
        rank = 1.0
        for z in ranked:
            if z != x:
                rank += sigmoid((similarities[z] - similarities[x]) / tau)
        total += sigmoid((k - rank) / tau_rank)
    return total / min(k, len(positives))


def recall(similarities, positives, ranked, k):
    """The share of positives among the first k, over min(k, positives); ranks by sorting."""
    order = sorted(ranked, key=lambda z: -similarities[z])
    return len(set(order[:k]) & set(positives)) / min(k, len(positives))


def smooth_recall_loss(
    similarities,
    labels,
    ref_labels,
    ks,
    tau,
    tau_rank,
):
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
