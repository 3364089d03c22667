"""The trainer of PML 2 with one of our losses, looked up by name in pytorch_metric_learning.losses.

PML 3 has no trainers: write the loop, as in swap_in_a_torch_loop.py.

Trains on every other image of scikit-learn's digits and prints Recall@1 on the rest, before and after.
"""

import numpy
import torch
from pytorch_metric_learning import losses, trainers
from pytorch_metric_learning.samplers import MPerClassSampler
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

import pml_ext

pml_ext.register()

torch.manual_seed(0)
numpy.random.seed(0)  # MPerClassSampler draws from it
digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
loss = getattr(losses, "DiscriminativeLoss")(num_classes=10, embedding_size=4)  # noqa: B009, a name as from a config


def recall_at_1() -> float:
    with torch.no_grad():
        embeddings = torch.nn.functional.normalize(model(images[1::2]))
    calculator = AccuracyCalculator(include=("precision_at_1",), k=1)
    return calculator.get_accuracy(embeddings, labels[1::2])["precision_at_1"]


before = recall_at_1()
optimizers = {
    "trunk_optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
    "metric_loss_optimizer": torch.optim.Adam(loss.parameters(), lr=1e-2),  # its projection learns too
}
sampler = MPerClassSampler(labels=labels[::2], m=8, batch_size=80, length_before_new_iter=800)
trainer = trainers.MetricLossOnly(
    models={"trunk": model},
    optimizers=optimizers,
    batch_size=80,
    loss_funcs={"metric_loss": loss},
    dataset=TensorDataset(images[::2], labels[::2]),
    sampler=sampler,
    data_device=torch.device("cpu"),
    dataloader_num_workers=0,
)
trainer.train(num_epochs=6)
print(f"R@1 {before:.3f} before, {recall_at_1():.3f} after")
