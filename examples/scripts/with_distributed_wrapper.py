"""Two processes with PML's DistributedLossWrapper: the loss sees both batches, and its parameters are trained too.

Trains on every other image of scikit-learn's digits and prints Recall@1 on the rest, before and after.
"""

import tempfile

import torch
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from pml_ext.losses import DiscriminativeLoss
from pml_ext.metrics import AccuracyCalculator

digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)


def recall_at_1(model: torch.nn.Module) -> float:
    with torch.no_grad():
        embeddings = torch.nn.functional.normalize(model(images[1::2]))
    calculator = AccuracyCalculator(include=("precision_at_1",), k=1)
    return calculator.get_accuracy(embeddings, labels[1::2])["precision_at_1"]


def train(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    loss = DiscriminativeLoss(num_classes=10, embedding_size=4)
    for parameter in loss.parameters():  # which, unlike the model, sees both batches: PML's factor is taken back
        parameter.register_hook(lambda gradient: gradient / torch.distributed.get_world_size())
    shared_model, shared_loss = DistributedDataParallel(model), DistributedDataParallel(DistributedLossWrapper(loss))
    train_set = TensorDataset(images[::2], labels[::2])
    batches = DataLoader(train_set, batch_size=40, sampler=DistributedSampler(train_set), drop_last=True)
    optimizer = torch.optim.Adam([*shared_model.parameters(), *shared_loss.parameters()], lr=1e-2)
    before = recall_at_1(model)
    for epoch in range(6):
        batches.sampler.set_epoch(epoch)
        for batch, batch_labels in batches:
            optimizer.zero_grad()
            shared_loss(shared_model(batch), batch_labels).backward()
            optimizer.step()
    if rank == 0:
        print(f"R@1 {before:.3f} before, {recall_at_1(model):.3f} after")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as group_folder:
        torch.multiprocessing.spawn(train, (group_folder,), nprocs=2)
