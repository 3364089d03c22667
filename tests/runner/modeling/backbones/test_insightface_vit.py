"""insightface's vision transformers: values against the formula, the parameters of each, files, training and export."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from pml_ext._errors import UserError
from pml_ext.runner.checks.check import require_supported
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.engine.exporting import export
from pml_ext.runner.modeling.architectures import build_model
from pml_ext.runner.modeling.backbones import insightface
from pml_ext.runner.modeling.pixels_to_embedding import unit_embeddings
from pml_ext.runner.modeling.weights.load import load_pretrained, load_weights
from tests.oracles.insightface_vit import parameters, vision_transformer

# What insightface's get_model gives its VisionTransformer: width, blocks, whether patches are hidden.
PUBLISHED = {
    "vit_t": (256, 12, True),
    "vit_t_dp005_mask0": (256, 12, False),
    "vit_s": (512, 12, True),
    "vit_s_dp005_mask_0": (512, 12, False),
    "vit_b": (512, 24, True),
    "vit_b_dp005_mask_005": (512, 24, True),
    "vit_l_dp005_mask_005": (768, 24, True),
    "vit_h": (1024, 48, False),
}


def config(depth: str, width: int, size: int = 112) -> CfgNode:
    cfg = get_cfg()
    cfg.MODEL.DEVICE = "cpu"
    cfg.MODEL.PIXEL_MEAN = cfg.MODEL.PIXEL_STD = [127.5] * 3
    cfg.INPUT.SIZE_TRAIN = cfg.INPUT.SIZE_TEST = [size, size]
    cfg.MODEL.BACKBONE.update({"NAME": "build_insightface_vit_backbone", "DEPTH": depth, "FEAT_DIM": width})
    cfg.MODEL.HEADS.update({"EMBEDDING_DIM": 24, "WITH_BNNECK": True, "POOL_LAYER": "Flatten", "NECK_FEAT": "after"})
    return cfg


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> CfgNode:
    """Three blocks of 16 channels, 4 × 4 patches of which 11 are seen in training."""
    monkeypatch.setitem(insightface._VIT_SHAPES, "vit_t", (16, 3, 0.0, 0.3))
    return config("vit_t", 16, 38)


def network(cfg: CfgNode) -> Any:
    """Weights in the place of zeros and ones, so that each of them counts."""
    net = build_model(cfg)
    for name, value in net.state_dict().items():
        if value.ndim == 1 and value.is_floating_point():
            value.copy_(torch.rand_like(value) + (0.5 if name.endswith(("var", "weight")) else -0.5))
        elif value.ndim > 1:
            nn.init.normal_(value, std=0.3)
    return net


@pytest.mark.parametrize(("depth", "facts"), PUBLISHED.items())
def test_each_has_the_parameters_of_insightfaces(depth: str, facts: tuple[int, int, bool]) -> None:
    width, blocks, hides = facts
    assert PUBLISHED.keys() == insightface._VIT_SHAPES.keys()
    cfg = config(depth, width)
    cfg.MODEL.HEADS.EMBEDDING_DIM = 512
    with torch.device("meta"):
        net: Any = build_model(cfg)
    assert sum(weights.numel() for weights in net.parameters()) == parameters(width, blocks, embedding=512)
    assert net.backbone(torch.zeros(2, 3, 112, 112, device="meta")).shape == (2, width, 1, 1)
    assert net.backbone.mask_token.requires_grad == hides, "processes wait for parameters that need a gradient"


def test_values_are_those_of_the_formula(tiny: CfgNode) -> None:
    backbone = network(tiny).backbone.double().eval()
    images = torch.randn(2, 3, 38, 38, dtype=torch.float64)  # 4 × 4 patches, and 2 pixels that no patch sees
    with torch.no_grad():
        found = backbone(images).flatten(1)
        torch.testing.assert_close(found, vision_transformer(backbone.state_dict(), images))


@pytest.mark.parametrize("again", [False, True])
def test_hidden_patches_in_training(tiny: CfgNode, again: bool) -> None:
    """The linear layer sees the mask token in their places, and what they show does not matter."""
    backbone = network(tiny).backbone.double().train()
    backbone.set_grad_checkpointing(again)
    backbone.feature[1].eval()
    seen: list[Tensor] = []
    backbone.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    images = torch.randn(2, 3, 38, 38, dtype=torch.float64)
    found = backbone(images).flatten(1)
    tokens = backbone._pos_embed(backbone.patch_embed(images))
    places = [[int(torch.cdist(row[None], every)[0].argmin()) for row in rows]
              for rows, every in zip(seen[0], tokens, strict=True)]  # fmt: skip
    assert all(len(set(row)) == 11 for row in places) and places[0] != places[1]
    expected = vision_transformer(backbone.state_dict(), images, places)
    torch.testing.assert_close(found, expected)
    probe = torch.randn_like(found)
    weights = dict(backbone.named_parameters())
    own = torch.autograd.grad((found * probe).sum(), list(weights.values()))
    fresh = {name: value.detach().clone().requires_grad_() for name, value in weights.items()}
    oracle = vision_transformer({**backbone.state_dict(), **fresh}, images, places)
    for gradient, other in zip(own, torch.autograd.grad((oracle * probe).sum(), list(fresh.values())), strict=True):
        torch.testing.assert_close(gradient, other)


def test_bfloat16_is_close(tiny: CfgNode) -> None:
    net = network(tiny)
    images = torch.randint(0, 256, (4, 3, 38, 38)).float()
    with torch.autocast("cpu", torch.bfloat16):
        net.train().compute_outputs({"images": images})["features"].float().sum().backward()
        assert all(torch.isfinite(weights.grad).all() for weights in net.parameters() if weights.grad is not None)
        half = unit_embeddings(net.eval(), {"images": images})
    with torch.no_grad():
        assert nn.functional.cosine_similarity(half, unit_embeddings(net, {"images": images})).min() > 0.99


def test_insightfaces_files_load(tiny: CfgNode, tmp_path: Path) -> None:
    source = network(tiny).eval()
    linear, norm = source.heads.bottleneck
    state = source.backbone.state_dict() | {"feature.2.weight": linear.weight[:, :, 0, 0]}
    state |= {f"feature.3.{name}": value for name, value in norm.state_dict().items()}
    torch.save({f"module.{name}": value for name, value in state.items()}, tmp_path / "model.pt")
    whole, images = network(tiny), torch.randint(0, 256, (2, 3, 38, 38))
    load_weights(whole.eval(), tmp_path / "model.pt")
    with torch.no_grad():
        assert torch.equal(unit_embeddings(whole, {"images": images}), unit_embeddings(source, {"images": images}))
    backbone = network(tiny).backbone
    load_pretrained(backbone, str(tmp_path / "model.pt"), optional=backbone.only_in_files)
    assert all(torch.equal(value, source.backbone.state_dict()[name]) for name, value in backbone.state_dict().items())


def test_exported_files_give_the_same_embeddings(tiny: CfgNode, tmp_path: Path) -> None:
    """TorchScript's tracing meets the grid of patches, which is of a fixed size."""
    torch.save({"state_dict": network(tiny).state_dict()}, tmp_path / "last.ckpt")
    tiny.MODEL.WEIGHTS = str(tmp_path / "last.ckpt")
    assert export(tiny, tmp_path / "model", "torchscript") < 1e-4


def test_images_of_two_sizes_are_refused() -> None:
    cfg = config("vit_t", 256)
    cfg.INPUT.SIZE_TEST = [128, 128]
    message = r"build_insightface_vit_backbone needs one image size of 9×9 or more; of tests it is \[128, 128\]"
    with pytest.raises(UserError, match=message):
        require_supported(cfg)
