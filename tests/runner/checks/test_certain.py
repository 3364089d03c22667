"""What is certain to be built is built; and configs of such parts are checked without the libraries that build them."""

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from yacs.config import CfgNode as CN

from pml_ext.runner.checks.building import found_by_building
from pml_ext.runner.checks.certain import LOSSES, MINERS, TEST, Values, needs_building
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.modeling.names import CHANNELS, LOSS_NODES, MINER_NODES

ROOT = Path(__file__).parents[3]
HEAVY = {"torch", "torchvision", "timm", "lightning", "sklearn", "scipy", "pytorch_metric_learning"}


def small() -> CN:
    """A config whose network takes no time to build."""
    cfg = get_cfg()
    cfg.MODEL.BACKBONE.update({"NAME": "build_convnet_backbone", "DEPTH": "1x", "FEAT_DIM": 8})
    return cfg


def corners(node: CN, values: dict[str, Values]) -> list[dict[str, object]]:
    """Every combination of the outermost values, in the types of the defaults."""
    columns = [
        [type(node[key])(value) if isinstance(node[key], float) else value for value in known]
        for key, known in values.items()
    ]
    return [dict(zip(values, row, strict=True)) for row in product(*columns)]


@pytest.mark.parametrize("name", LOSS_NODES)
def test_losses(name: str) -> None:
    node = LOSS_NODES[name]
    for corner in corners(small().MODEL.LOSSES[node], LOSSES.get(node, {})):
        cfg = small()
        cfg.MODEL.LOSSES.NAME = (name,)
        cfg.MODEL.LOSSES[node].update(corner)
        assert not needs_building(cfg, ())
        assert found_by_building(cfg, set()) == [], corner


@pytest.mark.parametrize("name", MINER_NODES)
def test_miners(name: str) -> None:
    node = MINER_NODES[name]
    for corner in corners(small().MODEL.MINER[node], MINERS[node]):
        cfg = small()
        cfg.MODEL.MINER.NAME = name
        cfg.MODEL.MINER[node].update(corner)
        assert not needs_building(cfg, ())
        assert found_by_building(cfg, set()) == [], corner


@pytest.mark.parametrize("node", TEST)
def test_evaluation(node: str) -> None:
    for corner in corners(small().TEST[node], TEST[node]):
        cfg = small()
        cfg.TEST[node].update(corner)
        assert not needs_building(cfg, ())
        assert found_by_building(cfg, set()) == [], corner


@pytest.mark.parametrize("name", CHANNELS)
def test_backbones(name: str) -> None:
    shallow, *_, deep = CHANNELS[name]
    for depth, norm in ((shallow, "syncBN"), (shallow, "FrozenBN"), (deep, "BN")):
        cfg = get_cfg()
        cfg.MODEL.BACKBONE.update({"NAME": name, "DEPTH": depth, "NORM": norm, "FEAT_DIM": CHANNELS[name][depth]})
        cfg.MODEL.HEADS.update({"WITH_BNNECK": True, "NORM": norm, "EMBEDDING_DIM": 16, "CLS_LAYER": "CircleSoftmax"})
        cfg.MODEL.FREEZE_LAYERS, cfg.SOLVER.FREEZE_ITERS = ["backbone"], 10
        if name == "build_vit_backbone":
            cfg.MODEL.HEADS.POOL_LAYER = "Identity"
        elif name == "build_iresnet_backbone":
            cfg.MODEL.HEADS.POOL_LAYER, cfg.MODEL.BACKBONE.FEAT_DIM = "Flatten", 512 * 7 * 6
            cfg.INPUT.SIZE_TRAIN, cfg.INPUT.SIZE_TEST = [112, 96], [112, 96]
        else:
            cfg.MODEL.BACKBONE.update({"WITH_IBN": "resne" in name and "st" not in name})
        assert not needs_building(cfg, ()), cfg.MODEL.BACKBONE
        assert found_by_building(cfg, set()) == []


def test_mgn() -> None:
    cfg = get_cfg()
    cfg.MODEL.META_ARCHITECTURE, cfg.MODEL.HEADS.EMBEDDING_DIM = "MGN", 16
    cfg.MODEL.FREEZE_LAYERS, cfg.SOLVER.FREEZE_ITERS = ["backbone", "b1", "b2", "b3"], 10
    for height in (80, 96, 97):
        cfg.INPUT.SIZE_TRAIN = cfg.INPUT.SIZE_TEST = [height, 16]
        assert not needs_building(cfg, ())
        assert found_by_building(cfg, set()) == []
    cfg.INPUT.SIZE_TEST = [64, 16]
    assert needs_building(cfg, ())


def test_transforms() -> None:
    cfg = small()
    for switch in ("AUTOAUG", "CROP", "FLIP", "PADDING", "CJ", "AFFINE", "AUGMIX", "REA", "RPT"):
        cfg.INPUT[switch].ENABLED = True
    cfg.INPUT.CJ.update({"BRIGHTNESS": 9.0, "CONTRAST": 0.0, "SATURATION": 1e6, "HUE": 0.5})
    assert not needs_building(cfg, ())
    assert found_by_building(cfg, set()) == []


@pytest.mark.parametrize(
    "opts",
    [
        ["MODEL.BACKBONE.NAME", "timm:resnet18"],
        ["MODEL.BACKBONE.WITH_SE", True],
        ["MODEL.BACKBONE.FEAT_DIM", 2**40],
        ["MODEL.HEADS.NUM_CLASSES", 2**40],
        ["MODEL.HEADS.POOL_LAYER", "Identity"],
        ["MODEL.LOSSES.CE.EPSILON", 1.5],
        ["MODEL.LOSSES.CE.EPSILON", -1.0],
        ["MODEL.FREEZE_LAYERS", ["b1"], "SOLVER.FREEZE_ITERS", 1],
        ["MODEL.MINER.NAME", "TripletMarginMiner", "MODEL.MINER.TRIPLETMARGIN.TYPE_OF_TRIPLETS", "most"],
        ["TEST.OPIS.FAR_RANGE", (0.2, 0.1)],
    ],
)
def test_whatever_else_is_built(opts: list[object]) -> None:
    cfg = small()
    cfg.merge_from_list(opts)
    assert needs_building(cfg, ())


def test_what_is_wrong_already_is_not_built_for_it() -> None:
    cfg = small()
    cfg.MODEL.LOSSES.NAME = ("TripletLos",)
    assert needs_building(cfg, ())
    assert not needs_building(cfg, ["MODEL.LOSSES.NAME"])


@pytest.mark.parametrize(
    "command",
    [
        ["check-config", "fastreid_configs/Market1501/bagtricks_R50.yml", "fastreid_configs/Market1501/sbs_R50.yml"],
        ["check-config", "fastreid_configs/CUB/loop/loop_hphn.yml", "fastreid_configs/CUB/tcm/smoothap_tcm.yml"],
        ["check-config", "fastreid_configs/CASIAWebFace/circle.yml", "fastreid_configs/Omniglot/smoothap_tcm.yml"],
        ["check-config", "fastreid_configs/Glyphs/smoothap_tcm.yml", "fastreid_configs/Digits/sap_tcm.yml"],
        ["list", "datasets"],
        ["list", "losses"],
        ["train", "fastreid_configs/Glyphs/smoothap_tcm.yml", "SOLVER.MAX_EPOCHS", "3"],
    ],
    ids=lambda command: command[-1],
)
def test_no_heavy_library_is_loaded(command: list[str], tmp_path: Path) -> None:
    code = (
        "import sys; from pml_ext.cli import main; status = main(sys.argv[1:]); "
        f"print(status, *sorted({HEAVY} & sys.modules.keys()))"
    )
    environment = {**os.environ, "PML_EXT_DATA": str(tmp_path), "FASTREID_DATASETS": ""}
    done = subprocess.run(
        [sys.executable, "-c", code, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == ("2" if command[0] == "train" else "0")  # a misspelt key
