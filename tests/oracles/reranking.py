"""k-reciprocal re-ranking and query expansion as loops in float64, written from the papers."""

import math

import numpy as np


def distances(x, metric):
    """All squared distances (of unit vectors for the cosine)."""
    x = np.asarray(x, dtype=np.float64)
    if metric == "cosine":
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return [[float(sum((a - b) ** 2)) for b in x] for a in x]


def in_order(row, itself):
    """All samples from the nearest, itself before its duplicates."""
    return sorted(range(len(row)), key=lambda j: (j != itself, row[j]))


def reciprocal(order, i, count):
    """The samples in i's list that have i in theirs."""
    return {j for j in order[i][:count] if i in order[j][:count]}


def rerank(query, gallery, k1, k2, lambda_, metric, definition):
    d = distances(np.concatenate([query, gallery]), metric)
    n, queries = len(d), len(query)
    order = [in_order(row, i) for i, row in enumerate(d)]
    listed = k1 + 1 if definition == "zhong" else k1
    scaled = [[v / max(row) for v in row] if definition == "zhong" else row for row in d]
    encoded = []
    for i in range(n):
        members = near = reciprocal(order, i, listed)
        for c in near:
            half = reciprocal(order, c, round(k1 / 2) + 1)
            if 3 * len(half & near) > 2 * len(half):
                members = members | half
        weights = {j: math.exp(-scaled[i][j]) for j in members}
        encoded.append([weights.get(j, 0.0) / sum(weights.values()) for j in range(n)])
    averaged = [[sum(encoded[m][j] for m in order[i][:k2]) / k2 for j in range(n)] for i in range(n)]
    result = []
    for i in range(queries):
        row = []
        for j in range(queries, n):
            smaller = sum(min(a, b) for a, b in zip(averaged[i], averaged[j], strict=True))
            larger = sum(max(a, b) for a, b in zip(averaged[i], averaged[j], strict=True))
            own = d[i][j] / 2 if definition == "fastreid" and metric == "cosine" else scaled[i][j]
            row.append((1 - lambda_) * (1 - smaller / larger) + lambda_ * own)
        result.append(row)
    return result


def expand(features, k, alpha, times):
    x = np.asarray(features, dtype=np.float64)
    for _ in range(times):
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
        rows = []
        for i in range(len(x)):
            cosines = [float(unit[i] @ unit[j]) for j in range(len(x))]
            chosen = in_order([-c for c in cosines], i)[:k]
            rows.append(sum(max(cosines[j], 0.0) ** alpha * x[j] for j in chosen) / k)
        x = np.stack(rows)
    return x
