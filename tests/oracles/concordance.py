"""CIT from the paper's formulas, in plain loops over Python floats."""

from math import exp, log


def triplets(labels, ref_labels=None):
    """All (anchor, positive, negative)."""
    others = labels if ref_labels is None else ref_labels
    found = []
    for a, label in enumerate(labels):
        positives = [p for p, other in enumerate(others) if other == label and (ref_labels is not None or p != a)]
        negatives = [n for n, other in enumerate(others) if other != label]
        found += [(a, p, n) for p in positives for n in negatives]
    return found


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
    above = sum(s[a][p] > s[a][n] for a, p, n in chosen)
    ties = sum(s[a][p] == s[a][n] for a, p, n in chosen)
    return (above + ties / 2) / len(chosen)
