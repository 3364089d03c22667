"""Choose TCM's margins for a config by grid search on held-out classes of its training set.

The config's SEED chooses the held-out classes. The config trains on the others with each pair of margins and each seed,
and the held-out images search each other. Zhang et al. (arXiv 2307.04047) hold out 10 % of the training data and do not
state the metric; here: R@1, with OPIS to break ties.
"""

import argparse
import contextlib
import io
import itertools
import tempfile

import numpy as np

from pml_ext.runner.config.load import load_config
from pml_ext.runner.data.datasets import OpenSet, load_train_set
from pml_ext.runner.data.datasets.image_set import DataSet
from pml_ext.runner.engine.run import train
from pml_ext.runner.launch import Launch
from pml_ext.runner.registry import DATASET_REGISTRY

TCM, NAME = "MODEL.LOSSES.TCM.MARGIN_", "HeldOutClasses"
DATA = ["DATASETS.NAMES", (NAME,), "DATASETS.TESTS", (NAME,), "DATASETS.REC_PATH", "", "DATASETS.COMBINEALL", False]
TEST = ["TEST.METRICS", ("precision_at_1", "opis"), "TEST.BEST", "", "TEST.REPORT", False, "TEST.ROC.ENABLED", False]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--config-file", required=True)
parser.add_argument("--plus", type=float, nargs="+", required=True, help="margins of positive pairs")
parser.add_argument("--minus", type=float, nargs="+", required=True, help="margins of negative pairs")
parser.add_argument("--share", type=float, default=0.1, help="of the classes, held out")
parser.add_argument("--seeds", type=int, nargs="+", default=[0])
parser.add_argument("--opts", nargs=argparse.REMAINDER, default=[], help="KEY VALUE …, config overrides; last")
given = parser.parse_args()

cfg = load_config(given.config_file, given.opts)
if "TCMLoss" not in cfg.MODEL.LOSSES.NAME:
    parser.error(f"--config-file must have TCMLoss among its losses; got {', '.join(cfg.MODEL.LOSSES.NAME)}")
images = load_train_set(cfg.DATASETS, grey=len(cfg.MODEL.PIXEL_MEAN) == 1)
classes = np.random.default_rng(cfg.SEED).permutation(np.unique(images.identities))
if not 2 <= (count := round(given.share * len(classes))) <= len(classes) - 2:
    parser.error(f"--share must hold out, and leave, 2 or more of {len(classes)} classes; {given.share} is {count}")
held_out = np.isin(images.identities, classes[:count])
parts = [images.subset(np.flatnonzero(chosen)) for chosen in (~held_out, held_out)]
DATASET_REGISTRY.register(NAME)(DataSet(lambda root, grey: OpenSet(*parts), "held-out classes"))

print(f"{count} of {len(classes)} classes held out, seeds {given.seeds}\n  m⁺     m⁻    R@1 ↑     OPIS ↓")
found = {}
for pair in itertools.product(given.plus, given.minus):
    runs = []
    for seed in given.seeds:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            margins = [f"{TCM}PLUS", pair[0], f"{TCM}MINUS", pair[1]]
            cfg.merge_from_list([*DATA, *TEST, *margins, "SEED", seed, "OUTPUT_DIR", folder])
            runs.append(train(cfg, Launch())[NAME])
    found[pair] = np.mean([(run["precision_at_1"], run["opis"]) for run in runs], axis=0)
    print(f"{pair[0]:5.2f}  {pair[1]:5.2f}  {100 * found[pair][0]:5.2f} %  {found[pair][1]:.3e}", flush=True)
plus, minus = min(found, key=lambda pair: (-found[pair][0], np.nan_to_num(found[pair][1], nan=np.inf)))
print(f"chosen: {TCM}PLUS {plus} {TCM}MINUS {minus}")
