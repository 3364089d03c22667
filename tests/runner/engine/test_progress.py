"""What is shown and logged while a run goes on: the line of each epoch, the bar, and the loggers' entries."""

import csv
import io
import logging
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pml_ext._errors import UserError
from pml_ext.cli import main
from pml_ext.losses import DiscriminativeLoss
from pml_ext.runner.checks.supported import LOGGER_NAMES, unsupported
from pml_ext.runner.config.load import load_config
from pml_ext.runner.engine.loggers import LOGGERS, build_loggers
from pml_ext.runner.engine.messages import IN_THE_FILE_ONLY, logged
from pml_ext.runner.engine.monitor import bound_statistics, triplet_statistics
from pml_ext.runner.engine.progress import Progress

DIGITS = Path(__file__).parents[3] / "fastreid_configs" / "Digits" / "sap_tcm.yml"
QUICK = ["SOLVER.MAX_EPOCH", "2", "TEST.EVAL_PERIOD", "1", "MODEL.DEVICE", "cpu"]
CIT = ["MODEL.LOSSES.NAME", "('SmoothAPLoss', 'CITLoss', 'DiscriminativeLoss')", "MODEL.LOSSES.DISC.TIGHTNESS", "True"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def train(output: Path) -> int:
    return main(["train", "--config-file", str(DIGITS), "OUTPUT_DIR", str(output), *QUICK, *CIT])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run without a terminal, and what it wrote to standard error."""
    output, said = tmp_path_factory.mktemp("run"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", said)
        assert train(output) == 0
    return output, said.getvalue()


NUMBER = r"[\d.e-]+"
LOSSES = f"SmoothAPLoss {NUMBER}, CITLoss {NUMBER}, DiscriminativeLoss {NUMBER}, loss {NUMBER}, learning rate {NUMBER}"
EPOCH = f"epoch {{}} of 2: {LOSSES}; R@1 ↑ {NUMBER} %, mAP ↑ {NUMBER} %, OPIS ↓ "


def test_a_line_an_epoch_and_no_bar_without_a_terminal(trained: tuple[Path, str]) -> None:
    output, said = trained
    for epoch in (1, 2):
        assert re.search(EPOCH.format(epoch), said)
        assert re.search(EPOCH.format(epoch), (output / "train.log").read_text())
    assert "it/s" not in said and "\r" not in said


def test_an_epoch_without_a_validation_has_no_score(caplog: pytest.LogCaptureFixture) -> None:
    bar, losses = Progress(), {"loss": torch.tensor(0.5)}
    trainer = SimpleNamespace(
        max_epochs=3, num_training_batches=1, global_step=0, current_epoch=0, is_global_zero=True,
        callback_metrics=losses, state=SimpleNamespace(fn="fit"),
    )  # fmt: skip
    module = SimpleNamespace(results={"Set": {"precision_at_1": 0.25}})
    trainer.state.fn = "validate"
    bar.on_validation_end(trainer, module)  # before training: of no epoch
    trainer.state.fn = "fit"
    with caplog.at_level("INFO", logger="pml_ext"):
        bar.on_train_start(trainer, module)
        for trainer.current_epoch in range(3):
            bar.on_train_batch_end(trainer, module)
            if trainer.current_epoch == 1:
                bar.on_validation_end(trainer, module)
            bar.on_train_epoch_end(trainer, module)
    bar.on_train_end(trainer, module)
    assert ["R@1 ↑ 25.00 %" in record.getMessage() for record in caplog.records] == [False, True, False]


def test_a_bar_over_the_whole_run_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert train(tmp_path) == 0
    said = terminal.getvalue()
    assert "22/22 [" in said, "two epochs of eleven steps"
    assert re.search(r"SmoothAPLoss .*CITLoss .*learning rate .*; R@1 ↑ [\d.]+ %", said)
    assert re.search(r"epoch 1 of 2: .* mAP ↑ [\d.]+ %", said), "a validation stays above the bar"
    assert "epoch 1 of 2" in (tmp_path / "train.log").read_text()


def test_loggers_get_what_a_step_was_like(trained: tuple[Path, str]) -> None:
    output, _ = trained
    with (output / "csv" / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    steps = [row for row in rows if row["gradient_norm"]]
    assert len(steps) == 2, "each tenth of 22"
    for row in steps:
        assert float(row["gradient_norm"]) > 0
        assert 0 < float(row["learning_rate"]) <= 1e-4
        assert float(row["images_per_second"]) > 0
        assert 0 <= float(row["batch/concordance_index"]) <= 1
        assert float(row["batch/hard_triplets"]) >= float(row["batch/discordant_triplets"]) >= 0
        gap = float(row["batch/upper_bound"]) - float(row["batch/triplet_mean"])
        assert 0 <= gap <= float(row["batch/bound_limit"])
        assert float(row["batch/kappa_min"]) == float(row["batch/kappa_max"]) == pytest.approx(2**0.5)
    epochs = [float(row["epoch/hard_triplets"]) for row in rows if row["epoch/hard_triplets"]]
    assert len(epochs) == 2
    for of_a_step, of_the_epoch in zip(steps, epochs, strict=True):
        assert of_the_epoch > float(of_a_step["batch/hard_triplets"]), "the sum over eleven steps"
    assert "BASE_LR: 0.0001" in (output / "csv" / "version_0" / "hparams.yaml").read_text()


def test_triplets_counted_by_loops() -> None:
    embeddings, labels = torch.randn(7, 3, dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1, 2, 2])
    unit = embeddings / embeddings.norm(dim=1, keepdim=True)
    gaps = [
        float(unit[a] @ unit[p] - unit[a] @ unit[n])
        for a in range(7)
        for p in range(7)
        for n in range(7)
        if p != a and labels[a] == labels[p] and labels[a] != labels[n]
    ]
    found = triplet_statistics(embeddings, labels)
    assert found["discordant_triplets"] == found["hard_triplets"] == sum(gap < 0 for gap in gaps)
    assert found["concordance_index"] == pytest.approx(sum(gap > 0 for gap in gaps) / len(gaps))


def test_the_bound_is_measured_on_classes_of_one_size() -> None:
    loss = DiscriminativeLoss(4, 6)
    embeddings, labels = torch.randn(9, 6), torch.tensor([3, 0, 0, 3, 0, 2, 3, 2, 3])
    kept = torch.tensor([0, 1, 2, 3, 5, 7])  # the first two of each class
    found = bound_statistics(loss, embeddings, labels)
    expected = loss.tightness(embeddings[kept], labels[kept])
    assert found["upper_bound"] == pytest.approx(expected.upper_bound)
    assert found["triplet_mean"] == pytest.approx(expected.triplet_mean)
    assert found["bound_limit"] == pytest.approx(found["kappa_max"] - found["kappa_min"] + 3 * found["epsilon"])


def test_loggers_by_name(tmp_path: Path) -> None:
    assert [type(x).__name__ for x in build_loggers(["csv", "tensorboard"], tmp_path)] == [
        "CSVLogger",
        "TensorBoardLogger",
    ]


@pytest.mark.parametrize(("name", "module"), [("wandb", "WandbLogger"), ("mlflow", "MLFlowLogger")])
def test_a_logger_that_is_not_installed_says_how_to_get_it(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(**_: object) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(f"pml_ext.runner.engine.loggers.{module}", missing)
    with pytest.raises(UserError, match=rf"LOGGERS: {name} needs a package .*: pip install {name}"):
        build_loggers([name], tmp_path)


def test_mlflow_writes_to_its_server_or_into_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr("pml_ext.runner.engine.loggers.MLFlowLogger", lambda **options: made.append(options))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    build_loggers(["mlflow"], tmp_path / "run")
    assert made[0]["tracking_uri"] == f"sqlite:///{tmp_path}/run/mlflow.db"
    assert made[0]["artifact_location"] == f"file://{tmp_path}/run/mlartifacts"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    build_loggers(["mlflow"], tmp_path / "run")
    assert made[1] == {"run_name": "run", "tracking_uri": "http://127.0.0.1:1"}


def test_a_logger_that_cannot_begin_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise RuntimeError("no such project")

    monkeypatch.setattr("pml_ext.runner.engine.loggers.WandbLogger", refuse)
    with pytest.raises(UserError, match="LOGGERS: wandb cannot begin: no such project"):
        build_loggers(["wandb"], tmp_path)


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_the_real_logger_takes_numbers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(name)
    if name == "mlflow":
        pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (logger,) = build_loggers([name], tmp_path)
    logger.log_hyperparams({"SOLVER.BASE_LR": 0.1})
    logger.log_metrics({"loss": 0.5}, 1)
    logger.finalize("success")
    assert (tmp_path / {"wandb": "wandb", "mlflow": "mlflow.db"}[name]).exists()


def test_messages_for_the_file_stay_off_the_terminal(tmp_path: Path) -> None:
    log, screen = logging.getLogger("pml_ext"), io.StringIO()
    handler = logging.StreamHandler(screen)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        with logged(tmp_path, "a.log"):
            log.info("for both")
            log.info("for the file", extra=IN_THE_FILE_ONLY)
        log.info("afterwards", extra=IN_THE_FILE_ONLY)
    finally:
        log.removeHandler(handler)
    assert screen.getvalue() == "for both\nafterwards\n"
    text = (tmp_path / "a.log").read_text()
    assert "INFO for both" in text and "INFO for the file" in text and "afterwards" not in text


def test_a_run_leaves_its_report_and_makes_it_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole = ["TEST.REPORT", "True", "SOLVER.MAX_EPOCH", "1"]
    assert main(["train", "--config-file", str(DIGITS), "OUTPUT_DIR", str(tmp_path), *QUICK, *whole]) == 0
    assert str(tmp_path / "report.html") in capfd.readouterr().out
    (tmp_path / "report.html").unlink()
    assert main(["report", str(tmp_path)]) == 0
    assert "What random queries find" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_check_config_knows_the_loggers() -> None:
    assert set(LOGGER_NAMES) == set(LOGGERS)
    assert [str(p) for p in unsupported(load_config(DIGITS, ["LOGGERS", "('csv', 'tensorbord')"]))] == [
        "LOGGERS = 'tensorbord': unknown; did you mean 'tensorboard'? Known: 'csv', 'tensorboard', 'wandb', 'mlflow'"
    ]


def test_the_rate_shown_is_the_one_that_the_last_step_was_made_with() -> None:
    group = {"lr": 0.1}
    trainer: Any = SimpleNamespace(optimizers=[SimpleNamespace(param_groups=[group])])
    progress = Progress()
    progress.on_train_batch_start(trainer)
    group["lr"] = 0.05  # what the schedule makes of it after the step
    assert progress._numbers() == "learning rate 0.1"
