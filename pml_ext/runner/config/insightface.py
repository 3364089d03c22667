"""insightface's recognition/arcface_torch configs as YAML: Python files, which are read and never run."""

import ast
import json
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pml_ext._errors import UserError

_NETWORKS = {f"r{depth}": ("build_iresnet_backbone", f"{depth}x") for depth in (18, 34, 50, 100, 200)}
_NETWORKS |= {name: ("build_mobilefacenet_backbone", name) for name in ("mbf", "mbf_large")}
_NETWORKS |= {
    name: ("build_insightface_vit_backbone", name)
    for name in (
        "vit_t", "vit_t_dp005_mask0", "vit_s", "vit_s_dp005_mask_0", "vit_b", "vit_b_dp005_mask_005",
        "vit_l_dp005_mask_005", "vit_h",
    )
}  # fmt: skip
_TESTS = {"lfw": "LFW", "cfp_fp": "CFP_FP", "agedb_30": "AgeDB_30"}
_BASE = {  # what insightface's configs/base.py sets
    "margin_list": (1.0, 0.5, 0.0), "network": "r50", "embedding_size": 512, "sample_rate": 1,
    "interclass_filtering_threshold": 0, "fp16": False, "batch_size": 128, "optimizer": "sgd", "lr": 0.1,
    "momentum": 0.9, "weight_decay": 5e-4, "verbose": 2000, "gradient_acc": 1, "seed": 2048, "num_workers": 2,
    "warmup_epoch": 0, "val_targets": [], "output": None, "using_wandb": False,
}  # fmt: skip
_NEEDED = ("rec", "num_classes", "num_epoch")
# Settings without effect here: how often it logs, how many images the .rec file has, what else a checkpoint holds,
# accounts, and what --resume does.
_WITHOUT_EFFECT = (
    "frequent", "num_image", "save_all_states", "wandb_key", "wandb_entity", "wandb_project", "wandb_log_all",
    "wandb_resume", "suffix_run_name", "save_artifacts", "notes", "resume", "dali", "dali_aug",
)  # fmt: skip
_ARITHMETIC = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip


_YAML = """\
MODEL:
  META_ARCHITECTURE: FaceBaseline
  PIXEL_MEAN: [127.5, 127.5, 127.5]
  PIXEL_STD: [127.5, 127.5, 127.5]
  BACKBONE: {{NAME: {name}, DEPTH: {depth}}}
  HEADS:
    NAME: FaceHead
    WITH_BNNECK: True
    NECK_FEAT: after
    POOL_LAYER: Flatten
    EMBEDDING_DIM: {embedding_size}
    NUM_CLASSES: {num_classes}
    CLS_LAYER: {layer}
    SCALE: 64.0
    MARGIN: {margin}
    FILTER_COSINE: {filter_cosine}
    PFC: {{ENABLED: {is_sampled}, SAMPLE_RATE: {sample_rate}}}
  LOSSES: {{NAME: [CrossEntropyLoss]}}
INPUT: {{SIZE_TRAIN: [112, 112], SIZE_TEST: [112, 112], FLIP: {{ENABLED: True}}}}
DATASETS: {{REC_PATH: {record}, TESTS: {tests}}}
DATALOADER: {{NUM_WORKERS: {num_workers}}}
SOLVER:
  AMP: {{ENABLED: {half}}}
  OPT: {optimizer}
  BASE_LR: {lr}
  MOMENTUM: {momentum}
  WEIGHT_DECAY: {weight_decay}
  WEIGHT_DECAY_NORM: {weight_decay}
  WEIGHT_DECAY_BIAS: {weight_decay}
  MAX_EPOCH: {num_epoch}
  IMS_PER_BATCH: {batch}
  CHUNK: {chunk}
  SCHED: PolynomialLR
  WARMUP_ITERS: 0
  WARMUP_EPOCHS: {warmup_epoch}
  WARMUP_FACTOR: 0.0
  CHECKPOINT_PERIOD: 1
TEST: {{EVAL_PERIOD: 0, EVAL_STEPS: {period}}}
CUDNN_BENCHMARK: True
LOGGERS: {loggers}
SEED: {seed}
OUTPUT_DIR: {output}
"""
_DIFFERENCES = [
    "insightface clips the norm of all gradients of the network to 5; CLIP_GRADIENTS is of each parameter",
    "insightface's last batch norm learns a shift, and in r18 to r200 no scale; here a scale and no shift",
    "insightface's ArcFace has the gradient of cos θ for cos(θ + m); here it is the formula's",
    "insightface can decode images on the GPU (dali) and make synthetic ones; here they come from a .rec file",
    "insightface adds the gradients of gradient_acc up; here they are one batch in chunks, and its mean",
]


def convert(path: Path, processes: int) -> str:
    """The YAML of an insightface config for so many processes; comments above it list what differs."""
    given = read_settings(path)
    if processes < 1:
        raise UserError(f"--num-gpus must be 1 or more; got {processes}")
    try:
        values = {name: json.dumps(value) for name, value in _values(given, path, processes).items()}
        unknown = [str(target) for target in given["val_targets"] if target not in _TESTS]
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UserError(f"{path}: a setting has a value of another kind than insightface's ({error})") from error
    lines = [f"insightface's {path.name} for {processes} processes.", *(f"Differs: {line}" for line in _DIFFERENCES)]
    if unknown:
        lines.append(f"Left out, for there is no reader: val_targets {', '.join(unknown)}")
    # A setting's text must not end its comment.
    return "".join(f"# {' '.join(line.split())}\n" for line in lines) + _YAML.format_map(values)


def _values(given: Mapping[str, Any], path: Path, processes: int) -> dict[str, Any]:
    """The values of the YAML's fields."""
    if given["network"] not in _NETWORKS:
        raise UserError(f"{path}: network must be one of {', '.join(_NETWORKS)}; got {given['network']!r}")
    name, depth = _NETWORKS[given["network"]]
    m1, m2, m3 = map(float, given["margin_list"])
    if m1 != 1 or (m2 and m3):
        raise UserError(f"{path}: margin_list {m1, m2, m3} is neither ArcFace's (1, m, 0) nor CosFace's (1, 0, m)")
    rate, steps, batch = float(given["sample_rate"]), int(given["gradient_acc"]), int(given["batch_size"])
    tests = [_TESTS[target] for target in given["val_targets"] if target in _TESTS]
    floats = {key: max(float(given[key]), 0.0) for key in ("lr", "momentum", "weight_decay", "warmup_epoch")}
    wholes = {key: int(given[key]) for key in ("embedding_size", "num_classes", "num_workers", "num_epoch", "seed")}
    values: dict[str, Any] = {**floats, **wholes, "name": name, "depth": depth}
    values["layer"] = "CosSoftmax" if m3 else "ArcSoftmax"
    values["margin"] = m3 or m2
    values["filter_cosine"] = max(float(given["interclass_filtering_threshold"]), 0.0)
    values["is_sampled"] = rate < 1
    values["sample_rate"] = rate or 1e-9  # 0: no classes but the batch's
    values["record"] = f"{given['rec']}/train.rec"
    values["tests"] = tests or ["LFW"]  # once, at the end
    values["half"] = bool(given["fp16"])
    values["optimizer"] = {"sgd": "SGD", "adamw": "AdamW"}.get(given["optimizer"], given["optimizer"])
    values["batch"] = batch * processes * steps
    values["chunk"] = batch if steps > 1 else 0
    # insightface counts the parts of gradient_acc as steps.
    values["period"] = max(given["verbose"] // steps, 1) if tests else 0
    values["loggers"] = ["csv", "tensorboard"] + ["wandb"] * bool(given["using_wandb"])
    values["output"] = given["output"] or f"logs/insightface/{path.stem}"
    return values


def read_settings(path: Path) -> dict[str, Any]:
    """The settings `config.KEY = value` of a file, over those of a base.py next to it.

    A value is a literal, or sums, products and quotients of numbers and of earlier settings.

    Raises:
        UserError: another statement, an unknown or missing setting, or a file that cannot be read.
    """
    base, known = path.with_name("base.py"), {*_BASE, *_NEEDED, *_WITHOUT_EFFECT}
    settings = dict(_BASE)
    for file in dict.fromkeys([base, path] if base.is_file() else [path]):
        try:
            _assign(settings, file)
        except (SyntaxError, ValueError, ArithmeticError, MemoryError, RecursionError) as error:
            raise UserError(f"{file} is not a Python file of literals, or nested too deep: {error}") from error
    if unknown := sorted(settings.keys() - known):
        raise UserError(f"{path}: unknown settings {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    if missing := [name for name in _NEEDED if name not in settings]:
        raise UserError(f"{path}: config.{', config.'.join(missing)} is missing")
    return settings


def _assign(settings: dict[str, Any], path: Path) -> None:
    for statement in ast.parse(path.read_text(encoding="utf-8"), str(path)).body:
        match statement:
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
                pass
            case ast.Assign(targets=[ast.Name(id="config")], value=ast.Call(args=[], keywords=[])):
                pass
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="config"), attr=name)], value=value):
                settings[name] = _value(value, settings, path)
            case _:
                raise _refused(statement, path)


def _value(node: ast.expr, settings: Mapping[str, Any], path: Path) -> Any:
    match node:
        case ast.Attribute(value=ast.Name(id="config"), attr=name) if name in settings:
            return settings[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            numbers = [_value(side, settings, path) for side in (left, right)]
            if all(isinstance(number, int | float) for number in numbers):
                return _ARITHMETIC[type(op)](*numbers)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError) as error:
        raise _refused(node, path) from error


def _refused(node: ast.stmt | ast.expr, path: Path) -> UserError:
    return UserError(
        f"{path}, line {node.lineno}: expected config.KEY = a literal, or arithmetic of numbers and earlier settings; "
        f"got {ast.unparse(node):.80}. The file is read and never run"
    )
