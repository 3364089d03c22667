"""The threshold reports of a run's test sets."""

import logging
from pathlib import Path

import numpy as np
from yacs.config import CfgNode as CN

from pml_ext._identities import JUNK
from pml_ext._names import name_settings
from pml_ext.metrics import OPISSettings, SampleSource, ThresholdReport
from pml_ext.reports.page import thumbnail
from pml_ext.reports.threshold_page import write_files
from pml_ext.runner.data.datasets import ImageSet, OpenSet
from pml_ext.runner.evaluation.evaluate import Features, query_and_gallery_embeddings

log = logging.getLogger("pml_ext")


def write_threshold(
    stem: Path,
    data: OpenSet,
    features: Features,
    test: CN,
    *,
    weights: Path,
    seed: int,
) -> dict[str, Path]:
    """Writes the threshold report as <stem>.json, .html and .png, with the weights' hash; returns the paths by name.

    test is the config's TEST. If no threshold meets the target, logs a warning and writes no files.
    """
    everything = ImageSet.concatenated(data.parts)
    is_known = np.isin(everything.identities, data.query.identities)
    rows = np.flatnonzero(is_known & (everything.identities != JUNK))
    embeddings, identities = query_and_gallery_embeddings(data, features)
    names = everything.identity_names
    labels = [names[identity] for identity in identities.tolist()] if names else identities
    cameras = everything.cameras[rows]
    has_cameras = 1 < len(np.unique(cameras)) < len(cameras)  # otherwise all images share a camera, or no two do
    paths = [everything.names[row] for row in rows.tolist()]
    source = SampleSource(rows.tolist(), paths, stem.name.removeprefix("threshold_"))
    opis = OPISSettings(
        tuple(test.OPIS.FAR_RANGE),
        test.OPIS.GRID,
        test.OPIS.EPSILON,
        seed=seed,
    )
    try:
        report = ThresholdReport.from_embeddings(
            embeddings,
            labels,
            far=test.THRESHOLD.FAR,
            cameras=cameras if has_cameras else None,
            opis=opis,
            source=source,
        )
        files = write_files(
            report.with_checkpoint(weights), stem, lambda sample: thumbnail(everything.images[sample.row])
        )
    except ValueError as error:
        reason = name_settings(str(error), {"far": "TEST.THRESHOLD.FAR"})
        log.warning("no report %s: %s", stem.name, reason)
        return {}
    return {f"{stem.name}{file.suffix}": file for file in files}
