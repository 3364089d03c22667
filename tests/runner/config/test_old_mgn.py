from pathlib import Path

import pytest
import yaml

from pml_ext.runner.config.load import read_config


def test_mgn_of_the_first_version_has_sums_of_losses_and_its_own_reduction(tmp_path: Path) -> None:
    base = {
        "MODEL": {
            "HEADS": {"NAME": "BNneckHead", "IN_FEAT": 64, "POOL_LAYER": "gempool"},
            "LOSSES": {"NAME": ["CrossEntropyLoss", "TripletLoss"], "CE": {"SCALE": 0.25}},
        },
    }
    (tmp_path / "base.yml").write_text(yaml.safe_dump(base))
    (tmp_path / "mgn.yml").write_text("_BASE_: base.yml\nMODEL: {META_ARCHITECTURE: MGN}\n")
    read = read_config(tmp_path / "mgn.yml")
    assert not read.lines
    model = read.cfg.MODEL
    assert model.HEADS.EMBEDDING_DIM == 64
    assert pytest.approx(0.25 * 8) == model.LOSSES.CE.SCALE
    assert pytest.approx(5) == model.LOSSES.TRI.SCALE, "each of five had the default, 1"
    assert any("IN_FEAT of MGN is MODEL.HEADS.EMBEDDING_DIM 64 today" in note for note in read.notes)
    assert any("CE.SCALE 0.25 of each of MGN's 8 terms is 2.0 today" in note for note in read.notes)


def test_a_wrong_scale_is_left_for_its_error(tmp_path: Path) -> None:
    (tmp_path / "mgn.yml").write_text(
        "MODEL: {META_ARCHITECTURE: MGN, HEADS: {IN_FEAT: 64}, LOSSES: {TRI: {SCALE: much}}}\n"
    )
    (line,) = read_config(tmp_path / "mgn.yml").lines
    assert "MODEL.LOSSES.TRI.SCALE must be of type float" in line


def test_later_versions_had_means(tmp_path: Path) -> None:
    (tmp_path / "mgn.yml").write_text(
        "MODEL: {META_ARCHITECTURE: MGN, HEADS: {EMBEDDING_DIM: 64, POOL_LAYER: gempoolP}}\nSOLVER: {MAX_ITER: 60}\n"
    )
    assert read_config(tmp_path / "mgn.yml").cfg.MODEL.LOSSES.CE.SCALE == 1
