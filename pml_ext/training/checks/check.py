"""Whether a config can run, found out without data, weights or training."""

from collections.abc import Callable, Sequence
from itertools import takewhile

import torch
from yacs.config import CfgNode as CN

from pml_ext.training.checks.supported import unsupported
from pml_ext.training.config.load import ConfigError, load_config
from pml_ext.training.data.transforms import build_transform
from pml_ext.training.evaluation.evaluate import Evaluation
from pml_ext.training.modeling.losses.factory import build_losses, build_miner
from pml_ext.training.modeling.network import build_network
from pml_ext.training.modeling.weights import missing_weights


def problems(cfg: CN) -> list[str]:
    """Everything that keeps a config from running, a line each; empty where it can run."""
    found = unsupported(cfg)
    keys = [problem.key for problem in found if problem.key != "MODEL.BACKBONE.PRETRAIN"]
    lines = [str(problem) for problem in found]
    attempts: list[tuple[tuple[str, ...], Callable[[CN], object]]] = [
        (("INPUT", "MODEL.PIXEL"), lambda c: _build_transform(c, training=True)),
        (("INPUT", "MODEL.PIXEL"), lambda c: _build_transform(c, training=False)),
        (("MODEL",), _build_model),
        (("TEST",), lambda c: Evaluation(c.TEST)),
    ]
    for parts, build in attempts:
        # Where a part's keys have problems already, building it would only repeat the first of them.
        if not any(key.startswith(parts) for key in keys):
            try:
                build(cfg)
            except ConfigError as error:
                lines += [] if str(error) in lines else [str(error)]
    return lines


def require_supported(cfg: CN) -> None:
    """Raises one ConfigError that names everything that keeps a config from running."""
    lines = problems(cfg)
    if lines:
        raise ConfigError("the config cannot run as it is:\n" + "\n".join(f"  {line}" for line in lines))


def check_files(words: Sequence[str]) -> tuple[str, bool]:
    """What to tell about config files, and whether all of them can run.

    Args:
        words: FILE… KEY VALUE…; files end in .yml or .yaml.
    """
    files = list(takewhile(lambda word: word.endswith((".yml", ".yaml")), words))
    overrides = list(words[len(files) :])
    if not files:
        raise ConfigError(f"check-config needs one or more .yml or .yaml files first; got {' '.join(words)}")
    lines, all_run = [], True
    for file in files:
        note = None
        try:
            cfg = load_config(file, overrides)
            reasons, note = problems(cfg), None if cfg.MODEL.WEIGHTS else missing_weights(cfg.MODEL.BACKBONE)
        except ConfigError as error:
            reasons = str(error).splitlines()
        all_run &= not reasons
        lines.append(f"{file}: {'cannot run:' if reasons else 'runs'}")
        lines += [f"  {reason}" for reason in reasons] or ([f"  {note}"] if note else [])
    return "\n".join(lines), all_run


def _build_transform(cfg: CN, *, training: bool) -> None:
    build_transform(cfg.INPUT, training=training, channels=len(cfg.MODEL.PIXEL_MEAN))


def _build_model(cfg: CN) -> None:
    """Backbone, head, losses and miner on torch's meta device: shapes without memory, weights or arithmetic."""
    cfg = cfg.clone()
    cfg.defrost()
    cfg.MODEL.BACKBONE.PRETRAIN = False
    num_classes = max(cfg.MODEL.HEADS.NUM_CLASSES, 2)
    with torch.device("meta"):
        _, head = build_network(cfg.MODEL, cfg.INPUT, num_classes=num_classes)
    terms, _ = build_losses(cfg.MODEL.LOSSES, num_classes=num_classes, feature_size=head.feature_size)
    build_miner(cfg.MODEL.MINER, terms=terms)
