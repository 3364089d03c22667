from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.engine.callbacks import FreezeLayers, freeze_callbacks

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


def test_a_named_part_and_its_statistics_stay_for_so_many_steps(tmp_path: Path) -> None:
    model = fit(FreezeLayers(["backbone"], 3), tmp_path)
    for name in ("backbone.0.weight", "backbone.1.bias", "backbone.1.running_mean"):
        assert changes(model, name) == [False, False, False, True]
    for name in ("heads.0.weight", "heads.1.running_mean"):
        assert changes(model, name) == [True] * 4
    assert model.modes == [(False, True)] * 3 + [(True, True)]


def test_patterns_match_from_the_start_of_parameter_names(tmp_path: Path) -> None:
    model = fit(FreezeLayers([r"backbone\.0\.(weight|nothing)", "heads.1"], 2), tmp_path)
    assert changes(model, "backbone.0.weight") == [False, False, True, True]
    assert changes(model, "backbone.0.bias") == [True] * 4
    assert changes(model, "heads.1.weight") == [False, False, True, True]
    assert changes(model, "heads.1.running_mean") == [True] * 4, "statistics stay only for a whole named part"


def test_iterations_and_epochs_add_up_and_nothing_is_frozen_for_none(caplog: pytest.LogCaptureFixture) -> None:
    solver = get_cfg().SOLVER
    with caplog.at_level("INFO", logger="pml_ext"):
        assert freeze_callbacks(["backbone"], solver, steps_per_epoch=8) == []
        solver.FREEZE_ITERS, solver.FREEZE_EPOCHS = 5, 2.5
        assert freeze_callbacks([""], solver, steps_per_epoch=8) == []
    assert caplog.messages == [
        "MODEL.FREEZE_LAYERS ['backbone']: nothing is frozen, SOLVER.FREEZE_ITERS is 0",
    ]
    (callback,) = freeze_callbacks(["", "backbone"], solver, steps_per_epoch=8)
    assert (callback.patterns, callback.iterations) == (["backbone"], 25)
