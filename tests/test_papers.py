"""The papers' experiments: config headers, the list of tables and figures, and the page."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pml_ext.runner.checks.supported import unsupported
from pml_ext.runner.config.load import load_config
from pml_ext.runner.modeling.losses.factory import build_losses, build_miner

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
CONFIGS = ROOT / "fastreid_configs"

sys.path.insert(0, str(EXAMPLES))
import paper_headers  # noqa: E402
import papers  # noqa: E402

sys.path.remove(str(EXAMPLES))

ROWS = paper_headers.all_rows()
FROM_SCRATCH = ["MODEL.BACKBONE.PRETRAIN", "False"]


def test_the_page_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLES / "papers.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, f"run python examples/papers.py: {done.stderr}"


def test_every_config_of_a_paper_is_on_the_page() -> None:
    papers_of = {
        CONFIGS / base: key for key, paper in papers.read_experiments()["papers"].items() for base in paper["bases"]
    }
    assert [base for base in papers_of if not base.is_file()] == []
    checked = 0
    for path in paper_headers.leaves():
        below = path
        while below := paper_headers.base_of(below):
            if paper := papers_of.get(below):
                named = {row.paper for row in paper_headers.rows_of(path)} or {*(paper_headers.beside(path) or ())[:1]}
                assert paper in named, f"{path} needs a row of {paper}, or a line Beside"
                checked += 1
    assert checked > 20


def test_no_duplicate_rows() -> None:
    keys = [(row.paper, row.experiment, row.name, row.data) for row in ROWS]
    assert [key for key in keys if keys.count(key) > 1] == []


@pytest.mark.parametrize("row", [row for row in ROWS if row.overrides], ids=lambda row: f"{row.config} {row.overrides}")
def test_overrides_of_rows_can_run(row: Any) -> None:
    cfg = load_config(CONFIGS / row.config, FROM_SCRATCH + row.opts())
    assert [str(problem) for problem in unsupported(cfg)] == []
    build_losses(cfg.MODEL.LOSSES, num_classes=100, feature_size=512)
    build_miner(cfg.MODEL.MINER)


HEADER = """# What it is.
# Differs: Paper: one network; here:
#   another
# Paper: LoOp, Table 2, row "MS", CUB
# Reported: R@1 50.9
# Paper: LoOp, Fig. 3d, row "λ 0.2", CUB
# Reported: a plot
# With: MODEL.LOSSES.MS.BASE 0.2
# Ours: R@1 49.0; CUB; 2026-01-31; 0123abc
# Differs: the batch
_BASE_: Base.yml
# Paper: no header, below the first key
"""


def config(folder: Path, monkeypatch: pytest.MonkeyPatch, header: str) -> Path:
    monkeypatch.setattr(paper_headers, "CONFIGS", folder / "configs")
    (folder / "configs").mkdir()
    (folder / "configs" / "Base.yml").write_text("# Differs: the epochs\nSEED: 1\n", encoding="utf-8")
    path = folder / "configs" / "it.yml"
    path.write_text(header, encoding="utf-8")
    return path


def test_a_header_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = paper_headers.rows_of(config(tmp_path, monkeypatch, HEADER))
    of_the_file = ["the epochs", "Paper: one network; here: another"]
    assert first == paper_headers.Row("it.yml", "LoOp", "Table 2", "MS", "CUB", "R@1 50.9", differs=of_the_file)
    assert (second.experiment, second.opts()) == ("Fig. 3d", ["MODEL.LOSSES.MS.BASE", "0.2"])
    assert second.ours == "R@1 49.0; CUB; 2026-01-31; 0123abc" and second.differs == [*of_the_file, "the batch"]
    text = papers.page([*ROWS, first])
    assert "| MS | CUB | [it.yml](../fastreid_configs/it.yml) | R@1 50.9 | not run: data unavailable |" in text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('row "MS", CUB', "MS", r"it\.yml: expected PAPER, TABLE, row \"NAME\", DATA; got 'LoOp, Table 2, MS'"),
        ("# Reported: R@1 50.9\n", "", "the row 'MS' of Table 2 needs a line Reported"),
        ("BASE 0.2", "BASE", "With needs KEY VALUE pairs; got 'MODEL.LOSSES.MS.BASE'"),
        ("2026-01-31; ", "", "Ours needs numbers; data; YYYY-MM-DD; commit; got"),
        ("# What it is.", "# Ours: R@1 1", "Ours has no Paper before it"),
        ("# Differs: the batch", "# Beside: LoOp, it", "Beside is for a config without rows"),
    ],
)
def test_malformed_headers_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str
) -> None:
    assert old in HEADER
    with pytest.raises(paper_headers.HeaderError, match=message):
        paper_headers.rows_of(config(tmp_path, monkeypatch, HEADER.replace(old, new)))


def test_a_base_has_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = config(tmp_path, monkeypatch, HEADER)
    path.rename(path.with_name("Base-it.yml"))
    with pytest.raises(paper_headers.HeaderError, match=r"Base-it\.yml: a base cannot be run"):
        paper_headers.all_rows()


def test_configs_without_rows_are_listed_with_their_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = config(tmp_path, monkeypatch, "_BASE_: Base.yml\n")
    assert paper_headers.beside(path) is None
    path.with_name("Base.yml").write_text("# Beside: LoOp, another network\nSEED: 1\n", encoding="utf-8")
    assert paper_headers.beside(path) == ("LoOp", "another network") and paper_headers.rows_of(path) == []
    text = papers.page(ROWS)
    assert "- another network: [" in text and "[it.yml](../fastreid_configs/it.yml)\n" in text
    path.write_text("# Beside: LoOp\n", encoding="utf-8")
    with pytest.raises(paper_headers.HeaderError, match=r"it\.yml: expected PAPER, what it is; got 'LoOp'"):
        paper_headers.beside(path)


def test_unlisted_experiments_are_errors() -> None:
    with pytest.raises(paper_headers.HeaderError, match=r"it\.yml: papers\.yml has no Table 99 of LoOp"):
        papers.page([*ROWS, paper_headers.Row("it.yml", "LoOp", "Table 99", "MS", "CUB", "R@1 50.9")])


def test_experiments_without_configs_have_a_reason() -> None:
    with pytest.raises(paper_headers.HeaderError, match=r"Fig\. 3d of LoOp has no config: give its"):
        papers.page([row for row in ROWS if row.experiment != "Fig. 3d"])


def test_files_in_commands_exist() -> None:
    experiments = [
        one for paper in papers.read_experiments()["papers"].values() for one in paper["experiments"].values()
    ]
    commands = [one["command"] for one in experiments if "command" in one]
    files = [file for command in commands for file in re.findall(r"(?:tests|examples|fastreid_configs)/\S+", command)]
    assert len(files) > 3
    assert [file for file in files if not (ROOT / file).is_file()] == []
    assert {command.split()[0] for command in commands} <= {"pytest", "python", "pml-ext"}
