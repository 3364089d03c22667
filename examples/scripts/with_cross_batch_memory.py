"""CITLoss with PML's CrossBatchMemory: negatives and positives from the last 200 samples, at a batch size of 20.

Trains on every other image of scikit-learn's digits and prints Recall@1 on the rest, before and after.
"""

import torch
from pytorch_metric_learning.losses import CrossBatchMemory
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from pml_ext.losses import CITLoss
from pml_ext.metrics import AccuracyCalculator

torch.manual_seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
batches = DataLoader(TensorDataset(images[::2], labels[::2]), batch_size=20, shuffle=True, drop_last=True)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
loss = CrossBatchMemory(CITLoss(gamma=0.5), embedding_size=4, memory_size=200)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


def recall_at_1() -> float:
    with torch.no_grad():
        embeddings = torch.nn.functional.normalize(model(images[1::2]))
    calculator = AccuracyCalculator(include=("precision_at_1",), k=1)
    return calculator.get_accuracy(embeddings, labels[1::2])["precision_at_1"]


before = recall_at_1()
for _ in range(2):
    for batch, batch_labels in batches:
        optimizer.zero_grad()
        loss(model(batch), batch_labels).backward()
        optimizer.step()
print(f"R@1 {before:.3f} before, {recall_at_1():.3f} after")
