"""The threshold-consistent margin term from eq. 5, in plain loops over Python floats."""


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


def terms(positives, negatives, margin_plus=0.9, margin_minus=0.5, indicator=True):
    """The two fractions of eq. 5, without their weights."""
    below = [margin_plus - s for s in positives if s <= margin_plus or not indicator]
    above = [s - margin_minus for s in negatives if s >= margin_minus or not indicator]
    return sum(below) / max(1, len(below)), sum(above) / max(1, len(above))
