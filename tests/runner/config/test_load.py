"""Configs: files over bases, hostile files, what embedding reads of them, and those that come with pml_ext."""

import logging
import os
import re
import tracemalloc
from pathlib import Path

import pytest

from pml_ext._shared.errors import UserError
from pml_ext.cli import main
from pml_ext.runner.checks.rules import require_network
from pml_ext.runner.config.files import CONFIGS, NOTEBOOKS, SCRIPTS
from pml_ext.runner.config.load import load_config
from pml_ext.runner.config.network_keys import config_of, load_for_embedding, shaping


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_base_chain_is_overlaid_from_the_bottom_up(tmp_path):
    write(tmp_path / "base" / "a.yml", "SEED: 1\nSOLVER: {MAX_EPOCH: 5, BASE_LR: 0.1}\n")
    write(tmp_path / "b.yml", "_BASE_: base/a.yml\nSOLVER: {MAX_EPOCH: 6}\n")
    top = write(tmp_path / "top" / "c.yml", "_BASE_: ../b.yml\nSEED: 3\n")
    cfg = load_config(top, ["SOLVER.BASE_LR", "0.25"])
    assert (cfg.SEED, cfg.SOLVER.MAX_EPOCH, cfg.SOLVER.BASE_LR) == (3, 6, 0.25)
    assert cfg.SOLVER.MOMENTUM == 0.9


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("SOLVER: {BASE_LR: 1}", "SOLVER.BASE_LR", 1.0),
        ("SOLVER: {BASE_LR: 1e-4}", "SOLVER.BASE_LR", 1e-4),  # a string to YAML 1.1
        ('MODEL:\n  LOSSES:\n    NAME: ("CITLoss", "TCMLoss",)', "MODEL.LOSSES.NAME", ("CITLoss", "TCMLoss")),
        ("DATASETS: {NAMES: !!python/tuple [Digits]}", "DATASETS.NAMES", ("Digits",)),
        ("MODEL: {LOSSES: {NAME: CITLoss}}", "MODEL.LOSSES.NAME", ("CITLoss",)),  # a bare name is a tuple of one
        ("DATASETS: {TESTS: folder:a/b}", "DATASETS.TESTS", ("folder:a/b",)),
        ("MODEL: {FREEZE_LAYERS: backbone}", "MODEL.FREEZE_LAYERS", ["backbone"]),
        ("LOGGERS: csv", "LOGGERS", ("csv",)),
        ("MODEL: {MINER: {NAME: }}", "MODEL.MINER.NAME", ""),  # None says "not set", like ""
        ("MODEL: {MINER: {NAME: None}}", "MODEL.MINER.NAME", ""),
        ("CALLBACKS: ", "CALLBACKS", ()),
        ("MODEL: {FREEZE_LAYERS: ''}", "MODEL.FREEZE_LAYERS", []),
        ("INPUT:\n  SIZE_TRAIN: (8, 8)", "INPUT.SIZE_TRAIN", [8, 8]),
        ("INPUT: {FLIP: {ENABLED: 'false'}}", "INPUT.FLIP.ENABLED", False),  # as on the command line
    ],
)
def test_values_take_the_type_of_the_default(tmp_path, text, key, expected):
    value = load_config(write(tmp_path / "c.yml", text))
    for part in key.split("."):
        value = value[part]
    assert value == expected
    assert type(value) is type(expected)


MINED = "MODEL: {LOSSES: {NAME: MultiSimilarityLoss}, MINER: {NAME: MultiSimilarityMiner}}"


@pytest.mark.parametrize(
    ("text", "overrides", "miner"),
    [
        ("", ["MODEL.LOSSES.NAME", "CITLoss"], ""),
        ("MODEL: {LOSSES: {NAME: CITLoss}}", [], ""),
        ("MODEL: {LOSSES: {NAME: CITLoss}, MINER: {NAME: BatchHardMiner}}", [], "BatchHardMiner"),
        ("", ["MODEL.LOSSES.NAME", "CITLoss", "MODEL.MINER.NAME", "MultiSimilarityMiner"], "MultiSimilarityMiner"),
        ("MODEL: {LOSSES: {NAME: CITLoss}}", ["MODEL.MINER.NAME", "BatchHardMiner"], "BatchHardMiner"),
        ("", ["MODEL.LOSSES.NAME", "('MultiSimilarityLoss', 'CITLoss')"], "MultiSimilarityMiner"),
        ("", ["MODEL.LOSSES.MS.ALPHA", "3.0"], "MultiSimilarityMiner"),
        ("", ["MODEL.MINER.NAME", "None"], ""),
        ("", ["MODEL.MINER.NAME", ""], ""),
    ],
)
def test_a_miner_goes_with_its_losses(tmp_path, caplog, text, overrides, miner):
    write(tmp_path / "base.yml", MINED)
    config = write(tmp_path / "c.yml", f"_BASE_: base.yml\n{text}")
    with caplog.at_level(logging.INFO, logger="pml_ext"):
        assert miner == load_config(config, overrides).MODEL.MINER.NAME
    goes = "MODEL.MINER.NAME MultiSimilarityMiner was for MultiSimilarityLoss, which "
    assert (goes in caplog.text) == (not miner and "MODEL.MINER.NAME" not in overrides)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "MODEL: {LOSES: {}}",
            r"c\.yml: unknown key MODEL\.LOSES; did you mean MODEL\.LOSSES\?",
        ),
        ("SOLVER: 3", r"c\.yml: SOLVER is a group of keys, such as SOLVER\.AMP; got 3"),
        ("SOLVER: {MAX_EPOCH: ten}", r"SOLVER\.MAX_EPOCH must be a whole number, such as 120; got 'ten'$"),
        ("MODEL: {LOSSES: CITLoss}", r"MODEL.LOSSES is a group of keys, such as MODEL\.LOSSES\.NAME; got 'CITLoss'$"),
        ("SOLVER: {STEPS: [a]}", r"SOLVER\.STEPS must be a list of numbers, such as \[30, 55\]; got \['a'\]$"),
        ("INPUT: {SIZE_TRAIN: }", r"INPUT\.SIZE_TRAIN must be a list of numbers, such as \[256, 128\]; got None$"),
        ("INPUT: {PADDING: {SIZE: [64, 64]}}", r"PADDING\.SIZE must be a whole number, such as 10; got \[64, 64\]$"),
        ("DATASETS: {NAMES: }", r"NAMES must be a list of names, such as \('Market1501',\); got None$"),
        ("DATASETS: {NAMES: [64, 64]}", r"NAMES must be a list of names, such as .*; got \[64, 64\]$"),
        ("TEST: {METRICS: 3}", r"TEST\.METRICS must be a list of names, such as \('cmc',\); got 3$"),
        ("CALLBACKS: [[1]]", r"CALLBACKS must be a list of names, such as \(\); got \[\[1\]\]$"),
        ("SEED: !!python/object/apply:os.system ['true']", r"c\.yml: not a usable YAML file: could not determine"),
        ("- 1", r"c\.yml: expected a mapping of config keys; got list"),
        ("_BASE_: none.yml", r"cannot read config file .*none\.yml \(_BASE_ of .*c\.yml\)"),
        ("_BASE_: c.yml", r"_BASE_ cycle: .*c\.yml -> .*c\.yml"),
    ],
)
def test_a_mistake_is_an_error_that_names_it(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        load_config(write(tmp_path / "c.yml", text))


def test_every_mistake_is_named_at_once(tmp_path):
    write(tmp_path / "base.yml", "TEST: {SAVE_DISTMAT: True}")
    text = "_BASE_: base.yml\nSEEDS: 1\nMODEL: {HEADS: {NECK: after, SCALE: big}, BACKBONE: resnet}"
    with pytest.raises(UserError) as caught:
        load_config(write(tmp_path / "c.yml", text), ["SOLVER.LR", "1"])
    starts = [
        f"{tmp_path}/base.yml: unknown key TEST.SAVE_DISTMAT. Known: TEST.",
        f"{tmp_path}/c.yml: unknown key SEEDS; did you mean SEED?",
        f"{tmp_path}/c.yml: unknown key MODEL.HEADS.NECK",
        "the command line: unknown key SOLVER.LR",
        f"{tmp_path}/c.yml: MODEL.HEADS.SCALE must be a number, such as 1.0; got 'big'",
        f"{tmp_path}/c.yml: MODEL.BACKBONE is a group of keys, such as MODEL.BACKBONE.NAME; got 'resnet'",
    ]
    for line, start in zip(str(caught.value).splitlines(), starts, strict=True):
        assert line.startswith(start)


def test_overrides_come_in_pairs(tmp_path):
    with pytest.raises(UserError, match="KEY VALUE pairs; got an odd number of arguments: SEED"):
        load_config(write(tmp_path / "c.yml", ""), ["SEED"])


def test_the_dump_reads_back_the_same(tmp_path):
    cfg = load_config("Omniglot/smoothap_tcm.yml", ["SOLVER.BASE_LR", "3e-05"])
    again = load_config(write(tmp_path / "c.yml", cfg.dump()))
    assert again == cfg


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
# text, what the message says
HOSTILE = {
    "aliases that stand for 9^9 words": (f"{BOMB}MODEL: {{HEADS: *i}}", "MODEL.HEADS is a group of keys"),
    "an alias of itself": ("SOLVER: {STEPS: &s [*s]}", "SOLVER.STEPS must be a list of numbers"),
    "a 13th month": ("SEED: 2021-13-45", "not a usable YAML file: month must be"),
    "5,000 digits": (f"SEED: {'9' * 5000}", "not a usable YAML file"),
    "deep nesting": ("[" * 600, "not a usable YAML file: maximum recursion depth"),
    "a number of 10,000 digits": (
        f"SOLVER: {{GAMMA: 0x{'F' * 9000}}}",
        "not a usable YAML file: a number beyond 64 bits",
    ),
    "a NUL": ("SEED: \0", "not a usable YAML file"),
    "a NUL in the base's name": ('_BASE_: "a\\0b"', "embedded null byte"),
    "a home that nobody has": ("_BASE_: ~no_such_user/a.yml", "~no_such_user/a.yml (_BASE_ of "),
    "a list as a key": ("? [SEED]\n: 1", "a key must be a word"),
    "a key twice": ("SEED: 1\nSOLVER:\n  GAMMA: 1\n\n  GAMMA: 2", "c.yml: duplicate key 'GAMMA' in lines 3 and 5"),
}


@pytest.mark.parametrize("text, message", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused_in_a_short_message(tmp_path, text, message):
    file = tmp_path / "c.yml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_config(file)
    assert message in str(caught.value)
    assert max(map(len, str(caught.value).splitlines())) < 2000


def test_an_anchor_bomb_takes_little_memory(tmp_path):
    file = tmp_path / "c.yml"
    file.write_text(f"{BOMB}MODEL: {{HEADS: *i}}")
    tracemalloc.start()
    try:
        with pytest.raises(UserError):
            load_config(file)
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()


def test_a_pipe_as_config_or_as_its_base_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "base.yml")
    (tmp_path / "c.yml").write_text("_BASE_: base.yml")
    for name in ("base.yml", "c.yml"):
        with pytest.raises(UserError, match=r"base\.yml.*: .*not a regular file"):
            load_config(tmp_path / name)


def test_a_path_that_is_nearly_right_is_named(tmp_path):
    (tmp_path / "Glyphs").mkdir()
    (tmp_path / "Glyphs" / "smoothap_tcm.yml").write_text("SEED: 1")
    for wrong, near in (("Glyph/triplet.yml", "Glyphs"), ("Glyphs/smothap_tcm.yml", "Glyphs/smoothap_tcm.yml")):
        with pytest.raises(UserError, match=f"did you mean {re.escape(str(tmp_path / near))}\\?$"):
            load_config(tmp_path / wrong)
    with pytest.raises(UserError) as caught:
        load_config(tmp_path / "Market1501" / "a.yml")
    assert "did you mean" not in str(caught.value)


TEXT = """
MODEL:
  BACKBONE: {DEPTH: 18x, FEAT_DIM: 512, PRETRAIN: True}
  HEADS: {CLS_LAYER: MyClassifier, FILTER_COSINE: 0.4, EMBEDDING_DIM: 64, NUM_CLASSES: 751}
INPUT: {SIZE_TEST: [64, 32], REA: {PROB: 7.0}}
SOLVER: {MAX_EPOCH: 3}
TEST: {IMS_PER_BATCH: 5}
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "a.yml").write_text(TEXT)
    return tmp_path / "a.yml"


def test_only_what_is_needed_is_taken(config):
    cfg = load_for_embedding(config, ["INPUT.SIZE_TEST", "[48, 24]", "MODEL.DEVICE", "cpu"])
    assert (cfg.MODEL.BACKBONE.DEPTH, cfg.MODEL.HEADS.EMBEDDING_DIM, cfg.INPUT.SIZE_TEST) == ("18x", 64, [48, 24])
    assert (cfg.TEST.IMS_PER_BATCH, cfg.MODEL.DEVICE) == (5, "cpu")
    assert (cfg.INPUT.REA.PROB, cfg.SOLVER.MAX_EPOCH) != (7.0, 3), "training's"
    assert not cfg.MODEL.BACKBONE.PRETRAIN
    assert (cfg.MODEL.HEADS.CLS_LAYER, cfg.MODEL.HEADS.NUM_CLASSES) == ("Linear", 0)
    require_network(cfg)


def test_a_record_of_it_gives_it_back(config):
    cfg = load_for_embedding(config)
    kept = shaping(cfg)
    assert kept["MODEL.BACKBONE.DEPTH"] == "18x" and kept["INPUT.SIZE_TEST"] == [64, 32]
    assert not [key for key in kept if key.startswith(("SOLVER", "MODEL.LOSSES", "MODEL.DEVICE"))]
    assert shaping(config_of(kept)) == kept
    of_a_project = {**kept, "MODEL.HEADS.NAME": "HeadOfAProject"}  # an ONNX file needs no such head
    assert config_of(of_a_project).MODEL.HEADS.NAME == "HeadOfAProject"
    with pytest.raises(UserError, match=r"unknown key MODEL\.BACKBONE\.NEW"):
        config_of({**kept, "MODEL.BACKBONE.NEW": 1})


def test_mistakes_elsewhere_are_one_warning(config, caplog):
    overrides = ["SOLVER.NEW", "1", "KD.EMA.ENABLED", "perhaps", "MODEL.LOSSES.MINE.SCALE", "2"]
    with caplog.at_level(logging.WARNING, logger="pml_ext"):
        load_for_embedding(config, overrides)
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith("ignored, because embedding does not need it: ")
    assert all(key in said for key in ("SOLVER.NEW", "KD.EMA.ENABLED", "MODEL.LOSSES.MINE"))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("MODEL.NECK", "1", "unknown key MODEL.NECK"),
        ("TEST.FLIP.ENABLED", "perhaps", "TEST.FLIP.ENABLED must be True or False"),
        ("INPUT", "3", "INPUT is a group of keys"),
    ],
)
def test_mistakes_in_what_is_needed_are_errors(config, key, value, message):
    with pytest.raises(UserError, match=message):
        load_for_embedding(config, [key, value])


def test_a_config_is_found_by_its_name_and_a_file_of_ones_own_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("Glyphs/smoothap_tcm.yml", "fastreid_configs/Glyphs/smoothap_tcm.yml"):
        assert load_config(name).DATASETS.NAMES == ("Glyphs",)
    Path("Glyphs").mkdir()
    Path("Glyphs/smoothap_tcm.yml").write_text("SEED: 3\n")
    assert load_config("Glyphs/smoothap_tcm.yml").SEED == 3


def test_names_do_not_leave_the_folder():
    assert CONFIGS.find("../pyproject.toml") is None and CONFIGS.find(str(Path(__file__).absolute())) is None


def test_the_list_has_every_config_to_run_with_what_it_is():
    lines = CONFIGS.listing().splitlines()
    assert any(line.startswith("Market1501/bagtricks_R50.yml  ") and "model zoo" in line for line in lines)
    assert not any("Base-" in line.split()[0] for line in lines)


def test_a_copy_brings_its_bases_and_loads_alike(tmp_path, capsys):
    name = "Market1501/bagtricks_R50.yml"
    assert main(["copy", name, "--output", str(tmp_path)]) == 0
    *lines, next_step = capsys.readouterr().out.splitlines()
    copies = [Path(line) for line in lines]
    assert next_step == f"train with pml-ext train {copies[0]}"
    assert copies[0] == tmp_path / name and tmp_path / "Base-bagtricks.yml" in copies
    assert load_config(copies[0]) == load_config(name)
    copies[0].write_text("SEED: 3\n")
    with pytest.raises(UserError, match="already exists with different content"):
        CONFIGS.copy(name, tmp_path)


def test_an_unknown_name_says_which_is_close(capfd):
    assert main(["copy", "Market1501/bagtrick_R50.yml"]) == 2
    assert "did you mean Market1501/bagtricks_R50.yml" in capfd.readouterr().err
    assert main(["check-config", "none/such.yml"]) == 1
    assert "`pml-ext configs` lists the bundled ones" in capfd.readouterr().out


def test_examples_are_listed_and_copied_alike(tmp_path, capsys):
    assert main(["examples"]) == 0
    about = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert about["swap_in_a_torch_loop.py"] == "One training loop, one changed line: the loss."
    assert about["swap_one_loss.ipynb"] == "Swap one loss in a PML loop"
    assert "readme_tables.py" not in about and "headers.py" not in about
    for bundled, name in ((SCRIPTS, "verification.py"), (NOTEBOOKS, "swap_one_loss.ipynb")):
        assert main(["copy", name, "--output", str(tmp_path)]) == 0
        assert (tmp_path / name).read_bytes() == (bundled.folder / name).read_bytes()
