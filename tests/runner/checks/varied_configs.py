"""Configs as users have them, of FastReID's old and last versions, each with the reasons for which it is refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import yaml
from torch import nn
from yacs.config import CfgNode as CN

from pml_ext.runner.checks import building, check
from pml_ext.runner.config.load import ReadConfig, read_config


class Varied(NamedTuple):
    """A config.

    group: what the table counts it under.
    reasons: starts of the lines for which it is refused, in their order; {file} is the file's path.
    """

    name: str
    group: str
    tree: dict[str, Any]
    reasons: list[str]


# version -> its solver
SOLVERS: dict[str, dict[str, Any]] = {
    "0.1": {"MAX_ITER": 80, "SCHED": "WarmupMultiStepLR", "STEPS": [35, 60], "WARMUP_ITERS": 8},
    "0.2": {
        "MAX_ITER": 70,
        "SCHED": "WarmupCosineAnnealingLR",
        "DELAY_ITERS": 25,
        "WARMUP_ITERS": 6,
        "FREEZE_ITERS": 4,
    },
    "1.0": {"MAX_EPOCH": 50, "SCHED": "MultiStepLR", "STEPS": [20], "WARMUP_EPOCHS": 7, "FP16_ENABLED": False},
}
POOLS = {"avgpool": True, "gempool": True, "maxpool": True, "gmp": False}
LAYERS = {"linear": True, "circleSoftmax": True, "arcface": True, "sphereface": False}
# what else a file has -> the start of why it is refused, None: it is not
EXTRAS: dict[str, tuple[dict[str, Any], str | None]] = {
    "plain": ({"DATALOADER": {"PK_SAMPLER": True, "NAIVE_WAY": True, "NUM_INSTANCE": 8}}, None),
    "augmented": (
        {
            "INPUT": {
                "DO_PAD": True,
                "PADDING": 8,
                "DO_AUTOAUG": True,
                "REA": {"ENABLED": True, "MEAN": [9.0, 8.0, 7.0]},
            }
        },
        None,
    ),
    "averaged": ({"SOLVER": {"SWA": {"ENABLED": True, "ITER": 5}}}, "SOLVER.SWA = {"),
}
HEADS = {"0.1": {"NAME": "BNneckHead", "IN_FEAT": 512}, "0.2": {"EMBEDDING_DIM": 64}, "1.0": {"WITH_BNNECK": True}}


def old_configs() -> list[Varied]:
    """In the spellings of FastReID before 1.1: versions × pools × classification layers × what else."""
    found = []
    for version, pool, layer, extra in product(SOLVERS, POOLS, LAYERS, EXTRAS):
        more, refused = EXTRAS[extra]
        backbone: dict[str, Any] = {"NAME": "build_resnet_backbone", "DEPTH": 18, "PRETRAIN": False}
        if version != "0.1":
            backbone["FEAT_DIM"] = 512
        heads = {**HEADS[version], "POOL_LAYER": pool, "CLS_LAYER": layer, "NECK_FEAT": "after"}
        losses = {"NAME": ["CrossEntropyLoss", "TripletLoss"], "TRI": {"MARGIN": 0.0, "HARD_MINING": False}}
        tree = {
            "MODEL": {"DEVICE": "cpu", "BACKBONE": backbone, "HEADS": heads, "LOSSES": losses},
            **more,
            "SOLVER": {**SOLVERS[version], **more.get("SOLVER", {})},
        }
        reasons = [
            *([f"{{file}}: {refused}"] if refused else []),
            *([] if POOLS[pool] else ["MODEL.HEADS.POOL_LAYER = 'gmp': unknown. Known"]),
            *([] if LAYERS[layer] else ["MODEL.HEADS.CLS_LAYER = 'sphereface': unknown. Known"]),
        ]
        found.append(Varied(f"{version}-{pool}-{layer}-{extra}", f"spelled as in FastReID {version}", tree, reasons))
    return found


_ARCHITECTURES = {
    "Baseline": "",
    "MGN": "",
    "Distiller": "MODEL.META_ARCHITECTURE = 'Distiller': knowledge distillation",
}
# name -> DEPTH, FEAT_DIM, why not built
_BACKBONES = {
    "build_resnet_backbone": ("50x", 2048, ""),
    "build_osnet_backbone": ("x0_25", 128, ""),
    "build_mobilenetv2_backbone": ("0.1x", 1280, ""),
    "build_mobilenetv3_backbone": ("Small", 1024, ""),
    "build_shufflenetv2_backbone": ("0.5x", 1024, ""),
    "build_effnet_backbone": ("b0", 320, "MODEL.BACKBONE.NAME = 'build_effnet_backbone': its parameters have other"),
}
# name -> whether it is wrong or not built, the start of why
_DATA = {
    "Market1501": ("", ""),
    "NAIC20_R1": ("", ""),
    "MOT17": ("wrong", "DATASETS.NAMES = 'MOT17': unknown. Known: "),
    "PA100K": ("not built", "DATASETS.NAMES = 'PA100K': FastReID's reader of it is not built"),
}


def last_configs() -> list[Varied]:
    """In the spellings of FastReID's last version: architectures × backbones × data sets."""
    found = []
    for architecture, backbone, data in product(_ARCHITECTURES, _BACKBONES, _DATA):
        depth, channels, not_built = _BACKBONES[backbone]
        kind, why = _DATA[data]
        misfit = architecture == "MGN" and backbone != "build_resnet_backbone"
        options = {"NAME": backbone, "DEPTH": depth, "FEAT_DIM": channels, "PRETRAIN": False}
        tree = {
            "MODEL": {"META_ARCHITECTURE": architecture, "DEVICE": "cpu", "BACKBONE": options},
            "DATASETS": {"NAMES": [data], "TESTS": ["Market1501"]},
        }
        reasons = [
            f"MODEL.BACKBONE.NAME = '{backbone}': must be build_resnet_backbone" if misfit and not not_built else "",
            why if kind == "wrong" else "",
            _ARCHITECTURES[architecture],
            not_built,
            why if kind == "not built" else "",
        ]
        group = f"`{architecture}` as in FastReID's last version"
        found.append(Varied(f"{architecture}-{backbone}-{data}", group, tree, [start for start in reasons if start]))
    return found


def checked(config: Varied, folder: Path) -> tuple[ReadConfig, list[str], bool]:
    """The config as read, the lines for which it is refused, and whether these are the planted ones and no others."""
    file = folder / "config.yml"
    file.write_text(yaml.safe_dump(config.tree))
    read = read_config(file)
    lines = read.lines + check.problems(read.cfg, wrong=read.wrong)
    starts = [start.replace("{file}", str(file)) for start in config.reasons]
    complete = len(lines) == len(starts) and all(a.startswith(b) for a, b in zip(lines, starts, strict=True))
    return read, lines, complete


@contextmanager
def each_network_once() -> Iterator[None]:
    """A network that was built on shapes alone for one config is not built again for another with the same."""
    build, built = building._network, dict[str, nn.Module]()

    def kept(cfg: CN) -> nn.Module:
        key = cfg.MODEL.dump() + cfg.INPUT.dump()
        if key not in built:
            built[key] = build(cfg)
        return built[key]

    with patch.object(building, "_network", kept):
        yield
