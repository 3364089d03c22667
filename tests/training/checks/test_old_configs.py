"""Whole configs in the spellings of FastReID before 1.1: each runs, or is refused with every reason named."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from pml_ext.training.checks.check import problems
from pml_ext.training.config.load import read_config

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
VARIED = list(product(SOLVERS, POOLS, LAYERS, EXTRAS))


@pytest.fixture(scope="module")
def built() -> dict[str, list[str]]:
    """Model and input -> its problems, found once."""
    return {}


@pytest.mark.parametrize(("version", "pool", "layer", "extra"), VARIED)
def test_a_varied_old_config(
    version: str, pool: str, layer: str, extra: str, tmp_path: Path, built: dict[str, list[str]]
) -> None:
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
    (tmp_path / "old.yml").write_text(yaml.safe_dump(tree))
    read = read_config(tmp_path / "old.yml")
    lines = list(read.mistakes.lines)
    key = read.cfg.dump()
    if key not in built:
        built[key] = problems(read.cfg, wrong=read.mistakes.wrong)
    lines += built[key]
    expected = [
        *([f"{tmp_path / 'old.yml'}: {refused}"] if refused else []),
        *([] if POOLS[pool] else ["MODEL.HEADS.POOL_LAYER = 'gmp': unknown. Known"]),
        *([] if LAYERS[layer] else ["MODEL.HEADS.CLS_LAYER = 'sphereface': unknown. Known"]),
    ]
    assert len(lines) == len(expected), lines
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start)
    assert read.notes, "what was replaced is said"
    assert len(set(read.notes)) == len(read.notes), "and said once"


def test_there_are_more_than_a_hundred() -> None:
    assert len(VARIED) == 144
