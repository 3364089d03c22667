from pathlib import Path

from pml_ext.runner.config.load import read_config


def test_fastretris_recalls_are_ranks_and_change_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "cub.yml").write_text("TEST: {RECALLS: [1, 2, 4]}\n")
    (tmp_path / "plain.yml").write_text("TEST: {RANKS: [1, 2, 4]}\n")
    read, plain = read_config(tmp_path / "cub.yml"), read_config(tmp_path / "plain.yml")
    assert not read.mistakes.lines
    assert read.notes == [f"{tmp_path / 'cub.yml'}: TEST.RECALLS is TEST.RANKS [1, 2, 4] here"]
    assert read.cfg == plain.cfg, "no default of an old FastReID comes with it"
