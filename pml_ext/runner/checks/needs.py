"""Pre-flight checks of this machine: the device, files of weights, data."""

from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.config.network_keys import is_grey
from pml_ext.runner.data.datasets import data_set, load, training_share
from pml_ext.runner.data.datasets.image_files import dataset_root
from pml_ext.runner.data.rules import read_as
from pml_ext.runner.modeling.cuda import missing_device, norms_of_other_devices
from pml_ext.runner.modeling.weights.imagenet import missing_file
from pml_ext.runner.modeling.weights.read import local_file
from pml_ext.runner.registry import DATASET_REGISTRY


def missing_here(cfg: CN) -> list[str]:
    """Returns what this machine lacks for a config that can run elsewhere, one line each."""
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
    for name in dict.fromkeys([*(() if data.REC_PATH else data.NAMES), *data.TESTS]):
        path = read_as(name, data.ALIASES)
        if path in DATASET_REGISTRY and data_set(path).is_made:
            continue
        try:
            load(path, root, is_grey(cfg), training_share(path, data), cfg)
        except (UserError, OSError) as error:
            found.append(f"{name}: {str(error).removeprefix(f'{path}: ')}")
    return found
