"""OPIS and StreamingVerification as torchmetrics and Lightning use a Metric; test_opis.py has two processes."""

import copy
import pickle
from pathlib import Path
from typing import Any

import lightning
import pytest
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import Metric

from pml_ext.metrics import OPIS, StreamingVerification
from tests.metrics.test_opis import a_set, scored_pairs

METRICS = {
    "OPIS": (OPIS, a_set, "opis"),
    "StreamingVerification": (lambda: StreamingVerification(fars=(0.1,)), scored_pairs, "tar_at_far_1e-1"),
}


def numbers(found: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in found.items() if isinstance(value, (int, float))}


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_collects_forgets_moves_and_travels(name: str, recwarn: pytest.WarningsRecorder) -> None:
    make, data, key = METRICS[name]
    x, y = data()
    metric, expected = make(), make()
    assert isinstance(metric, Metric)
    expected.update(x, y)
    batch = make()
    batch.update(x[:60], y[:60])
    assert metric(x[:60], y[:60])[key] == batch.compute()[key], "forward gives the batch's own value"
    metric(x[60:], y[60:])
    for twin in (metric, copy.deepcopy(metric), pickle.loads(pickle.dumps(metric)), metric.clone().to("cpu").double()):
        assert numbers(twin.compute()) == numbers(expected.compute())
    if hasattr(metric, "merge_state"):  # not in torchmetrics 1.5
        metric.merge_state(batch)
        assert metric.compute()[key] != expected.compute()[key]
    metric.reset()
    metric.update(x, y)
    assert numbers(metric.compute()) == numbers(expected.compute())
    assert not recwarn.list


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.opis, self.verification = OPIS(), StreamingVerification(fars=(0.1,))

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        x, y = batch
        self.opis.update(x, y)
        self.verification.update(x[:, 0], y > 5)

    def on_validation_epoch_end(self) -> None:
        self.log("opis", self.opis.compute()["opis"])
        self.log_dict(self.verification.compute())


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning", "ignore:.*many workers")
def test_lightning_logs_them(tmp_path: Path) -> None:
    x, y = a_set()
    loader = DataLoader(TensorDataset(x, y), batch_size=50)
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    (logged,) = trainer.validate(Module(), loader, verbose=False)
    alone = OPIS()
    alone.update(x, y)
    assert logged["opis"] == pytest.approx(alone.compute()["opis"])
    assert (logged["genuine"], logged["impostors"]) == (int((y > 5).sum()), int((y <= 5).sum()))
