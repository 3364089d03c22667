"""Do the results for linear heads carry over to whole networks? The runner trains small networks from scratch.

    python examples/evidence/whole.py                  # both sets
    python examples/evidence/whole.py --sets glyphs
    python examples/evidence/whole.py --tables         # only write WHOLE_NETWORKS.md from stored runs

A method is a config of fastreid_configs/Glyphs or Omniglot. Each gets the same number of trials with fewer epochs on
validation classes (30 % of the training classes), judged by mAP@R; then its best settings are trained on all training
classes with several seeds and tested once. It can be stopped at any time and continues where it was: finished runs are
kept in results/whole.
"""

import argparse
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread a process
# Keep the memory of activations for the next step instead of returning it to the system, in child processes.
os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(2**32 - 1))
os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(2**32 - 1))

import torch
from torch import Tensor
from torchvision.transforms.functional import to_pil_image

sys.path.insert(0, str(Path(__file__).parent))
from image_sets import CACHE, DATA, ImageFeatures, of_validation
from store import TEST, VALIDATION, Run, Store
from training import measured
from whole_grid import (
    ADDED,
    ADDED_MARGINS,
    IDENTITY,
    IDENTITY_CONFIG,
    IDENTITY_SEEDS,
    METHODS,
    NO_NECK,
    NO_NECK_SEEDS,
    REID_SET,
    SEEDS,
    SETS,
    TRIAL_SCHEDULE,
    WHOLE_SCHEDULE,
    Settings,
)
from whole_report import write_report
from yacs.config import CfgNode as CN

from pml_ext import Embedder
from pml_ext._shared.files import write_atomically
from pml_ext.runner.checks.check import load_or_list_problems
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.data.datasets import ImageSet, OpenSet
from pml_ext.runner.data.datasets import load as load_set
from pml_ext.runner.engine.run import train
from pml_ext.runner.launch import Launch
from pml_ext.runner.registry import LOSS_NODES

HERE = Path(__file__).parent
CONFIGS = HERE.parents[1] / "fastreid_configs"
RESULTS = HERE / "results" / "whole"
SELECTED_BY = "map_at_r"
REID = ("cmc", "reid_mean_average_precision", "mean_inverse_negative_penalty")
# These keys do not change the trained network.
WITHOUT_EFFECT = ("OUTPUT_DIR", "LOGGERS", "DATASETS", "TEST", "SEED")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--tables", action="store_true")
    given = parser.parse_args()
    if not given.tables:
        # TCM is added to settings that were chosen before.
        jobs = [(set_name, methods) for methods in (IDENTITY, METHODS, ADDED, NO_NECK) for set_name in given.sets]
        for set_name, methods in jobs:
            validation_table(set_name)
            store = Store(RESULTS)
            run_all([run for method in methods for run in trials(set_name, method, store)], given.processes)
        for set_name in given.sets:
            run_all(tests(set_name, Store(RESULTS)), given.processes)
    store = Store(RESULTS)
    store.pack(list(SETS))
    write_report(HERE, store)
    print(HERE / "WHOLE_NETWORKS.md")


def run_all(runs: list[Run], processes: int) -> None:
    """Run everything that is not stored yet; report progress on standard error."""
    store = Store(RESULTS)
    left = [run for run in runs if not is_complete(run, store.get(run))]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for number, run in enumerate(pool.map(do, left), 1):
            which = f"{run.set}, {run.stage}, {run.method}, seed {run.seed}"
            print(f"{which}: {number} of {len(left)}", file=sys.stderr, flush=True)


def is_complete(run: Run, result: Mapping[str, Any] | None) -> bool:
    """Whether a run is stored; where the runner measures as well, with its metrics."""
    if result is None:
        return False
    return not is_reid(run) or "reid" in result


def is_reid(run: Run) -> bool:
    """Whether the runner measures it as well, for the README's first run."""
    return (run.stage, run.set) == (TEST, REID_SET) and run.method in IDENTITY


def points(set_name: str, method: str, store: Store) -> list[Settings]:
    """The settings to try."""
    if method not in ADDED:
        return (METHODS | IDENTITY | NO_NECK)[method]
    base = best_point(set_name, ADDED[method].base, store)
    return [base | margins for margins in ADDED_MARGINS]


def trials(set_name: str, method: str, store: Store) -> list[Run]:
    schedule = TRIAL_SCHEDULE[set_name]
    return [made(set_name, VALIDATION, method, schedule | point, 0) for point in points(set_name, method, store)]


def tests(set_name: str, store: Store) -> list[Run]:
    """Every method with the settings that were best on the validation classes, one seed after another."""
    runs = []
    groups = (((*METHODS, *ADDED), SEEDS), (IDENTITY, IDENTITY_SEEDS), (NO_NECK, NO_NECK_SEEDS))
    for methods, seeds in groups:
        chosen = {method: WHOLE_SCHEDULE[set_name] | best_point(set_name, method, store) for method in methods}
        runs += [made(set_name, TEST, method, chosen[method], seed) for seed in seeds for method in methods]
    return runs


def best_point(set_name: str, method: str, store: Store) -> Settings:
    tried = zip(points(set_name, method, store), trials(set_name, method, store), strict=True)
    return max(tried, key=lambda pair: store.found[pair[1].key]["metrics"][SELECTED_BY])[0]


def made(set_name: str, stage: str, method: str, settings: Mapping[str, Any], seed: int) -> Run:
    """A run identified by what its config has other than the defaults, so that it is repeated if the config changes and
    not if there are new keys."""
    changed = changed_keys(set_name, method, settings)
    fingerprint = hashlib.sha256(repr(sorted(changed.items())).encode()).hexdigest()[:16]
    return Run(set_name, stage, method, dict(settings), seed, fingerprint)


def changed_keys(set_name: str, method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a method's config has other than the defaults; what other losses have does not count."""
    return keys_of(config_of(set_name, method), settings)


def keys_of(config: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a config with these settings has other than the defaults; what other losses have does not count."""
    cfg = load_or_list_problems(config, words(settings))
    own = {"NAME", *(LOSS_NODES[name] for name in cfg.MODEL.LOSSES.NAME)}
    ignored = [*WITHOUT_EFFECT, *(f"MODEL.LOSSES.{node}" for node in cfg.MODEL.LOSSES.keys() - own)]
    defaults = dict(_values(get_cfg()))
    changed = {}
    for key, value in _values(cfg):
        is_ignored = any(f"{key}.".startswith(f"{node}.") for node in ignored)
        if value != defaults.get(key) and not is_ignored:
            changed[key] = value
    return changed


def _values(node: CN, start: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a config, and its value."""
    for key, value in node.items():
        yield from _values(value, f"{start}{key}.") if isinstance(value, CN) else [(start + key, value)]


def config_of(set_name: str, method: str) -> Path:
    name = ADDED[method].config if method in ADDED else method
    name = IDENTITY_CONFIG if method in IDENTITY | NO_NECK else name
    name = SETS[set_name].configs.get(name, name)
    return CONFIGS / SETS[set_name].folder / f"{name}.yml"


def words(settings: Mapping[str, Any]) -> list[str]:
    return [str(word) for pair in settings.items() for word in pair]


def do(run: Run) -> Run:
    """Train, measure and store a run."""
    torch.set_num_threads(1)
    embeddings, images, more = trained(run)
    found = measured(embeddings, images)
    store = Store(RESULTS)
    if run.stage == TEST:
        store.keep_by_class(run, found.by_class.numpy())
    store.add(run, found.metrics, **more, torch=torch.__version__, date=date.today().isoformat())
    return run


def trained(run: Run) -> tuple[list[Tensor], list[ImageFeatures], dict[str, Any]]:
    """The test images of a run, embedded by its last checkpoint, and what else is stored of its training.

    cpu_seconds: its CPU time. reid: next to an identity loss, the runner's metrics, of the untrained network as well.
    """
    output = CACHE / "whole" / run.key
    shutil.rmtree(output, ignore_errors=True)
    name = SETS[run.set].data if run.stage == TEST else f"file:{validation_table(run.set)}"
    options = {
        **run.settings,
        "OUTPUT_DIR": output,
        "SEED": run.seed,
        "DATASETS.NAMES": f'("{name}",)',
        # The others are measured below; the runner gets a small set because it must have one.
        "DATASETS.TESTS": f'("{name if is_reid(run) else "Digits"}",)',
        "DATASETS.CHECK_IMAGES": False,
        "DATASETS.ROOT": DATA,
        "LOGGERS": "()",
        "MODEL.DEVICE": "cpu",
        "TEST.REPORT": False,
        "TEST.BASELINES": is_reid(run) and run.method == "ce",
        "TEST.EVAL_PERIOD": 1000,
        "TEST.METRICS": str(REID if is_reid(run) else ("cmc",)),
    }
    started = time.process_time()
    train(load_or_list_problems(config_of(run.set, run.method), words(options)), Launch())
    more: dict[str, Any] = {"cpu_seconds": round(time.process_time() - started)}
    if is_reid(run):
        report = json.loads((output / "metrics.json").read_text(encoding="utf-8"))
        by_network = {"trained": report["results"], **report.get("baselines", {})}
        if "random weights" in by_network:
            by_network["untrained"] = by_network.pop("random weights")
        more["reid"] = {network: sets[name] for network, sets in by_network.items()}
    images = loaded(name).query
    embedder = Embedder.from_config(output / "config.yaml", output / "checkpoints" / "last.ckpt", batch_size=256)
    labels, cameras = torch.from_numpy(images.labels), torch.from_numpy(images.cameras)
    embeddings = embedder(list(images.images))
    if is_reid(run):
        training = loaded(name).train
        of_training = {
            "training": embedder(list(training.images)),
            "training_labels": torch.from_numpy(training.labels),
        }
        embeddings_file(run).parent.mkdir(exist_ok=True)
        torch.save({"test": embeddings, "test_labels": labels, **of_training}, embeddings_file(run))
    shutil.rmtree(output)
    return [embeddings], [ImageFeatures(torch.empty(0), labels, cameras)], more


def embeddings_file(run: Run) -> Path:
    """Where whole_normalised.py finds the embeddings of a run's test and training samples."""
    return CACHE / "whole" / "embeddings" / f"{run.key}.pt"


@cache
def loaded(name: str) -> OpenSet:
    data = load_set(name, DATA, grey=True)
    assert isinstance(data, OpenSet)
    return data


def validation_table(set_name: str) -> Path:
    """The training classes as a custom data set: 30 % of the classes, by a fixed seed, are its queries."""
    folder = CACHE / "whole" / f"{set_name}_validation"
    table = folder / "table.csv"
    if table.is_file():
        return table
    images: ImageSet = loaded(SETS[set_name].data).train
    held_out = of_validation(torch.from_numpy(images.labels))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = ["path,identity,camera,split"]
    for row, image in enumerate(images.images):
        to_pil_image(image).save(folder / f"{row}.png")
        split = "query" if held_out[row] else "train"
        rows.append(f"{row}.png,{images.labels[row]},{images.cameras[row]},{split}")
    write_atomically(table, "\n".join(rows) + "\n")
    return table


if __name__ == "__main__":
    main()
