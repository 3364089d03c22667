from pathlib import Path

import pytest

from pml_ext._errors import UserError
from pml_ext.cli import main
from pml_ext.runner.config.load import load_config
from pml_ext.runner.config.stock import CONFIGS, EXAMPLES


def test_a_config_is_found_by_its_name_and_a_file_of_ones_own_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("Glyphs/smoothap_tcm.yml", "fastreid_configs/Glyphs/smoothap_tcm.yml"):
        assert load_config(name).DATASETS.NAMES == ("Glyphs",)
    Path("Glyphs").mkdir()
    Path("Glyphs/smoothap_tcm.yml").write_text("SEED: 3\n")
    assert load_config("Glyphs/smoothap_tcm.yml").SEED == 3


def test_names_do_not_leave_the_folder() -> None:
    assert CONFIGS.find("../pyproject.toml") is None and CONFIGS.find(str(Path(__file__).absolute())) is None


def test_the_list_has_every_config_to_run_with_what_it_is() -> None:
    lines = CONFIGS.listing().splitlines()
    assert any(line.startswith("Market1501/bagtricks_R50.yml  ") and "model zoo" in line for line in lines)
    assert not any("Base-" in line.split()[0] for line in lines)


def test_a_copy_brings_its_bases_and_loads_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "Market1501/bagtricks_R50.yml"
    assert main(["copy", name, "--output", str(tmp_path)]) == 0
    *lines, next_step = capsys.readouterr().out.splitlines()
    copies = [Path(line) for line in lines]
    assert next_step == f"train with pml-ext train {copies[0]}"
    assert copies[0] == tmp_path / name and tmp_path / "Base-bagtricks.yml" in copies
    assert load_config(copies[0]) == load_config(name)
    copies[0].write_text("SEED: 3\n")
    with pytest.raises(UserError, match="is there already, with other text"):
        CONFIGS.copy(name, tmp_path)


def test_an_unknown_name_says_which_is_close(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["copy", "Market1501/bagtrick_R50.yml"]) == 2
    assert "did you mean Market1501/bagtricks_R50.yml" in capfd.readouterr().err
    assert main(["check-config", "none/such.yml"]) == 1
    assert "`pml-ext configs` lists those that come with pml_ext" in capfd.readouterr().out


def test_examples_are_listed_and_copied_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["examples"]) == 0
    about = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert about["swap_in_a_torch_loop.py"] == "One training loop, one changed line: the loss."
    assert about["notebooks/swap_one_loss.ipynb"] == "Swap one loss in a PML loop"
    assert "readme_tables.py" not in about and "papers/headers.py" not in about
    for name in ("verification.py", "notebooks/swap_one_loss.ipynb"):
        assert main(["copy", name, "--output", str(tmp_path)]) == 0
        assert (tmp_path / name).read_bytes() == (EXAMPLES.folder / name).read_bytes()
