"""The threshold reports of a run's test sets."""

import logging
import math
from pathlib import Path

import numpy as np
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext._identities import JUNK
from pml_ext.functional.verification.roc import largest_count_within
from pml_ext.metrics import OPISSettings, SampleSource, ThresholdReport
from pml_ext.reports.page import thumbnail
from pml_ext.reports.threshold_page import write_files
from pml_ext.runner.data.datasets import ImageSet, OpenSet, TestSet
from pml_ext.runner.evaluation.evaluate import Features, query_and_gallery_embeddings

log = logging.getLogger("pml_ext")


def check_thresholds(wanted: CN, test_sets: dict[str, TestSet]) -> None:
    """Before any work: a UserError for a test set of pairs or templates, or with too few impostor pairs for the FAR."""
    far = wanted.FAR
    for name, data in test_sets.items() if wanted.ENABLED else ():
        if not isinstance(data, OpenSet):
            raise UserError(f"TEST.THRESHOLD needs test sets with queries; {name} has pairs or templates")
        everybody = np.concatenate([part.identities for part in data.parts])
        known = np.isin(everybody, data.query.identities) & (everybody != JUNK)
        sizes = np.unique(everybody[known], return_counts=True)[1]
        impostors = int(sizes.sum() ** 2 - (sizes**2).sum()) // 2
        if not largest_count_within(far, impostors):
            raise UserError(
                f"TEST.THRESHOLD.FAR {far:g} needs at least {math.ceil(1 / far)} impostor pairs; {name} has "
                f"{impostors}. Set a higher rate, or TEST.THRESHOLD.ENABLED False"
            )


def write_threshold(
    stem: Path,
    data: OpenSet,
    features: Features,
    test: CN,
    *,
    weights: Path,
    seed: int,
) -> dict[str, Path]:
    """Write the threshold report as <stem>.json, .html and .png, with the hash of the weights, by name.

    test is the config's TEST. Where no threshold meets the target, there are no files, and the log has a warning.
    """
    everything = ImageSet.concatenated(data.parts)
    is_known = np.isin(everything.identities, data.query.identities)
    rows = np.flatnonzero(is_known & (everything.identities != JUNK))
    embeddings, identities = query_and_gallery_embeddings(data, features)
    names = everything.identity_names
    labels = [names[identity] for identity in identities.tolist()] if names else identities
    cameras = everything.cameras[rows]
    has_cameras = 1 < len(np.unique(cameras)) < len(cameras)  # else all images have one, or each its own
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
        log.warning("no report %s: %s", stem.name, error)
        return {}
    return {f"{stem.name}{file.suffix}": file for file in files}
