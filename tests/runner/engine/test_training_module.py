"""The module that Lightning trains, the trainer that a config describes, chunks and precise batch norm."""

import logging
from types import SimpleNamespace
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from pml_ext._shared.errors import UserError
from pml_ext.losses import SoftTripleLoss
from pml_ext.runner.checks.rules import LOGGER_NAMES
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.config.load import load_config
from pml_ext.runner.data.datasets import load_train_set
from pml_ext.runner.data.loaders import collate
from pml_ext.runner.engine import training_module
from pml_ext.runner.engine.checkpoints import LOGGED
from pml_ext.runner.engine.loss_terms import LossTerms, loss_in_chunks
from pml_ext.runner.engine.precise_bn import recompute_statistics
from pml_ext.runner.engine.trainer import LOGGERS, _choosing_best, build_loggers, build_trainer
from pml_ext.runner.evaluation.collapse import EpochLosses
from pml_ext.runner.evaluation.run_metrics import Evaluation
from pml_ext.runner.launch import Launch
from pml_ext.runner.modeling.architectures import build_model
from pml_ext.runner.modeling.losses.factory import WeightedLoss
from tests.distributed.test_evaluation import a_test_set
from tests.runner.modeling.networks import module_of

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


@pytest.fixture
def module():
    return module_of(load_config("Digits/sap_tcm.yml", ["MODEL.COMPILE", "True"]))


@pytest.mark.parametrize(("of_network", "chosen", "group"), [(GPU, GPU, None), (GPU, CPU, "gloo"), (CPU, CPU, None)])
def test_ranks_get_another_group_only_for_metrics_that_a_gpu_has_no_room_for(
    of_network, chosen, group, module,
    monkeypatch,
):  # fmt: skip
    strategy = SimpleNamespace(root_device=of_network)
    module._trainer = SimpleNamespace(strategy=strategy, is_global_zero=False)  # type: ignore[assignment]
    module.__dict__["_exchanging_on_cpu"] = "gloo"
    asked: list[Any] = []
    monkeypatch.setattr(Evaluation, "__call__", lambda _, data, features, *where: asked.append(where))
    monkeypatch.setattr(training_module, "device_with_room", lambda features, device, group: chosen)
    data, (features,) = a_test_set("queries")
    module._collected = {0: [(torch.arange(len(features)), features)]}
    module._evaluate("Set", data, [0])
    assert asked == [(group, chosen)]


def test_buffers_get_the_plain_layout_that_processes_can_broadcast(module):
    values = torch.arange(48.0).view(1, 3, 4, 4)
    module.model.register_buffer("last", values.to(memory_format=torch.channels_last))
    module.model.register_buffer("expanded", torch.ones(1, 3, 1, 1).expand(1, 3, 8, 8))
    module.model.register_buffer("indices", torch.eye(2).to_sparse())
    module.setup("fit")
    assert module.model.last.is_contiguous() and torch.equal(module.model.last, values)
    assert module.model.expanded.is_contiguous() and module.model.indices.is_sparse
    assert module.model.backbone[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_a_state_is_restored_also_if_the_architecture_has_losses_or_a_miner(module):
    module.losses = nn.ModuleDict({"a": nn.Linear(1, 1)})
    module.model.losses = nn.ModuleDict({"b": nn.Linear(1, 1)})
    module.model.miner = nn.Linear(1, 1)
    state = module.state_dict()
    assert {"backbone.0.weight", "losses.a.weight", "losses.b.weight", "miner.bias"} <= state.keys()
    module.load_state_dict({name: torch.full_like(value, 7) for name, value in state.items()})
    assert all(value.eq(7).all() for value in module.state_dict().values())


def test_weights_that_a_checkpoint_cannot_tell_apart_are_one_message(monkeypatch):
    cfg = load_config("Digits/sap_tcm.yml", ["MODEL.LOSSES.NAME", ("SoftTripleLoss",)])
    model: Any = build_model(cfg)
    model.losses = nn.ModuleDict({"SoftTripleLoss": SoftTripleLoss(5, 64)})
    monkeypatch.setattr(training_module, "build_model", lambda *_, **__: model)
    monkeypatch.setattr(training_module, "_output_sizes", lambda *_: lambda name: 64)
    with pytest.raises(UserError, match=r"Baseline and MODEL\.LOSSES both have the weights losses\.SoftTripleLoss\."):
        module_of(cfg, load_train_set(cfg.DATASETS, grey=True))


def test_too_few_classes_are_one_message():
    with pytest.raises(UserError, match="NUM_CLASSES is 3, but the training set has 5 identities"):
        training_module._num_classes(3, SimpleNamespace(labels=np.arange(5)))  # type: ignore[arg-type]


def test_compile_reaches_the_network(module, monkeypatch):
    compiled: list[torch.nn.Module] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda part: compiled.append(part))
    module.on_fit_start()
    assert compiled == list(module.model.children()) != []


@pytest.mark.filterwarnings("ignore:.*exists and is not empty")
def test_amp_on_the_cpu_computes_in_32_bits_and_says_so(tmp_path, caplog):
    cfg = get_cfg()
    cfg.MODEL.DEVICE, cfg.SOLVER.AMP.ENABLED = "cpu", True
    with caplog.at_level(logging.WARNING, "pml_ext"):
        assert build_trainer(cfg, Launch(), tmp_path, None).precision == "32-true"
        assert not caplog.messages, "evaluation has nothing to say about it"
        assert build_trainer(cfg, Launch(), tmp_path, tmp_path / "checkpoints").precision == "32-true"
    assert caplog.messages == ["SOLVER.AMP has no effect on the CPU, which computes in 32 bits"]


def test_what_a_gpu_gets(tmp_path, monkeypatch):
    """What reaches Lightning and torch where there is a CUDA device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(lightning, "Trainer", SimpleNamespace)
    precisions: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", precisions.append)
    cfg = get_cfg()
    cfg.SOLVER.AMP.ENABLED, cfg.SOLVER.MATMUL_PRECISION, cfg.LOGGERS = True, "high", ()
    half = build_trainer(cfg, Launch(2), tmp_path, tmp_path / "checkpoints")
    assert half.precision == "16-mixed" and precisions == ["high"]
    assert half.strategy._ddp_kwargs["gradient_as_bucket_view"]
    cfg.SOLVER.AMP.DTYPE = "bfloat16"
    measuring = build_trainer(cfg, Launch(), tmp_path, None)
    assert measuring.precision == "bf16-mixed" and precisions == ["high"], "measurements are exact"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModuleNotFoundError("wandb"), "LOGGERS: wandb needs a package .*: pip install wandb"),
        (RuntimeError("no such project"), "LOGGERS: wandb cannot begin: no such project"),
    ],
)
def test_a_logger_that_cannot_begin_is_one_message(error, message, tmp_path, monkeypatch):
    def refuse(**_):
        raise error

    monkeypatch.setattr("pml_ext.runner.engine.trainer.WandbLogger", refuse)
    with pytest.raises(UserError, match=message):
        build_loggers(["wandb"], tmp_path)


def test_mlflow_writes_to_its_server_or_next_to_the_runs(tmp_path, monkeypatch):
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "pml_ext.runner.engine.trainer.MLFlowLogger", lambda name, **options: made.append({"name": name, **options})
    )
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    build_loggers(["mlflow"], tmp_path / "run")
    assert made[0]["tracking_uri"] == f"sqlite:///{tmp_path}/mlflow.db"
    assert made[0]["artifact_location"] == f"file://{tmp_path}/mlartifacts"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    build_loggers(["mlflow"], tmp_path / "run")
    assert made[1] == {"name": "run", "run_name": "run", "run_id": None, "tracking_uri": "http://127.0.0.1:1"}


@pytest.mark.filterwarnings("ignore:Experiment logs directory")
def test_a_resumed_run_is_one_run_of_its_loggers(tmp_path, monkeypatch):
    checkpoint = tmp_path / "last.ckpt"
    torch.save({"global_step": 12, LOGGED: {"MLFlowLogger": "id of the run", "WandbLogger": "another"}}, checkpoint)
    for kind in ("MLFlowLogger", "WandbLogger", "TensorBoardLogger"):
        monkeypatch.setattr(f"pml_ext.runner.engine.trainer.{kind}", type(kind, (SimpleNamespace,), {
            "__init__": lambda self, *_, **options: SimpleNamespace.__init__(self, **options)
        }))  # fmt: skip
    (tmp_path / "csv" / "version_0").mkdir(parents=True)
    rows = tmp_path / "csv" / "version_0" / "metrics.csv"
    rows.write_text("epoch,loss,step\n0,0.5,9\n0,,11\n1,0.25,12\n1,0.1")
    loggers: list[Any] = build_loggers(["mlflow", "wandb", "tensorboard", "csv"], tmp_path, checkpoint)
    assert loggers[0].run_id == "id of the run"
    assert (loggers[1].id, loggers[1].resume) == ("another", "allow")
    assert loggers[2].purge_step == 12
    loggers[3].log_metrics({"loss": 0.125, "accuracy": 1.0}, step=12)
    loggers[3].save()
    assert rows.read_text().split() == ["accuracy,epoch,loss,step", ",0,0.5,9", ",0,,11", "1.0,,0.125,12"]


def test_a_resumed_run_has_the_patience_of_its_config(tmp_path):
    cfg = get_cfg()
    cfg.DATASETS.TESTS = ("Digits",)
    stopping = []
    for patience in (2, 20):
        cfg.TEST.PATIENCE = patience
        stopping.append(_choosing_best(tmp_path, cfg.TEST, cfg.DATASETS, are_classes_divided=False)[1])
    before, resumed = stopping
    before.wait_count = 2
    resumed.load_state_dict(before.state_dict())
    assert (resumed.patience, resumed.wait_count) == (20, 2)


def test_check_config_knows_the_loggers():
    assert set(LOGGER_NAMES) == set(LOGGERS)


def test_a_scaled_loss_gives_scaled_gradients():
    torch.manual_seed(0)
    network, loss = nn.Linear(6, 4).double(), SoftTripleLoss(3, 4).double()
    inputs, labels = torch.randn(9, 6).double(), torch.arange(9) % 3
    expected = torch.autograd.grad(
        loss(network(inputs), labels), parameters := [*network.parameters(), *loss.parameters()]
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    value = loss_in_chunks(
        lambda batch: {"features": network(batch["images"])}, {"images": inputs, "targets": labels},
        lambda outputs: loss(outputs["features"], outputs["targets"]),
        chunk=4, modules=[network], loss_parameters=loss.parameters(), scaler=scaler,
    )  # fmt: skip
    scaler.scale(value).backward()
    torch.testing.assert_close([p.grad for p in parameters], [64 * gradient for gradient in expected])


class EpochBatches(torch.utils.data.BatchSampler):
    """Two batches of two; the second epoch in another order."""

    def set_epoch(self, epoch):
        self.sampler = range(4) if epoch % 2 == 0 else [0, 2, 1, 3]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(2, momentum=0.3)

    def compute_outputs(self, batch):
        return {"features": self.norm(batch["images"])}


@pytest.mark.parametrize("others", [0, 2])
def test_statistics_are_the_plain_averages_over_batches_and_processes(others, monkeypatch):
    """The other processes found statistics of 1."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: others > 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1 + others)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda average: average.add_(others))
    images, model = torch.randn(4, 2, 3, 3), Model()
    loader = DataLoader(
        [{"images": image} for image in images],  # type: ignore[arg-type]
        batch_sampler=EpochBatches(range(4), batch_size=2, drop_last=False),
        collate_fn=collate,
    )
    model.norm(torch.randn(2, 2, 3, 3))  # a moving average to be replaced
    recompute_statistics(model, loader, 3, torch.device("cpu"))
    batches = [images[[0, 1]], images[[2, 3]], images[[0, 2]]]
    mean = sum(batch.mean(dim=(0, 2, 3)) for batch in batches) / 3
    variance = sum(batch.var(dim=(0, 2, 3)) for batch in batches) / 3
    torch.testing.assert_close(model.norm.running_mean, (mean + others) / (1 + others))
    torch.testing.assert_close(model.norm.running_var, (variance + others) / (1 + others))
    assert model.norm.momentum == 0.3


def test_a_loss_of_other_images_has_no_share_of_the_gradient_on_the_batch():
    weight = nn.Parameter(torch.ones(2, 2))
    features = torch.randn(4, 2) @ weight
    values = {"a": features.norm(), "b": features.sum(), "of_others": (torch.randn(4, 2) @ weight).norm()}
    net: Any = SimpleNamespace(
        model=SimpleNamespace(losses=lambda outputs, labels: values | {"constant": torch.ones(())}),
        loss_terms=SimpleNamespace(of_collapsed=lambda outputs, labels: {}),
        losses_of_epoch=EpochLosses(),
        trainer=SimpleNamespace(is_last_batch=True),
        _total=lambda values, batch: sum(values.values()),
        _log_batch=lambda outputs, labels: None,
    )
    total = training_module.TrainingModule._loss(net, {"features": features}, {"targets": torch.arange(4)})
    assert net.losses_of_epoch.shares.keys() == {"a", "b", "constant"}
    total.backward()
    assert weight.grad is not None


class MovingCentre(nn.Module):
    """Keeps a moving average in a parameter, a buffer, and the last step's tensor."""

    def __init__(self):
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(2), requires_grad=False)
        self.register_buffer("rows", torch.zeros(()))
        self.last: Any = None

    def forward(self, embeddings, labels):
        self.centre.lerp_(embeddings.detach().mean(dim=0), 0.5)
        self.rows += len(embeddings)
        self.last = embeddings.norm()
        return self.last + self.centre.sum()


def test_losses_are_left_unchanged_by_their_values_for_equal_embeddings():
    loss, term = MovingCentre(), WeightedLoss("a", 1.0, is_id_loss=False, is_mined=False)
    terms, labels = LossTerms([term], nn.ModuleDict({"a": loss}), None), torch.arange(4)
    weight = nn.Parameter(torch.eye(2))
    for features, count in ((torch.ones(4, 2) + 0.01 * torch.randn(4, 2), 1), (torch.randn(4, 2), 0)):
        outputs = {"features": features @ weight}
        terms(outputs, labels)
        before = [loss.centre.clone(), loss.rows.clone(), loss.last.clone()]
        assert len(terms.of_collapsed(outputs, labels)) == count
        torch.testing.assert_close([loss.centre, loss.rows, loss.last], before, rtol=0, atol=0)


def test_only_parameters_get_the_layout_of_convolutions():
    net: Any = nn.Module()
    net.layer, mean = nn.Conv2d(3, 2, 3), torch.tensor([1.0, 2.0, 3.0]).view(1, -1, 1, 1)
    net.register_buffer("mean", mean)
    weight = net.layer.weight
    training_module.TrainingModule.setup(net, "fit")
    assert net.layer.weight is weight and weight.is_contiguous(memory_format=torch.channels_last)
    assert net.mean.stride() == mean.stride()
