"""Frozen layers, what the loggers get of a step, and the line of each epoch."""

import csv
import io
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

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

DIGITS = "Digits/sap_tcm.yml"

# Lightning's advice about workers and steps, and what it calls in torch
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:.*{text}")
    for text in ("many workers", "number of training batches", "LeafSpec")
]


def test_frozen_parameters_stay_for_so_many_steps_and_statistics_only_of_a_whole_named_part():
    module: Any = nn.ModuleDict({"model": nn.Module()})
    module.model.backbone = backbone = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    module.model.heads = heads = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    callback = FreezeLayers(["backbone", r"heads\.0\.(weight|nothing)", "heads.1"], 3)
    trainer: Any = SimpleNamespace(global_step=0)
    for trainer.global_step in range(4):
        before = {name: value.clone() for name, value in module.model.state_dict().items()}
        callback.on_train_batch_start(trainer, module)
        is_frozen = trainer.global_step < 3
        assert (backbone.training, heads.training) == (not is_frozen, True)
        optimizer.zero_grad()
        heads(backbone(torch.randn(4, 3))).square().sum().backward()
        callback.on_before_optimizer_step(trainer, module, optimizer)
        optimizer.step()
        stays = {name for name, value in module.model.state_dict().items() if torch.equal(value, before[name])}
        frozen = {name for name in before if name.startswith("backbone")} | {"heads.0.weight", "heads.1.weight"}
        assert stays == (frozen | {"heads.1.bias"} if is_frozen else set())


def test_iterations_and_epochs_add_up_and_nothing_is_frozen_for_none(caplog):
    solver = get_cfg().SOLVER
    assert freeze_callbacks(["backbone"], solver, steps_per_epoch=8) == []
    assert caplog.messages == ["MODEL.FREEZE_LAYERS ['backbone']: nothing is frozen, because SOLVER.FREEZE_ITERS is 0"]
    solver.FREEZE_ITERS, solver.FREEZE_EPOCHS = 5, 2.5
    assert freeze_callbacks([""], solver, steps_per_epoch=8) == []
    (callback,) = freeze_callbacks(["", "backbone"], solver, steps_per_epoch=8)
    assert (callback.patterns, callback.iterations) == (["backbone"], 25)


class Terminal(io.StringIO):
    def isatty(self):
        return True


NUMBER = r"[\d.e-]+"
SHARES = f"gradient shares SmoothAPLoss {NUMBER} % / DiscriminativeLoss {NUMBER} %"
LOSSES = f"SmoothAPLoss {NUMBER}, DiscriminativeLoss {NUMBER}, loss {NUMBER}, {SHARES}, learning rate {NUMBER}"
SCORE = rf"; R@1 ↑ {NUMBER} %, mAP ↑ {NUMBER} %, OPIS ↓ {NUMBER}"


def test_a_run_on_a_terminal_has_a_line_per_epoch_and_its_loggers_what_each_tenth_step_was_like(
    tmp_path, monkeypatch, capsys
):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    losses = "('SmoothAPLoss', 'DiscriminativeLoss')"
    words = ["train", DIGITS, "OUTPUT_DIR", str(tmp_path), "MODEL.LOSSES.NAME", losses]
    words += ["SOLVER.MAX_EPOCH", "2", "TEST.EVAL_PERIOD", "2", "MODEL.DEVICE", "cpu"]
    assert main([*words, "MODEL.LOSSES.DISC.TIGHTNESS", "True"]) == 0
    bar = terminal.getvalue()
    assert "epoch 1 of 2:  50%" in bar and "epoch 2 of 2: 100%" in bar and "22/22" in bar and "v_num" not in bar
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


def test_the_line_has_the_rate_of_the_last_step_and_a_score_of_its_own_epoch(caplog):
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


def test_the_bound_is_measured_on_classes_of_one_size():
    loss = DiscriminativeLoss(4, 6)
    embeddings, labels = torch.randn(9, 6), torch.tensor([3, 0, 0, 3, 0, 2, 3, 2, 3])
    kept = torch.tensor([0, 1, 2, 3, 5, 7])  # the first two of each class
    found = bound_statistics(loss, embeddings, labels)
    expected = loss.tightness(embeddings[kept], labels[kept])
    assert found["upper_bound"] == pytest.approx(expected.upper_bound)
    assert found["triplet_mean"] == pytest.approx(expected.triplet_mean)
    assert found["bound_limit"] == pytest.approx(found["kappa_max"] - found["kappa_min"] + 3 * found["epsilon"])
