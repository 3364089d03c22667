"""LoOp by brute force and loops in float64, from the definition of closest points."""

import math

import torch


def frame(a, b):
    """(N, D) unit tangent at a towards b, and the angle of the arc."""
    cos = (a * b).sum(-1).clamp(-1, 1)
    tangent = b - cos[:, None] * a
    length = tangent.norm(dim=-1)
    return tangent / length.clamp_min(1e-300)[:, None], torch.atan2(length, cos)


def brute_force_arcs(x1, x2, y1, y2, coarse=129, fine=17):
    """Smallest distance of (N, D) unit vectors' arcs: a refined grid of points p, each with its nearest q.

    A grid over both angles would miss narrow ridges (arcs on almost the same circle); the sinusoid of one angle
    has its maximum at its phase or at an end.
    """
    ex, angle_x = frame(x1, x2)
    ey, angle_y = frame(y1, y2)
    low, high = torch.zeros_like(angle_x)[:, None], angle_x[:, None]
    for size in [coarse] + [fine] * 24:
        alpha = low + (high - low) * torch.linspace(0, 1, size, dtype=torch.float64)
        beside = alpha.cos() * (x1 * y1).sum(-1, keepdim=True) + alpha.sin() * (ex * y1).sum(-1, keepdim=True)
        ahead = alpha.cos() * (x1 * ey).sum(-1, keepdim=True) + alpha.sin() * (ex * ey).sum(-1, keepdim=True)
        phase = torch.atan2(ahead, beside)
        candidates = torch.stack(
            [
                phase.clamp_min(0).minimum(angle_y[:, None]),
                *(torch.zeros_like(phase) + end for end in (torch.zeros_like(angle_y)[:, None], angle_y[:, None])),
            ]
        )
        value, which = (beside * candidates.cos() + ahead * candidates.sin()).max(0)
        beta = candidates.gather(0, which[None]).squeeze(0)
        at = value.argmax(1, keepdim=True)
        best = alpha.gather(1, at)
        width = (high - low) * 4 / (size - 1)
        low, high = (best - width).clamp_min(0), (best + width).minimum(angle_x[:, None])
    beta = beta.gather(1, at)
    return (best.cos() * x1 + best.sin() * ex - beta.cos() * y1 - beta.sin() * ey).norm(dim=-1)


def brute_force_segments(x1, x2, y1, y2, coarse=33, fine=17):
    """Smallest distance of (N, D) straight segments on a refined grid of k1, k2 in [0, 1]."""
    low = torch.zeros(len(x1), 2, dtype=torch.float64)
    high = torch.ones_like(low)
    for size in [coarse] + [fine] * 24:
        unit = torch.linspace(0, 1, size, dtype=torch.float64)
        k1 = low[:, :1] + (high - low)[:, :1] * unit
        k2 = low[:, 1:] + (high - low)[:, 1:] * unit
        p = x1[:, None] + k1[..., None] * (x2 - x1)[:, None]
        q = y1[:, None] + k2[..., None] * (y2 - y1)[:, None]
        value = (p[:, :, None] - q[:, None]).norm(dim=-1)
        at = value.flatten(1).argmin(1, keepdim=True)
        best = torch.cat([k1.gather(1, at // size), k2.gather(1, at % size)], 1)
        width = (high - low) * 4 / (size - 1)
        low, high = (best - width).clamp_min(0), (best + width).clamp_max(1)
    return value.flatten(1).gather(1, at).squeeze(1)


def partners(labels, pairing):
    """For each sample, the other ends of its arcs."""
    result = []
    for i, label in enumerate(labels):
        members = [j for j, other in enumerate(labels) if other == label]
        rank = members.index(i)
        if pairing == "all":
            result.append([j for j in members if j != i] or [i])
        else:
            other = rank + 1 if rank % 2 == 0 else rank - 1
            result.append([members[other] if other < len(members) else i])
    return result


def loop_distances(x, labels, ref, ref_labels, pairing, geometry="arc"):
    """The LoOp distance of each negative pair; plain distances (of unit vectors for arcs) of the others."""
    if geometry == "arc":
        x, ref = x / x.norm(dim=1, keepdim=True), ref / ref.norm(dim=1, keepdim=True)
    own, others = partners(labels, pairing), partners(ref_labels, pairing)
    result = [[float((x[a] - ref[n]).norm()) for n in range(len(ref))] for a in range(len(x))]
    cases = []
    for a in range(len(x)):
        for n in range(len(ref)):
            if labels[a] != ref_labels[n]:
                result[a][n] = math.inf
                cases += [(a, i, n, j) for i in own[a] for j in others[n]]
    a, i, n, j = torch.tensor(cases).t()
    brute_force = brute_force_arcs if geometry == "arc" else brute_force_segments
    found = brute_force(x[a], x[i], ref[n], ref[j]).tolist()
    for (row, _, column, _), value in zip(cases, found, strict=True):
        result[row][column] = min(result[row][column], value)
    return result


def consecutive_arcs(labels):
    """Algorithm 1: the 1st and 2nd sample of a class, the 3rd and 4th, …; of even counts."""
    others = [other for (other,) in partners(labels, "consecutive")]
    assert all(other != i for i, other in enumerate(others))
    return [(i, other) for i, other in enumerate(others) if i < other]


def arc_distances(x, labels):
    """d_ij of each consecutive pair, and d_ijkl of each two pairs of different classes (inf if of one class)."""
    x = x / x.norm(dim=1, keepdim=True)
    arcs = consecutive_arcs(labels)
    own = [float((x[i] - x[j]).norm()) for i, j in arcs]
    between = [[math.inf] * len(arcs) for _ in arcs]
    for row, (i, j) in enumerate(arcs):
        for column, (k, m) in enumerate(arcs):
            if labels[i] != labels[k]:
                between[row][column] = float(brute_force_arcs(x[[i]], x[[j]], x[[k]], x[[m]]))
    return own, between


def equation_15(x, labels, margin):
    """The mean over the pairs (i, j) of P of the sum over the arcs (k, l) of relu(d_ij − d_ijkl + margin)."""
    own, between = arc_distances(x, labels)
    sums = []
    for d_ij, row in zip(own, between, strict=True):
        sums.append(sum(max(0.0, d_ij - d_ijkl + margin) for d_ijkl in row if d_ijkl < math.inf))
    return sum(sums) / len(sums)


def equation_16(x, labels, margin):
    """The mean over the pairs (i, j) of P of relu(d_ij + margin − the least d_ijkl)."""
    own, between = arc_distances(x, labels)
    terms = [max(0.0, d_ij + margin - min(row)) for d_ij, row in zip(own, between, strict=True)]
    return sum(terms) / len(terms)


def hard_positive_hard_negative(x, labels, margin):
    """The mean over P of relu(the largest distance of i or j to one of their class + margin − the least d_ijkl)."""
    _, between = arc_distances(x, labels)
    x = x / x.norm(dim=1, keepdim=True)
    terms = []
    for (i, j), row in zip(consecutive_arcs(labels), between, strict=True):
        farthest = max(float((x[e] - x[o]).norm()) for e in (i, j) for o in range(len(x)) if labels[o] == labels[i])
        terms.append(max(0.0, farthest + margin - min(row)))
    return sum(terms) / len(terms)
