"""Checks whether a config can run, without training, and what this machine lacks for it: device, weights, data."""

import re
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import ArgumentError, UserError
from pml_ext.runner.checks.rules import unsupported
from pml_ext.runner.config.load import ReadConfig, accepted, read_config
from pml_ext.runner.config.network_keys import is_grey
from pml_ext.runner.config.yaml_file import leaves, value_of
from pml_ext.runner.data.datasets import data_set, load, read_as, training_share
from pml_ext.runner.data.datasets.image_files import dataset_root
from pml_ext.runner.data.samplers import require_callable
from pml_ext.runner.data.transforms import require_image
from pml_ext.runner.evaluation.run_metrics import Evaluation
from pml_ext.runner.modeling.architectures import build_model
from pml_ext.runner.modeling.backbones.registration import ImageSizes
from pml_ext.runner.modeling.cuda import missing_device, norms_of_other_devices
from pml_ext.runner.modeling.heads import build_partial_fc
from pml_ext.runner.modeling.interfaces import parts_of
from pml_ext.runner.modeling.losses.factory import build_losses, build_miner
from pml_ext.runner.modeling.weights.imagenet import missing_file
from pml_ext.runner.modeling.weights.load import local_file
from pml_ext.runner.registry import DATASET_REGISTRY, TRANSFORM_REGISTRY, names_part, naming_parts, unused_parts
from pml_ext.runner.solver import build_optimizer, build_schedule

T = TypeVar("T")
RUNS, CANNOT_RUN, LACKS_SOMETHING = 0, 1, 3
"""Exit statuses of `pml-ext check-config`; the last: data, a device or weights are missing on this machine."""

_ABOUT_A_VALUE = (ValueError, TypeError, RuntimeError, OverflowError, MemoryError)
_SHAPING = ("MODEL.BACKBONE", "MODEL.HEADS", "MODEL.META_ARCHITECTURE", "MODEL.PIXEL", "MODEL.DEVICE", "INPUT")
_FREEZING = ("MODEL.FREEZE_LAYERS", "MODEL.META_ARCHITECTURE", "SOLVER.FREEZE_ITERS", "SOLVER.FREEZE_EPOCHS")
_STEPPING = ("SOLVER.OPT", "SOLVER.MOMENTUM", "SOLVER.BASE_LR")
_SCHEDULING = ("SOLVER.SCHED", "SOLVER.BASE_LR", "SOLVER.MAX_EPOCH")


def problems(cfg: CN, *, processes: int = 1, wrong: Iterable[str] = ()) -> list[str]:
    """Returns the problems of a config, one line each; processes: number of processes that share a batch.

    wrong: keys with rejected values, which have their defaults instead.
    """
    wrong = list(wrong)
    unsupported_values = unsupported(cfg, processes=processes, rejected=wrong)
    wrong = [*wrong, *(problem.key for problem in unsupported_values)]
    return [*map(str, unsupported_values), *_errors_of_building(cfg, wrong)]


def require_supported(cfg: CN, *, processes: int = 1) -> None:
    """Raise one UserError with all problems of a config."""
    _refuse(problems(cfg, processes=processes))


def load_or_list_problems(config_file: str | Path, overrides: list[str]) -> CN:
    """Load a config; the error about wrong keys lists all other problems, too.

    A config without wrong keys may have such problems: `require_supported` finds them.
    """
    read = read_config(config_file, overrides)
    if read.mistakes:
        _refuse(_all_problems(read))
    return accepted(read)


def check_files(configs: Mapping[str, Sequence[str]], *, processes: int = 1) -> tuple[str, int]:
    """Returns a report on config files, each with its KEY VALUE… overrides, and the exit status."""
    reports = [_report(file, list(overrides), processes) for file, overrides in configs.items()]
    texts, statuses = zip(*reports, strict=True)
    return "\n".join(texts), CANNOT_RUN if CANNOT_RUN in statuses else max(statuses)


def _report(file: str, overrides: list[str], processes: int) -> tuple[str, int]:
    notes, status, verdict = list[str](), CANNOT_RUN, "cannot run:"
    missing = list[str]()
    try:
        read = read_config(file, overrides)
        notes, reasons = read.notes + unused_parts(read.cfg), _all_problems(read, processes)
        if not reasons:
            with naming_parts():
                missing = missing_here(read.cfg)
    except UserError as error:
        reasons = str(error).splitlines()
    except Exception as error:  # of a user's part: it must not hide the report on the other files
        reasons = "".join(traceback.format_exception(error)).splitlines()
    if not reasons:
        reasons = missing
        status, verdict = LACKS_SOMETHING, "can run, but not here as it is:"
        if not reasons:
            status, verdict = RUNS, "runs"
    lines = [f"{file}: {verdict}", *(f"  {line}" for line in reasons), *(f"  ({note})" for note in notes)]
    return "\n".join(lines), status


def _all_problems(read: ReadConfig, processes: int = 1) -> list[str]:
    return read.lines + problems(read.cfg, processes=processes, wrong=read.wrong)


def _refuse(lines: Sequence[str]) -> None:
    if lines:
        raise UserError("the config cannot run as it is:\n" + "\n".join(f"  {line}" for line in lines))


def _errors_of_building(cfg: CN, wrong: Iterable[str]) -> list[str]:
    """Returns the errors of the parts' constructors; parts that depend on keys in `wrong` are not built."""
    model, messages = cfg.MODEL, list[str]()

    def attempt(build: Callable[[], T], *depends_on: str) -> T | None:
        if any(key.startswith(depends_on) for key in wrong):
            return None
        try:
            with naming_parts():
                return build()
        except UserError as error:
            messages.extend(str(error).splitlines())
        except _ABOUT_A_VALUE as error:
            if names_part(error):
                raise
            messages.append(_about_key(error, cfg, depends_on[0]))
        return None

    for entry in map(TRANSFORM_REGISTRY.entry, TRANSFORM_REGISTRY):
        read = f"INPUT.{entry.node}", "INPUT.SIZE", "INPUT.INTERPOLATION"
        attempt(partial(require_image, cfg.INPUT, entry, len(model.PIXEL_MEAN)), *read)
    attempt(lambda: require_callable(cfg.DATALOADER), "DATALOADER.SAMPLER_TRAIN")
    classes = model.HEADS.NUM_CLASSES
    network, sizes = attempt(partial(_of_classes, partial(_network, cfg), classes), *_SHAPING) or (None, _guess(cfg))
    of_classes = _SHAPING[:3] if model.HEADS.PFC.ENABLED else ()
    losses = attempt(partial(_of_classes, partial(_losses, cfg, sizes), classes), "MODEL.LOSSES", *of_classes)
    trained = nn.ModuleDict({"heads": nn.Linear(1, 1)})  # for a solver's own mistakes
    if network is not None and losses is not None:
        trained = nn.ModuleDict({"model": network, "losses": losses})
        if cfg.SOLVER.FREEZE_ITERS or cfg.SOLVER.FREEZE_EPOCHS:
            names = [name.removeprefix("model.") for name, _ in trained.named_parameters()]
            attempt(lambda: _require_matches(model.FREEZE_LAYERS, names), *_FREEZING)
    optimizer = attempt(lambda: build_optimizer(cfg.SOLVER, trained), *_STEPPING) or _any_optimizer()
    attempt(lambda: build_schedule(cfg.SOLVER, optimizer, steps_per_epoch=100), *_SCHEDULING)
    attempt(lambda: build_miner(model.MINER), "MODEL.MINER")
    attempt(lambda: Evaluation(cfg.TEST), "TEST")
    return messages


def _about_key(error: Exception, cfg: CN, node: str) -> str:
    """Returns an error of a node's part, with the key that sets the argument if it is about one."""
    options = value_of(cfg, node)
    if isinstance(error, ArgumentError) and isinstance(options, CN):
        for key, _ in leaves(options, f"{node}."):
            if key.rpartition(".")[2].lower() == error.name:
                return f"{key} {error.problem}"
    return f"{node}: {error}"


def _of_classes(build: Callable[[int], T], classes: int) -> T | None:
    """Returns the part that is built for a number of classes; None if an error depends on a stand-in for that number.

    classes: 0 if only the training set knows it. A constructor that loads weights then fails with any other number.
    """
    if classes:
        return build(max(classes, 2))
    try:
        return build(2)
    except Exception as error:
        try:
            build(3)
        except Exception as other:
            if str(other) == str(error):
                raise error from None
        return None


def _network(cfg: CN, classes: int) -> tuple[nn.Module, dict[str, int]]:
    """Returns the architecture and the columns of its outputs in training, after images in tests and in training.

    It is built on torch's meta device: shapes without memory, weights or arithmetic. A part may need values, such as
    `tensor.item()`; it is then built on the CPU.
    """
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*copying from a non-meta parameter")  # a constructor loads weights
            return _dry_run(cfg, classes)
    except UserError:
        raise
    except Exception:  # refused only if the CPU refuses it, too
        pass
    return _dry_run(cfg, classes)


def _dry_run(cfg: CN, classes: int) -> tuple[nn.Module, dict[str, int]]:
    network = build_model(cfg, num_classes=classes).eval()
    for size in ImageSizes.of(cfg.INPUT):
        if size[0] > 0:
            _run(network, cfg, size)
    sizes, size = _guess(cfg), ImageSizes.of(cfg.INPUT).train
    if hasattr(network, "compute_outputs") and size[0] > 0:
        outputs = _run(network.train(), cfg, size, method="compute_outputs") or {}
        sizes |= {name: int(parts_of(outputs, name)[0].shape[1]) for name in sizes.keys() & outputs.keys()}
    return network, sizes


def _guess(cfg: CN) -> dict[str, int]:
    guess = cfg.MODEL.HEADS.EMBEDDING_DIM or cfg.MODEL.BACKBONE.FEAT_DIM or 2048
    return {"features": guess, "cls_outputs": guess}


def _run(network: nn.Module, cfg: CN, size: list[int], *, method: str = "__call__") -> Any:
    """Returns the outputs of a batch of two classes; None if the network reads a column that only data have."""
    count = 2 * max(cfg.DATALOADER.NUM_INSTANCE, 1)  # a head may group an identity's images
    images = torch.zeros(count, len(cfg.MODEL.PIXEL_MEAN), size[0], size[-1])
    numbers = torch.arange(2).repeat_interleave(count // 2)
    batch = {"images": images, "targets": numbers, "camids": numbers, "img_paths": [""] * count}
    try:
        return getattr(network, method)(batch)
    except KeyError:
        return None


def _losses(cfg: CN, sizes: Mapping[str, int], classes: int) -> nn.ModuleDict:
    options = cfg.MODEL.HEADS

    def partial_fc(**of_loss: Any) -> nn.Module:
        with torch.device("meta"):
            return build_partial_fc(options, num_classes=classes, seed=0, part=(0, 1), **of_loss)

    divided = partial_fc if options.PFC.ENABLED else None
    return build_losses(cfg.MODEL.LOSSES, num_classes=classes, output_size=sizes.__getitem__, partial_fc=divided)[1]


def _any_optimizer() -> torch.optim.Optimizer:
    """Returns an optimizer for a schedule's own mistakes."""
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)


def _require_matches(patterns: list[str], names: list[str]) -> None:
    """Raise a UserError for FREEZE_LAYERS that match no parameter; an empty one is FastReID's old "nothing"."""
    for pattern in filter(None, patterns):
        try:
            is_matched = any(map(re.compile(pattern).match, names))
        except (re.error, TypeError) as error:
            raise UserError(f"MODEL.FREEZE_LAYERS must be regular expressions: {error}") from error
        if not is_matched:
            known = ", ".join(sorted({name.split(".")[0] for name in names}))
            raise UserError(f"MODEL.FREEZE_LAYERS: {pattern!r} matches no parameter; names begin with {known}")


def missing_here(cfg: CN) -> list[str]:
    """Returns what this machine lacks for a config that can run elsewhere, one line each."""
    model, data = cfg.MODEL, cfg.DATASETS
    missing = list(norms_of_other_devices(model))
    if device := missing_device(model.DEVICE):
        missing.append(f"MODEL.DEVICE = {device}")
    if model.WEIGHTS and not local_file(model.WEIGHTS):
        missing.append(f"MODEL.WEIGHTS = {model.WEIGHTS!r}: no such file")
    if not model.WEIGHTS and not model.BACKBONE.PRETRAIN_OPTIONAL and (weights := missing_file(model.BACKBONE)):
        missing.append(weights)
    if data.REC_PATH and not local_file(data.REC_PATH):
        missing.append(f"DATASETS.REC_PATH: no file {data.REC_PATH}")
    root = dataset_root(data.ROOT)
    for name in dict.fromkeys([*(() if data.REC_PATH else data.NAMES), *data.TESTS]):
        path = read_as(name, data.ALIASES)
        if path in DATASET_REGISTRY and data_set(path).is_made:
            continue
        try:
            load(path, root, is_grey(cfg), training_share(path, data), cfg)
        except (UserError, OSError) as error:
            missing.append(f"{name}: {str(error).removeprefix(f'{path}: ')}")
    return missing
