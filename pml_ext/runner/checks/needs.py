"""Pre-flight checks of this machine: the device, files of weights, data."""

from functools import lru_cache
from pathlib import Path

from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.config.network_keys import is_grey
from pml_ext.runner.data.datasets import (
    ImageCheck,
    is_made,
    load_test_sets,
    load_train_set,
    require_files,
    training_share,
)
from pml_ext.runner.data.datasets import download_to_come as data_to_come
from pml_ext.runner.data.datasets.image_files import dataset_root
from pml_ext.runner.data.rules import read_as
from pml_ext.runner.modeling.cuda import missing_device, norms_of_other_devices
from pml_ext.runner.modeling.weights.imagenet import UNUSED_PATH, missing_file
from pml_ext.runner.modeling.weights.imagenet import download_to_come as weights_to_come
from pml_ext.runner.modeling.weights.read import local_file


def missing_here(cfg: CN) -> list[str]:
    """What this machine lacks for a config that can run elsewhere, a line each."""
    model, data = cfg.MODEL, cfg.DATASETS
    found = list(norms_of_other_devices(model))
    if device := missing_device(model.DEVICE):
        found.append(f"MODEL.DEVICE = {device}")
    if model.WEIGHTS and not local_file(model.WEIGHTS):
        found.append(f"MODEL.WEIGHTS = {model.WEIGHTS!r}: no such file")
    if not model.WEIGHTS and not model.BACKBONE.PRETRAIN_OPTIONAL and (weights := missing_file(model.BACKBONE)):
        found.append(weights)
    if data.REC_PATH and not local_file(data.REC_PATH):
        found.append(f"DATASETS.REC_PATH: no file {data.REC_PATH}")
    root = dataset_root(data.ROOT)
    for name in _names(data):
        path = read_as(name, data.ALIASES)
        if complaint := _complaint(path, root, is_grey(cfg), training_share(path, data)):
            found.append(f"{name}: {complaint}")
    return found


def unreadable_here(cfg: CN) -> tuple[list[str], list[str]]:
    """Problems with the image files of complete data sets: those that stop a run, and files that will be skipped."""
    options, check = cfg.DATASETS.clone(), ImageCheck(cfg.DATASETS)
    for key in ("NAMES", "TESTS"):
        options[key] = tuple(name for name in options[key] if not is_made(read_as(name, options.ALIASES)))
    try:
        if options.NAMES and not options.REC_PATH:
            load_train_set(options, grey=is_grey(cfg), check=check)
        if options.TESTS:
            load_test_sets(options, grey=is_grey(cfg), check=check)
        check.conclude()
    except UserError as error:
        return [str(error)], []
    return [], [f"{line} and will be skipped" for line in check.skipped]


def downloads_to_come(cfg: CN) -> list[str]:
    """What a run of a config without problems will download, and which weights it will not have, a line each."""
    root, data = dataset_root(cfg.DATASETS.ROOT), cfg.DATASETS
    of_data = [data_to_come(read_as(name, data.ALIASES), root) for name in _names(data)]
    return list(filter(None, [_note_on_weights(cfg.MODEL), *of_data]))


def _names(data: CN) -> list[str]:
    """The data sets that a run reads."""
    return list(dict.fromkeys([*(() if data.REC_PATH else data.NAMES), *data.TESTS]))


def _note_on_weights(model: CN) -> str | None:
    options = model.BACKBONE
    if model.WEIGHTS:
        return None
    if options.PRETRAIN_PATH and not options.PRETRAIN:
        return UNUSED_PATH
    missing = missing_file(options) if options.PRETRAIN_OPTIONAL else None
    return f"{missing}; training starts from random weights" if missing else weights_to_come(options)


@lru_cache(maxsize=128)
def _complaint(name: str, root: Path, grey: bool, share: float) -> str | None:
    """The problem with a data set's files, as far as a run looks at them before it reads images."""
    try:
        require_files(name, root, grey, share)
    except (UserError, OSError) as error:
        return str(error).removeprefix(f"{name}: ")
    return None
