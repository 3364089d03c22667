"""Losses named in a Hydra config: after register() Hydra finds ours in pytorch_metric_learning.losses.

Trains on every other image of scikit-learn's digits and prints Recall@1 on the rest, before and after.
"""

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import pml_ext
from pml_ext.metrics import AccuracyCalculator

pml_ext.register()
config = OmegaConf.create("""
loss:
  _target_: pytorch_metric_learning.losses.MultipleLosses
  losses:
    - _target_: pytorch_metric_learning.losses.CITLoss
      gamma: 0.5
    - _target_: pytorch_metric_learning.losses.LoOp
      loss: {_target_: pytorch_metric_learning.losses.TripletMarginLoss, margin: 0.1}
miner:
  _target_: pytorch_metric_learning.miners.LoOpMiner
  miner: {_target_: pytorch_metric_learning.miners.TripletMarginMiner}
""")

torch.manual_seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
batches = DataLoader(TensorDataset(images[::2], labels[::2]), batch_size=80, shuffle=True, drop_last=True)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
loss, miner = instantiate(config.loss, _convert_="all"), instantiate(config.miner)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


def recall_at_1() -> float:
    with torch.no_grad():
        embeddings = torch.nn.functional.normalize(model(images[1::2]))
    calculator = AccuracyCalculator(include=("precision_at_1",), k=1)
    return calculator.get_accuracy(embeddings, labels[1::2])["precision_at_1"]


before = recall_at_1()
for _ in range(6):
    for batch, batch_labels in batches:
        optimizer.zero_grad()
        embeddings = model(batch)
        loss(embeddings, batch_labels, miner(embeddings, batch_labels)).backward()
        optimizer.step()
print(f"R@1 {before:.3f} before, {recall_at_1():.3f} after")
