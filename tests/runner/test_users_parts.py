"""Parts as FastReID's projects write them: plain objects as losses, constructors that read numbers, images in place."""

import logging
import traceback
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from pml_ext._shared.errors import UserError
from pml_ext.cli import main
from pml_ext.runner import registry
from pml_ext.runner.checks.check import problems
from pml_ext.runner.config.load import load_config
from pml_ext.runner.engine.training_module import TrainingModule
from pml_ext.runner.evaluation.user_evaluator import UserEvaluator
from pml_ext.runner.modeling.architectures import Baseline, build_model
from pml_ext.runner.modeling.backbones import build_resnet_backbone
from pml_ext.runner.modeling.heads import EmbeddingHead, build_heads
from pml_ext.runner.modeling.layers import configurable, get_norm, weights_init_kaiming
from pml_ext.runner.modeling.losses.factory import build_losses
from pml_ext.runner.modeling.pixels_to_embedding import PixelsToEmbedding, averaged
from pml_ext.runner.registry import (
    BACKBONE_REGISTRY,
    LOSS_REGISTRY,
    META_ARCH_REGISTRY,
    MINER_REGISTRY,
    REID_HEADS_REGISTRY,
)
from tests.runner.test_plugins import folder as folder

DIGITS = ["MODEL.DEVICE", "cpu", "DATALOADER.NUM_WORKERS", "0", "SOLVER.WARMUP_ITERS", "0"]
PARTS = """
import torch
from torch import nn
from pml_ext.runner import Baseline, EmbeddingHead, ImageDataset
from pml_ext.runner.registry import (
    BACKBONE_REGISTRY, DATASET_REGISTRY, EVALUATOR_REGISTRY, META_ARCH_REGISTRY, REID_HEADS_REGISTRY,
    TRANSFORM_REGISTRY,
)

@TRANSFORM_REGISTRY.register("FAILS")
class Fails:
    # the check of the config gives it an image of zeros

    def __call__(self, image):
        return image if image.sum() == 0 else 1 / 0

@META_ARCH_REGISTRY.register()
class ReadsAKey(Baseline):
    def __init__(self, cfg):
        super().__init__(cfg)
        options = cfg.MODEL.LOSSES
        self.weight = options.CAM_WEIGHT

@META_ARCH_REGISTRY.register()
class ReadsAnItem(Baseline):
    def __init__(self, cfg):
        super().__init__(cfg)
        self.weight = cfg.MODEL["CAM_WEIGHT"]

@REID_HEADS_REGISTRY.register()
class UnknownName(EmbeddingHead):
    def forward(self, features, targets=None):
        return super().forward(attention(features), targets)

@REID_HEADS_REGISTRY.register()
class WrongShape(EmbeddingHead):
    def forward(self, features, targets=None):
        return super().forward(features @ torch.zeros(3, 3, device=features.device), targets)

@META_ARCH_REGISTRY.register()
class ReadsAColumn(Baseline):
    def losses(self, outputs, gt_labels):
        return {**super().losses(outputs, gt_labels), "loss_view": outputs["view"].mean()}

@DATASET_REGISTRY.register()
class ReadsNothing(ImageDataset):
    def __init__(self, root, cfg):
        super().__init__([], [], [], name=cfg.DATASETS.NAME)
"""


@pytest.fixture
def parts(folder):
    (folder / "own_parts.py").write_text(PARTS, encoding="utf-8")
    registry.import_modules(["own_parts"])
    return folder


def last_line(error):
    """The line at the end of an exception's traceback; a KeyError of Python 3.10 shows its line break as text."""
    return traceback.format_exception(error)[-1].rstrip().splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "kind", "line"),
    [
        (
            ("MODEL.META_ARCHITECTURE", "ReadsAKey"),
            AttributeError,
            "MODEL.META_ARCHITECTURE: this error was raised in ReadsAKey of own_parts. "
            "The config has no key CAM_WEIGHT: add it in a function of CONFIG_REGISTRY.",
        ),
        (
            ("MODEL.META_ARCHITECTURE", "ReadsAnItem"),
            KeyError,
            "MODEL.META_ARCHITECTURE: this error was raised in ReadsAnItem of own_parts. Add a missing config key in a "
            "function of CONFIG_REGISTRY, and a missing column of batches in the `columns` of the data set.",
        ),
        (
            ("MODEL.HEADS.NAME", "UnknownName"),
            NameError,
            "MODEL.HEADS.NAME: this error was raised in UnknownName of own_parts.",
        ),
        (
            ("MODEL.HEADS.NAME", "WrongShape"),
            RuntimeError,
            "MODEL.HEADS.NAME: this error was raised in WrongShape of own_parts.",
        ),
        (
            ("DATASETS.NAMES", "('ReadsNothing',)"),
            AttributeError,
            "DATASETS.NAMES: this error was raised in ReadsNothing of own_parts. "
            "The config has no key NAME: add it in a function of CONFIG_REGISTRY.",
        ),
    ],
)
def test_the_traceback_of_an_error_in_a_part_ends_with_the_part_and_its_key(parts, words, kind, line, capsys):
    assert main(["check-config", "Digits/sap_tcm.yml", "--import", "own_parts", *DIGITS, *words]) == 1
    head, begin, *traces = [text for text in capsys.readouterr().out.splitlines() if not text.startswith("  (")]
    assert head == "Digits/sap_tcm.yml: cannot run:" and begin == "  Traceback (most recent call last):"
    assert any(text.startswith(f"  {kind.__name__}: ") for text in traces) and traces[-1] == f"  {line}"


def test_a_training_ends_with_the_part_that_reads_a_missing_column(parts):
    opts = [*DIGITS, "MODEL.META_ARCHITECTURE", "ReadsAColumn", "OUTPUT_DIR", "out", "TEST.REPORT", "False"]
    with pytest.raises(KeyError, match="view") as raised:
        main(["train", "Digits/sap_tcm.yml", "--import", "own_parts", *opts])
    assert "MODEL.META_ARCHITECTURE: this error was raised in ReadsAColumn of own_parts." in last_line(raised.value)


def test_an_error_of_a_worker_keeps_its_part(parts):
    opts = [*DIGITS, "DATALOADER.NUM_WORKERS", "1", "INPUT.FAILS.ENABLED", "True", "OUTPUT_DIR", "out"]
    with pytest.raises(ZeroDivisionError, match=r"INPUT\.FAILS: this error was raised in FAILS of own_parts"):
        main(["train", "Digits/sap_tcm.yml", "--import", "own_parts", *opts, "TEST.REPORT", "False"])


def test_an_error_outside_of_the_parts_has_no_line(parts):
    with pytest.raises(ZeroDivisionError) as raised, registry.naming_parts():
        1 / 0  # noqa: B018
    assert not registry.names_part(raised.value)


class NoTensorMethods(nn.Module):
    """A backbone whose constructor reads numbers, which torch's meta device does not have."""

    def __init__(self, channels, fails=False):
        super().__init__()
        rates = [rate.item() for rate in torch.linspace(0, 0.1, 2)]
        self.register_buffer("mean", torch.Tensor([0.5]))
        self.layers = nn.Sequential(nn.Conv2d(channels, 64, 3, 2, 1), nn.Dropout(rates[1]))
        if fails:
            raise RuntimeError("neither here")

    def forward(self, images):
        return self.layers(images - self.mean)


def test_a_network_that_needs_values_is_checked_on_the_cpu(folder):
    BACKBONE_REGISTRY.register("valued")(lambda cfg: NoTensorMethods(1))
    BACKBONE_REGISTRY.register("failing")(lambda cfg: NoTensorMethods(1, fails=True))
    words = [*DIGITS, "MODEL.BACKBONE.NAME"]
    assert problems(load_config("Digits/sap_tcm.yml", [*words, "valued"])) == []
    with pytest.raises(RuntimeError, match="neither here") as raised:
        problems(load_config("Digits/sap_tcm.yml", [*words, "failing"]))
    assert "tests.runner.test_users_parts" in last_line(raised.value)


class InPlace(Baseline):
    """FastReID's preprocessing, which needs floating-point images and changes them."""

    def preprocess_image(self, batch):
        return batch["images"].sub_(self.pixel_mean).div_(self.pixel_std)


def test_images_are_float32_and_may_be_changed_in_place(folder):
    META_ARCH_REGISTRY.register()(InPlace)
    base = ["MODEL.DEVICE", "cpu", "TEST.FLIP.ENABLED", True]
    images = torch.randint(256, (2, 1, 8, 8), dtype=torch.uint8)
    torch.manual_seed(0)
    one = PixelsToEmbedding(load_config("Digits/sap_tcm.yml", base), flip=True).eval()
    other = PixelsToEmbedding(
        load_config("Digits/sap_tcm.yml", [*base, "MODEL.META_ARCHITECTURE", "InPlace"]), flip=True
    )
    other.load_state_dict(one.state_dict())
    torch.testing.assert_close(other.eval()(images), one(images))


class Plain:
    def __init__(self, margin=0.5):
        self.margin = margin

    def __call__(self, embeddings, labels):
        return embeddings.sum() + self.margin


def test_plain_objects_and_functions_are_losses(folder):
    LOSS_REGISTRY.register("PlainClass")(Plain)
    LOSS_REGISTRY.register("PlainObject")(Plain(2.0))
    LOSS_REGISTRY.register("AModule")(nn.CosineSimilarity())
    LOSS_REGISTRY.register("AFunction")(lambda embeddings, labels, scale_of=3.0: scale_of * embeddings.sum())
    names = "PlainClass", "PlainObject", "AModule", "AFunction"
    cfg = load_config("Digits/sap_tcm.yml", ["MODEL.LOSSES.NAME", names, "MODEL.LOSSES.PLAINCLASS.MARGIN", 1.0])
    losses: Any = build_losses(cfg.MODEL.LOSSES, num_classes=2, output_size=lambda _: 2)[1]
    ones, labels = torch.ones(2, 2), torch.arange(2)
    assert [losses[name](ones, labels).item() for name in ("PlainClass", "PlainObject", "AFunction")] == [5, 6, 12]
    assert isinstance(losses["AModule"], nn.CosineSimilarity)


def test_a_name_of_ours_is_replaced_only_on_request_and_with_a_line(folder, caplog, monkeypatch):
    monkeypatch.setattr("pml_ext.runner.registry.log.propagate", True)
    with pytest.raises(UserError, match="register it under another one, or with replace=True"):
        LOSS_REGISTRY.register("TripletMarginLoss")(Plain)
    names = list(LOSS_REGISTRY)
    with caplog.at_level(logging.INFO):
        LOSS_REGISTRY.register("TripletMarginLoss", replace=True)(Plain)
    assert {record.getMessage() for record in caplog.records} == {
        "MODEL.LOSSES.NAME: TripletMarginLoss of tests.runner.test_users_parts replaces that of "
        "pml_ext.runner.modeling.losses"
    }
    assert list(LOSS_REGISTRY) == names
    cfg = load_config("Digits/sap_tcm.yml", ["MODEL.LOSSES.NAME", ("TripletMarginLoss",)])
    assert {**cfg.MODEL.LOSSES.TRIPLETMARGIN} == {"SCALE": 1.0, "MARGIN": 0.5}
    loss: Any = build_losses(cfg.MODEL.LOSSES, num_classes=2, output_size=lambda _: 2)[1]["TripletMarginLoss"]
    assert loss(torch.ones(2, 2), torch.arange(2)).item() == 4.5


def test_a_part_in_place_of_its_name_is_refused(folder):
    with pytest.raises(UserError, match=r"takes the name of a part; got <class.*Plain'>\. Write register\(\)\(Plain\)"):
        LOSS_REGISTRY.register(Plain)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "node"), [("Mine", "MS"), ("MSLoss", "MS"), ("TripletMarginLoss", "MS")])
def test_a_part_replaces_the_one_that_has_its_node(folder, name, node):
    with pytest.raises(UserError, match="or with replace=True"):
        LOSS_REGISTRY.register(name, node=node)(Plain)
    place = min(list(LOSS_REGISTRY).index(each) for each in ("MultiSimilarityLoss", name) if each in LOSS_REGISTRY)
    LOSS_REGISTRY.register(name, node=node, replace=True)(Plain)
    LOSS_REGISTRY.register(name, node=node, replace=True)(Plain)
    assert "MultiSimilarityLoss" not in LOSS_REGISTRY and list(LOSS_REGISTRY).index(name) == place
    cfg = load_config("Digits/sap_tcm.yml", ["MODEL.LOSSES.NAME", (name,), f"MODEL.LOSSES.{node}.MARGIN", 0.25])
    loss: Any = build_losses(cfg.MODEL.LOSSES, num_classes=2, output_size=lambda _: 2)[1][name]
    assert loss(torch.ones(2, 2), torch.arange(2)).item() == 4.25
    with pytest.raises(UserError, match=r"MODEL.LOSSES.MS.ALPHA"):
        load_config("Digits/sap_tcm.yml", ["MODEL.LOSSES.MS.ALPHA", 2.0])


def test_a_miner_replaces_the_one_that_has_its_node(folder):
    MINER_REGISTRY.register("Mine", node="MS", replace=True)(Plain)
    assert "MultiSimilarityMiner" not in MINER_REGISTRY
    assert load_config("Digits/sap_tcm.yml", ["MODEL.MINER.MS.MARGIN", 0.25]).MODEL.MINER.MS.MARGIN == 0.25


class Configured(Baseline):
    @configurable
    def __init__(self, *, backbone, heads, second, pixel_mean, pixel_std, loss_kwargs=None):
        super().__init__(
            backbone=backbone, heads=heads, pixel_mean=pixel_mean, pixel_std=pixel_std, loss_kwargs=loss_kwargs
        )
        self.second = second

    @classmethod
    def from_config(cls, cfg):
        return {**super().from_config(cfg), "second": build_heads(cfg)}


def test_a_configurable_subclass_of_baseline(folder):
    META_ARCH_REGISTRY.register()(Configured)
    words = [*DIGITS, "MODEL.META_ARCHITECTURE", "Configured", "MODEL.BACKBONE.FEAT_DIM", 64]
    words += ["MODEL.HEADS.NUM_CLASSES", 3, "MODEL.LOSSES.TRI.MARGIN", 0.2]
    cfg = load_config("Digits/sap_tcm.yml", words)
    model: Any = build_model(cfg)
    assert model.device == torch.device("cpu") and model.second.weight.shape == model.heads.weight.shape == (3, 64)
    assert model.loss_kwargs["loss_names"] == cfg.MODEL.LOSSES.NAME
    assert model.loss_kwargs["tri"] == {"margin": 0.2, "norm_feat": False, "hard_mining": False, "scale": 1.0}
    assert model.loss_kwargs["ce"] == {"eps": 0.0, "alpha": 0.2, "scale": 1.0}


class TupleHead(EmbeddingHead):
    def forward(self, features, targets=None):
        outputs = super().forward(features, targets)
        return outputs if self.training else (outputs, features.sum(dim=(2, 3)))


def test_a_heads_tuple_begins_with_the_embeddings_and_reaches_an_evaluator(folder):
    REID_HEADS_REGISTRY.register()(TupleHead)
    cfg = load_config("Digits/sap_tcm.yml", [*DIGITS, "MODEL.HEADS.NAME", "TupleHead"])
    network, images = PixelsToEmbedding(cfg).eval(), torch.rand(2, 1, 8, 8)
    plain = PixelsToEmbedding(load_config("Digits/sap_tcm.yml", DIGITS)).eval()
    plain.load_state_dict(network.state_dict())
    torch.testing.assert_close(network(images), plain(images))
    both = averaged(network.model, {"images": images}, flip=True)
    assert [tuple(part.shape) for part in both] == [(2, 64), (2, 64)]


def test_a_project_registers_a_name_of_fastreid_that_is_not_built_here(folder):
    words = [*DIGITS, "MODEL.HEADS.NAME", "DSRHead"]
    assert "MODEL.HEADS.NAME = 'DSRHead': partial ReID" in problems(load_config("Digits/sap_tcm.yml", words))[0]
    REID_HEADS_REGISTRY.register("DSRHead")(TupleHead)
    assert problems(load_config("Digits/sap_tcm.yml", words)) == []


def test_names_of_fastreids_modules():
    norm: Any = get_norm("BN", 4, bias_freeze=True)
    assert not norm.bias.requires_grad and norm.weight.requires_grad
    assert isinstance(get_norm("", 4, bias_freeze=True), nn.Identity)
    cfg = load_config("Market1501/bagtricks_R50.yml", ["MODEL.BACKBONE.DEPTH", "18x", "MODEL.BACKBONE.PRETRAIN", False])
    net: Any = build_resnet_backbone(cfg)
    assert net.relu is net.act1 and not any(name.startswith("relu") for name, _ in net.named_children())


def test_an_evaluator_returns_texts_or_nothing(caplog, monkeypatch):
    monkeypatch.setattr("pml_ext.runner.evaluation.user_evaluator.log.propagate", True)
    for found, expected in (({"file": "out.csv", "hits": 1}, {"hits": 1.0}), (None, {}), ({}, {})):
        made: Any = SimpleNamespace(evaluate=lambda rows, found=found: found)
        with caplog.at_level(logging.INFO):
            assert UserEvaluator(made).measure([{}]) == expected
    assert "file out.csv" in caplog.text
    for wrong in ("text", [1], {"hits": [1]}):
        made = SimpleNamespace(evaluate=lambda rows, found=wrong: found)
        with pytest.raises(UserError, match=r"evaluate must return .*numbers and texts; got"):
            UserEvaluator(made).measure([{}])


def test_parameters_without_a_gradient_are_named_with_the_key():
    net: Any = nn.Module()
    net.model, net.trainer = (
        nn.ModuleDict({"used": nn.Linear(1, 1), "unused": nn.Linear(1, 1)}),
        SimpleNamespace(world_size=2),
    )
    net.cfg = load_config("Digits/sap_tcm.yml")
    net.model["used"](torch.ones(1, 1)).sum().backward()
    with pytest.raises(UserError, match=r"parameters unused.weight, unused.bias, .*SOLVER.FIND_UNUSED_PARAMETERS True"):
        TrainingModule.on_after_backward(net)
    net.cfg = load_config("Digits/sap_tcm.yml", ["SOLVER.FIND_UNUSED_PARAMETERS", True])
    TrainingModule.on_after_backward(net)


def test_initial_weights_of_fastreid():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(400, 100), nn.Conv2d(8, 64, 3), nn.BatchNorm2d(8))
    for layer in layers:
        nn.init.constant_(layer.weight, 7.0)
        nn.init.constant_(layer.bias, 7.0)
    layers.apply(weights_init_kaiming)
    linear, convolution, norm = layers
    assert linear.weight.std().item() == pytest.approx(0.01, rel=0.05)
    assert convolution.weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.05)  # fan out
    assert norm.weight.eq(1).all() and all(layer.bias.eq(0).all() for layer in layers)
