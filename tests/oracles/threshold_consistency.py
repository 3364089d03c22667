"""The threshold-consistent margin term from eqs. 5 and 15–17 and ROADMAP's form, in plain loops over floats."""


def split(cosines, labels, ref_labels=None):
    """Cosines of positive and of negative pairs."""
    others = labels if ref_labels is None else ref_labels
    positives, negatives = [], []
    for i in range(len(labels)):
        for j in range(len(others)):
            if ref_labels is None and i == j:
                continue
            (positives if labels[i] == others[j] else negatives).append(cosines[i][j])
    return positives, negatives


def terms(positives, negatives, margin_plus=0.9, margin_minus=0.5, indicator=True, divide_by="hard"):
    """The two fractions, without their weights.

    The numerator runs over the hard pairs, or (no indicator, eq. 17) over all; the denominator counts the hard ones,
    or (ROADMAP) all. No word in the paper on a denominator of 0: the fraction is 0.
    """
    hard_positives, hard_negatives = 0, 0
    shortfall, excess = 0.0, 0.0
    for s in positives:
        is_hard = s <= margin_plus
        hard_positives += is_hard
        if is_hard or not indicator:
            shortfall += margin_plus - s
    for s in negatives:
        is_hard = s >= margin_minus
        hard_negatives += is_hard
        if is_hard or not indicator:
            excess += s - margin_minus
    counts = {"hard": (hard_positives, hard_negatives), "all": (len(positives), len(negatives))}[divide_by]
    return (shortfall / counts[0] if counts[0] else 0.0, excess / counts[1] if counts[1] else 0.0)
