import pytest
import torch
from yacs.config import CfgNode

from pml_ext.training.backbones import build_backbone
from pml_ext.training.config import ConfigError
from pml_ext.training.defaults import get_cfg
from pml_ext.training.heads import build_head


def config(**heads: object) -> CfgNode:
    cfg = get_cfg()
    cfg.MODEL.PIXEL_MEAN = cfg.MODEL.PIXEL_STD = [127.5]
    cfg.INPUT.SIZE_TRAIN = cfg.INPUT.SIZE_TEST = [12, 8]
    cfg.MODEL.BACKBONE.NAME = "build_convnet_backbone"
    cfg.MODEL.BACKBONE.DEPTH = "2x"
    cfg.MODEL.BACKBONE.FEAT_DIM = 6
    for key, value in heads.items():
        cfg.MODEL.HEADS[key] = value
    return cfg


def test_losses_see_the_feature_before_or_after_the_neck_and_tests_the_neck() -> None:
    for neck_feat, size in (("before", 6), ("after", 4)):
        cfg = config(EMBEDDING_DIM=4, WITH_BNNECK=True, NECK_FEAT=neck_feat)
        backbone = build_backbone(cfg)
        head = build_head(cfg, backbone, num_classes=3)
        maps = backbone(torch.randn(5, 1, 12, 8))
        assert maps.shape == (5, 6, 3, 2)
        output = head(maps)
        assert output.features.shape == (5, size)
        assert head.feature_size == size
        assert output.logits is not None
        assert output.logits.shape == (5, 3)
        pooled = maps.mean(dim=(2, 3))
        expected = pooled if neck_feat == "before" else head.bottleneck(pooled[..., None, None]).flatten(1)
        torch.testing.assert_close(output.features, expected)
        tested = head.eval()(maps)
        assert tested.logits is None
        torch.testing.assert_close(tested.features, head.bottleneck(pooled[..., None, None]).flatten(1))


def test_the_bnneck_has_no_trainable_shift() -> None:
    cfg = config(WITH_BNNECK=True)
    head = build_head(cfg, build_backbone(cfg), 0)
    assert {n: p.requires_grad for n, p in head.named_parameters()} == {
        "bottleneck.0.weight": True,
        "bottleneck.0.bias": False,
    }


def test_flatten_keeps_the_places() -> None:
    cfg = config(POOL_LAYER="Flatten", NECK_FEAT="before")
    backbone = build_backbone(cfg)
    head = build_head(cfg, backbone, 0)
    maps = backbone(torch.randn(5, 1, 12, 8))
    assert head.feature_size == 36
    torch.testing.assert_close(head(maps).features, maps.flatten(1))
    assert backbone.training
    cfg.INPUT.SIZE_TEST = [8, 8]
    with pytest.raises(ConfigError, match=r"Flatten needs one fixed image size: INPUT\.SIZE_TRAIN is \[12, 8\]"):
        build_head(cfg, backbone, 0)


@pytest.mark.parametrize("norm", ["BN", "GN", "none"])
def test_norms(norm: str) -> None:
    cfg = config()
    cfg.MODEL.BACKBONE.NORM = norm
    backbone = build_backbone(cfg)
    images = torch.randn(4, 1, 12, 8)
    alone = torch.allclose(backbone(images)[:1], backbone(images[:1]), atol=1e-5)
    assert alone == (norm != "BN"), "only batch norm lets the batch matter"


def test_a_timm_backbone() -> None:
    cfg = config()
    cfg.MODEL.BACKBONE.NAME = "timm:resnet10t"
    with pytest.raises(ConfigError, match=r"FEAT_DIM must be 512 for timm:resnet10t; got 6"):
        build_backbone(cfg)
    cfg.MODEL.BACKBONE.FEAT_DIM = 512
    assert build_backbone(cfg)(torch.randn(2, 1, 64, 32)).shape == (2, 512, 2, 1)
    cfg.MODEL.BACKBONE.NAME = "timm:resnet_10t"
    with pytest.raises(ConfigError, match=r"has no model 'resnet_10t'; near: \[.*resnet"):
        build_backbone(cfg)


def test_unknown_names_list_the_known() -> None:
    cfg = config(POOL_LAYER="GeM")
    with pytest.raises(ConfigError, match=r"POOL_LAYER: unknown value 'GeM'.* Known: 'GlobalAvgPool'"):
        build_head(cfg, build_backbone(cfg), 0)
    cfg.MODEL.BACKBONE.NAME = "build_resnet_backbone"
    with pytest.raises(ConfigError, match=r"BACKBONE\.NAME: unknown value 'build_resnet_backbone'"):
        build_backbone(cfg)
    cfg.MODEL.BACKBONE.NAME, cfg.MODEL.BACKBONE.DEPTH = "build_convnet_backbone", "50x"
    with pytest.raises(ConfigError, match=r"DEPTH must be '1x' to '8x'.*got '50x'"):
        build_backbone(cfg)
    cfg.MODEL.BACKBONE.DEPTH, cfg.MODEL.BACKBONE.PRETRAIN = "2x", True
    with pytest.raises(ConfigError, match=r"PRETRAIN needs MODEL\.BACKBONE\.PRETRAIN_PATH"):
        build_backbone(cfg)
