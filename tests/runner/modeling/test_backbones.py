import hashlib
from typing import Any

import pytest
import torch
import torchvision
from timm.layers import FrozenBatchNormAct2d
from torch import nn

from pml_ext._shared.errors import UserError
from pml_ext.runner.checks.check import require_supported
from pml_ext.runner.checks.rules import BACKBONES_NOT_BUILT
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.modeling.architectures import build_model
from pml_ext.runner.modeling.backbones import build_backbone, torchvision_networks
from pml_ext.runner.modeling.backbones.resnet import NonLocal, SqueezeExcitation
from pml_ext.runner.modeling.backbones.timm_networks import TimmBackbone
from pml_ext.runner.modeling.backbones.vit import SIZES, ViT
from pml_ext.runner.modeling.cuda import norms_of_other_devices
from pml_ext.runner.modeling.layers import IBN, build_norm
from pml_ext.runner.modeling.weights.load import load_pretrained, load_weights
from pml_ext.runner.modeling.weights.names import backbone_names
from pml_ext.runner.registry import BACKBONE_REGISTRY
from tests.oracles import fastreid_networks
from tests.tiers import by_night


def config(name, **backbone):
    cfg = get_cfg()
    cfg.MODEL.DEVICE = "cpu"
    cfg.INPUT.SIZE_TRAIN = cfg.INPUT.SIZE_TEST = [64, 32]
    cfg.MODEL.BACKBONE.NAME = name
    for key, value in backbone.items():
        cfg.MODEL.BACKBONE[key] = value
    return cfg


def build_on_meta(cfg):
    """Names and shapes without the work of initialising."""
    with torch.device("meta"):
        return build_fresh(cfg)


def build_fresh(cfg):
    cfg = cfg.clone()
    cfg.MODEL.BACKBONE.PRETRAIN = False
    return build_backbone(cfg)


@pytest.mark.parametrize(
    ("name", "options", "size"),
    [
        ("build_resnet_backbone", {"DEPTH": "18x", "LAST_STRIDE": 2}, (512, 2, 1)),
        ("build_resnet_backbone", {"WITH_IBN": True, "WITH_SE": True, "WITH_NL": True}, (2048, 4, 2)),
        ("build_resnext_backbone", {"WITH_IBN": True}, (2048, 4, 2)),
        ("build_resnest_backbone", {"LAST_STRIDE": 1}, (2048, 4, 2)),
        ("build_iresnet_backbone", {"DEPTH": "18x"}, (512, 4, 2)),
        ("build_mobilenetv2_backbone", {"DEPTH": "0.1x"}, (1280, 2, 1)),
        ("build_mobilenetv3_backbone", {"DEPTH": "Small"}, (1024, 2, 1)),
        ("build_regnet_backbone", {"DEPTH": "200x", "LAST_STRIDE": 2}, (368, 2, 1)),
        ("build_repvgg_backbone", {"DEPTH": "A0", "LAST_STRIDE": 1}, (1280, 4, 2)),
        ("build_convnet_backbone", {"DEPTH": "3x", "FEAT_DIM": 8}, (8, 8, 4)),
        ("timm:resnet10t", {}, (512, 2, 1)),
        ("torchvision:mnasnet0_5", {}, (1280, 2, 1)),
    ],
)
def test_maps(name, options, size):
    with torch.device("meta"):
        model: Any = build_model(config(name, **options)).eval()
        assert model.heads.feat_dim == size[0], "unless it is set, FEAT_DIM is the backbone's"
        assert model.backbone(torch.zeros(1, 3, 64, 32)).shape == (1, *size)


@pytest.mark.parametrize(
    ("name", "channels", "pooled"),
    [("test_vit", 64, lambda tokens: tokens[:, 0]), ("test_vit4", 96, lambda tokens: tokens[:, 1:].mean(1))],
)
def test_tokens_of_timm_are_pooled_as_their_network_does(name, channels, pooled):
    cfg = config(f"timm:{name}", FEAT_DIM=channels)
    cfg.INPUT.SIZE_TRAIN = cfg.INPUT.SIZE_TEST = [160, 160]
    backbone = build_backbone(cfg).eval()
    x = torch.randn(2, 3, 160, 160)
    with torch.no_grad():
        features, tokens = backbone(x), backbone.net.forward_features(x)
    assert backbone.num_features == channels and features.shape == (2, channels, 1, 1)
    torch.testing.assert_close(features.flatten(1), backbone.net.fc_norm(pooled(tokens)))
    cfg.INPUT.SIZE_TEST = [192, 160]
    with pytest.raises(UserError, match=r"needs images of 160×160 in .*; got \[160, 160\] and \[192, 160\]"):
        build_backbone(cfg)


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", *by_night("swinv2_cr_tiny_ns_224", "sequencer2d_s")])
def test_maps_of_timm_have_their_channels_first(name):
    """Whatever order the network has inside: their mean is what timm's own classifier gets."""
    backbone: Any = TimmBackbone(name, 3).eval()
    images = torch.randn(2, *backbone.net.default_cfg["input_size"])
    with torch.no_grad():
        maps, pooled = backbone(images), backbone.net(images)
    assert maps.shape[:2] == (2, backbone.num_features) and min(maps.shape[2:]) > 1
    torch.testing.assert_close(maps.mean((2, 3)), pooled, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["crossvit_tiny_240", "efficientvim_m1"])
def test_several_outputs_of_timm_are_pooled_as_their_network_does(name):
    backbone: Any = TimmBackbone(name, 3).eval()
    images = torch.randn(2, *backbone.net.default_cfg["input_size"])
    with torch.no_grad():
        assert isinstance(backbone.net.forward_features(images), list)
        torch.testing.assert_close(backbone(images).flatten(1), backbone.net(images))


def test_the_vision_transformer():
    cfg = config("build_vit_backbone", DEPTH="base", FEAT_DIM=768)
    assert build_on_meta(cfg).pos_embed.shape == (1, 1 + 4 * 2, 768)
    cfg.MODEL.BACKBONE.STRIDE_SIZE = (12, 10)
    assert build_on_meta(cfg).pos_embed.shape == (1, 1 + 5 * 2, 768)
    small = build_on_meta(config("build_vit_backbone", DEPTH="small", FEAT_DIM=768))
    assert len(small.blocks) == 8
    assert small.blocks[0].attn.qkv.bias is None
    cfg.INPUT.SIZE_TEST = [64, 64]
    with pytest.raises(
        UserError, match=r"needs one image size of 16×16 or more; got \[64, 32\], and \[64, 64\] in tests"
    ):
        require_supported(cfg)
    cfg.INPUT.SIZE_TEST, cfg.MODEL.BACKBONE.STRIDE_SIZE = [64, 32], (17, 16)
    with pytest.raises(UserError, match=r"STRIDE_SIZE = \(17, 16\): must be two numbers from 1 to 16"):
        require_supported(cfg)


def tiny_vit(size=(64, 32), stride=16):
    options = get_cfg().MODEL.BACKBONE
    options.DEPTH, options.STRIDE_SIZE, options.DROP_PATH_RATIO = "tiny", (stride, stride), 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "tiny", {"depth": 1, "num_heads": 12, "mlp_ratio": 0.1, "qkv_bias": True})
        return ViT(options, size, 3)


def test_a_vision_transformer_gives_its_class_token_and_refuses_other_sizes():
    net = tiny_vit(stride=8).eval()
    images = torch.randn(2, 3, 64, 32)
    tokens = net.patch_embed(images)
    # token 1 of the second row of the grid sees the patch whose corner is (8, 8)
    patch = net.patch_embed.proj(images[..., 8:24, 8:24])
    torch.testing.assert_close(tokens[:, net.patch_embed.grid_size[1] + 1], patch[..., 0, 0])
    assert net(images).shape == (2, 768, 1, 1)
    with pytest.raises(UserError, match=r"images of INPUT.SIZE_TRAIN \[64, 32\]; got \[64, 64\]"):
        net(torch.zeros(1, 3, 64, 64))


def test_position_embeddings_of_another_grid_are_interpolated():
    net = tiny_vit()  # 4 × 2 patches
    state = tiny_vit((64, 64)).state_dict()  # 4 × 4
    adapted = net.adapt(state)["pos_embed"]
    grid = state["pos_embed"][:, 1:].reshape(1, 4, 4, 768)
    torch.testing.assert_close(adapted[:, 0], state["pos_embed"][:, 0])
    # bilinear from 4 columns to 2: the mean of neighbours
    torch.testing.assert_close(adapted[:, 1:].reshape(1, 4, 2, 768), (grid[:, :, ::2] + grid[:, :, 1::2]) / 2)
    distilled = {"pos_embed": torch.cat([state["pos_embed"][:, :1]] * 2 + [state["pos_embed"][:, 1:]], dim=1)}
    distilled["dist_token"] = torch.zeros(1, 1, 768)
    torch.testing.assert_close(net.adapt(distilled)["pos_embed"], adapted)


# From the modules of FastReID's last public code: how many names, and a hash of "name shape", a line each, in order.
STATES = [
    ("build_mobilenetv2_backbone", {"DEPTH": "0.1x"}, 312, "c1a9d4279ecf13e3"),
    ("build_mobilenetv3_backbone", {"DEPTH": "Large"}, 314, "2fb1a4aeb05daa9d"),
    ("build_mobilenetv3_backbone", {"DEPTH": "Small"}, 246, "b2c2f052a62728d1"),
    ("build_resnet_backbone", {"WITH_IBN": True, "WITH_SE": True, "WITH_NL": True}, 441, "94b18acaec4669e3"),
    ("build_iresnet_backbone", {"DEPTH": "100x"}, 918, "bbf9b4e62e4a1704"),
]


@pytest.mark.parametrize(("name", "options", "count", "digits"), STATES)
def test_states_are_fastreids_name_for_name(name, options, count, digits):
    state = build_on_meta(config(name, **options)).state_dict()
    lines = [f"{key} {tuple(value.shape)}" for key, value in state.items()]
    assert len(lines) == count
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] == digits, lines


# The same of networks whose names here are timm's, with the lines sorted.
STATES_OF_TIMM = [
    ("build_regnet_backbone", "3200y", 492, "b91b18a133a6b017"),
    ("build_regnet_backbone", "6400x", 336, "ffb0b5040e6f15d5"),
    ("build_repvgg_backbone", "B1g2", 451, "3d25750c55aa0d93"),
]
TO_FASTREIDS = {
    "build_regnet_backbone": {
        ".downsample.conv.": ".proj.", ".downsample.bn.": ".bn.", ".conv1.conv.": ".f.a.", ".conv1.bn.": ".f.a_bn.",
        ".conv2.conv.": ".f.b.", ".conv2.bn.": ".f.b_bn.", ".conv3.conv.": ".f.c.", ".conv3.bn.": ".f.c_bn.",
        ".se.fc1.": ".f.se.f_ex.0.", ".se.fc2.": ".f.se.f_ex.2.",
    },
    "build_repvgg_backbone": {
        "stem.": "stage0.", "stages.0.": "stage1.", "stages.1.": "stage2.", "stages.2.": "stage3.",
        "stages.3.": "stage4.", ".conv_kxk.": ".rbr_dense.", ".conv_1x1.": ".rbr_1x1.", ".identity.": ".rbr_identity.",
    },
}  # fmt: skip


def fastreids(name, backbone):
    """The state of a network of timm under FastReID's names."""
    found = {}
    for key, value in backbone.net.state_dict().items():
        for ours, theirs in TO_FASTREIDS[name].items():
            key = key.replace(ours, theirs)
        found[key] = value
    return found


@pytest.mark.parametrize(("name", "depth", "count", "digits"), STATES_OF_TIMM)
def test_fastreids_names_of_networks_of_timm(name, depth, count, digits):
    backbone = build_on_meta(config(name, DEPTH=depth))
    state = fastreids(name, backbone)
    lines = sorted(f"{key} {tuple(value.shape)}" for key, value in state.items())
    assert len(lines) == count
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] == digits, lines
    own = backbone.net.state_dict()
    assert list(backbone_names(backbone, state)) == list(backbone_names(backbone, own)) == list(own)


@pytest.mark.parametrize(
    ("name", "depth", "oracle", "stride", "prefix"),
    [
        ("build_regnet_backbone", "200y", fastreid_networks.regnet, 1, "backbone."),
        ("build_regnet_backbone", "200y", fastreid_networks.regnet, 2, ""),
        ("build_repvgg_backbone", "A0", fastreid_networks.repvgg, 1, ""),
    ],
)
def test_fastreids_weights_give_fastreids_maps(name, depth, oracle, stride, prefix, tmp_path):
    backbone = build_fresh(config(name, DEPTH=depth, LAST_STRIDE=stride)).eval()
    state = {key: value.clone() for key, value in fastreids(name, backbone).items()}
    for key, value in state.items():
        if value.ndim == 1:
            value.copy_(torch.rand_like(value) + (0.5 if key.endswith("var") else 0))
    torch.save({f"{prefix}{key}": value for key, value in state.items()}, tmp_path / "net.pth")
    if prefix:
        whole = nn.Module()
        whole.backbone = backbone
        load_weights(whole, tmp_path / "net.pth")
    else:
        load_pretrained(backbone, str(tmp_path / "net.pth"))
    images = torch.randn(2, 3, 64, 32)
    with torch.no_grad():
        torch.testing.assert_close(backbone(images), oracle(state, images, stride))


def test_grey_images_go_into_small_networks():
    cfg = config("build_mobilenetv3_backbone", DEPTH="Small")
    cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD = [128.0], [64.0]
    assert build_fresh(cfg).eval()(torch.zeros(1, 1, 32, 32)).ndim == 4


def test_non_local_blocks_follow_the_last_blocks_of_a_stage():
    net: Any = build_backbone(config("build_resnet_backbone", WITH_NL=True)).eval()
    order: list[str] = []
    for name, module in net.named_modules():
        if isinstance(module, NonLocal) or (name.count(".") == 1 and name.startswith("layer")):
            module.register_forward_hook(lambda *_, name=name: order.append(name))
    with torch.no_grad():
        net(torch.randn(1, 3, 32, 32))
    assert order[3:11] == ["layer2.0", "layer2.1", "layer2.2", "NL_2.0", "layer2.3", "NL_2.1", "layer3.0", "layer3.1"]
    assert order[11:18] == ["layer3.2", "layer3.3", "NL_3.0", "layer3.4", "NL_3.1", "layer3.5", "NL_3.2"]


def test_a_non_local_block_is_the_identity_at_first_and_then_attends():
    for norm in ("GN", "FrozenBN", "none"):
        x = torch.randn(2, 6, 3, 2)
        torch.testing.assert_close(NonLocal(6, norm)(x), x)
    block = NonLocal(6, "BN").double().eval()
    x = torch.randn(2, 6, 3, 2, dtype=torch.float64)
    torch.testing.assert_close(block(x), x)
    nn.init.constant_(block.W[1].weight, 0.7)
    expected = x.clone()
    for b in range(2):
        theta, phi, g = (layer(x[b : b + 1]).flatten() for layer in (block.theta, block.phi, block.g))
        mixed = theta * (phi @ g) / 6
        expected[b] += block.W(mixed.reshape(1, 1, 3, 2))[0]
    torch.testing.assert_close(block(x), expected)


def test_squeeze_excitation_and_ibn():
    x = torch.randn(3, 32, 4, 2)
    block = SqueezeExcitation(32)
    gates = torch.sigmoid((x.mean((2, 3)) @ block.fc[0].weight.T).relu() @ block.fc[2].weight.T)
    torch.testing.assert_close(block(x), x * gates[:, :, None, None])
    out = IBN(32)(5 * x + 2)
    assert out[:, :16].mean((2, 3)).abs().max() < 1e-5, "each image has mean 0 in the instance half"
    assert out[:, 16:].mean((2, 3)).abs().max() > 0.1
    assert out[:, 16:].mean((0, 2, 3)).abs().max() < 1e-5, "the batch has mean 0 in the other"


@pytest.mark.parametrize("name", ["build_convnet_backbone", "timm:repvgg_a0"])
@pytest.mark.parametrize("norm", ["BN", "GN", "FrozenBN", "none"])
def test_norms(norm, name):
    """Layers of timm activate behind their norm."""
    backbone = build_fresh(config(name, DEPTH="2x", FEAT_DIM=6, NORM=norm))
    images = torch.randn(4, 3, 32, 64)
    with torch.no_grad():
        whole, first = backbone(images), backbone(images[:1])
    alone = torch.allclose(whole[:1], first, rtol=1e-4, atol=1e-4 * float(first.abs().max()))
    assert alone == (norm != "BN"), "only batch norm lets the batch matter"


def test_norms_of_the_batch_keep_the_networks_eps():
    """It is 1e-3 in this network, and torch's default is 1e-5."""
    for norm, kind in (("syncBN", nn.SyncBatchNorm), ("FrozenBN", FrozenBatchNormAct2d)):
        net = build_on_meta(config("timm:tf_efficientnet_lite0", NORM=norm))
        assert {module.eps for module in net.modules() if isinstance(module, kind)} == {1e-3}


def test_norms_reach_every_layer():
    for name in ("build_resnet_backbone", "timm:resnet18", "timm:tf_efficientnet_lite0", "torchvision:resnet18"):
        modules = list(build_on_meta(config(name, DEPTH="18x", NORM="GN")).modules())
        assert any(isinstance(module, nn.GroupNorm) for module in modules)
        assert not any(isinstance(module, nn.BatchNorm2d) for module in modules)
    assert [build_norm("GN", c).num_groups for c in (64, 48)] == [32, 1]
    cfg = config("build_resnet_backbone", NORM="syncBN", DEPTH="18x")
    cfg.MODEL.HEADS.NORM = "syncBN"  # without a BNNeck: not built
    (line,) = norms_of_other_devices(cfg.MODEL)
    assert "MODEL.BACKBONE.NORM is syncBN, which torch supports on CUDA devices only; set MODEL.BACKBONE" in line
    assert build_backbone(cfg).eval()(torch.zeros(1, 3, 64, 32)).shape == (1, 512, 4, 2), "to test with it is fine"


def test_mistakes_are_named():
    for options, message in [
        ({"NAME": "timm:resnet_10t"}, r"has no model 'resnet_10t'; did you mean 'resnet10t'"),
        ({"NAME": "torchvision:gogglenet"}, r"torchvision .* has no model 'gogglenet'; did you mean 'googlenet'"),
        ({"NAME": "torchvision:vit_b_16"}, r"vit_b_16 of torchvision pools no feature map.*torchvision:googlenet"),
        ({"NAME": "torchvision:resnet18", "WITH_SE": True}, r"WITH_SE = True: is not an option of this backbone"),
        ({"DEPTH": "18x", "FEAT_DIM": 2048}, r"FEAT_DIM must be 512 for build_resnet_backbone; got 2048"),
        ({"LAST_STRIDE": 3}, r"LAST_STRIDE = 3: must be 1 or 2"),
        ({"NORM": "GhostBN"}, r"NORM = 'GhostBN': batch norm over parts of the batch is not supported"),
        ({"NAME": "build_mobilenetv3_backbone"}, r"DEPTH = '50x': unknown.* Known: 'Large', 'Small'"),
        ({"NAME": "build_osnet_backbone"}, r"NAME = 'build_osnet_backbone': OSNet is not built; use timm:"),
        ({"NAME": "build_effnet_backbone"}, r"NAME = 'build_effnet_backbone': its parameters have other names in timm"),
        ({"NAME": "timm:convnext_atto", "NORM": "GN"}, r"NORM GN .* network has no batch norms: set BN"),
    ]:
        cfg = config("build_resnet_backbone")
        cfg.MODEL.BACKBONE.update(options)
        with pytest.raises(UserError, match=message):
            require_supported(cfg)
    assert not {*BACKBONE_REGISTRY} & BACKBONES_NOT_BUILT.keys()


def test_torchvisions_network_is_whole_up_to_its_pooling():
    """Pooled and classified, the map gives what the library's own network does, GoogLeNet's change of contrast too."""
    options = {"aux_logits": False, "transform_input": True, "init_weights": False}
    whole = torchvision.models.get_model("googlenet", weights=None, **options).eval()
    backbone = torchvision_networks.TorchvisionBackbone("googlenet").eval()
    backbone.net.load_state_dict({k: v for k, v in whole.state_dict().items() if k in backbone.net.state_dict()})
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(whole.fc(backbone(images).mean(dim=(2, 3))), whole(images))


def test_torchvisions_networks_are_for_rgb():
    cfg = config("torchvision:resnet18", FEAT_DIM=512)
    cfg.MODEL.PIXEL_MEAN = cfg.MODEL.PIXEL_STD = [127.5]
    with pytest.raises(UserError, match=r"torchvision:resnet18 needs RGB images, but MODEL\.PIXEL_MEAN has 1 value"):
        build_backbone(cfg)
