"""What is known of other libraries' networks is what these libraries build; whatever else is built to find out."""

import importlib.metadata
from pathlib import Path

import pytest
from yacs.config import CfgNode as CN

from pml_ext.runner.checks import known_networks
from pml_ext.runner.checks.building import found_by_building
from pml_ext.runner.checks.certain import needs_building
from pml_ext.runner.checks.known_networks import TIMMS, TORCHVISIONS
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.config.load import read_config

CONFIGS = Path(__file__).parents[3] / "fastreid_configs"


def config(name: str) -> CN:
    cfg = get_cfg()
    known = {**TORCHVISIONS, **TIMMS}[name]
    cfg.MODEL.BACKBONE.update({"NAME": name, "FEAT_DIM": known.features})
    cfg.MODEL.HEADS.POOL_LAYER = "Identity" if known.tokens else "GlobalAvgPool"
    cfg.INPUT.SIZE_TRAIN = cfg.INPUT.SIZE_TEST = [known.side or 64] * 2
    return cfg


@pytest.mark.parametrize("name", [*TORCHVISIONS, *TIMMS])
def test_they_are_built_as_known(name: str) -> None:
    cfg = config(name)
    cfg.MODEL.BACKBONE.NORM = "FrozenBN" if "google" in name else "BN"
    assert not needs_building(cfg, ())
    assert found_by_building(cfg, set()) == []
    cfg.MODEL.BACKBONE.FEAT_DIM += 1
    assert needs_building(cfg, ())


@pytest.mark.parametrize("size", [[32, 32], [33, 1024]])
def test_sizes_of_a_network_without_one_of_its_own(size: list[int]) -> None:
    cfg = config("timm:tf_efficientnet_lite0")
    cfg.INPUT.SIZE_TRAIN, cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD = size, [127.5], [127.5]
    assert not needs_building(cfg, ())
    assert found_by_building(cfg, set()) == []
    cfg.INPUT.SIZE_TRAIN = [31, 64]
    assert needs_building(cfg, ())


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("timm:vit_base_patch16_224", "INPUT.SIZE_TEST", [256, 128]),
        ("timm:vit_base_patch16_224", "INPUT.SIZE_TRAIN", [224]),
        ("timm:tf_efficientnet_lite0", "MODEL.HEADS.POOL_LAYER", "Identity"),
        ("timm:tf_efficientnet_lite0", "MODEL.BACKBONE.WITH_SE", True),
        ("torchvision:vgg16", "MODEL.PIXEL_MEAN", [127.5]),
    ],
)
def test_what_may_not_fit_is_built(name: str, key: str, value: object) -> None:
    cfg = config(name)
    cfg.merge_from_list([key, value])
    assert needs_building(cfg, ())


@pytest.mark.parametrize("found", [None, "0.9.16", "2.0.0"])
def test_another_timm_or_none(monkeypatch: pytest.MonkeyPatch, found: str | None) -> None:
    def version(name: str) -> str:
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(known_networks, "version", version)
    assert needs_building(config("timm:vit_base_patch16_224"), ())


def test_every_network_of_timm_in_the_configs_is_known() -> None:
    of_timm = [path for path in CONFIGS.rglob("*.yml") if "NAME: timm:" in path.read_text(encoding="utf-8")]
    assert len(of_timm) >= 6
    for path in of_timm:
        read = read_config(path, [])
        assert read.cfg.MODEL.BACKBONE.NAME in TIMMS
        assert not needs_building(read.cfg, ()), path
