"""A loss with parameters in a LightningModule, whose optimizer trains them too.

Trains on every other image of scikit-learn's digits and prints Recall@1 on the rest, before and after.
"""

import lightning
import torch
from pytorch_metric_learning.losses import ProxyAnchorLoss
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from pml_ext.losses import TCMRegularizer
from pml_ext.metrics import AccuracyCalculator

lightning.seed_everything(0)
digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
batches = DataLoader(TensorDataset(images[::2], labels[::2]), batch_size=80, shuffle=True, drop_last=True)


class Embedder(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
        self.loss = TCMRegularizer(ProxyAnchorLoss(num_classes=10, embedding_size=4))  # was: ProxyAnchorLoss alone

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return self.loss(self.model(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def recall_at_1(model: torch.nn.Module) -> float:
    with torch.no_grad():
        embeddings = torch.nn.functional.normalize(model(images[1::2]))
    calculator = AccuracyCalculator(include=("precision_at_1",), k=1)
    return calculator.get_accuracy(embeddings, labels[1::2])["precision_at_1"]


embedder = Embedder()
before = recall_at_1(embedder.model)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
lightning.Trainer(max_epochs=12, accelerator="cpu", **quiet).fit(embedder, batches)
print(f"R@1 {before:.3f} before, {recall_at_1(embedder.model):.3f} after")
