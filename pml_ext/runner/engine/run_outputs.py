"""Write and print the results of a run: metrics.json, pictures, pages, and the table on the terminal."""

import logging
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from yacs.config import CfgNode as CN

from pml_ext._files import in_file_name, write_atomically
from pml_ext._version import __version__
from pml_ext.metrics import keys
from pml_ext.reports.drawing import Picture, as_png
from pml_ext.reports.losses_on_a_batch import loss_pictures, one_batch
from pml_ext.reports.run_report import Utility, measure_utility, write_report
from pml_ext.reports.run_threshold import write_threshold
from pml_ext.runner.data.datasets import OpenSet
from pml_ext.runner.engine.baseline import Baseline
from pml_ext.runner.engine.loggers import show_in_tensorboard
from pml_ext.runner.engine.messages import IN_THE_FILE_ONLY
from pml_ext.runner.evaluation.baselines import Measured
from pml_ext.runner.evaluation.results import results_table, write_metrics
from pml_ext.runner.modeling.losses.factory import build_losses, facts_of_name

log = logging.getLogger("pml_ext")


def report_run(
    cfg: CN,
    trainer: lightning.Trainer,
    module: Baseline,
    output: Path,
    weights: Path,
    metrics_file: str,
    baselines: dict[str, Measured],
    notes: list[str],
) -> dict[str, dict[str, float]]:
    """Write, print and return the results of what was measured, `weights`; ranks other than the first do nothing.

    notes: sentences that come before the results.
    """
    if not trainer.is_global_zero:
        return {}
    files = {"metrics": output / metrics_file, "weights": weights}
    compared = {name: measured.results for name, measured in baselines.items()}
    opis = module.evaluation.calculator.opis_settings
    about: dict[str, Any] = {"baselines": compared} if compared else {}
    if any(keys.OPIS in found or keys.EPSILON_OPIS in found for found in module.results.values()):
        about["opis"] = asdict(opis)
    write_metrics(files["metrics"], module.results, weights=str(weights), seed=cfg.SEED, **about)
    utility = measure_utility(module.test_sets, module.features, opis)
    for name, data in module.test_sets.items():
        if isinstance(data, OpenSet):
            in_file = in_file_name(name)
            if utility[name].picture.draw:
                figure = files[f"figure {name}"] = output / f"utility_{in_file}.png"
                write_atomically(figure, as_png(utility[name].picture.wide))
            if cfg.TEST.THRESHOLD.ENABLED:
                stem = output / f"threshold_{in_file}"
                files |= write_threshold(
                    stem, data, module.features[name], cfg.TEST, weights=weights.expanduser(), seed=cfg.SEED
                )
    if cfg.TEST.REPORT:
        files["report"] = _write_page(cfg, trainer, module, output, weights, baselines, utility)
    for note in notes:
        log.warning("%s", note)
    table = results_table(module.results, files, compared)
    log.info("\n%s", table, extra=IN_THE_FILE_ONLY)
    print(table)
    return module.results


def _write_page(
    cfg: CN,
    trainer: lightning.Trainer,
    module: Baseline,
    output: Path,
    weights: Path,
    baselines: dict[str, Measured],
    utility: dict[str, Utility],
) -> Path:
    """Write report.html, and its pictures to TensorBoard."""
    facts = {
        "losses": ", ".join(cfg.MODEL.LOSSES.NAME),
        "trained on": ", ".join(cfg.DATASETS.NAMES),
        "epochs": str(cfg.SOLVER.MAX_EPOCH),
        "seed": str(cfg.SEED),
        "weights": str(weights),
        "made by": f"pml_ext {__version__}, torch {torch.__version__}",
    }
    page, pictures = write_report(
        output,
        module.test_sets,
        Measured(module.results, module.features),
        baselines,
        far=cfg.TEST.THRESHOLD.FAR,
        utility=utility,
        seed=cfg.SEED,
        facts=facts,
        extra={"The losses on a batch": partial(_pictures_of_losses, cfg.MODEL.LOSSES, module, cfg.SEED)},
    )
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            show_in_tensorboard(logger, pictures, trainer.global_step)
    return page


def _pictures_of_losses(options: CN, module: Baseline, seed: int) -> list[Picture]:
    """Draw the losses that compare samples on a batch of the first test set with queries."""
    names = [name for name in options.NAME if facts_of_name(name).compares == "samples"]
    queries = {name: data.query for name, data in module.test_sets.items() if isinstance(data, OpenSet)}
    if not queries or not names:
        return []
    name, query = next(iter(queries.items()))
    features = module.features[name][0]
    rows = one_batch(query.identities, count=10, images=4, seed=seed)
    rows = rows[query.identities[rows].argsort(kind="stable")]
    identities, labels = np.unique(query.identities[rows], return_inverse=True)
    _, losses = build_losses(options, num_classes=len(identities), feature_size=features.shape[1])
    return loss_pictures(
        {name: losses[name] for name in names},
        features[torch.from_numpy(rows)],
        torch.from_numpy(labels),
        called=lambda label: query.called(int(identities[label])),
    )
