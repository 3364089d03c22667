"""FastReID's losses as loops over Python floats."""

import math

from tests.oracles.verification import cosine


def cross_entropy(logits, labels, epsilon, alpha=0.2):
    rows = []
    for row, label in zip(logits, labels, strict=True):
        peak = max(row)
        normalizer = peak + math.log(sum(math.exp(score - peak) for score in row))
        smoothing = alpha * math.exp(row[label] - normalizer) if epsilon < 0 else epsilon
        loss = 0.0
        for c, score in enumerate(row):
            target = 1 - smoothing if c == label else smoothing / (len(row) - 1)
            loss -= target * (score - normalizer)
        rows.append(loss)
    return sum(rows) / max(1, sum(loss != 0 for loss in rows))


def focal(logits, labels, alpha, gamma):
    total = 0.0
    for row, label in zip(logits, labels, strict=True):
        probability = math.exp(row[label]) / sum(math.exp(score) for score in row)
        total -= alpha * (1 - probability) ** gamma * math.log(probability)
    return total / len(labels)


def triplet(features, labels, margin, norm_feat, hard_mining):
    total = 0.0
    for i, label in enumerate(labels):
        positives, negatives = [], []
        for j, other in enumerate(labels):
            distance = 2 - 2 * cosine(features[i], features[j]) if norm_feat else math.dist(features[i], features[j])
            (positives if other == label else negatives).append(distance)
        if not negatives:
            continue
        if hard_mining:
            positive, negative = max(positives), min(negatives)
        else:
            largest = max(positives)
            weights = [math.exp(d - largest) for d in positives]
            positive = sum(w * d for w, d in zip(weights, positives, strict=True)) / (sum(weights) + 1e-6)
            weights = [math.exp(-d) for d in negatives]
            negative = sum(w * d for w, d in zip(weights, negatives, strict=True)) / (sum(weights) + 1e-6)
        gap = positive - negative
        total += max(0.0, gap + margin) if margin > 0 else math.log1p(math.exp(gap))
    return total / len(labels)


def circle(features, labels, margin, gamma):
    def positive(s):
        return -gamma * max(0.0, 1 + margin - s) * (s - (1 - margin))

    def negative(s):
        return gamma * max(0.0, s + margin) * (s - margin)

    return _over_anchors(features, labels, positive, negative)


def cosface(features, labels, margin, gamma):
    return _over_anchors(features, labels, lambda s: -gamma * s, lambda s: gamma * (s + margin))


def _over_anchors(features, labels, positive, negative):
    total = 0.0
    for i, label in enumerate(labels):
        products = 0.0
        for j, other in enumerate(labels):
            for k, third in enumerate(labels):
                if j != i and other == label and third != label:
                    s_p, s_n = cosine(features[i], features[j]), cosine(features[i], features[k])
                    products += math.exp(positive(s_p) + negative(s_n))
        total += math.log1p(products)
    return total / len(labels)
