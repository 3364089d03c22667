from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

from pml_ext._errors import UserError
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.modeling.architectures import build_model
from pml_ext.runner.modeling.pixels_to_embedding import unit_embeddings
from pml_ext.runner.modeling.weights.load import ONLY_FOR_TRAINING, load_weights

OSNET = {"NAME": "build_osnet_backbone", "DEPTH": "x0_25", "FEAT_DIM": 128}
RESNET = {"NAME": "torchvision:resnet18", "FEAT_DIM": 512}


def network(options: dict[str, object], **head: object) -> Any:
    cfg = get_cfg()
    cfg.INPUT.SIZE_TRAIN = cfg.INPUT.SIZE_TEST = [64, 32]
    cfg.MODEL.BACKBONE.update(options)
    cfg.MODEL.HEADS.update(head)
    return build_model(cfg).eval()


@pytest.fixture(scope="module")
def resnet() -> Any:
    """torchvision's, which torchreid and Open Metric Learning wrap, with the mean over places as its output."""
    torch.manual_seed(0)
    net = torchvision.models.resnet18(weights=None)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.1)  # type: ignore[arg-type]
    net.fc = nn.Identity()
    return net.eval()


def saved(state: dict[str, Tensor], folder: Path) -> str:
    torch.save({"state_dict": state, "epoch": 3}, folder / "model.pth.tar")
    return str(folder / "model.pth.tar")


CLASSIFIER = {"classifier.weight": torch.ones(7, 512), "classifier.bias": torch.ones(7)}


@pytest.mark.parametrize("prefix", ["", "module.", "model.model.", "extractor.model."])
@pytest.mark.parametrize("more", [{}, CLASSIFIER])
def test_a_whole_model_gives_its_own_embeddings(
    prefix: str, more: dict[str, Tensor], resnet: Any, tmp_path: Path
) -> None:
    state = {prefix + name: value for name, value in (resnet.state_dict() | more).items()}
    state["criterion.weight"] = torch.ones(2)
    net = network(RESNET)
    load_weights(net, saved(state, tmp_path), optional=ONLY_FOR_TRAINING)
    images = torch.randint(0, 256, (2, 3, 64, 32)).float()
    mean, deviation = torch.tensor([123.675, 116.28, 103.53]), torch.tensor([58.395, 57.12, 57.375])
    with torch.no_grad():
        expected = resnet((images - mean[:, None, None]) / deviation[:, None, None])
        torch.testing.assert_close(unit_embeddings(net, {"images": images}), nn.functional.normalize(expected))


@pytest.mark.parametrize(
    ("options", "names", "message"),
    [
        (OSNET, ["conv2.0.conv2a.conv1.weight", "fc.0.weight"], r"an OSNet with a layer \(fc\) behind .*PRETRAIN_PATH"),
        (
            RESNET, ["extractor.layer4.0.conv1.weight", "projection.layers.0.weight"],
            r"a ResNet with a layer \(projection\)",
        ),
        (
            {"DEPTH": "18x", "FEAT_DIM": 512}, ["layer4.0.conv1.weight", "conv1.weight"],
            r"a ResNet whose max-pool pads, which FastReID's does not: set MODEL.BACKBONE.NAME to torchvision:resnet50",
        ),
        (RESNET, ["conv2.0.conv2a.conv1.weight"], r"of another architecture than the config's model"),
        (RESNET, ["something.else"], r"of another architecture[\s\S]*unexpected \(1\): something.else"),
    ],
)  # fmt: skip
def test_what_does_not_map_is_refused_by_name(
    options: dict[str, object], names: list[str], message: str, tmp_path: Path
) -> None:
    path = saved({name: torch.ones(1) for name in names}, tmp_path)
    with pytest.raises(UserError, match=message):
        load_weights(network(options), path, optional=ONLY_FOR_TRAINING)


def test_a_bnneck_is_not_in_such_files(resnet: Any, tmp_path: Path) -> None:
    path = saved(resnet.state_dict(), tmp_path)
    with pytest.raises(UserError, match=r"missing \(4\): heads.bottleneck.0.weight"):
        load_weights(network(RESNET, WITH_BNNECK=True), path, optional=ONLY_FOR_TRAINING)
