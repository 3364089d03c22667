"""Write and print the results of a run: metrics.json, figures, pages, threshold reports, and the table."""

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import LaterErrors
from pml_ext._shared.files import in_file_name
from pml_ext._shared.identities import JUNK
from pml_ext._version import __version__
from pml_ext.metrics import OPISSettings, keys
from pml_ext.reports.page import thumbnail
from pml_ext.runner.data.datasets import ImageSet, OpenSet
from pml_ext.runner.engine.output import RESULTS
from pml_ext.runner.engine.training_module import TrainingModule
from pml_ext.runner.evaluation.results import conclusions, results_table, write_metrics
from pml_ext.runner.evaluation.run_metrics import Features, Measured, query_and_gallery_embeddings
from pml_ext.runner.evaluation.selected_metrics import best_metric
from pml_ext.runner.report.run_page import write_report
from pml_ext.thresholds import SampleSource, ThresholdReport
from pml_ext.thresholds.page import write_files

log = logging.getLogger("pml_ext")


def report_run(
    cfg: CN,
    trainer: lightning.Trainer,
    module: TrainingModule,
    output: Path,
    weights: Path,
    metrics_file: str,
    baselines: dict[str, Measured],
    later: LaterErrors,
) -> dict[str, dict[str, float]]:
    """Write, print and return the results of `weights`; ranks other than 0 do nothing.

    later: collects the errors of files.
    """
    if not trainer.is_global_zero:
        return {}
    files = {"metrics": output / metrics_file, "weights": weights}
    compared = {name: measured.results for name, measured in baselines.items()}
    about: dict[str, Any] = {"baselines": compared} if compared else {}
    opis = module.evaluation.calculator.opis_settings
    if any(keys.OPIS in values or keys.EPSILON_OPIS in values for values in module.results.values()):
        about["opis"] = asdict(opis)
    # A user's evaluator may not use embeddings.
    embedded = {name: data for name, data in module.test_sets.items() if name in module.features}
    compares = conclusions(module.results, compared, best_metric(cfg.DATASETS, cfg.TEST))
    notes = [*compares, module.losses_of_epoch.problem, *module.collapse.values(), *module.data_notes]
    if module.losses_of_epoch.shares:
        about["gradient_shares"] = module.losses_of_epoch.shares
    about["notes"] = notes = list(filter(None, notes))
    with later.collected(files["metrics"]):
        write_metrics(files["metrics"], module.results, weights=str(weights), seed=cfg.SEED, **about)
    has_table = bool(embedded) or not module.test_sets
    if has_table:
        table = results_table(module.results, files, compared, notes)
    else:
        table = "\n".join([*map(_line_of_evaluator, module.results.items()), "", f"metrics  {files['metrics']}"])
    _show(table)
    far = cfg.TEST.THRESHOLD.FAR
    for name, data in embedded.items():
        if cfg.TEST.THRESHOLD.ENABLED and isinstance(data, OpenSet):
            stem = output / f"threshold_{in_file_name(name)}"
            with later.collected(f"{stem}.json"):
                features, checkpoint = module.features[name], weights.expanduser()
                for file in write_threshold(stem, data, features, far=far, opis=opis, weights=checkpoint):
                    _show(f"threshold  {file}")
    if cfg.TEST.REPORT and has_table:
        with later.collected(output / "report.html"):
            _show(f"open {_write_page(cfg, module, output, weights, baselines, notes)}")
    return module.results


def _show(text: str) -> None:
    """Print a text and log it to the run's file."""
    RESULTS.info("\n%s", text)
    print(text)


def _line_of_evaluator(result: tuple[str, dict[str, float]]) -> str:
    name, values = result
    numbers = ", ".join(f"{metric} {value:.4g}" for metric, value in values.items())
    return f"{name}: {numbers or 'no numbers'}"


def write_threshold(
    stem: Path,
    data: OpenSet,
    features: Features,
    *,
    far: float,
    opis: OPISSettings,
    weights: Path,
) -> list[Path]:
    """Writes the threshold report as <stem>.json, .html and .png, with the weights' hash; returns the paths.

    If no threshold meets the target, logs a warning and leaves no files, also none of an earlier evaluation.
    """
    for suffix in (".json", ".html", ".png"):
        stem.with_name(f"{stem.name}{suffix}").unlink(missing_ok=True)
    everything = ImageSet.concatenated(data.parts)
    is_known = np.isin(everything.identities, data.query.identities)
    rows = np.flatnonzero(is_known & (everything.identities != JUNK))
    known = everything.subset(rows)
    embeddings, identities = query_and_gallery_embeddings(data, features)
    names = everything.identity_names
    # An array of strings, because a class folder may be named none.
    labels = np.array([names[identity] for identity in identities.tolist()]) if names else identities
    source = SampleSource(rows.tolist(), list(known.names), stem.name.removeprefix("threshold_"))
    try:
        report = ThresholdReport.from_embeddings(
            embeddings,
            labels,
            far=far,
            cameras=known.cameras if known.has_cameras else None,
            opis=opis,
            source=source,
        )
    except ValueError as error:
        log.warning("no report %s: %s", stem.name, error)
        return []
    report = report.with_checkpoint(weights)
    return write_files(report, stem, lambda sample: thumbnail(everything.images[sample.row]))


def _write_page(
    cfg: CN,
    module: TrainingModule,
    output: Path,
    weights: Path,
    baselines: dict[str, Measured],
    notes: list[str],
) -> Path:
    """Write report.html, and its figures next to it."""
    facts = {
        "backbone": cfg.MODEL.BACKBONE.NAME,
        "image size": " × ".join(map(str, cfg.INPUT.SIZE_TRAIN)),
        "losses": ", ".join(cfg.MODEL.LOSSES.NAME),
        "miner": cfg.MODEL.MINER.NAME or "none",
        "batch": f"{cfg.SOLVER.IMS_PER_BATCH} images",
        "learning rate": f"{cfg.SOLVER.BASE_LR:g}",
        "trained on": ", ".join(cfg.DATASETS.NAMES),
        "max epochs": str(cfg.SOLVER.MAX_EPOCH),
        "seed": str(cfg.SEED),
        "weights": str(weights),
        "made by": f"pml_ext {__version__}, torch {torch.__version__}",
    }
    if shares := module.losses_of_epoch.shares:
        facts["gradient shares"] = ", ".join(f"{name} {100 * share:.3g} %" for name, share in shares.items())
    return write_report(
        output,
        module.test_sets,
        Measured(module.results, module.features),
        baselines,
        far=cfg.TEST.THRESHOLD.FAR,
        opis=module.evaluation.calculator.opis_settings,
        seed=cfg.SEED,
        facts=facts,
        notes=notes,
    )
