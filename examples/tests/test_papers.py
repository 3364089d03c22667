"""The papers' experiments: config headers, the list of tables and figures, and the page."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pml_ext.runner.checks.rules import unsupported
from pml_ext.runner.config.load import load_config
from pml_ext.runner.modeling.losses.factory import build_losses, build_miner
from pml_ext.runner.modeling.weights.imagenet import why_no_weights

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "papers"
CONFIGS = ROOT / "fastreid_configs"

sys.path.insert(0, str(EXAMPLES))
import headers  # noqa: E402
import write_pages  # noqa: E402

sys.path.remove(str(EXAMPLES))

ROWS = headers.all_rows()
FROM_SCRATCH = ["MODEL.BACKBONE.PRETRAIN", "False"]


def test_the_pages_are_up_to_date():
    done = subprocess.run([sys.executable, str(EXAMPLES / "write_pages.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, f"run python examples/papers/write_pages.py: {done.stderr}"


def test_every_config_of_a_paper_is_on_its_page():
    papers_of = {CONFIGS / base: key for key, paper in write_pages.read_papers().items() for base in paper["bases"]}
    assert [base for base in papers_of if not base.is_file()] == []
    checked = 0
    for path in headers.leaves():
        below = path
        while below := headers.base_of(below):
            if paper := papers_of.get(below):
                named = {row.paper for row in headers.rows_of(path)} or {*(headers.beside(path) or ())[:1]}
                assert paper in named, f"{path} needs a row of {paper}, or a line Beside"
                checked += 1
    assert checked > 20


def test_no_duplicate_rows():
    keys = [(row.paper, row.experiment, row.name, row.data) for row in ROWS]
    assert [key for key in keys if keys.count(key) > 1] == []


@pytest.mark.parametrize("row", [row for row in ROWS if row.overrides], ids=lambda row: f"{row.config} {row.overrides}")
def test_overrides_of_rows_can_run(row):
    cfg = load_config(CONFIGS / row.config, FROM_SCRATCH + row.opts())
    assert [str(problem) for problem in unsupported(cfg)] == []
    build_losses(cfg.MODEL.LOSSES, num_classes=100, output_size=lambda _: 512)
    build_miner(cfg.MODEL.MINER)


HEADER = """# What it is.
# Needs: `KEY FILE`
# Differs: Paper: one network; here:
#   another
# Paper: LoOp, Table 2, row "MS", CUB
# Reported: R@1 50.9
# Paper: LoOp, Fig. 3d, row "λ 0.2", CUB
# Reported: a plot
# With: MODEL.LOSSES.MS.BASE 0.2
# Differs: the batch
_BASE_: Base.yml
# Paper: no header, below the first key
"""


def config(folder, monkeypatch, header):
    monkeypatch.setattr(headers, "CONFIGS", folder / "configs")
    (folder / "configs").mkdir()
    (folder / "configs" / "Base.yml").write_text("# Differs: the epochs\nSEED: 1\n", encoding="utf-8")
    path = folder / "configs" / "it.yml"
    path.write_text(header, encoding="utf-8")
    return path


def test_a_header_is_read(tmp_path, monkeypatch):
    first, second = headers.rows_of(config(tmp_path, monkeypatch, HEADER))
    of_the_file = ["the epochs", "Paper: one network; here: another"]
    assert first == headers.Row(
        "it.yml", "LoOp", "Table 2", "MS", "CUB", "R@1 50.9", needs="`KEY FILE`", differs=of_the_file
    )
    assert (second.experiment, second.opts()) == ("Fig. 3d", ["MODEL.LOSSES.MS.BASE", "0.2"])
    assert second.differs == [*of_the_file, "the batch"]
    assert second.notes == ["Needs `KEY FILE`", *second.differs]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('row "MS", CUB', "MS", r"it\.yml: expected PAPER, TABLE, row \"NAME\", DATA; got 'LoOp, Table 2, MS'"),
        ("# Reported: R@1 50.9\n", "", "the row 'MS' of Table 2 needs a line Reported"),
        ("BASE 0.2", "BASE", "With needs KEY VALUE pairs; got 'MODEL.LOSSES.MS.BASE'"),
    ],
)
def test_malformed_headers_are_errors(tmp_path, monkeypatch, old, new, message):
    assert old in HEADER
    with pytest.raises(headers.HeaderError, match=message):
        headers.rows_of(config(tmp_path, monkeypatch, HEADER.replace(old, new)))


def row(name="MS", experiment="Table 2", data="CUB", **others):
    return headers.Row("it.yml", "LoOp", experiment, name, data, **{"reported": "R@1 50.9"} | others)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([*ROWS, row(experiment="Table 99")], r"it\.yml: papers\.yml has no Table 99 of LoOp"),
        ([*ROWS, row(name="MSS")], r"`rows` of Table 2 of LoOp and the configs differ in \['MSS'\]"),
    ],
)
def test_pages_have_exactly_the_listed_rows(rows, message):
    with pytest.raises(headers.HeaderError, match=message):
        write_pages.pages(rows)


def test_configs_whose_weights_are_not_the_published_ones_say_which_file_they_need():
    for config in {row.config for row in ROWS}:
        backbone = load_config(CONFIGS / config).MODEL.BACKBONE
        # Without a tag, timm loads weights that were fine-tuned on ImageNet-1k.
        has_no_tag = backbone.NAME.startswith("timm:") and "." not in backbone.NAME
        needs_file = backbone.PRETRAIN and (has_no_tag or why_no_weights(backbone) is not None)
        assert {"PRETRAIN_PATH" in row.needs for row in ROWS if row.config == config} == {needs_file}, config


def test_files_in_commands_exist():
    experiments = [one for paper in write_pages.read_papers().values() for one in paper["experiments"].values()]
    commands = [one["command"] for one in experiments if "command" in one]
    files = [file for command in commands for file in re.findall(r"(?:tests|examples|fastreid_configs)/\S+", command)]
    assert len(files) > 3
    assert [file for file in files if not (ROOT / file).is_file()] == []
    assert {command.split()[0] for command in commands} <= {"pytest", "python", "pml-ext"}
