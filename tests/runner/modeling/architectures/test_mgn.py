import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pml_ext.runner.checks.check import problems
from pml_ext.runner.config.load import load_config
from pml_ext.runner.data.datasets import ImageSet
from pml_ext.runner.modeling.architectures import build_model
from pml_ext.runner.modeling.losses.fastreid_losses import CrossEntropyLoss, TripletLoss
from pml_ext.runner.modeling.weights.load import ONLY_FOR_TRAINING
from tests.runner.modeling.networks import module_of

CONFIG = Path(__file__).parents[4] / "fastreid_configs" / "Market1501" / "mgn_R50-ibn.yml"
SMALL = [
    "MODEL.DEVICE", "cpu", "MODEL.BACKBONE.PRETRAIN", "False", "MODEL.HEADS.EMBEDDING_DIM", "8",
    "INPUT.SIZE_TRAIN", "[48, 16]", "INPUT.SIZE_TEST", "[48, 16]",
]  # fmt: skip
HEADS = ("b1_head", "b2_head", "b3_head", "b21_head", "b22_head", "b31_head", "b32_head", "b33_head")


def small(*opts):
    return load_config(CONFIG, [*SMALL, *opts])


def test_names_and_shapes_are_fastreids():
    """The hash of a line `name shape` for each of the 728 parts of FastReID's MGN on ResNet-50 with IBN."""
    with torch.device("meta"):
        state = build_model(small(), num_classes=5).state_dict()
    lines = [f"{name} {tuple(value.shape)}" for name, value in state.items()]
    assert len(lines) == 728
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] == "bf185b6cf0dc3a01", lines
    assert {f"{head}.weight" for head in HEADS} <= {*ONLY_FOR_TRAINING}


RESNET_18 = ["MODEL.BACKBONE.DEPTH", "18x", "MODEL.BACKBONE.FEAT_DIM", "512"]


def test_the_branches_begin_with_the_same_weights():
    model: Any = build_model(small("MODEL.BACKBONE.LAST_STRIDE", "2", *RESNET_18))
    for name, value in model.b1.state_dict().items():
        assert torch.equal(value, model.b2.state_dict()[name]) and torch.equal(value, model.b3.state_dict()[name])
    assert model.b1[1][0].conv1.stride == model.b1[1][0].downsample[0].stride == (2, 2)
    assert model.b2[1][0].conv1.stride == model.b3[1][0].downsample[0].stride == (1, 1)


def test_the_embedding_is_whole_then_halves_then_thirds():
    torch.manual_seed(0)
    module: Any = build_model(small(*RESNET_18)).eval()
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
def training():
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    images = [torch.zeros(3, 4, 4, dtype=torch.uint8)] * 6
    people = ImageSet(images, labels.numpy(), np.zeros(6, dtype=np.int64), [""] * 6)
    torch.manual_seed(0)
    opts = ["MODEL.LOSSES.CE.SCALE", "2.0", "MODEL.LOSSES.TRI.SCALE", "3.0"]
    module = module_of(small(*RESNET_18, *opts), people)
    yield module, torch.randint(0, 256, (6, 3, 48, 16)).float(), labels


def test_losses_are_means_over_heads_and_features(training):
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
    parts = [heads[name]["features"] for name in HEADS]
    features = [*parts[:3], torch.cat(parts[3:5], dim=1), torch.cat(parts[5:], dim=1)]
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
def test_what_does_not_fit_is_refused(opts, expected):
    lines = problems(small(*opts))
    assert len(lines) == len(expected), lines
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True))
