"""What a run does not find here, looked for without reading, drawing or downloading anything."""

from pathlib import Path

from pml_ext.runner.checks.needs import missing_here
from pml_ext.runner.config.defaults import get_cfg


def missing(root: Path, *names: str, aliases: tuple[str, ...] = ()) -> list[str]:
    cfg = get_cfg()
    cfg.MODEL.DEVICE = "cpu"
    cfg.DATASETS.update({"ROOT": str(root), "NAMES": names, "TESTS": names, "ALIASES": aliases})
    return missing_here(cfg)


def test_an_alias_is_looked_for_where_it_points(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("path,identity,split\n1.png,7,train\n1.png,8,query\n1.png,8,gallery\n")
    (tmp_path / "1.png").touch()
    assert missing(tmp_path, "NAIC", aliases=("NAIC=file:people.csv",)) == []
    (line,) = missing(tmp_path, "NAIC", aliases=("NAIC=file:none.csv",))
    assert line.startswith("NAIC: ")
    assert "none.csv" in line


def test_a_retrieval_set_that_is_not_there(tmp_path: Path) -> None:
    (line,) = missing(tmp_path, "CUB")
    assert f"CUB: not the published files in {tmp_path} (no CUB_200_2011/image_class_labels.txt)" in line
