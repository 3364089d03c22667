"""Verification as loops over pairs in float64, from the definitions."""

import math
from itertools import pairwise


def operating_points(scores, same):
    """(threshold, true accepts, false accepts) at each distinct score, strictest first."""
    genuine = [s for s, g in zip(scores, same, strict=True) if g]
    impostors = [s for s, g in zip(scores, same, strict=True) if not g]
    points = []
    for threshold in [math.inf, *sorted(set(scores), reverse=True)]:
        points.append((threshold, sum(s >= threshold for s in genuine), sum(s >= threshold for s in impostors)))
    return points


def equal_error_rate(scores, same):
    genuine, impostors = sum(same), len(same) - sum(same)
    points = [(fa / impostors, 1 - ta / genuine) for _, ta, fa in operating_points(scores, same)]
    for (far0, frr0), (far1, frr1) in pairwise(points):
        if far1 >= frr1:
            # far0 + t (far1 − far0) = frr0 + t (frr1 − frr0)
            t = (frr0 - far0) / ((far1 - far0) - (frr1 - frr0))
            return far0 + t * (far1 - far0)
    raise AssertionError("FAR ends at 1, FRR at 0")


def fold_accuracies(scores, same, folds):
    """(accuracy, threshold) of each fold, at the strictest best threshold of the others, halfway to the next."""
    results = []
    for fold in sorted(set(folds)):
        others = [(s, g) for s, g, f in zip(scores, same, folds, strict=True) if f != fold]
        best, threshold = -1, None
        candidates = [math.inf, *sorted({s for s, _ in others}, reverse=True)]
        for place, candidate in enumerate(candidates):
            right = sum((s >= candidate) == g for s, g in others)
            if right > best:
                below = candidates[place + 1] if place + 1 < len(candidates) else -math.inf
                best, threshold = right, math.inf if candidate == math.inf else (candidate + below) / 2
        judged = [(s >= threshold) == g for s, g, f in zip(scores, same, folds, strict=True) if f == fold]
        results.append((sum(judged) / len(judged), threshold))
    return results


def templates(embeddings, template_ids, media_ids):
    """{template: unit vector}: frames into media, media into templates."""
    results = {}
    for template in sorted(set(template_ids)):
        media = {}
        for x, t, m in zip(embeddings, template_ids, media_ids, strict=True):
            if t == template:
                media.setdefault(m, []).append(x)
        means = [[sum(column) / len(frames) for column in zip(*frames, strict=True)] for frames in media.values()]
        mean = [sum(column) / len(means) for column in zip(*means, strict=True)]
        norm = math.sqrt(sum(v * v for v in mean))
        results[template] = [v / norm for v in mean]
    return results


def cosine(a, b):
    dot = sum(u * v for u, v in zip(a, b, strict=True))
    return dot / math.sqrt(sum(u * u for u in a)) / math.sqrt(sum(v * v for v in b))
