"""Configs in the spellings of FastReID before 1.1, each beside what it meant there in today's."""

import logging
from typing import Any

import pytest
import yaml

from pml_ext._shared.errors import UserError
from pml_ext.runner.config.load import load_config, read_config

# what an old config that leaves them out has, all versions alike
OF_OLD = """
INPUT: {FLIP: {ENABLED: True}, PADDING: {ENABLED: True}}
MODEL: {BACKBONE: {PRETRAIN: True}, HEADS: {WITH_BNNECK: True}}
DATALOADER: {SAMPLER_TRAIN: BalancedIdentitySampler}
SOLVER: {WEIGHT_DECAY_BIAS: 0.0}
"""
# and beside these, until version 0.2
OF_0_2 = """
INPUT: {REA: {VALUE: [151.98, 142.29000000000002, 126.735]}}
"""
# name -> old, and what it is today beside OF_OLD
OLD: dict[str, tuple[str, str]] = {
    "other names": (
        "INPUT: {DO_PAD: False, PADDING_MODE: edge, DO_FLIP: False, FLIP_PROB: 0.3, REA: {MEAN: [1., 2., 3.]},"
        " DO_AFFINE: True, DO_AUTOAUG: True, AUTOAUG_PROB: 0.1, DO_AUGMIX: True, AUGMIX_PROB: 0.2}\n"
        "SOLVER: {FP16_ENABLED: True}\nTEST: {ROC_ENABLED: True, FLIP_ENABLED: True}",
        "INPUT: {PADDING: {ENABLED: False, MODE: edge}, FLIP: {ENABLED: False, PROB: 0.3}, REA: {VALUE: [1., 2., 3.]},"
        " AFFINE: {ENABLED: True}, AUTOAUG: {ENABLED: True, PROB: 0.1}, AUGMIX: {ENABLED: True, PROB: 0.2}}\n"
        "SOLVER: {AMP: {ENABLED: True}}\nTEST: {ROC: {ENABLED: True}, FLIP: {ENABLED: True}}",
    ),
    "what is a node today": (
        "INPUT: {PADDING: 12}\nSOLVER: {AMP_ENABLED: True}",
        "INPUT: {PADDING: {SIZE: 12}}\nSOLVER: {AMP: {ENABLED: True}}",
    ),
    "no identities": (
        "DATALOADER: {PK_SAMPLER: False, NAIVE_WAY: True}",
        "DATALOADER: {SAMPLER_TRAIN: TrainingSampler}",
    ),
    "naive": ("DATALOADER: {PK_SAMPLER: True, NAIVE_WAY: True}", "DATALOADER: {SAMPLER_TRAIN: NaiveIdentitySampler}"),
    "balanced": ("DATALOADER: {NAIVE_WAY: False}", "DATALOADER: {SAMPLER_TRAIN: BalancedIdentitySampler}"),
    "other values": (
        "MODEL: {BACKBONE: {DEPTH: 101}, LOSSES: {CIRCLE: {ALPHA: 64}}, HEADS: {POOL_LAYER: gempool}}",
        "MODEL: {BACKBONE: {DEPTH: 101x}, LOSSES: {CIRCLE: {GAMMA: 64}}, HEADS: {POOL_LAYER: GeneralizedMeanPooling}}",
    ),
    "a layer with a margin": (
        "MODEL: {HEADS: {CLS_LAYER: arcFace, SCALE: 64}}",
        "MODEL: {HEADS: {CLS_LAYER: ArcSoftmax, SCALE: 64}}",
    ),
    "a linear layer without its scale": (
        "MODEL: {HEADS: {CLS_LAYER: linear, SCALE: 64, MARGIN: 0.35}}",
        "MODEL: {HEADS: {CLS_LAYER: Linear, SCALE: 1.0, MARGIN: 0.35}}",
    ),
    "switches that are off": (
        "INPUT: {DO_PAD: True}\nMODEL: {BACKBONE: {NORM_SPLIT: 1}}\n"
        "SOLVER: {FREEZE_FC_ITERS: 0, SWA: {ENABLED: False}}\nKD: {MODEL_CONFIG: '', MODEL_WEIGHTS: ''}",
        "",
    ),
    "warm-up in iterations after 1.0": (
        "INPUT: {DO_PAD: True}\nSOLVER: {OPT: SGD, MAX_EPOCH: 60, WARMUP_ITERS: 2000}",
        "SOLVER: {OPT: SGD, MAX_EPOCH: 60, WARMUP_ITERS: 2000, NESTEROV: True}\n"
        "DATALOADER: {SAMPLER_TRAIN: NaiveIdentitySampler}",
    ),
    "1.0 with its warm-up in epochs": (
        "INPUT: {DO_PAD: True}\nSOLVER: {OPT: SGD, WARMUP_EPOCHS: 5}",
        "SOLVER: {OPT: SGD, WARMUP_EPOCHS: 5, NESTEROV: True}\nDATALOADER: {SAMPLER_TRAIN: NaiveIdentitySampler}",
    ),
    "SGD with Nesterov's momentum turned off": (
        "INPUT: {DO_PAD: True}\nSOLVER: {OPT: SGD, WARMUP_EPOCHS: 5, NESTEROV: False}",
        "SOLVER: {OPT: SGD, WARMUP_EPOCHS: 5}\nDATALOADER: {SAMPLER_TRAIN: NaiveIdentitySampler}",
    ),
    "one decay for norms and the rest": (
        "INPUT: {DO_PAD: True}\nSOLVER: {WEIGHT_DECAY: 0.01}",
        "SOLVER: {WEIGHT_DECAY: 0.01, WEIGHT_DECAY_NORM: 0.01}",
    ),
}  # fmt: skip
# name -> old, and what it is today beside OF_OLD and OF_0_2
OLDER: dict[str, tuple[str, str]] = {
    "steps from the end of the warm-up": (
        "SOLVER: {MAX_ITER: 60, SCHED: WarmupMultiStepLR, STEPS: [30, 50], WARMUP_ITERS: 4, FREEZE_ITERS: 2}",
        "SOLVER: {MAX_EPOCH: 60, STEPS: [26, 46], WARMUP_EPOCHS: 4, FREEZE_EPOCHS: 2}",
    ),
    "steps that nobody set": (
        "SOLVER: {MAX_ITER: 60, WARMUP_ITERS: 10}",
        "SOLVER: {MAX_EPOCH: 60, WARMUP_EPOCHS: 10, STEPS: [20, 45]}",
    ),
    "a step within the warm-up": (
        "SOLVER: {SCHED: WarmupMultiStepLR, STEPS: [5, 50], WARMUP_ITERS: 10}",
        "SOLVER: {STEPS: [0, 40], WARMUP_EPOCHS: 10}",
    ),
    "a cosine after a delay": (
        "SOLVER: {MAX_ITER: 60, SCHED: WarmupCosineAnnealingLR, DELAY_ITERS: 30}",
        "SOLVER: {MAX_EPOCH: 60, SCHED: CosineAnnealingLR, DELAY_EPOCHS: 30}",
    ),
    "colour jitter of 0.2": (
        "INPUT: {CJ: {ENABLED: True}}\nSOLVER: {SCHED: WarmupCosineAnnealingLR}",
        "INPUT: {CJ: {ENABLED: True, PROB: 0.8}}\nSOLVER: {SCHED: CosineAnnealingLR}",
    ),
    "AutoAugment of 0.2": (
        "INPUT: {DO_AUTOAUG: True, DO_AUGMIX: True}\nSOLVER: {SCHED: WarmupCosineAnnealingLR}",
        "INPUT: {AUTOAUG: {ENABLED: True, PROB: 0.5}, AUGMIX: {ENABLED: True, PROB: 1.0}}\n"
        "SOLVER: {SCHED: CosineAnnealingLR}",
    ),
    "a neck in the head's name": (
        "MODEL: {HEADS: {NAME: BNneckHead, IN_FEAT: 512, POOL_LAYER: gempool}}",
        "MODEL: {HEADS: {NAME: EmbeddingHead, POOL_LAYER: GeneralizedMeanPoolingP}, BACKBONE: {FEAT_DIM: 512}}",
    ),
    "what trains first": (
        "MODEL: {OPEN_LAYERS: [heads]}\nSOLVER: {MAX_ITER: 60, FREEZE_ITERS: 5, SCHED: WarmupCosineAnnealingLR}",
        "MODEL: {FREEZE_LAYERS: [backbone]}\nSOLVER: {MAX_EPOCH: 60, FREEZE_EPOCHS: 5, SCHED: CosineAnnealingLR}",
    ),
}


def merged(*texts):
    tree: dict[str, Any] = {}

    def overlay(below, above):
        for key, value in above.items():
            if isinstance(value, dict) and isinstance(below.get(key), dict):
                overlay(below[key], value)
            else:
                below[key] = value

    for text in texts:
        overlay(tree, yaml.safe_load(text) or {})
    return tree


def loaded(folder, name, text):
    (folder / name).write_text(text, encoding="utf-8")
    return load_config(folder / name)


@pytest.mark.parametrize("name", OLD | OLDER)
def test_an_old_spelling_means_what_it_meant(tmp_path, name):
    old, today = (OLD | OLDER)[name]
    defaults = [OF_OLD, OF_0_2] if name in OLDER else [OF_OLD]
    assert loaded(tmp_path, "old.yml", old) == loaded(tmp_path, "today.yml", yaml.safe_dump(merged(*defaults, today)))


def test_todays_spelling_keeps_todays_defaults(tmp_path):
    read = read_config(_written(tmp_path, "MODEL: {BACKBONE: {DEPTH: 50x}, FREEZE_LAYERS: ['']}\nSOLVER: {SWA: {}}"))
    assert read.notes == [f"{tmp_path / 'c.yml'}: SOLVER.SWA has no effect and is ignored"]
    assert not read.cfg.INPUT.FLIP.ENABLED
    assert read_config(_written(tmp_path, "INPUT: {FLIP: {ENABLED: True}}")).notes == []


def test_old_keys_of_a_chain_are_read_together(tmp_path):
    (tmp_path / "base.yml").write_text("DATALOADER: {PK_SAMPLER: True}\nSOLVER: {STEPS: [30, 50], WARMUP_ITERS: 3}")
    top = "_BASE_: base.yml\nDATALOADER: {NAIVE_WAY: True}\nSOLVER: {MAX_ITER: 60}\nINPUT: {DO_PAD: True}"
    cfg = load_config(_written(tmp_path, top), ["INPUT.DO_PAD", "False", "SOLVER.MAX_ITER", "90"])
    assert cfg.DATALOADER.SAMPLER_TRAIN == "NaiveIdentitySampler"
    assert (cfg.SOLVER.STEPS, cfg.SOLVER.WARMUP_EPOCHS, cfg.SOLVER.MAX_EPOCH) == ([27, 47], 3, 90)
    assert not cfg.INPUT.PADDING.ENABLED
    cfg = load_config(_written(tmp_path, top), ["DATALOADER.SAMPLER_TRAIN", "TrainingSampler"])
    assert cfg.DATALOADER.SAMPLER_TRAIN == "TrainingSampler"


def test_iterations_are_refused_once_however_long_the_chain(tmp_path):
    (tmp_path / "base.yml").write_text("SOLVER: {MAX_ITER: 120, SCHED: WarmupMultiStepLR, LOG_PERIOD: 100}")
    with pytest.raises(UserError) as caught:
        load_config(_written(tmp_path, "_BASE_: base.yml\nSOLVER: {MAX_ITER: 28600, DELAY_ITERS: 90}"))
    assert [line.partition(": ")[2].partition(",")[0] for line in str(caught.value).splitlines()] == [
        "SOLVER.MAX_ITER = 28600: counts iterations",
        "SOLVER.DELAY_ITERS = 90: counts iterations",
    ]


def test_each_replacement_is_said_once(tmp_path, caplog):
    text = "INPUT: {DO_PAD: True, REA: {MEAN: [1., 2., 3.]}}\nMODEL: {HEADS: {POOL_LAYER: avgpool}}"
    with caplog.at_level(logging.INFO, "pml_ext"):
        load_config(_written(tmp_path, text))
    file = tmp_path / "c.yml"
    assert caplog.messages[:3] == [
        f"{file}: INPUT.DO_PAD is now INPUT.PADDING.ENABLED True",
        f"{file}: INPUT.REA.MEAN is now INPUT.REA.VALUE [1.0, 2.0, 3.0]",
        f"{file}: MODEL.HEADS.POOL_LAYER 'avgpool' is now MODEL.HEADS.POOL_LAYER 'GlobalAvgPool'",
    ]
    assert caplog.messages[3].startswith("missing keys have the defaults of FastReID before 1.1: INPUT.FLIP")
    assert len(caplog.messages) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "SOLVER: {SWA: {ENABLED: True}}",
            "SOLVER.SWA = {'ENABLED': True}: stochastic weight averaging is not supported",
        ),
        ("MODEL: {OPEN_LAYERS: [layer4]}", "MODEL.OPEN_LAYERS = ['layer4']: must be backbone, heads or both"),
        ("INPUT: {DO_PAD: 3}", "INPUT.PADDING.ENABLED must be True or False"),
        ("DATALOADER: {PK_SAMPLER: maybe}", "unknown key DATALOADER.PK_SAMPLER. Known"),
        ("MODEL: {HEADS: {NAME: [BNneckHead]}}", "MODEL.HEADS.NAME must be text"),
        ("SOLVER: {MAX_ITER: 60, STEPS: {}}", "SOLVER.STEPS must be a list of numbers"),
        ("MODEL: &m {MODEL: *m}", "unknown key MODEL.MODEL. Known"),
    ],
)
def test_what_has_no_meaning_here_is_refused(tmp_path, text, message):
    with pytest.raises(UserError) as caught:
        load_config(_written(tmp_path, text))
    assert message in str(caught.value)


def _written(folder, text):
    (folder / "c.yml").write_text(text, encoding="utf-8")
    return folder / "c.yml"


def test_fastretris_recalls_are_ranks_and_change_nothing_else(tmp_path):
    read = read_config(_written(tmp_path, "TEST: {RECALLS: [1, 2, 4]}"))
    assert read.notes == [f"{tmp_path / 'c.yml'}: TEST.RECALLS is now TEST.RANKS [1, 2, 4]"]
    assert read.cfg == loaded(tmp_path, "plain.yml", "TEST: {RANKS: [1, 2, 4]}"), "no old default comes with it"


def test_an_old_spelling_on_the_command_line_does_not_make_a_file_old():
    name = "Market1501/bagtricks_R50.yml"
    plain, deep = load_config(name), read_config(name, ["MODEL.BACKBONE.DEPTH", "101"])
    assert deep.notes == ["the command line: MODEL.BACKBONE.DEPTH '101' is now MODEL.BACKBONE.DEPTH '101x'"]
    deep.cfg.defrost()
    deep.cfg.MODEL.BACKBONE.DEPTH = "50x"
    assert deep.cfg == plain
