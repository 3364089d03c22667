"""Faults of metrics in FastReID, torchmetrics and pytorch-metric-learning on small synthetic data.

FastReID's and torchmetrics' metrics are reimplemented here in a few lines; pytorch-metric-learning's is called.
"""

import numpy as np
import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from sklearn.metrics import average_precision_score, roc_curve

from pml_ext import metrics
from pml_ext.functional import cumulative_matches, rank_matches_from_distances, tar_at_far


def show(fault: str, given: float | str, right: float) -> None:
    print(f"{fault:<66}{given if isinstance(given, str) else f'{given:.3f}':>10}{right:>8.3f}")


torch.manual_seed(0)
print(f"{'':<66}{'given':>10}{'right':>8}")

# FastReID's TPR@FPR labels impostor pairs 1, scores by distance and takes the nearest FPR.
same = torch.arange(20_000) % 100 == 0
distances = torch.where(same, 0.6, 1.0) + 0.15 * torch.randn(len(same))
false_positives, true_positives, _ = roc_curve(~same, distances)
tpr = true_positives[np.argmin(np.abs(false_positives - 1e-2))]
show("FastReID TPR@FPR=1e-2: impostors rejected, not genuine accepted", tpr, float(tar_at_far(-distances, same, 1e-2)))

# FastReID's CMC stacks rows of the gallery without junk: 4 items for the first query, 5 for the second.
query, gallery = torch.tensor([1, 2]), torch.tensor([1, 1, 2, 3, 3])
cameras = {"query_cameras": torch.tensor([0, 0]), "gallery_cameras": torch.tensor([0, 1, 1, 0, 1])}
distances = torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5], [0.1, 0.3, 0.2, 0.4, 0.5]])
kept = (gallery != query[:, None]) | (cameras["gallery_cameras"] != cameras["query_cameras"][:, None])
rows = [(gallery[keep] == q).cumsum(0).clamp_max(1).tolist() for q, keep in zip(query, kept, strict=True)]
rank_1 = "ValueError" if len(rows[0]) != len(rows[1]) else np.asarray(rows)[:, 0].mean()  # NumPy's, of unequal rows
right = float(cumulative_matches(rank_matches_from_distances(distances, query, gallery, **cameras), [1]))
show("FastReID rank-1, junk removal leaves fewer than max_rank items", rank_1, right)

# 16-bit distances have many ties, which sorting gives to the first in the gallery. We break ties pessimistically.
is_match = torch.arange(2000) < 40
distances = 1 - 0.02 * is_match + 0.01 * torch.randn(2000)
found = is_match[distances.half().argsort(stable=True)].double()
optimistic = float((found * found.cumsum(0) / torch.arange(1, 2001)).sum() / 40)
right = float(rank_matches_from_distances(distances.half()[None], torch.tensor([1]), is_match.long()).average_precision)
show("FastReID mAP, distances in 16 bits, matches first in the gallery", optimistic, right)

# FastReID's TEST.FLIP mirrors images that the network has normalised in place (mean 100), and normalises them again.
pixel = (120.0 - 100) / 50
show("FastReID TEST.FLIP, normalised pixel of the mirrored image", (pixel - 100) / 50, pixel)

# torchmetrics: a match with a negative score does not count, and negated distances are negative.
given = average_precision_score(is_match, -distances) * float((is_match & (-distances > 0)).any())
show("torchmetrics retrieval AP of negated distances", given, average_precision_score(is_match, -distances))

# pytorch-metric-learning compares labels as float32: 16777216 and 16777217 are one class.
labels, embeddings = torch.tensor([0, 1, 0, 1]) + 2**24, torch.tensor([[0.0, 1], [0.1, 1], [1, 0], [1, -1]])
calculators = (kind(include=("precision_at_1",), k=1) for kind in (AccuracyCalculator, metrics.AccuracyCalculator))
values = (calculator.get_accuracy(embeddings, labels)["precision_at_1"] for calculator in calculators)
show("pytorch-metric-learning precision@1, labels above 2^24", *values)
