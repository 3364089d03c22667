"""FastReID's classification layers and GeM as loops, from their formulas."""

import math

from tests.oracles.verification import cosine


def class_score(name, x, w, own, scale, margin, above=math.inf):
    """The logit of one embedding and one class; 0 of another class with a cosine above a number."""
    if name == "Linear":
        return scale * sum(a * b for a, b in zip(x, w, strict=True))
    c = cosine(x, w)
    if not own and c > above:
        return 0.0
    if name == "CosSoftmax":
        return scale * (c - margin if own else c)
    if name == "ArcSoftmax":
        return scale * (math.cos(math.acos(max(-1.0, min(1.0, c))) + margin) if own else c)
    assert name == "CircleSoftmax"
    if own:
        return scale * max(0.0, 1 + margin - c) * (c - (1 - margin))
    return scale * max(0.0, c + margin) * (c - margin)


def generalized_mean(values, p):
    return (sum(max(v, 1e-6) ** p for v in values) / len(values)) ** (1 / p)
