"""Frozen layers, what the loggers get of a step, and the line of each epoch."""

import csv
import io
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from pml_ext._shared.errors import STOPPING, Terminated
from pml_ext.cli import main
from pml_ext.losses import DiscriminativeLoss
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.engine.callbacks import (
    FreezeLayers,
    Preemption,
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


class Fit:
    """Calls a `Preemption` as Lightning does, in two epochs of four steps with a validation each so many steps."""

    def __init__(self, validation_each, *, period=0):
        self.saved: list[int] = []
        self.preemption = Preemption(Path("last.ckpt"), period)
        self.progress = SimpleNamespace(is_last_batch=False)
        self.loop = SimpleNamespace(batch_idx=0, batch_progress=self.progress)
        self.trainer: Any = SimpleNamespace(
            global_step=0, fit_loop=SimpleNamespace(epoch_loop=self.loop), state=SimpleNamespace(fn="fit"),
            val_check_batch=validation_each, check_val_every_n_epoch=1 if validation_each == 4 else None,
            strategy=SimpleNamespace(reduce_boolean_decision=lambda decision, all: decision),
            save_checkpoint=lambda file: self.saved.append(self.trainer.global_step),
        )  # fmt: skip

    def __call__(self, number=None, during="", step=0):
        """A signal arrives during a step, or during the validation after it."""
        for self.trainer.global_step in range(1, 9):
            self.loop.batch_idx = (self.trainer.global_step - 1) % 4
            self.progress.is_last_batch = self.loop.batch_idx == 3
            if (during, step) == ("step", self.trainer.global_step):
                self.preemption._ask(number, None)
            self.preemption.on_train_batch_end(self.trainer)
            if self.trainer.global_step % self.trainer.val_check_batch == 0:
                if (during, step) == ("validation", self.trainer.global_step):
                    self.preemption._ask(number, None)
                assert self.trainer.global_step not in self.saved, "validation comes first"
                self.preemption.on_validation_end(self.trainer)
            if self.progress.is_last_batch:
                self.preemption.on_train_epoch_end(self.trainer)


@pytest.mark.parametrize(
    ("number", "ends_by"),
    [(signal.SIGINT, KeyboardInterrupt), *((number, Terminated) for number in STOPPING)],
)
@pytest.mark.parametrize("validation_each", [4, 3])
@pytest.mark.parametrize(("during", "step"), [("step", 2), ("step", 3), ("step", 4), ("step", 8), ("validation", 12)])
def test_a_signal_saves_a_checkpoint_after_the_step_and_its_validation(
    number, ends_by, validation_each, during, step,
    monkeypatch,
):  # fmt: skip
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    step = min(step, validation_each) if during == "validation" else step
    fit = Fit(validation_each)
    with pytest.raises(ends_by):
        fit(number, during, step)
    assert fit.saved == [step]


@pytest.mark.parametrize("validation_each", [4, 3])
def test_a_checkpoint_is_saved_each_so_many_steps(validation_each):
    fit = Fit(validation_each, period=3)
    fit()
    assert fit.saved == [3, 6]
    fit = Fit(validation_each)
    fit()
    assert fit.saved == []


def epoch_of(losses, shares, *, collapsed=None):
    """An epoch of one step with these losses, shares of the gradient, and losses of equal embeddings."""
    losses_of_epoch = EpochLosses({"CITLoss": "MODEL.LOSSES.CIT.SCALE"})
    losses_of_epoch.add({name: torch.tensor(value) for name, value in losses.items()})
    values = {name: torch.tensor(value) for name, value in (collapsed or {}).items()}
    losses_of_epoch.shares = {"CITLoss": 0.0}  # of an earlier epoch
    losses_of_epoch.compare(values)
    losses_of_epoch.shares |= shares
    losses_of_epoch.end_epoch(2, is_first=True)
    return losses_of_epoch.problem


def test_a_problem_is_a_collapse_a_loss_of_zero_or_a_small_share_in_this_order():
    losses, collapsed = {"TripletLoss": 0.3005, "CITLoss": 0.5}, {"TripletLoss": 0.3, "CITLoss": 2.0}
    stuck = "In epoch 2 TripletLoss stayed at 0.3, the value if all embeddings are equal; try"
    assert epoch_of(losses, {}, collapsed=collapsed).startswith(stuck)
    assert epoch_of(losses, {}, collapsed=collapsed | {"named_otherwise": 0.3}).startswith(stuck)
    assert epoch_of({"TripletLoss": 0.31, "CITLoss": 0.5}, {}, collapsed=collapsed) == ""
    shares = {"CITLoss": 0.009, "TripletLoss": 0.991}
    zero = "TripletLoss was exactly 0 in all of epoch 2"
    assert epoch_of({"TripletLoss": 0.0, "CITLoss": 0.5}, shares).startswith(zero)
    small = "In epoch 2 CITLoss had 0.9 % of the gradient on the embeddings, so that it hardly changes the training; "
    assert epoch_of(losses, shares) == f"{small}raise MODEL.LOSSES.CIT.SCALE, or leave it out."
    assert epoch_of(losses, {"CITLoss": 0.01, "TripletLoss": 0.99}) == ""
