"""insightface's recognition/arcface_torch configs as YAML: Python files, which are read and never run."""

import ast
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

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
_LEFT_OUT = {
    "dali": "pictures are decoded on the CPU",
    "dali_aug": "pictures are decoded on the CPU",
    "resume": "--resume does it",
}
# How often it logs, how many pictures the .rec file has, what else a checkpoint holds, and accounts.
_WITHOUT_EFFECT = (
    "frequent", "num_image", "save_all_states", "wandb_key", "wandb_entity", "wandb_project", "wandb_log_all",
    "wandb_resume", "suffix_run_name", "save_artifacts", "notes",
)  # fmt: skip
_ARITHMETIC = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip


def read_settings(path: Path) -> dict[str, Any]:
    """The settings `config.KEY = value` of a file, over those of base.py beside it, if there is one.

    A value is a literal, or sums, products and quotients of numbers and of earlier settings.

    Raises:
        UserError: another statement, an unknown setting, or one that is missing; the file cannot be read.
    """
    base = path.with_name("base.py")
    known = {*_BASE, *_NEEDED, *_LEFT_OUT, *_WITHOUT_EFFECT}
    found = dict(_BASE)
    for file in dict.fromkeys([base, path] if base.is_file() else [path]):
        try:
            found |= _assignments(file)
        except RecursionError as error:
            raise UserError(f"{file} is nested too deep") from error
    if unknown := sorted(found.keys() - known):
        raise UserError(f"{path}: unknown settings {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    if missing := [name for name in _NEEDED if name not in found]:
        raise UserError(f"{path}: config.{', config.'.join(missing)} is missing")
    return found


def convert(path: Path, processes: int) -> str:
    """The YAML of an insightface config for so many processes; comments above it say what it leaves out, and why."""
    given = read_settings(path)
    if processes < 1:
        raise UserError(f"--num-gpus must be 1 or more; got {processes}")
    try:
        tree, left = _tree(given, path, processes)
        text = yaml.safe_dump(tree, sort_keys=False)
    except (TypeError, ValueError, AttributeError, ArithmeticError, yaml.YAMLError) as error:
        raise UserError(f"{path}: a setting has a value of another kind than insightface's ({error})") from error
    heading = f"insightface's {path.name} for {processes} processes of {given['batch_size']} images."
    lines = [heading, *(f"Differs: {line}" for line in left)]
    # A setting's text must not end its comment.
    return "".join(f"# {' '.join(line.split())}\n" for line in lines) + text


def _tree(given: Mapping[str, Any], path: Path, processes: int) -> tuple[dict[str, Any], list[str]]:
    left = [f"{name} = {given[name]!r} is left out: {why}" for name, why in _LEFT_OUT.items() if given.get(name)]
    left.append("insightface clips the norm of all gradients of the network to 5; CLIP_GRADIENTS is of each parameter")
    left.append("insightface's last batch norm learns a shift, and in r18 to r200 no scale; here a scale and no shift")
    if given["network"] not in _NETWORKS:
        raise UserError(f"{path}: network must be one of {', '.join(_NETWORKS)}; got {given['network']!r}")
    name, depth = _NETWORKS[given["network"]]
    m1, m2, m3 = map(float, given["margin_list"])
    if m1 != 1 or (m2 and m3):
        raise UserError(f"{path}: margin_list {m1, m2, m3} is neither ArcFace's (1, m, 0) nor CosFace's (1, 0, m)")
    heads = {
        "NAME": "FaceHead", "WITH_BNNECK": True, "NECK_FEAT": "after", "EMBEDDING_DIM": given["embedding_size"],
        "POOL_LAYER": "Flatten", "NUM_CLASSES": given["num_classes"], "CLS_LAYER": "CosSoftmax" if m3 else "ArcSoftmax",
        "MARGIN": m3 or m2, "SCALE": 64.0, "FILTER_COSINE": max(float(given["interclass_filtering_threshold"]), 0.0),
    }  # fmt: skip
    if not m3:
        left.append("insightface's ArcFace has the gradient of cos θ for cos(θ + m); here it is the formula's")
    rate = float(given["sample_rate"])
    if rate < 1:
        heads["PFC"] = {"ENABLED": True, "SAMPLE_RATE": rate or 1e-9}  # 0: no classes but the batch's
    steps = int(given["gradient_acc"])
    if steps > 1:
        left.append(
            f"gradient_acc = {steps} becomes one batch in chunks, with the mean of the gradients, not their sum"
        )
    if given["rec"] == "synthetic":
        left.append('rec = "synthetic" is left out: there are no synthetic pictures; give DATASETS.REC_PATH')
    unknown = [target for target in given["val_targets"] if target not in _TESTS]
    if unknown:
        left.append(f"val_targets {', '.join(unknown)} are left out: there is no reader of them")
    targets = [_TESTS[target] for target in given["val_targets"] if target in _TESTS]
    if not targets:
        left.append("val_targets is empty, and a run measures something: LFW, once, at the end")
    decay, warm_up = float(given["weight_decay"]), max(float(given["warmup_epoch"]), 0.0)
    tree = {
        "MODEL": {
            "META_ARCHITECTURE": "FaceBaseline",
            "PIXEL_MEAN": [127.5] * 3,
            "PIXEL_STD": [127.5] * 3,
            "BACKBONE": {"NAME": name, "DEPTH": depth},
            "HEADS": heads,
            "LOSSES": {"NAME": ["CrossEntropyLoss"]},
        },
        "INPUT": {"SIZE_TRAIN": [112, 112], "SIZE_TEST": [112, 112], "FLIP": {"ENABLED": True}},
        "DATASETS": {"REC_PATH": f"{given['rec']}/train.rec", "TESTS": targets or ["LFW"]},
        "DATALOADER": {"NUM_WORKERS": given["num_workers"]},
        "SOLVER": {
            "AMP": {"ENABLED": bool(given["fp16"])},
            "OPT": {"sgd": "SGD", "adamw": "AdamW"}.get(given["optimizer"], given["optimizer"]),
            "BASE_LR": float(given["lr"]),
            "MOMENTUM": float(given["momentum"]),
            **{f"WEIGHT_DECAY{part}": decay for part in ("", "_NORM", "_BIAS")},
            "MAX_EPOCH": given["num_epoch"],
            "IMS_PER_BATCH": given["batch_size"] * processes * steps,
            **({"CHUNK": given["batch_size"]} if steps > 1 else {}),
            "SCHED": "PolynomialLR",
            "WARMUP_ITERS": 0,
            "WARMUP_EPOCHS": warm_up,
            "WARMUP_FACTOR": 0.0,
            "CHECKPOINT_PERIOD": 1,
        },
        # insightface counts the parts of gradient_acc as steps.
        "TEST": {"EVAL_PERIOD": 0, "EVAL_STEPS": max(given["verbose"] // steps, 1) if targets else 0},
        "CUDNN_BENCHMARK": True,
        "LOGGERS": ["csv", "tensorboard", *(["wandb"] if given["using_wandb"] else [])],
        "SEED": given["seed"],
        "OUTPUT_DIR": given["output"] or f"logs/insightface/{path.stem}",
    }
    return tree, left


def _assignments(path: Path) -> dict[str, Any]:
    try:
        statements = ast.parse(path.read_text(encoding="utf-8"), str(path)).body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise UserError(f"{path} is not a Python file: {error}") from error
    found: dict[str, Any] = {}
    for statement in statements:
        match statement:
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
                pass
            case ast.Assign(targets=[ast.Name(id="config")], value=ast.Call(args=[], keywords=[])):
                pass
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="config"), attr=name)], value=value):
                found[name] = _value(value, {**_BASE, **found}, path)
            case _:
                raise _refused(statement, path)
    return found


def _value(node: ast.expr, settings: Mapping[str, Any], path: Path) -> Any:
    match node:
        case ast.Attribute(value=ast.Name(id="config"), attr=name) if name in settings:
            return settings[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            numbers = [_value(side, settings, path) for side in (left, right)]
            if all(isinstance(number, int | float) for number in numbers):
                try:
                    return _ARITHMETIC[type(op)](*numbers)
                except ArithmeticError as error:
                    raise UserError(f"{path}, line {node.lineno}: {ast.unparse(node)}: {error}") from error
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise _refused(node, path) from error


def _refused(node: ast.stmt | ast.expr, path: Path) -> UserError:
    return UserError(
        f"{path}, line {node.lineno}: expected config.KEY = a literal, or arithmetic of numbers and earlier settings; "
        f"got {ast.unparse(node):.80}. The file is read and never run"
    )
