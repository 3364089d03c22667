"""Frozen layers, what the loggers get of a step, and the line of each epoch."""

import csv
import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from pml_ext.cli import main
from pml_ext.losses import DiscriminativeLoss
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.engine.callbacks import (
    FreezeLayers,
    Progress,
    bound_statistics,
    freeze_callbacks,
)
from pml_ext.runner.evaluation.collapse import EpochLosses

DIGITS = Path(__file__).parents[3] / "fastreid_configs" / "Digits" / "sap_tcm.yml"

# Lightning's advice about workers and steps, and what it calls in torch
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:.*{text}")
    for text in ("many workers", "number of training batches", "LeafSpec")
]


class Model(lightning.LightningModule):
    """Two linear layers with batch norm; keeps its weights after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.backbone = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.model.heads = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        self.seen: list[dict[str, Tensor]] = []
        self.modes: list[tuple[bool, bool]] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        backbone, heads = self.model.children()
        self.modes.append((backbone.training, heads.training))
        return heads(backbone(batch[0])).square().sum()

    def on_train_batch_end(self, *_: Any) -> None:
        self.seen.append({name: value.clone() for name, value in self.model.state_dict().items()})

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)


def fit(callback: FreezeLayers, folder: Path) -> Model:
    model = Model()
    model.seen.append({name: value.clone() for name, value in model.model.state_dict().items()})
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[callback], default_root_dir=folder,
    )  # fmt: skip
    data = DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 3)), batch_size=4)
    trainer.fit(model, data)
    return model


def changes(model: Model, name: str) -> list[bool]:
    return [not torch.equal(a[name], b[name]) for a, b in zip(model.seen, model.seen[1:], strict=False)]


def test_frozen_parameters_stay_for_so_many_steps_and_statistics_only_of_a_whole_named_part(tmp_path: Path) -> None:
    model = fit(FreezeLayers(["backbone", r"heads\.0\.(weight|nothing)", "heads.1"], 3), tmp_path)
    for name in ("backbone.0.weight", "backbone.1.bias", "backbone.1.running_mean", "heads.0.weight", "heads.1.weight"):
        assert changes(model, name) == [False, False, False, True]
    for name in ("heads.0.bias", "heads.1.running_mean"):
        assert changes(model, name) == [True] * 4
    assert model.modes == [(False, True)] * 3 + [(True, True)]


def test_iterations_and_epochs_add_up_and_nothing_is_frozen_for_none(caplog: pytest.LogCaptureFixture) -> None:
    solver = get_cfg().SOLVER
    assert freeze_callbacks(["backbone"], solver, steps_per_epoch=8) == []
    assert caplog.messages == ["MODEL.FREEZE_LAYERS ['backbone']: nothing is frozen, SOLVER.FREEZE_ITERS is 0"]
    solver.FREEZE_ITERS, solver.FREEZE_EPOCHS = 5, 2.5
    assert freeze_callbacks([""], solver, steps_per_epoch=8) == []
    (callback,) = freeze_callbacks(["", "backbone"], solver, steps_per_epoch=8)
    assert (callback.patterns, callback.iterations) == (["backbone"], 25)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


NUMBER = r"[\d.e-]+"
LOSSES = f"SmoothAPLoss {NUMBER}, DiscriminativeLoss {NUMBER}, loss {NUMBER}, learning rate {NUMBER}"
SCORE = rf"; R@1 ↑ {NUMBER} %, mAP ↑ {NUMBER} %, OPIS ↓ {NUMBER}"


def test_a_run_on_a_terminal_has_a_line_per_epoch_and_its_loggers_what_each_tenth_step_was_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    losses = "('SmoothAPLoss', 'DiscriminativeLoss')"
    words = ["train", "--config-file", str(DIGITS), "OUTPUT_DIR", str(tmp_path), "MODEL.LOSSES.NAME", losses]
    words += ["SOLVER.MAX_EPOCH", "2", "TEST.EVAL_PERIOD", "2", "MODEL.DEVICE", "cpu"]
    assert main([*words, "MODEL.LOSSES.DISC.TIGHTNESS", "True"]) == 0
    assert "11/11" in terminal.getvalue(), "Lightning's bar"
    for text in (capsys.readouterr().err, (tmp_path / "train.log").read_text()):
        assert re.search(f"epoch 1 of 2: {LOSSES}\n", text) and re.search(f"epoch 2 of 2: {LOSSES}{SCORE}\n", text)
    with (tmp_path / "csv" / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    steps = [row for row in rows if row["gradient_norm"]]
    assert len(steps) == 2, "each tenth of 22"
    for row in steps:
        assert float(row["gradient_norm"]) > 0
        assert 0 < float(row["learning_rate"]) <= 1e-4
        assert float(row["images_per_second"]) > 0
        gap = float(row["batch/upper_bound"]) - float(row["batch/triplet_mean"])
        assert 0 <= gap <= float(row["batch/bound_limit"])
    assert "BASE_LR: 0.0001" in (tmp_path / "csv" / "version_0" / "hparams.yaml").read_text()


def test_the_line_has_the_rate_of_the_last_step_and_a_score_of_its_own_epoch(caplog: pytest.LogCaptureFixture) -> None:
    progress, group = Progress(), {"lr": 0.1}
    trainer: Any = SimpleNamespace(
        max_epochs=2, current_epoch=0, is_global_zero=True,
        state=SimpleNamespace(fn="validate"), optimizers=[SimpleNamespace(param_groups=[group])],
    )  # fmt: skip
    module: Any = SimpleNamespace(results={"Set": {"precision_at_1": 0.25}}, losses_of_epoch=EpochLosses())
    module.losses_of_epoch.add({"CITLoss": torch.tensor(0.25), "TCMLoss": torch.tensor(0.5)})
    progress.on_validation_end(trainer, module)  # before training: of no epoch
    trainer.state.fn = "fit"
    with caplog.at_level("INFO", logger="pml_ext"):
        for trainer.current_epoch in range(3):
            progress.on_train_batch_start(trainer)
            group["lr"] /= 2  # what the schedule makes of it after the step
            if trainer.current_epoch == 1:
                progress.on_validation_end(trainer, module)
            progress.on_train_epoch_end(trainer, module)
    assert caplog.messages == [
        "epoch 1 of 2: CITLoss 0.25, TCMLoss 0.5, loss 0.75, learning rate 0.1",
        "epoch 2 of 2: CITLoss 0.25, TCMLoss 0.5, loss 0.75, learning rate 0.05; R@1 ↑ 25.00 %",
        "epoch 3 of 2: CITLoss 0.25, TCMLoss 0.5, loss 0.75, learning rate 0.025",
    ]


def test_the_bound_is_measured_on_classes_of_one_size() -> None:
    loss = DiscriminativeLoss(4, 6)
    embeddings, labels = torch.randn(9, 6), torch.tensor([3, 0, 0, 3, 0, 2, 3, 2, 3])
    kept = torch.tensor([0, 1, 2, 3, 5, 7])  # the first two of each class
    found = bound_statistics(loss, embeddings, labels)
    expected = loss.tightness(embeddings[kept], labels[kept])
    assert found["upper_bound"] == pytest.approx(expected.upper_bound)
    assert found["triplet_mean"] == pytest.approx(expected.triplet_mean)
    assert found["bound_limit"] == pytest.approx(found["kappa_max"] - found["kappa_min"] + 3 * found["epsilon"])
