"""What a run has to have and does not find here: a device, files of weights, data."""

from functools import lru_cache
from pathlib import Path

from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets import (
    ImageCheck,
    is_made,
    load_test_sets,
    load_train_set,
    require_files,
    training_share,
)
from pml_ext.runner.data.datasets import download_to_come as data_to_come
from pml_ext.runner.data.datasets.layout import dataset_root
from pml_ext.runner.data.names import read_as
from pml_ext.runner.modeling.cuda import missing_device, norms_of_other_devices
from pml_ext.runner.modeling.weights.imagenet import UNUSED_PATH, missing_file
from pml_ext.runner.modeling.weights.imagenet import download_to_come as weights_to_come
from pml_ext.runner.modeling.weights.read import local_file


def missing_here(cfg: CN) -> list[str]:
    """What this machine lacks for a config that can run elsewhere, a line each."""
    norms = norms_of_other_devices(cfg.MODEL)
    grey = len(cfg.MODEL.PIXEL_MEAN) == 1
    device = missing_device(cfg.MODEL.DEVICE)
    found = [line for line in (device and f"MODEL.DEVICE = {device}", _weights(cfg.MODEL), *norms) if line]
    return found + _data(cfg.DATASETS, grey)


def unreadable_here(cfg: CN) -> tuple[list[str], list[str]]:
    """What is wrong with the image files of the data sets, all of which are there: to stop a run, and to be skipped."""
    options, check = cfg.DATASETS.clone(), ImageCheck(cfg.DATASETS)
    options.defrost()
    try:
        for key, read in (("NAMES", load_train_set), ("TESTS", load_test_sets)):
            names = [name for name in options[key] if not is_made(read_as(name, options.ALIASES))]
            options[key] = () if key == "NAMES" and options.REC_PATH else tuple(names)
            if options[key]:
                read(options, grey=len(cfg.MODEL.PIXEL_MEAN) == 1, check=check)
        check.conclude()
    except UserError as error:
        return [str(error)], []
    return [], [f"{line} and will be skipped" for line in check.skipped]


def downloads_to_come(cfg: CN) -> list[str]:
    """What a run of a config without problems will download, and which weights it will not have, a line each."""
    root = dataset_root(cfg.DATASETS.ROOT)
    names = [] if cfg.DATASETS.REC_PATH else cfg.DATASETS.NAMES
    read = [read_as(name, cfg.DATASETS.ALIASES) for name in dict.fromkeys([*names, *cfg.DATASETS.TESTS])]
    of_data = [data_to_come(name, root) for name in read]
    return [line for line in (_note_on_weights(cfg.MODEL), *of_data) if line]


def _note_on_weights(model: CN) -> str | None:
    options = model.BACKBONE
    if model.WEIGHTS:
        return None
    if options.PRETRAIN_PATH and not options.PRETRAIN:
        return UNUSED_PATH
    missing = missing_file(options) if options.PRETRAIN_OPTIONAL else None
    return f"{missing}; training starts from random weights" if missing else weights_to_come(options)


def _weights(model: CN) -> str | None:
    if not model.WEIGHTS:
        return None if model.BACKBONE.PRETRAIN_OPTIONAL else missing_file(model.BACKBONE)
    return None if local_file(model.WEIGHTS) else f"MODEL.WEIGHTS = {model.WEIGHTS!r}: no such file"


def _data(datasets: CN, grey: bool) -> list[str]:
    root = dataset_root(datasets.ROOT)
    names = [("DATASETS.TESTS", name) for name in datasets.TESTS]
    if datasets.REC_PATH:
        found = [] if local_file(datasets.REC_PATH) else [f"DATASETS.REC_PATH: no file {datasets.REC_PATH}"]
    else:
        names, found = [("DATASETS.NAMES", name) for name in datasets.NAMES] + names, []
    for name in dict.fromkeys(name for _, name in names):
        path = read_as(name, datasets.ALIASES)
        if complaint := _complaint(path, root, grey, training_share(path, datasets)):
            found.append(f"{name}: {complaint}")
    return found


@lru_cache(maxsize=128)
def _complaint(name: str, root: Path, grey: bool, share: float) -> str | None:
    """What is wrong with a data set's files as far as a run looks at them before it reads images."""
    try:
        require_files(name, root, grey, share)
    except (UserError, OSError) as error:
        return str(error).removeprefix(f"{name}: ")
    return None
