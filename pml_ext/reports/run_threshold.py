"""The threshold report that a run leaves for people beside its numbers."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import Tensor
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext._identities import JUNK
from pml_ext.functional.verification.tar_at_far_rule import largest_count_within
from pml_ext.metrics import ThresholdReport
from pml_ext.reports.pair_pictures import with_pictures
from pml_ext.reports.threshold_files import write_files
from pml_ext.runner.data.datasets import ImageSet, OpenSet, TestSet
from pml_ext.runner.evaluation.evaluate import Features, query_and_gallery_embeddings

log = logging.getLogger("pml_ext")


def check_thresholds(wanted: CN, test_sets: dict[str, TestSet]) -> None:
    """Before any work: whether TEST.THRESHOLD can be had from every test set.

    Args:
        wanted: the config's TEST.THRESHOLD.
        test_sets: the test sets by name.
    Raises:
        UserError: a set of pairs or templates, or one with too few impostor pairs for the FAR.
    """
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
                f"TEST.THRESHOLD.FAR {far:g} needs at least {math.ceil(1 / far)} impostor pairs; {name} has {impostors}"
            )


def write_threshold(
    stem: Path, data: OpenSet, features: Features, test: CN, *, weights: Path, seed: int
) -> dict[str, Path]:
    """The threshold report as <stem>.json, .html and .png, with the hash of the weights.

    Args:
        test: the config's TEST.
        weights: the checkpoint that the threshold is for.
        seed: of the report's resampling.

    Returns:
        the files by what they are; none, with a warning in the log, where no threshold meets the target.
    """
    opis = test.OPIS
    embeddings, identities = query_and_gallery_embeddings(data, features)
    everything = ImageSet.concatenated(data.parts)
    rows = np.flatnonzero(_is_of_a_query(data))
    try:
        report = ThresholdReport.from_embeddings(
            embeddings,
            _called(identities, everything.identity_names),
            cameras=_cameras(data),
            rows=rows.tolist(),
            data=stem.name.removeprefix("threshold_"),
            far=test.THRESHOLD.FAR,
            far_range=tuple(opis.FAR_RANGE),
            grid=opis.GRID,
            epsilon=opis.EPSILON,
            seed=seed,
        )
    except ValueError as error:
        log.warning("no report %s: %s", stem.name, error)
        return {}
    with with_pictures(report.with_checkpoint(weights), everything) as shown:
        return {f"{stem.name}{file.suffix}": file for file in write_files(shown, stem)}


def _called(identities: Tensor, names: Mapping[int, str]) -> Tensor | list[str]:
    """The identities as the user called them; where no names were given, as they are."""
    return [names[identity] for identity in identities.tolist()] if names else identities


def _is_of_a_query(data: OpenSet) -> np.ndarray:
    """Which images of queries, then of the gallery, `query_and_gallery_embeddings` are of."""
    identities = np.concatenate([part.identities for part in data.parts])
    found: np.ndarray = np.isin(identities, data.query.identities) & (identities != JUNK)
    return found


def _cameras(data: OpenSet) -> np.ndarray | None:
    """Of these embeddings; None where every image counts as a camera of its own, as in sets without any."""
    cameras = np.concatenate([part.cameras for part in data.parts])[_is_of_a_query(data)]
    return None if len(np.unique(cameras)) == len(cameras) else cameras
