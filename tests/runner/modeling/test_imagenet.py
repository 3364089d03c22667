"""ImageNet weights by FastReID's URLs: from torch's hub cache, or downloaded into it; the network is a stand-in."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import URLError

import pytest
import timm
import torch
from safetensors.torch import save_file
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.cli import main
from pml_ext.runner.checks.check import problems
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.modeling.backbones import build_backbone
from pml_ext.runner.modeling.weights.imagenet import (
    PACKAGES,
    URLS,
    download,
    download_to_come,
    imagenet_url,
    missing_file,
    settle,
)
from tests.runner.modeling.networks import backbone_of

RESNET18 = "https://download.pytorch.org/models/resnet18-5c106cde.pth"


def config(**options: object) -> CN:
    cfg = get_cfg()
    cfg.MODEL.DEVICE = "cpu"
    cfg.MODEL.BACKBONE.update({"PRETRAIN": True, "DEPTH": "18x", "FEAT_DIM": 512, **options})
    return cfg


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """torch's home, empty; without a network."""

    def refuse(url: str, *_: object, **__: object) -> None:
        raise URLError("no route to host")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)
    return tmp_path / "home"


@pytest.mark.parametrize("folder", ["hub/checkpoints", "checkpoints"])
def test_a_file_in_the_cache_of_torch_or_fastreid_is_loaded(cache: Path, folder: str) -> None:
    source = backbone_of(config(PRETRAIN=False)).state_dict()
    (cache / folder).mkdir(parents=True)
    torch.save({**source, "fc.weight": torch.ones(1000, 512)}, cache / folder / "resnet18-5c106cde.pth")
    assert problems(config()) == []
    assert missing_file(config().MODEL.BACKBONE) is None
    assert download_to_come(config().MODEL.BACKBONE) is None
    built = backbone_of(config()).state_dict()
    assert all(torch.equal(built[name], value) for name, value in source.items())


def test_torchvisions_file_is_looked_for_in_the_cache_too(cache: Path) -> None:
    options = {"NAME": "torchvision:googlenet", "FEAT_DIM": 1024}
    source = {
        name.removeprefix("net."): v for name, v in backbone_of(config(PRETRAIN=False, **options)).state_dict().items()
    }
    training_only = {
        "fc.weight": torch.ones(1000, 1024),
        "aux1.conv.conv.weight": torch.ones(1),
        "aux2.fc1.bias": torch.ones(1),
    }
    (cache / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(source | training_only, cache / "hub" / "checkpoints" / "googlenet-1378be20.pth")
    assert download_to_come(config(**options).MODEL.BACKBONE) is None
    built = backbone_of(config(**options)).net.state_dict()
    assert built.keys() == source.keys() and all(torch.equal(built[name], value) for name, value in source.items())


def test_a_damaged_file_in_the_cache(cache: Path) -> None:
    (cache / "hub" / "checkpoints").mkdir(parents=True)
    (cache / "hub" / "checkpoints" / "resnet18-5c106cde.pth").write_bytes(b"PK cut short")
    with pytest.raises(UserError, match=r"resnet18-5c106cde\.pth is not a readable weights file"):
        backbone_of(config())


def test_without_a_network_the_error_says_what_to_do(cache: Path) -> None:
    with pytest.raises(UserError) as caught:
        backbone_of(config())
    told = str(caught.value)
    for part in (RESNET18, "no route to host", str(cache / "hub" / "checkpoints" / "resnet18-5c106cde.pth")):
        assert part in told
    for part in ("PRETRAIN_PATH", "package:<name>", "PRETRAIN False"):
        assert part in told


def test_one_of_several_downloads_and_the_hash_is_checked(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"weights"
    digits = hashlib.sha256(content).hexdigest()[:8]
    url = (cache.parent / f"net-{digits}.pth").as_uri()
    (cache.parent / f"net-{digits}.pth").write_bytes(content)
    monkeypatch.undo()
    monkeypatch.setenv("TORCH_HOME", str(cache))
    really, downloads = torch.hub.download_url_to_file, []

    def counted(*args: object, **options: object) -> None:
        downloads.append(args[0])
        really(*args, progress=False, **options)

    monkeypatch.setattr(torch.hub, "download_url_to_file", counted)
    with ThreadPoolExecutor(4) as pool:
        files = set(pool.map(download, [url] * 4))
    assert files == {cache / "hub" / "checkpoints" / f"net-{digits}.pth"}
    assert files.pop().read_bytes() == content
    assert downloads == [url]

    (cache.parent / "net-00000000.pth").write_bytes(content)
    with pytest.raises(UserError, match=r"net-00000000.pth cannot be downloaded: invalid hash value .*00000000"):
        download((cache.parent / "net-00000000.pth").as_uri())
    assert not (cache / "hub" / "checkpoints" / "net-00000000.pth").exists()


def test_a_cache_that_cannot_be_written(cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(UserError, match=r"cannot be downloaded: .*Put the file at "):
        download(RESNET18)


@pytest.mark.parametrize(
    ("options", "file"),
    [
        ({"DEPTH": "50x"}, "models/resnet50-19c8e357.pth"),
        ({"DEPTH": "101x", "WITH_IBN": True, "WITH_SE": True}, "v1.0/se_resnet101_ibn_a-fabed4e2.pth"),
        ({"NAME": "build_resnest_backbone", "DEPTH": "50x", "WITH_IBN": True}, "resnest50-528c19ca.pth"),
        ({"NAME": "build_resnext_backbone", "DEPTH": "101x", "WITH_IBN": True}, "resnext101_ibn_a-6ace051d.pth"),
        ({"NAME": "build_osnet_backbone", "DEPTH": "x1_0", "WITH_IBN": True}, "#/osnet_ibn_x1_0_imagenet.pth"),
        ({"NAME": "build_osnet_backbone", "DEPTH": "x0_5", "WITH_IBN": True}, None),
        ({"NAME": "build_mobilenetv3_backbone", "DEPTH": "Small", "WITH_IBN": True}, "mobilenet_v3_small-047dcff4.pth"),
        ({"NAME": "build_resnet_backbone_distill", "DEPTH": "34x", "WITH_IBN": True}, "resnet34_ibn_a-94bc1577.pth"),
        ({"NAME": "build_regnet_backbone", "DEPTH": "800y"}, "160906567/RegNetY-800MF_dds_8gpu.pyth"),
        ({"NAME": "build_regnet_backbone", "DEPTH": "800x"}, None),  # FastReID's is of another network
        ({"DEPTH": "50x", "WITH_SE": True}, None),
        ({"NAME": "torchvision:googlenet"}, "https://download.pytorch.org/models/googlenet-1378be20.pth"),
        ({"NAME": "torchvision:vgg_16"}, None),
    ],
)
def test_the_file_of_a_backbone(options: dict[str, object], file: str | None) -> None:
    url = imagenet_url(config(**options).MODEL.BACKBONE)
    assert url is None if file is None else url is not None and url.endswith(file)


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Hugging Face hub's cache, empty; without a network."""

    class Session:
        def head(self, url: str, **_: object) -> None:
            raise OSError("no route to host")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache / "hub"))
    monkeypatch.setattr("huggingface_hub.get_session", Session)
    return cache / "hub"


def fill(hub: Path, repository: str, state: dict[str, torch.Tensor]) -> None:
    folder = hub / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    (folder / "snapshots" / ("0" * 40)).mkdir(parents=True)
    save_file(state, folder / "snapshots" / ("0" * 40) / "model.safetensors")


@pytest.mark.parametrize(("norm", "channels"), [("BN", 3), ("FrozenBN", 1)])
def test_timm_loads_its_own_weights_from_its_cache(hub: Path, norm: str, channels: int) -> None:
    cfg = config(NAME="timm:resnet10t", NORM=norm)
    cfg.MODEL.PIXEL_MEAN = cfg.MODEL.PIXEL_STD = [1.0] * channels
    source = timm.create_model("resnet10t").state_dict()
    fill(hub, "timm/resnet10t.c3_in1k", source)
    assert download_to_come(cfg.MODEL.BACKBONE) is None
    built = backbone_of(cfg).net.state_dict()
    first = source["conv1.0.weight"]
    assert torch.equal(built["conv1.0.weight"], first if channels == 3 else first.sum(dim=1, keepdim=True))
    assert torch.equal(built["layer4.0.bn2.weight"], source["layer4.0.bn2.weight"])
    assert built.keys() <= source.keys() and not any(name.startswith("fc.") for name in built)


def test_without_a_network_one_sentence_says_how_to_get_timms_weights(
    hub: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(PACKAGES, "timm:tf_efficientnet_lite0", "no-such-package")
    cfg = config(NAME="timm:tf_efficientnet_lite0", FEAT_DIM=1280, PRETRAIN=True)
    model = cfg.MODEL
    to_come = "needs the weights timm/tf_efficientnet_lite0.in1k: a run downloads them by timm"
    assert download_to_come(model.BACKBONE) == to_come
    with pytest.raises(UserError) as caught:
        build_backbone(cfg)
    (line,) = str(caught.value).splitlines()
    for part in ("in1k cannot be downloaded", "no route to host", str(hub), "pip install no-such-package", "False"):
        assert part in line
    settle(model)
    assert model.BACKBONE.PRETRAIN, "needed, unless the config says otherwise"
    model.BACKBONE.PRETRAIN_OPTIONAL = True
    with caplog.at_level("WARNING", logger="pml_ext"):
        settle(model)
    assert not model.BACKBONE.PRETRAIN
    (record,) = caplog.records
    assert "training starts from random weights" in record.message and "pip install no-such-package" in record.message


def test_a_network_without_published_weights_is_refused(cache: Path) -> None:
    (line,) = problems(config(NAME="timm:botnet50ts_256", FEAT_DIM=2048))
    assert "timm names no weights for this backbone to download; set a local file" in line


def test_a_page_in_place_of_a_file_without_a_hash_is_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [b"<html>Sign in</html>", b"PK weights"]

    def answer(url: str, place: str, **_: object) -> None:
        Path(place).write_bytes(answers.pop(0))

    monkeypatch.setattr(torch.hub, "download_url_to_file", answer)
    url = URLS["build_osnet_backbone", "x1_0"]
    with pytest.raises(UserError, match=r"returned a web page; fetch the file with a browser and put it at "):
        download(url)
    folder = cache / "hub" / "checkpoints"
    assert not list(folder.glob("*osnet*.pth")) and not list(folder.glob("*.draft"))
    assert download(url) == folder / "osnet_x1_0_imagenet.pth"
    assert (folder / "osnet_x1_0_imagenet.pth").read_bytes() == b"PK weights"


def test_check_config_downloads_nothing_and_says_what_a_run_needs(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = cache.parent / "r18.yml"
    file.write_text(
        "MODEL: {DEVICE: cpu, BACKBONE: {PRETRAIN: True, DEPTH: 18x, FEAT_DIM: 512}}\n"
        "DATASETS: {NAMES: [Digits], TESTS: [Digits]}"
    )
    assert main(["check-config", str(file)]) == 0
    runs, note = capsys.readouterr().out.splitlines()
    assert runs == f"{file}: runs"
    assert note == (
        f"  (needs resnet18-5c106cde.pth from {RESNET18}: a run downloads it to {cache / 'hub' / 'checkpoints'})"
    )
    assert main(["check-config", str(file), "MODEL.BACKBONE.PRETRAIN_PATH", "/home/a/r18.pth"]) == 3
    assert "MODEL.BACKBONE.PRETRAIN_PATH = /home/a/r18.pth: no such file" in capsys.readouterr().out
    unused = ["MODEL.BACKBONE.PRETRAIN", "False", "MODEL.BACKBONE.PRETRAIN_PATH", "r18.pth"]
    assert main(["check-config", str(file), *unused]) == 0
    assert "PRETRAIN_PATH has no effect, because MODEL.BACKBONE.PRETRAIN is False" in capsys.readouterr().out
    torch.save({}, file.with_name("model.pth"))
    assert main(["check-config", str(file), "MODEL.WEIGHTS", str(file.with_name("model.pth"))]) == 0
    assert capsys.readouterr().out == f"{file}: runs\n"
