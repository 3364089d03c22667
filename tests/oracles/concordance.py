"""CIT from the paper's formulas, in plain loops over Python floats."""

from math import exp, log


def triplets(labels, ref_labels=None):
    """All (anchor, positive, negative)."""
    others = labels if ref_labels is None else ref_labels
    return [
        (a, p, n)
        for a in range(len(labels))
        for p in range(len(others))
        for n in range(len(others))
        if labels[a] == others[p] != others[n] and not (ref_labels is None and a == p)
    ]


def cit(s, s_ref, chosen, gamma, hinge=False):
    """γ L_e + (1 − γ) L_p (eqs. 4, 7, 8) over the chosen triplets; s anchors to others, s_ref among the others."""
    embedding_sum = likelihood_sum = 0.0
    for a, p, n in chosen:
        embedding_sum += max(0.0, 1 - exp(-(s[a][n] - s[a][p])))
        term = -(s[a][p] - log(exp(s[a][n]) + exp(s_ref[p][n])))
        likelihood_sum += max(0.0, term) if hinge else term
    return (gamma * embedding_sum + (1 - gamma) * likelihood_sum) / len(chosen)


def concordance(s, chosen):
    """Share of triplets with S_ap > S_an, ties one half."""
    return sum(1.0 if s[a][p] > s[a][n] else 0.5 if s[a][p] == s[a][n] else 0.0 for a, p, n in chosen) / len(chosen)
