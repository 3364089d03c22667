"""Published ImageNet weights: from the caches of torch and the Hugging Face hub, or downloaded into them."""

import hashlib
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from pml_ext._shared.errors import UserError
from pml_ext.cli import main
from pml_ext.runner.checks.check import problems
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.modeling.backbones import build_backbone
from pml_ext.runner.modeling.backbones.registration import with_trained_norms
from pml_ext.runner.modeling.weights import imagenet

LITE0 = {"NAME": "timm:tf_efficientnet_lite0", "FEAT_DIM": 1280}


def config(**options):
    cfg = get_cfg()
    cfg.MODEL.DEVICE = "cpu"
    cfg.MODEL.BACKBONE.update({"PRETRAIN": True, "DEPTH": "18x", "FEAT_DIM": 512, **options})
    return cfg


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty folder for downloads of torch and of the Hugging Face hub, without a network."""

    def refuse(*_, **__):
        raise OSError("no route to host")

    class Session:
        head = refuse

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub" / "checkpoints"))
    monkeypatch.setattr("huggingface_hub.get_session", Session)
    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)
    monkeypatch.setitem(imagenet.PACKAGES, "timm:tf_efficientnet_lite0", "no-such-package")
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    return tmp_path / "hub" / "checkpoints"


@pytest.mark.parametrize(
    ("options", "prefix", "file"),
    [({}, "", "resnet18-5c106cde.pth"), ({"NAME": "torchvision:resnet18"}, "net.", "resnet18-f37072fd.pth")],
)
def test_a_file_in_the_cache_is_loaded(cache, options, prefix, file):
    source = build_backbone(config(PRETRAIN=False, **options)).state_dict()
    published = {name.removeprefix(prefix): value for name, value in source.items()}
    torch.save({**published, "fc.weight": torch.ones(1000, 512), "fc.bias": torch.ones(1000)}, cache / file)
    cfg = config(**options)
    assert problems(cfg) == []
    built = build_backbone(cfg).state_dict()
    assert all(torch.equal(built[name], value) for name, value in source.items())


def test_timm_fits_its_own_weights_from_the_hubs_cache(cache):
    cfg = config(NAME="timm:resnet10t", NORM="FrozenBN")
    cfg.MODEL.PIXEL_MEAN = cfg.MODEL.PIXEL_STD = [1.0]
    source, commit = timm.create_model("resnet10t").state_dict(), "0" * 40
    folder = cache / "models--timm--resnet10t.c3_in1k"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    (folder / "snapshots" / commit).mkdir(parents=True)
    save_file(source, folder / "snapshots" / commit / "model.safetensors")
    built = build_backbone(cfg).net.state_dict()
    torch.testing.assert_close(built["conv1.0.weight"], source["conv1.0.weight"].sum(dim=1, keepdim=True))
    assert torch.equal(built["layer4.0.bn2.weight"], source["layer4.0.bn2.weight"])


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({}, ["https://download.pytorch.org/models/resnet18-5c106cde.pth cannot be downloaded"]),
        (LITE0, ["hf-hub:timm/tf_efficientnet_lite0.in1k cannot be downloaded", "pip install no-such-package"]),
    ],
)
def test_without_a_network_one_line_says_what_to_do(cache, caplog, options, parts):
    cfg = config(**options)
    with pytest.raises(UserError) as caught:
        build_backbone(cfg)
    (line,) = str(caught.value).splitlines()
    for part in (*parts, "no route to host", str(cache), "PRETRAIN_PATH", "package:<name>", "PRETRAIN False"):
        assert part in line
    with pytest.raises(UserError, match="cannot be downloaded"):
        imagenet.with_fetched_weights(cfg)
    cfg.MODEL.BACKBONE.PRETRAIN_OPTIONAL = True
    with caplog.at_level("WARNING", logger="pml_ext"):
        started = imagenet.with_fetched_weights(cfg)
        assert not started.MODEL.BACKBONE.PRETRAIN
        assert "training starts from random weights" in caplog.text and parts[0] in caplog.text
        caplog.clear()
        imagenet.with_fetched_weights(started)  # as each of several processes does
    assert not caplog.messages


@pytest.mark.parametrize(
    ("options", "weights", "norm"),
    [
        ({"PRETRAIN": False}, "", "BN"),
        ({"PRETRAIN": True}, "", "FrozenBN"),
        ({"PRETRAIN": False}, "w.pth", "FrozenBN"),
    ],
)
def test_frozen_norms_need_loaded_weights(caplog, options, weights, norm):
    cfg = config(NAME="timm:resnet10t", NORM="FrozenBN", **options)
    cfg.MODEL.WEIGHTS = weights
    with caplog.at_level("WARNING", logger="pml_ext"):
        started = with_trained_norms(cfg)
    assert norm == started.MODEL.BACKBONE.NORM
    assert ("The norms are trained: NORM BN" in caplog.text) == (norm == "BN")
    assert cfg.MODEL.BACKBONE.NORM == "FrozenBN"


def test_the_hash_in_a_name_is_checked(cache, tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    digits = hashlib.sha256(b"weights").hexdigest()[:8]
    for name in (f"net-{digits}.pth", "net-00000000.pth"):
        (tmp_path / name).write_bytes(b"weights")
    assert imagenet._download((tmp_path / f"net-{digits}.pth").as_uri()).read_bytes() == b"weights"
    with pytest.raises(UserError, match=r"net-00000000.pth cannot be downloaded \(invalid hash value .*00000000"):
        imagenet._download((tmp_path / "net-00000000.pth").as_uri())
    assert [file.name for file in cache.iterdir()] == [f"net-{digits}.pth"]


def test_a_web_page_in_place_of_a_file_is_not_kept(cache, monkeypatch):
    def answer(url, file, **_):
        Path(file).write_bytes(b"<html>Sign in</html>")

    monkeypatch.setattr(torch.hub, "download_url_to_file", answer)
    with pytest.raises(UserError, match=r"the server returned a web page: download the file with a browser"):
        build_backbone(config(NAME="build_regnet_backbone", DEPTH="800y"))
    assert not list(cache.iterdir())


@pytest.mark.parametrize(
    ("options", "file"),
    [
        ({"DEPTH": "101x", "WITH_IBN": True, "WITH_SE": True}, "v1.0/se_resnet101_ibn_a-fabed4e2.pth"),
        ({"NAME": "build_resnest_backbone", "DEPTH": "50x", "WITH_IBN": True}, "resnest50-528c19ca.pth"),
        ({"NAME": "build_resnet_backbone_distill", "DEPTH": "34x", "WITH_IBN": True}, "resnet34_ibn_a-94bc1577.pth"),
        ({"NAME": "build_regnet_backbone", "DEPTH": "800x"}, ""),  # FastReID's is of another network
        ({"DEPTH": "50x", "WITH_SE": True}, ""),
        ({"NAME": "torchvision:googlenet"}, "https://download.pytorch.org/models/googlenet-1378be20.pth"),
        ({"NAME": "torchvision:vgg_16"}, ""),
        ({"NAME": "timm:resnet18.nobody"}, ""),
    ],
)
def test_the_file_of_a_backbone(options, file):
    location = imagenet.weights_location(config(**options).MODEL.BACKBONE)
    assert location.endswith(file) and bool(location) == bool(file)


def test_a_network_without_published_weights_is_refused(cache):
    (line,) = problems(config(NAME="timm:botnet50ts_256", FEAT_DIM=2048))
    assert "PRETRAIN = True: no weights for this backbone are published; set MODEL.BACKBONE.PRETRAIN_PATH" in line


def test_check_config_downloads_nothing(cache, tmp_path, capsys):
    file, key = tmp_path / "r18.yml", "MODEL.BACKBONE.PRETRAIN_PATH"
    file.write_text(
        "MODEL: {DEVICE: cpu, BACKBONE: {PRETRAIN: True, DEPTH: 18x, FEAT_DIM: 512}}\n"
        "DATASETS: {NAMES: [Digits], TESTS: [Digits]}"
    )
    torch.save({}, tmp_path / "model.pth")
    for words, status, answer in [
        ([], 0, f"{file}: runs\n"),
        ([key, "/home/a/r18.pth"], 3, f"{key} = /home/a/r18.pth: no such file"),
        (["MODEL.WEIGHTS", str(tmp_path / "model.pth")], 0, f"{file}: runs\n"),
    ]:
        assert main(["check-config", str(file), *words]) == status
        assert answer in capsys.readouterr().out
