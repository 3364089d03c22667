"""The histogram loss (Ustinova and Lempitsky, NIPS 2016): triangular kernels at the nodes, in loops."""

import math


def overlap(rows, labels, bins):
    """Σ_r h⁻_r Σ_{q<=r} h⁺_q over the pairs i < j."""
    unit = [[value / math.sqrt(sum(v * v for v in row)) for value in row] for row in rows]
    cosines: dict[bool, list[float]] = {True: [], False: []}
    for i in range(len(unit)):
        for j in range(i):
            cosines[labels[i] == labels[j]].append(sum(a * b for a, b in zip(unit[i], unit[j], strict=True)))
    width = 2 / bins
    nodes = [-1 + node * width for node in range(bins + 1)]
    of_positives, of_negatives = (
        [sum(max(0.0, 1 - abs(s - node) / width) for s in cosines[same]) / len(cosines[same]) for node in nodes]
        for same in (True, False)
    )
    return sum(h * sum(of_positives[: r + 1]) for r, h in enumerate(of_negatives))
