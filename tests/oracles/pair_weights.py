"""The pair-based losses of Wang et al., CVPR 2019, per anchor, from their formulas; differentiable."""

import torch


def total_loss(name, s, positives, negatives, **options):
    """Σ_i L_i of a float64 similarity matrix; histogram: number of anchors × the loss of the whole matrix."""
    zero = 0 * s.sum()
    if name == "histogram":
        return zero + len(s) * histogram(s, positives, negatives, **options)
    rows = zip(s, positives, negatives, strict=True)
    return sum((ANCHOR_LOSSES[name](r, p, n, **options) for r, p, n in rows), zero)


def hinge(x):
    return x if x > 0 else 0 * x


def uniform(s, positives, negatives):
    return sum(s[n] for n in negatives) - sum(s[p] for p in positives)


def contrastive(s, positives, negatives, neg_margin=0.5):
    return sum(hinge(s[n] - neg_margin) for n in negatives) - sum(s[p] for p in positives)


def triplet(s, positives, negatives, margin=0.1):
    return sum(hinge(s[n] - s[p] + margin) for p in positives for n in negatives)


def lifted(s, positives, negatives, margin=1.0):
    if not positives or not negatives:
        return 0
    towards = torch.log(sum(torch.exp(margin - s[p]) for p in positives))
    away = torch.log(sum(torch.exp(s[n]) for n in negatives))
    return hinge(towards + away)


def lifted_star(s, positives, negatives, alpha=2.0, beta=50.0):
    loss = 0
    if positives:
        loss = loss + torch.log(sum(torch.exp(-alpha * s[p]) for p in positives)) / alpha
    if negatives:
        loss = loss + torch.log(sum(torch.exp(beta * s[n]) for n in negatives)) / beta
    return loss


def binomial_deviance(s, positives, negatives, alpha=2.0, beta=50.0, base=0.5):
    loss = 0
    for p in positives:
        loss = loss + torch.log(1 + torch.exp(-alpha * (s[p] - base))) / len(positives)
    for n in negatives:
        loss = loss + torch.log(1 + torch.exp(beta * (s[n] - base))) / len(negatives)
    return loss


def bin_lifted(s, positives, negatives, alpha=2.0, beta=50.0, base=0.5, bounded=False):
    lifted = lifted_star(s, positives, negatives, alpha, beta)
    if not bounded:
        return (binomial_deviance(s, positives, negatives, alpha, beta, base) + lifted) / 2
    # The loss whose derivative is 1/(1 + e^(…)) for each pair, regardless of their number.
    binomial = sum(torch.log(1 + torch.exp(-alpha * (s[p] - base))) / alpha for p in positives)
    binomial = binomial + sum(torch.log(1 + torch.exp(beta * (s[n] - base))) / beta for n in negatives)
    return (binomial + lifted) / 2


def multi_similarity(s, positives, negatives, alpha=2.0, beta=50.0, base=0.5):
    towards = 1 + sum(torch.exp(-alpha * (s[p] - base)) for p in positives) + 0 * s[0]
    away = 1 + sum(torch.exp(beta * (s[n] - base)) for n in negatives) + 0 * s[0]
    return torch.log(towards) / alpha + torch.log(away) / beta


def nca(s, positives, negatives, scale=1.0):
    if not positives:
        return 0
    same = sum(torch.exp(scale * s[p]) for p in positives)
    return -torch.log(same / (same + sum(torch.exp(scale * s[n]) for n in negatives)))


def n_pairs(s, positives, negatives, scale=1.0):
    terms = [torch.log(1 + sum(torch.exp(scale * (s[n] - s[p])) for n in negatives) + 0 * s[p]) for p in positives]
    return sum(terms) / max(1, len(terms))


def histogram(s, positives, negatives, bins=100):
    """Ustinova and Lempitsky, NeurIPS 2016, eqs. 1 to 5, with triangles around the nodes."""
    width = 2 / bins
    nodes = [-1 + width * r for r in range(bins + 1)]

    def density(columns):
        values = [s[i, j] for i, js in enumerate(columns) for j in js]
        return [sum(hinge(1 - (v - t).abs() / width) for v in values) / max(1, len(values)) for t in nodes]

    loss, cumulative = 0, 0
    for positive, negative in zip(density(positives), density(negatives), strict=True):
        cumulative = cumulative + positive
        loss = loss + negative * cumulative
    return loss


ANCHOR_LOSSES = {
    "uniform": uniform,
    "contrastive": contrastive,
    "triplet": triplet,
    "lifted": lifted,
    "lifted_star": lifted_star,
    "binomial_deviance": binomial_deviance,
    "bin_lifted": bin_lifted,
    "multi_similarity": multi_similarity,
    "nca": nca,
    "n_pairs": n_pairs,
}
