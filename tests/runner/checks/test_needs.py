"""What a run does not find here, looked for without reading, drawing or downloading anything."""

from pathlib import Path

import pytest

from pml_ext.runner.checks.needs import downloads_to_come, missing_here
from pml_ext.runner.config.defaults import get_cfg
from tests.runner.data.test_datasets import archives


def missing(root: Path, *names: str, aliases: tuple[str, ...] = ()) -> tuple[list[str], list[str]]:
    cfg = get_cfg()
    cfg.MODEL.DEVICE = "cpu"
    cfg.DATASETS.update({"ROOT": str(root), "NAMES": names, "TESTS": names, "ALIASES": aliases})
    return missing_here(cfg), downloads_to_come(cfg)


def test_an_alias_is_looked_for_where_it_points(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("path,identity,split\n1.png,7,train\n1.png,8,query\n1.png,8,gallery\n")
    (tmp_path / "1.png").touch()
    assert missing(tmp_path, "NAIC", aliases=("NAIC=file:people.csv",)) == ([], [])
    (line,) = missing(tmp_path, "NAIC", aliases=("NAIC=file:none.csv",))[0]
    assert line.startswith("NAIC: ")
    assert "none.csv" in line


def test_omniglot_is_neither_downloaded_nor_decoded(tmp_path: Path) -> None:
    assert missing(tmp_path, "Omniglot") == ([], [f"Omniglot: a run has torchvision download it to {tmp_path}"])
    whole, damaged, half = (tmp_path / name for name in ("whole", "damaged", "half"))
    for folder in (whole, damaged, half):
        archives(folder, {"images_background_small1/Korean/character02/002_01.png": b"no image"})
    (damaged / "images_background_small1.zip").write_bytes(b"no archive")
    (half / "images_background_small1.zip").unlink()
    assert missing(whole, "Omniglot") == ([], [])
    for folder, complaint in ((damaged, "images_background_small1.zip is damaged"), (half, "needs both")):
        found, to_come = missing(folder, "Omniglot")
        assert complaint in found[0]
        assert not to_come


def test_glyphs_need_matplotlibs_fonts_and_draw_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing(tmp_path / "a", "Glyphs") == ([], [])
    monkeypatch.setattr("matplotlib.get_data_path", lambda: str(tmp_path))
    assert "needs matplotlib's font DejaVuSans.ttf" in missing(tmp_path, "Glyphs")[0][0]


def test_a_retrieval_set_that_is_not_there(tmp_path: Path) -> None:
    (line,) = missing(tmp_path, "CUB")[0]
    assert f"CUB: not the published files in {tmp_path} (no CUB_200_2011/image_class_labels.txt)" in line
