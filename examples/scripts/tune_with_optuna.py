"""Tune any loss with Optuna on validation classes, at equal cost for each, and compare them on the test's classes.

Put your images, model, loader and losses in their places. Every loss gets the same trials, seeds and epochs.
"""

import numpy
import optuna
import torch
from pytorch_metric_learning.samplers import MPerClassSampler
from torch.utils.data import DataLoader, TensorDataset

from pml_ext.losses import ProxyNCALoss, TCMRegularizer, TripletMarginLoss
from pml_ext.metrics import AccuracyCalculator
from pml_ext.runner.data.datasets.glyphs import draw

TRIALS, SEEDS, FRESH_SEEDS, EPOCHS = 6, (0, 1), (2, 3, 4), 4
LOSSES = {
    "triplet": lambda ask: TripletMarginLoss(margin=ask("margin", 0.01, 0.5)),
    "with TCM": lambda ask: TCMRegularizer(TripletMarginLoss(margin=ask("margin", 0.01, 0.5)),
        margin_plus=ask("margin_plus", 0.5, 1.0), margin_minus=ask("margin_minus", 0.0, 0.7)),
    "proxy NCA": lambda ask: ProxyNCALoss(36, 64, softmax_scale=ask("softmax_scale", 1.0, 20.0)),
}  # fmt: skip
DEFAULTS = {"lr": 1e-3, "margin": 0.05, "margin_plus": 0.9, "margin_minus": 0.5, "softmax_scale": 1.0}
letters = draw(names := list("0123456789abcdefghijklmnopqrstuvwxyz"))  # in matplotlib's typefaces
images = torch.nn.functional.avg_pool2d(1 - torch.tensor(letters.images) / 255, 2).flatten(1)
labels = torch.tensor([names.index(character) for character in letters.characters])
split, parts = torch.randperm(36, generator=torch.Generator().manual_seed(0)).split([16, 10, 10]), {}
for part, classes in zip(("training", "validation", "test"), split, strict=True):
    parts[part] = TensorDataset(images[torch.isin(labels, classes)], labels[torch.isin(labels, classes)])
    print(f"{part} classes:", *(names[i] for i in sorted(classes.tolist())))


def score(make_loss, ask, part: str, seeds: tuple[int, ...]) -> float:
    calculator, found = AccuracyCalculator(include=("mean_average_precision_at_r",)), []
    for seed in seeds:
        torch.manual_seed(seed)
        numpy.random.seed(seed)  # MPerClassSampler draws from it
        model, loss = torch.nn.Linear(256, 64), make_loss(ask)  # some losses learn, too
        optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()], ask("lr", 1e-4, 1e-2, log=True))
        of_all = parts["training"].tensors[1]
        sampler = MPerClassSampler(labels=of_all, m=4, length_before_new_iter=EPOCHS * 256)  # PML 2's
        for batch, of_batch in DataLoader(parts["training"], batch_size=32, sampler=sampler):
            optimizer.zero_grad()
            loss(model(batch), of_batch).backward()
            optimizer.step()
        found += calculator.get_accuracy(model(parts[part].tensors[0]).detach(), parts[part].tensors[1]).values()
    return float(numpy.mean(found))


optuna.logging.set_verbosity(optuna.logging.WARNING)
print(f"each loss: {TRIALS} trials × {len(SEEDS)} seeds × {EPOCHS} epochs\nMAP@R, default → chosen: validation, test")
for name, make in LOSSES.items():
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.enqueue_trial(DEFAULTS)
    study.optimize(lambda trial, make=make: score(make, trial.suggest_float, "validation", SEEDS), TRIALS)
    first, best = study.trials[0], study.best_trial
    asks = (optuna.trial.FixedTrial(trial.params).suggest_float for trial in (first, best))
    before, after = (score(make, ask, "test", FRESH_SEEDS) for ask in asks)
    print(f"{name:9}  {first.value:.3f} → {best.value:.3f}  {before:.3f} → {after:.3f}", best.params)
