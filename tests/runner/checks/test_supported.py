"""Configs in the forms that FastReID and FastFace publish: each loads, and says all that keeps it from running."""

from pathlib import Path

import pytest

from pml_ext._errors import UserError
from pml_ext.cli import main
from pml_ext.runner.checks.check import problems, require_supported
from pml_ext.runner.checks.supported import unsupported
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.config.load import load_config

BAGTRICKS = """
MODEL:
  META_ARCHITECTURE: Baseline
  BACKBONE: {NAME: build_resnet_backbone, NORM: BN, DEPTH: 50x, LAST_STRIDE: 1, FEAT_DIM: 2048, WITH_IBN: False}
  HEADS: {NAME: EmbeddingHead, NORM: BN, WITH_BNNECK: True, POOL_LAYER: GlobalAvgPool, NECK_FEAT: before}
  LOSSES:
    NAME: ("CrossEntropyLoss", "TripletLoss",)
    CE: {EPSILON: 0.1, SCALE: 1.}
    TRI: {MARGIN: 0.3, HARD_MINING: True, NORM_FEAT: False, SCALE: 1.}
INPUT:
  SIZE_TRAIN: [ 256, 128 ]
  SIZE_TEST: [ 256, 128 ]
  REA: {ENABLED: True, PROB: 0.5}
  FLIP: {ENABLED: True}
  PADDING: {ENABLED: True}
DATALOADER: {SAMPLER_TRAIN: NaiveIdentitySampler, NUM_INSTANCE: 4, NUM_WORKERS: 8}
SOLVER:
  AMP: {ENABLED: True}
  STEPS: [ 40, 90 ]
  WARMUP_ITERS: 2000
DATASETS:
  NAMES: ("Market1501",)
  TESTS: ("Market1501",)
CUDNN_BENCHMARK: True
"""
AGW = """
_BASE_: bagtricks.yml
MODEL:
  BACKBONE: {WITH_NL: True}
  HEADS: {POOL_LAYER: GeneralizedMeanPooling}
  LOSSES: {TRI: {MARGIN: 0.0, HARD_MINING: False}}
"""
SBS = """
_BASE_: bagtricks.yml
MODEL:
  FREEZE_LAYERS: [ backbone ]
  BACKBONE: {WITH_NL: True}
  HEADS: {NECK_FEAT: after, POOL_LAYER: GeneralizedMeanPoolingP, CLS_LAYER: CircleSoftmax, SCALE: 64, MARGIN: 0.35}
  LOSSES: {TRI: {MARGIN: 0.0}}
INPUT: {SIZE_TRAIN: [ 384, 128 ], SIZE_TEST: [ 384, 128 ], AUTOAUG: {ENABLED: True, PROB: 0.1}}
DATALOADER: {NUM_INSTANCE: 16}
SOLVER: {SCHED: CosineAnnealingLR, DELAY_EPOCHS: 30, ETA_MIN_LR: 0.0000007, FREEZE_ITERS: 1000}
"""
VIT = """
_BASE_: bagtricks.yml
MODEL:
  PIXEL_MEAN: [127.5, 127.5, 127.5]
  PIXEL_STD: [127.5, 127.5, 127.5]
  BACKBONE: {NAME: build_vit_backbone, DEPTH: base, FEAT_DIM: 768, DROP_PATH_RATIO: 0.1, SIE_COE: 3.0}
  HEADS: {POOL_LAYER: Identity}
SOLVER: {OPT: SGD, BASE_LR: 0.008, SCHED: CosineAnnealingLR, CLIP_GRADIENTS: {ENABLED: True}}
"""
FACE = """
MODEL:
  META_ARCHITECTURE: FaceBaseline
  BACKBONE: {NAME: build_iresnet_backbone, DEPTH: 50x, FEAT_DIM: 25088, DROPOUT: 0.}
  HEADS:
    NAME: FaceHead
    WITH_BNNECK: True
    NECK_FEAT: after
    EMBEDDING_DIM: 512
    POOL_LAYER: Flatten
    CLS_LAYER: CosSoftmax
    SCALE: 64
    MARGIN: 0.4
    NUM_CLASSES: 360
    PFC: {ENABLED: True, SAMPLE_RATE: 0.1}
  LOSSES:
    NAME: ("CrossEntropyLoss",)
    CE: {EPSILON: 0., SCALE: 1.}
DATASETS:
  REC_PATH: /data/train.rec
  NAMES: ("MS1MV2",)
  TESTS: ("Market1501",)
INPUT: {SIZE_TRAIN: [0,], SIZE_TEST: [0,]}
SOLVER: {OPT: SGD, BASE_LR: 0.05, STEPS: [8, 12, 15, 18], WARMUP_ITERS: 0}
"""
FORMS = {"bagtricks": BAGTRICKS, "AGW": AGW, "SBS": SBS, "ViT": VIT, "face": FACE}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FORMS.items():
        (tmp_path / f"{name}.yml").write_text(text)
    return tmp_path


@pytest.mark.parametrize("name", FORMS)
def test_the_published_forms_run(folder: Path, name: str) -> None:
    assert problems(load_config(folder / f"{name}.yml")) == []


def test_the_defaults_run() -> None:
    assert unsupported(get_cfg()) == []


def test_all_problems_are_named_in_one_message(folder: Path) -> None:
    wrong = {
        "MODEL.META_ARCHITECTURE": "MoCo",
        "MODEL.BACKBONE.NAME": "build_effnet_backbone",
        "MODEL.BACKBONE.NORM": "GhostBN",
        "KD.EMA.ENABLED": "True",
        "SOLVER.OPT": "Adan",
        "DATASETS.TESTS": "('LFWW',)",
        "SOLVER.WEIGHT_DECAY": "-0.1",
        "MODEL.LOSSES.TRI.SCALE": "-1",
        "INPUT.FLIP.PROB": "2",
    }
    cfg = load_config(folder / "SBS.yml", [word for pair in wrong.items() for word in pair])
    with pytest.raises(UserError, match="the config cannot run as it is") as caught:
        require_supported(cfg)
    lines = [line.strip() for line in str(caught.value).splitlines()[1:]]
    for start in (
        "MODEL.META_ARCHITECTURE = 'MoCo': momentum contrast",
        "MODEL.BACKBONE.NAME = 'build_effnet_backbone': ",
        "MODEL.BACKBONE.NORM = 'GhostBN': batch norm over parts",
        "KD.EMA.ENABLED = True: knowledge distillation",
        "SOLVER.OPT = 'Adan': unknown; did you mean 'Adam'",
        "DATASETS.TESTS = 'LFWW': unknown; did you mean 'LFW'?",
        "SOLVER.WEIGHT_DECAY = -0.1: must be 0 or more",
        "MODEL.LOSSES.TRI.SCALE = -1.0: must be 0 or more",
        "INPUT.FLIP: PROB must be in [0, 1]",
    ):
        (line,) = [line for line in lines if line.startswith(start)]
        lines.remove(line)
    assert lines == []


@pytest.mark.parametrize(
    ("opts", "message"),
    [
        ("MODEL.BACKBONE.PRETRAIN True MODEL.BACKBONE.WITH_SE True", r"PRETRAIN = True: FastReID names no weights"),
        ("MODEL.HEADS.SCALE 0", r"MODEL\.HEADS\.SCALE = 0\.0: must be above 0"),
        ("INPUT.PADDING.SIZE -4", r"INPUT\.PADDING\.SIZE = -4: must be 0 or more"),
        ("DATALOADER.SET_WEIGHT [0.5,1]", r"SET_WEIGHT = \[0\.5, 1\]: must be whole numbers"),
        ("TEST.AQE.QE_K -1", r"TEST\.AQE\.QE_K = -1: must be 1 or more"),
        ("TEST.RERANK.ENABLED True TEST.RERANK.K2 21", r"TEST\.RERANK\.K2 = 21: must be at most TEST\.RERANK\.K1, 20"),
        ("MODEL.BACKBONE.FEAT_DIM 512", r"FEAT_DIM must be 2048 for build_resnet_backbone of DEPTH 50x; got 512"),
        ("MODEL.LOSSES.CE.EPSILON 1.5", r"MODEL\.LOSSES\.CE: epsilon must be in \[0, 1\), or -1"),
        ("SOLVER.SCHED OneCycleLR", r"SOLVER\.WARMUP_ITERS = 2000: OneCycleLR begins with a warm-up of its own"),
        ("SOLVER.IMS_PER_BATCH 0", r"SOLVER\.IMS_PER_BATCH = 0: must be 1 or more"),
        ("DATALOADER.SAMPLER_TRAIN RandomIdentitySampler", r"SAMPLER_TRAIN = .*: unknown.*Known: 'TrainingSampler'"),
        ("SOLVER.WARMUP_FACTOR -1.0", r"SOLVER\.WARMUP_FACTOR = -1\.0: must be 0 or more"),
        ("TEST.PRECISE_BN.ENABLED True TEST.PRECISE_BN.DATASET None", r"PRECISE_BN\.DATASET = 'None': unknown\. Known"),
        ("MODEL.PIXEL_STD [1.0]", r"MODEL\.PIXEL_MEAN = .* must both have 1 value \(grey\) or 3"),
        (
            "SOLVER.OPT SGD SOLVER.NESTEROV True SOLVER.MOMENTUM 0.0",
            r"SOLVER\.OPT: Nesterov momentum requires",
        ),
        ("SOLVER.SCHED Poly", r"SOLVER\.SCHED = 'Poly': unknown.* Known: 'MultiStepLR'"),
        ("TEST.METRIC jaccard", r"TEST\.METRIC = 'jaccard': unknown"),
    ],
)
def test_one_problem_each(folder: Path, opts: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        require_supported(load_config(folder / "bagtricks.yml", opts.split()))


def test_own_data_goes_wherever_a_data_set_is_named(folder: Path) -> None:
    own = ["DATASETS.NAMES", "('file:a.csv',)", "DATASETS.TESTS", "('file:a.csv',)", "TEST.PRECISE_BN.ENABLED", "True"]
    keys = {"file:a.csv": [], "folder:a": [], "Market": ["TEST.PRECISE_BN.DATASET"]}
    for name, wrong in keys.items():
        cfg = load_config(folder / "SBS.yml", [*own, "TEST.PRECISE_BN.DATASET", name])
        assert [problem.key for problem in unsupported(cfg)] == wrong


def test_switched_off_asks_for_nothing(folder: Path) -> None:
    opts = "MODEL.HEADS.PFC.SAMPLE_RATE 0.5 KD.EMA.MOMENTUM 0.5 MODEL.QUEUE_SIZE 10 TEST.PRECISE_BN.DATASET None"
    assert problems(load_config(folder / "bagtricks.yml", opts.split())) == []
    with_weights = "MODEL.BACKBONE.PRETRAIN True MODEL.WEIGHTS model.pth"
    assert problems(load_config(folder / "bagtricks.yml", with_weights.split())) == []


def test_check_config_tells_of_every_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "wrong.yml").write_text("MODEL: {LOSES: 1}")
    names = [str(folder / f"{name}.yml") for name in ("AGW", "wrong", "face")]
    assert main(["check-config", *names, "MODEL.HEADS.NAME", "AttrHead"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{names[0]}: cannot run:"
    assert lines[1].startswith("  MODEL.HEADS.NAME = 'AttrHead': ")
    assert lines[2] == f"{names[1]}: cannot run:"
    assert "unknown key MODEL.LOSES" in lines[3]
    assert lines[4].startswith("  MODEL.HEADS.NAME = 'AttrHead': ")
    assert lines[5] == f"{names[2]}: cannot run:"
    assert len(lines) == 7


def test_check_config_without_files_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-config", "SOLVER.OPT", "SGD"]) == 2
    assert "needs one or more .yml or .yaml files, and KEY VALUE pairs; got SOLVER.OPT SGD" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("losses", ["TRI: MARGIN 0.3, NORM_FEAT False", "SoftTripleLoss", "SUPCONLOSS: TEMPERATURE 0.1"]),
        ("miners", ["MS: EPSILON 0.1", "UniformHistogramMiner"]),
        ("backbones", ["build_resnet_backbone", "timm:<model>", "torchvision:<model>"]),
        ("heads", ["MODEL.HEADS.CLS_LAYER", "CircleSoftmax", "GeneralizedMeanPooling", "EmbeddingHead"]),
        ("datasets", ["Market1501", "LFW", "folder:<path>", "VehicleID with 800 test identities"]),
        ("transforms", ["REA      Fills a rectangle with one colour", "VALUE [123.675"]),
        ("schedulers", ["OneCycleLR"]),
        ("optimizers", ["AdamW"]),
        ("samplers", ["NaiveIdentitySampler"]),
    ],
)
def test_list(kind: str, names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", kind]) == 0
    shown = capsys.readouterr().out
    for name in names:
        assert name in shown


def test_list_of_something_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "loss"]) == 2
    assert "list: unknown value 'loss'; did you mean 'losses'?" in capsys.readouterr().err
