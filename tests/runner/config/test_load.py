from pathlib import Path

import pytest

from pml_ext._errors import UserError
from pml_ext.runner.config.load import load_config

CONFIGS = Path(__file__).parents[3] / "fastreid_configs"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_base_chain_is_overlaid_from_the_bottom_up(tmp_path: Path) -> None:
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
        ("INPUT:\n  SIZE_TRAIN: (8, 8)", "INPUT.SIZE_TRAIN", [8, 8]),
        ("INPUT: {FLIP: {ENABLED: 'false'}}", "INPUT.FLIP.ENABLED", False),  # as on the command line
    ],
)
def test_values_take_the_type_of_the_default(tmp_path: Path, text: str, key: str, expected: object) -> None:
    value = load_config(write(tmp_path / "c.yml", text))
    for part in key.split("."):
        value = value[part]
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "MODEL: {LOSES: {}}",
            r"c\.yml: unknown key MODEL\.LOSES; did you mean MODEL\.LOSSES\?",
        ),
        ("SOLVER: 3", r"c\.yml: SOLVER holds the keys AMP.*got 3"),
        ("SOLVER: {MAX_EPOCH: ten}", r"SOLVER\.MAX_EPOCH must be of type int, such as 120; got 'ten' of type str"),
        (
            'MODEL:\n  LOSSES:\n    NAME: ("CITLoss")',
            r'NAME must be of type tuple.*a tuple of one is written \("CITLoss",\)',
        ),
        ("SOLVER: {STEPS: [a]}", r"SOLVER\.STEPS must hold float or int"),
        ("SEED: !!python/object/apply:os.system ['true']", r"c\.yml: not a usable YAML file: could not determine"),
        ("- 1", r"c\.yml: expected a mapping of config keys; got list"),
        ("_BASE_: none.yml", r"cannot read config file .*none\.yml \(_BASE_ of .*c\.yml\)"),
        ("_BASE_: c.yml", r"_BASE_ cycle: .*c\.yml -> .*c\.yml"),
    ],
)
def test_a_mistake_is_an_error_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_config(write(tmp_path / "c.yml", text))


def test_every_mistake_is_named_at_once(tmp_path: Path) -> None:
    write(tmp_path / "base.yml", "TEST: {SAVE_DISTMAT: True}")
    text = "_BASE_: base.yml\nSEEDS: 1\nMODEL: {HEADS: {NECK: after, SCALE: big}, BACKBONE: resnet}"
    with pytest.raises(UserError) as caught:
        load_config(write(tmp_path / "c.yml", text), ["SOLVER.LR", "1"])
    starts = [
        f"{tmp_path}/base.yml: unknown key TEST.SAVE_DISTMAT. Known: TEST.AQE, ",
        f"{tmp_path}/c.yml: unknown key SEEDS; did you mean SEED?",
        f"{tmp_path}/c.yml: unknown key MODEL.HEADS.NECK",
        "the command line: unknown key SOLVER.LR",
        f"{tmp_path}/c.yml: MODEL.HEADS.SCALE must be of type float",
        f"{tmp_path}/c.yml: MODEL.BACKBONE holds the keys ",
    ]
    for line, start in zip(str(caught.value).splitlines(), starts, strict=True):
        assert line.startswith(start)


def test_overrides_come_in_pairs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="KEY VALUE pairs; got an odd number of words: SEED"):
        load_config(write(tmp_path / "c.yml", ""), ["SEED"])


def test_the_dump_reads_back_the_same(tmp_path: Path) -> None:
    cfg = load_config(CONFIGS / "Omniglot" / "smoothap_tcm.yml", ["SOLVER.BASE_LR", "3e-05"])
    again = load_config(write(tmp_path / "c.yml", cfg.dump()))
    assert again == cfg
