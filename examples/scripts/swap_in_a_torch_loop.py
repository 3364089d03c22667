"""One training loop, one changed line: the loss.

Trains a small network on every other image of scikit-learn's digits and prints Recall@1 on the rest.
"""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from pml_ext.losses import DiscriminativeLoss, LoOp, TCMLoss, TCMRegularizer, TripletMarginLoss
from pml_ext.metrics import AccuracyCalculator

torch.manual_seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
# Ten classes, so that a batch of 80 has several images of each; with more classes use a sampler.
batches = DataLoader(TensorDataset(images[::2], labels[::2]), batch_size=80, shuffle=True)
calculator = AccuracyCalculator(include=("precision_at_1",), k=1)


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))


def recall_at_1(model: torch.nn.Module) -> float:
    with torch.no_grad():
        embeddings = torch.nn.functional.normalize(model(images[1::2]))
    return calculator.get_accuracy(embeddings, labels[1::2])["precision_at_1"]


print(f"{'untrained':<34} R@1 {recall_at_1(make_model()):.3f}")
for name, loss in {
    "TripletMarginLoss (PML's)": TripletMarginLoss(),
    "TCMLoss": TCMLoss(),
    "DiscriminativeLoss": DiscriminativeLoss(num_classes=10, embedding_size=4),
    "LoOp(TripletMarginLoss)": LoOp(TripletMarginLoss()),
    "TCMRegularizer(TripletMarginLoss)": TCMRegularizer(TripletMarginLoss()),
}.items():
    model = make_model()  # and the seed: every loss gets the same batches
    optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()], lr=1e-2)
    for _ in range(6):
        for batch, batch_labels in batches:
            optimizer.zero_grad()
            loss(model(batch), batch_labels).backward()
            optimizer.step()
    print(f"{name:<34} R@1 {recall_at_1(model):.3f}")
