"""Why pml_ext has its own SmoothAPLoss: PML's is only correct for C classes × C samples.

Prints the exact 1 − mean average precision and both losses, for well separated classes in batches of several shapes. At
this temperature a smoothed value should be close to the exact one.
"""

import torch
from pytorch_metric_learning import losses as pml_losses
from torch.nn.functional import normalize

from pml_ext.losses import SmoothAPLoss


def exact(embeddings: torch.Tensor, labels: torch.Tensor) -> float:
    """1 − mean average precision of each sample's ranking of the batch, itself included."""
    order = (normalize(embeddings) @ normalize(embeddings).T).argsort(dim=1, descending=True)
    hits = (labels[order] == labels[:, None]).float()
    precision = hits.cumsum(dim=1) / torch.arange(1, len(labels) + 1)
    return 1 - ((precision * hits).sum(dim=1) / hits.sum(dim=1)).mean().item()


torch.manual_seed(0)
print("classes × samples    exact    ours     PML's")
for classes, samples in [(8, 8), (20, 4), (16, 5), (5, 16)]:
    labels = torch.arange(classes).repeat_interleave(samples)
    embeddings = torch.randn(classes, 64)[labels] + 0.8 * torch.randn(len(labels), 64)
    ours, theirs = (loss(temperature=0.01)(embeddings, labels) for loss in (SmoothAPLoss, pml_losses.SmoothAPLoss))
    print(f"{classes:>7} × {samples:<7} {exact(embeddings, labels):>8.4f} {ours:>8.4f} {theirs:>8.4f}")
