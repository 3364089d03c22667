from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from yacs.config import CfgNode as CN

from pml_ext.runner.checks.check import problems
from pml_ext.runner.config.load import load_config
from pml_ext.runner.data.datasets import ImageSet
from pml_ext.runner.engine.training_module import TrainingModule
from pml_ext.runner.modeling.architectures import build_model
from pml_ext.runner.modeling.losses.fastreid_losses import CrossEntropyLoss, TripletLoss
from pml_ext.runner.modeling.weights.load import ONLY_FOR_TRAINING, load_weights
from tests.runner.modeling.networks import module_of

CONFIG = Path(__file__).parents[4] / "fastreid_configs" / "Market1501" / "mgn_R50-ibn.yml"
SMALL = [
    "MODEL.DEVICE", "cpu", "MODEL.BACKBONE.PRETRAIN", "False", "MODEL.HEADS.EMBEDDING_DIM", "8",
    "INPUT.SIZE_TRAIN", "[48, 16]", "INPUT.SIZE_TEST", "[48, 16]",
]  # fmt: skip
HEADS = ("b1_head", "b2_head", "b3_head", "b21_head", "b22_head", "b31_head", "b32_head", "b33_head")
Shapes = dict[str, tuple[int, ...]]


def small(*opts: str) -> CN:
    return load_config(CONFIG, [*SMALL, *opts])


def batch_norm(name: str, channels: int) -> Shapes:
    of_channels = {f"{name}.{part}": (channels,) for part in ("weight", "bias", "running_mean", "running_var")}
    return {**of_channels, f"{name}.num_batches_tracked": ()}


def bottleneck(name: str, inputs: int, planes: int, ibn: bool, downsample: bool) -> Shapes:
    shapes: Shapes = {f"{name}.conv1.weight": (planes, inputs, 1, 1)}
    if ibn:  # half of the channels, whose statistics are those of each image
        shapes |= {f"{name}.bn1.IN.weight": (planes // 2,), f"{name}.bn1.IN.bias": (planes // 2,)}
        shapes |= batch_norm(f"{name}.bn1.BN", planes // 2)
    else:
        shapes |= batch_norm(f"{name}.bn1", planes)
    shapes |= {f"{name}.conv2.weight": (planes, planes, 3, 3)} | batch_norm(f"{name}.bn2", planes)
    shapes |= {f"{name}.conv3.weight": (4 * planes, planes, 1, 1)} | batch_norm(f"{name}.bn3", 4 * planes)
    if downsample:
        shapes[f"{name}.downsample.0.weight"] = (4 * planes, inputs, 1, 1)
        shapes |= batch_norm(f"{name}.downsample.1", 4 * planes)
    return shapes


def fastreids(classes: int, size: int) -> Shapes:
    """Names and shapes in the state of FastReID's MGN on ResNet-50 with IBN, as its source defines them."""
    shapes: Shapes = {"backbone.0.weight": (64, 3, 7, 7)} | batch_norm("backbone.1", 64)  # 2 and 3: ReLU, pool
    for stage, inputs, planes, blocks in ((4, 64, 64, 3), (5, 256, 128, 4)):
        for i in range(blocks):
            shapes |= bottleneck(f"backbone.{stage}.{i}", 4 * planes if i else inputs, planes, True, i == 0)
    shapes |= bottleneck("backbone.6", 512, 256, True, True)
    for branch in ("b1", "b2", "b3"):
        for i in range(5):
            shapes |= bottleneck(f"{branch}.0.{i}", 1024, 256, True, False)
        for i in range(3):
            shapes |= bottleneck(f"{branch}.1.{i}", 2048 if i else 1024, 512, False, i == 0)
    for head in HEADS:
        shapes |= {f"{head}.weight": (classes, size), f"{head}.pool_layer.p": (1,)}
        shapes |= {f"{head}.bottleneck.0.weight": (size, 2048, 1, 1)} | batch_norm(f"{head}.bottleneck.1", size)
    return shapes


def test_fastreids_weights_load_key_for_key(tmp_path: Path) -> None:
    shapes = fastreids(5, 8)
    assert len(shapes) == 728
    state = {name: torch.rand(shape) for name, shape in shapes.items()}
    torch.save({"model": state}, tmp_path / "model_best.pth")
    whole = build_model(small(), num_classes=5)
    load_weights(whole, tmp_path / "model_best.pth")
    assert whole.state_dict().keys() == shapes.keys()
    of_numbers = (name for name in shapes if not name.endswith("num_batches_tracked"))
    assert all(torch.equal(whole.state_dict()[name], state[name]) for name in of_numbers)
    assert {f"{head}.weight" for head in HEADS} <= {*ONLY_FOR_TRAINING}


def test_the_branches_begin_with_the_same_weights() -> None:
    model: Any = build_model(small("MODEL.BACKBONE.LAST_STRIDE", "2"))
    for name, value in model.b1.state_dict().items():
        assert torch.equal(value, model.b2.state_dict()[name]) and torch.equal(value, model.b3.state_dict()[name])
    assert model.b1[1][0].conv2.stride == model.b1[1][0].downsample[0].stride == (2, 2)
    assert model.b2[1][0].conv2.stride == model.b3[1][0].downsample[0].stride == (1, 1)


def test_the_embedding_is_whole_then_halves_then_thirds() -> None:
    torch.manual_seed(0)
    module: Any = build_model(small()).eval()
    images = torch.randint(0, 256, (2, 3, 96, 16)).float()  # a map of 6 rows
    with torch.no_grad():
        found = module({"images": images})
        shared = module.backbone(module.preprocess_image({"images": images}))
        whole, halved, cut = module.b1(shared), module.b2(shared), module.b3(shared)
        parts = {
            "b1_head": whole, "b2_head": halved, "b3_head": cut, "b21_head": halved[:, :, :3],
            "b22_head": halved[:, :, 3:], "b31_head": cut[:, :, :2], "b32_head": cut[:, :, 2:4],
            "b33_head": cut[:, :, 4:],
        }  # fmt: skip
        expected = [getattr(module, head)(part) for head, part in parts.items()]
    assert found.shape == (2, 8 * 8)
    torch.testing.assert_close(found, torch.cat(expected, dim=1))


@pytest.fixture
def training() -> Iterator[tuple[TrainingModule, torch.Tensor, torch.Tensor]]:
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    images = [torch.zeros(3, 4, 4, dtype=torch.uint8)] * 6
    people = ImageSet(images, labels.numpy(), np.zeros(6, dtype=np.int64), [""] * 6)
    torch.manual_seed(0)
    opts = ["MODEL.LOSSES.CE.SCALE", "2.0", "MODEL.LOSSES.TRI.SCALE", "3.0"]
    module = module_of(small(*opts), people)
    yield module, torch.randint(0, 256, (6, 3, 48, 16)).float(), labels


def test_losses_are_means_over_heads_and_features(training: tuple[TrainingModule, torch.Tensor, torch.Tensor]) -> None:
    module, images, labels = training
    heads: dict[str, Any] = {}
    for name in HEADS:
        head = getattr(module.model, name)
        head.register_forward_hook(lambda _, __, out, name=name: heads.update({name: out}))
    outputs = module.model.compute_outputs({"images": images, "targets": labels})
    values = module.model.losses(outputs, labels)
    ce, triplet = CrossEntropyLoss(epsilon=0.1), TripletLoss(margin=0.0, hard_mining=True)
    expected = 2 * 0.125 * sum(ce(head["cls_outputs"], labels) for head in heads.values())
    torch.testing.assert_close(values["CrossEntropyLoss"], expected)
    features = [
        heads["b1_head"]["features"], heads["b2_head"]["features"], heads["b3_head"]["features"],
        torch.cat([heads["b21_head"]["features"], heads["b22_head"]["features"]], dim=1),
        torch.cat([heads["b31_head"]["features"], heads["b32_head"]["features"], heads["b33_head"]["features"]], dim=1),
    ]  # fmt: skip
    torch.testing.assert_close(values["TripletLoss"], 3 * 0.2 * sum(triplet(part, labels) for part in features))
    assert outputs["pred_class_logits"] is heads["b1_head"]["pred_class_logits"]
    sum(values.values()).backward()  # type: ignore[union-attr]
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in module.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("opts", "expected"),
    [
        (["INPUT.SIZE_TEST", "[64, 16]"], ["MODEL.META_ARCHITECTURE MGN cuts its maps into 3 stripes of equal height"]),
        (
            ["MODEL.BACKBONE.NAME", "build_resnext_backbone"],
            ["MODEL.BACKBONE.NAME = 'build_resnext_backbone': must be build_resnet_backbone"],
        ),
        (
            ["MODEL.HEADS.POOL_LAYER", "Flatten", "MODEL.LOSSES.NAME", "('ProxyNCALoss', 'CrossEntropyLoss')"],
            ["MODEL.HEADS.POOL_LAYER = 'Flatten': does not fit", "MODEL.LOSSES.NAME = ('ProxyNCALoss', 'Cross"],
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(opts: list[str], expected: list[str]) -> None:
    lines = problems(small(*opts))
    assert len(lines) == len(expected), lines
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True))
