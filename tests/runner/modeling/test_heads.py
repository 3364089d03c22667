import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from yacs.config import CfgNode

from pml_ext._shared.errors import UserError
from pml_ext.runner.checks.check import require_supported
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.modeling.architectures import build_model
from pml_ext.runner.modeling.backbones import build_backbone
from pml_ext.runner.modeling.heads import CLS_LAYERS, POOL_LAYERS, GeneralizedMean
from tests.oracles.heads import class_score, generalized_mean
from tests.runner.modeling.networks import head_of

MARGINS = [name for name in CLS_LAYERS if name != "Linear"]


def config(**heads):
    cfg = get_cfg()
    cfg.MODEL.DEVICE = "cpu"
    cfg.MODEL.PIXEL_MEAN = cfg.MODEL.PIXEL_STD = [127.5]
    cfg.INPUT.SIZE_TRAIN = cfg.INPUT.SIZE_TEST = [12, 8]
    cfg.MODEL.BACKBONE.NAME = "build_convnet_backbone"
    cfg.MODEL.BACKBONE.DEPTH = "2x"
    cfg.MODEL.BACKBONE.FEAT_DIM = 6
    for key, value in heads.items():
        cfg.MODEL.HEADS[key] = value
    return cfg


def classifier(name, *, size=5, classes=4, margin=0.35, **options):
    made = Classifier(CLS_LAYERS[name](scale=16.0, margin=margin, **options), size, classes).double()
    nn.init.normal_(made.weight)
    return made


class Classifier(nn.Module):
    """Class vectors and a classification layer, as a head has them."""

    def __init__(self, layer, size, classes):
        super().__init__()
        self.weight, self.layer = nn.Parameter(torch.empty(classes, size)), layer

    def forward(self, x, labels):
        similarities = self.layer.similarities(x, self.weight)
        return SimpleNamespace(logits=self.layer(similarities, labels), scores=self.layer.s * similarities)


@pytest.mark.parametrize("name", CLS_LAYERS)
def test_class_scores_against_the_formulas(name):
    layer = classifier(name)
    # over the whole range of cosines to the own class, ends included
    w = nn.functional.normalize(layer.weight[0].detach(), dim=0)
    aside = torch.randn_like(w)
    aside = nn.functional.normalize(aside - (aside @ w) * w, dim=0)
    x = torch.stack([2 * (math.cos(t) * w + math.sin(t) * aside) for t in torch.linspace(0.01, 3.13, 12).tolist()])
    for label in (0, 3):
        found = layer(x, torch.full((len(x),), label))
        logits, scores = found.logits, found.scores
        for i, row in enumerate(x.tolist()):
            for c, weight in enumerate(layer.weight.tolist()):
                expected = class_score(name, row, weight, c == label, 16.0, 0.35)
                assert logits[i, c].item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
        plain = classifier(name if name == "Linear" else "CosSoftmax", margin=0.0)
        plain.weight.data.copy_(layer.weight)
        torch.testing.assert_close(scores, plain(x, torch.full((len(x),), label)).scores)


@pytest.mark.parametrize("name", MARGINS)
def test_other_classes_of_a_large_cosine_have_no_part(name):
    layer, own = classifier(name, size=2, classes=16, filter_above=0.5), 3
    x = 2 * layer.weight[own].detach().requires_grad_()
    logits = layer(x[None], torch.tensor([own])).logits[0]
    for c, weight in enumerate(layer.weight.tolist()):
        expected = class_score(name, x.tolist(), weight, c == own, 16.0, 0.35, above=0.5)
        assert logits[c].item() == pytest.approx(expected, rel=1e-6, abs=1e-9)
    (gradient,) = torch.autograd.grad(logits.sum(), layer.weight)
    filtered = logits == 0
    assert 0 < filtered.sum() < 16 and (gradient[filtered] == 0).all() and gradient[~filtered].any(dim=1).all()


@pytest.mark.parametrize("name", CLS_LAYERS)
def test_gradients_of_class_scores(name):
    layer = classifier(name)
    x, labels = torch.randn(3, 5, dtype=torch.float64, requires_grad=True), torch.tensor([0, 3, 0])
    if name == "CircleSoftmax":
        # its factors carry no gradient: with them held, each score is linear in its cosine
        cosines = nn.functional.normalize(x) @ nn.functional.normalize(layer.weight).T
        own = nn.functional.one_hot(labels, 4).bool()
        factors = torch.where(own, (1.35 - cosines).clamp_min(0), (cosines + 0.35).clamp_min(0)).detach()
        expected = torch.autograd.grad((16 * factors * cosines).sum(), x)[0]
        torch.testing.assert_close(torch.autograd.grad(layer(x, labels).logits.sum(), x)[0], expected)
    else:
        assert torch.autograd.gradcheck(lambda x: layer(x, labels).logits, (x,))


@pytest.mark.parametrize("name", MARGINS)
def test_embeddings_on_a_class_weight_and_opposite_to_it(name):
    layer = classifier(name).float()
    x = torch.cat([3 * layer.weight, -layer.weight]).detach().requires_grad_()
    found = layer(x, torch.arange(4).repeat(2))
    logits, scores = found.logits, found.scores
    logits.sum().backward()
    assert torch.isfinite(x.grad).all()
    assert torch.isfinite(layer.weight.grad).all()
    torch.testing.assert_close(scores.diag(), torch.full((4,), 16.0))
    expected = class_score(name, [1.0], [1.0], True, 16.0, 0.35)
    assert logits.diag().tolist() == pytest.approx([expected] * 4, rel=1e-3)


def test_margins_are_computed_in_32_bits_under_autocast():
    for name in MARGINS:
        layer = classifier(name).float()
        x, labels = torch.randn(6, 5), torch.arange(6) % 4
        with torch.autocast("cpu", torch.bfloat16):
            logits = layer(x, labels).logits
        assert torch.equal(logits, layer(x, labels).logits)
    with pytest.raises(ValueError, match=r"CosSoftmax needs labels of shape \(6,\) in training; got None"):
        classifier("CosSoftmax").float()(x, None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("FastGlobalAvgPool", lambda v: sum(v) / len(v)),
        ("GlobalMaxPool", max),
        ("AdaptiveAvgMaxPool", lambda v: sum(v) / len(v) + max(v)),
        ("ClipGlobalAvgPool", lambda v: min(1.0, max(0.0, sum(v) / len(v)))),
        ("GeneralizedMeanPoolingP", lambda v: generalized_mean(v, 3.0)),
    ],
)
def test_pooling_against_loops(name, expected):
    maps = torch.randn(3, 4, 5, 2, dtype=torch.float64) + torch.tensor([-2.0, 0.0, 0.5, 2.0])[:, None, None]
    pooled = POOL_LAYERS[name]()(maps)
    assert pooled.shape == (3, 4, 1, 1)
    for b in range(3):
        for c in range(4):
            assert pooled[b, c, 0, 0].item() == pytest.approx(expected(maps[b, c].flatten().tolist()), rel=1e-6)


def test_the_trained_power_of_generalized_mean():
    layer = GeneralizedMean(2.0, trained=True).double()
    maps = torch.rand(2, 3, 4, 2, dtype=torch.float64) + 0.1
    assert dict(layer.named_parameters()).keys() == {"p"}
    pool = lambda x, p: torch.func.functional_call(layer, {"p": p}, (x,))  # noqa: E731
    assert torch.autograd.gradcheck(pool, (maps.requires_grad_(), layer.p))
    large = torch.full((1, 1, 2, 2), 1e4).half()  # its cube is not a number of 16 bits
    with torch.autocast("cpu", torch.bfloat16):
        assert POOL_LAYERS["GeneralizedMeanPooling"]()(large).item() == pytest.approx(1e4)


def test_losses_see_the_feature_before_or_after_the_neck_and_tests_the_neck():
    for neck_feat, size in (("before", 6), ("after", 4)):
        cfg = config(EMBEDDING_DIM=4, WITH_BNNECK=True, NECK_FEAT=neck_feat, CLS_LAYER="CosSoftmax", MARGIN=0.3)
        backbone, head = build_backbone(cfg), head_of(cfg, num_classes=3)
        maps, labels = backbone(torch.randn(5, 1, 12, 8)), torch.tensor([0, 1, 2, 0, 1])
        assert maps.shape == (5, 6, 3, 2)
        output: Any = head(maps, labels)
        assert output["features"].shape == (5, size)
        margins = output["pred_class_logits"] - output["cls_outputs"]
        torch.testing.assert_close(margins, 0.3 * nn.functional.one_hot(labels, 3).float())
        pooled = maps.mean(dim=(2, 3))
        expected = pooled if neck_feat == "before" else head.bottleneck(pooled[..., None, None]).flatten(1)
        torch.testing.assert_close(output["features"], expected)
        torch.testing.assert_close(head.eval()(maps), head.bottleneck(pooled[..., None, None]).flatten(1))


def test_the_reduction_can_have_two_layers():
    head = head_of(config(HIDDEN_DIM=5, EMBEDDING_DIM=4, NECK_FEAT="after"))
    assert [tuple(p.shape) for p in head.parameters()] == [(5, 6, 1, 1), (4, 5, 1, 1)]
    first, second = (p.flatten(1) for p in head.parameters())
    maps = torch.randn(3, 6, 2, 2)
    torch.testing.assert_close(head(maps)["features"], maps.mean(dim=(2, 3)) @ first.T @ second.T)  # type: ignore[index]


def test_flatten_keeps_the_places():
    cfg = config(POOL_LAYER="Flatten", NECK_FEAT="before")
    backbone, head = build_backbone(cfg), head_of(cfg)
    maps = backbone(torch.randn(5, 1, 12, 8))
    torch.testing.assert_close(head(maps)["features"], maps.flatten(1))  # type: ignore[index]
    assert backbone.training
    cfg.INPUT.SIZE_TEST = [8, 8]
    with pytest.raises(UserError, match=r"FEAT_DIM must be 36 for .*; got 24. With .*Flatten all images"):
        require_supported(cfg)


def test_flatten_takes_fastreids_feat_dim():
    cfg = config(NAME="FaceHead", POOL_LAYER="Flatten", EMBEDDING_DIM=8)
    cfg.MODEL.BACKBONE.update({"NAME": "build_iresnet_backbone", "DEPTH": "18x", "FEAT_DIM": 25088})
    cfg.INPUT.SIZE_TRAIN = cfg.INPUT.SIZE_TEST = [0]  # images as they are
    with torch.device("meta"):
        model: Any = build_model(cfg).eval()
        assert model.heads.bottleneck[0].weight.shape == (8, 25088, 1, 1)
        assert model({"images": torch.zeros(2, 1, 112, 112)}).shape == (2, 8)
        with pytest.raises(UserError, match=r"FEAT_DIM must be 3072 for images of this size; got 25088"):
            model({"images": torch.zeros(2, 1, 32, 48)})


def test_identity_needs_maps_of_one_place():
    head = head_of(config(POOL_LAYER="Identity")).eval()
    assert head(torch.ones(2, 6, 1, 1)).shape == (2, 6)
    with pytest.raises(UserError, match=r"Identity needs a backbone with maps of 1×1; got \(3, 2\)"):
        head(torch.ones(2, 6, 3, 2))


def test_mistakes_are_named():
    for options, message in [
        ({"NAME": "ClasHead"}, r"NAME = 'ClasHead': it tests class scores"),
        ({"WITH_BNNECK": True, "NORM": "LN"}, r"HEADS.NORM = 'LN': unknown"),
        ({"EMBEDDING_DIM": -1}, r"MODEL.HEADS.EMBEDDING_DIM must be at least 0; got -1"),
        ({"NECK_FEAT": "behind"}, "MODEL.HEADS.NECK_FEAT must be one of 'before', 'after'; got 'behind'"),
        ({"SCALE": 0.0}, "MODEL.HEADS.SCALE must be above 0"),
        ({"HIDDEN_DIM": 8}, r"HIDDEN_DIM = 8: needs an EMBEDDING_DIM"),
        ({"PFC": CfgNode({"ENABLED": True, "SAMPLE_RATE": 1.5})}, r"HEADS.PFC: sample_rate must be in \(0, 1\]"),
    ]:
        cfg = config(**options)
        with pytest.raises(UserError, match=message):
            require_supported(cfg)
