"""What embedding reads of a config, and what it may be without."""

import logging
from pathlib import Path

import pytest

from pml_ext._errors import UserError
from pml_ext.runner.config.network_keys import config_of, load_for_embedding, shaping

TEXT = """
MODEL:
  BACKBONE: {DEPTH: 18x, FEAT_DIM: 512, PRETRAIN: True}
  HEADS: {CLS_LAYER: MyClassifier, EMBEDDING_DIM: 64, NUM_CLASSES: 751}
INPUT: {SIZE_TEST: [64, 32], REA: {PROB: 7.0}}
SOLVER: {MAX_EPOCH: 3}
TEST: {IMS_PER_BATCH: 5}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "a.yml").write_text(TEXT)
    return tmp_path / "a.yml"


def test_only_what_is_needed_is_taken(config: Path) -> None:
    cfg = load_for_embedding(config, ["INPUT.SIZE_TEST", "[48, 24]", "MODEL.DEVICE", "cpu"])
    assert (cfg.MODEL.BACKBONE.DEPTH, cfg.MODEL.HEADS.EMBEDDING_DIM, cfg.INPUT.SIZE_TEST) == ("18x", 64, [48, 24])
    assert (cfg.TEST.IMS_PER_BATCH, cfg.MODEL.DEVICE) == (5, "cpu")
    assert (cfg.INPUT.REA.PROB, cfg.SOLVER.MAX_EPOCH) != (7.0, 3), "training's"
    assert not cfg.MODEL.BACKBONE.PRETRAIN
    assert (cfg.MODEL.HEADS.CLS_LAYER, cfg.MODEL.HEADS.NUM_CLASSES) == ("Linear", 0)


def test_a_record_of_it_gives_it_back(config: Path) -> None:
    cfg = load_for_embedding(config)
    kept = shaping(cfg)
    assert kept["MODEL.BACKBONE.DEPTH"] == "18x" and kept["INPUT.SIZE_TEST"] == [64, 32]
    assert not [key for key in kept if key.startswith(("SOLVER", "MODEL.LOSSES", "MODEL.DEVICE"))]
    assert shaping(config_of(kept)) == kept
    with pytest.raises(UserError, match=r"unknown key MODEL\.BACKBONE\.NEW"):
        config_of({**kept, "MODEL.BACKBONE.NEW": 1})


def test_mistakes_elsewhere_are_one_warning(config: Path, caplog: pytest.LogCaptureFixture) -> None:
    overrides = ["SOLVER.NEW", "1", "KD.EMA.ENABLED", "perhaps", "MODEL.LOSSES.MINE.SCALE", "2"]
    with caplog.at_level(logging.WARNING, logger="pml_ext"):
        load_for_embedding(config, overrides)
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith("not needed to embed, so left out: ")
    assert all(key in said for key in ("SOLVER.NEW", "KD.EMA.ENABLED", "MODEL.LOSSES.MINE"))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("MODEL.NECK", "1", "unknown key MODEL.NECK"),
        ("TEST.FLIP.ENABLED", "perhaps", "TEST.FLIP.ENABLED must be of type bool"),
        ("INPUT", "3", "INPUT holds the keys"),
    ],
)
def test_mistakes_in_what_is_needed_are_errors(config: Path, key: str, value: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_for_embedding(config, [key, value])
