"""From embeddings to what a threshold report holds."""

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pml_ext._checks import (
    check_embeddings,
    check_finite,
    check_fraction,
    check_items,
    check_not_collapsed,
    check_switch,
    check_whole,
    warn_caller,
)
from pml_ext._ops.numerics import one_thread
from pml_ext._progress import show_steps
from pml_ext.functional.operating_points.calibration import TooFewClassesError, curves_of_pairs
from pml_ext.functional.operating_points.utility import epsilon_opis_of_curves, opis_of_curves
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.threshold import (
    middle_of_gap,
    threshold_at_far,
    threshold_at_frr,
    threshold_of_best_utility,
)
from pml_ext.metrics.normalization import Normalization, check_normalize, offsets_of_pairs
from pml_ext.metrics.opis import OPISSettings
from pml_ext.metrics.threshold.alternatives import other_thresholds
from pml_ext.metrics.threshold.calibration_of_pairs import calibrate_pairs
from pml_ext.metrics.threshold.camera_pairs import CameraPairs, pairs_across_cameras
from pml_ext.metrics.threshold.class_ids import Labels, number_classes
from pml_ext.metrics.threshold.fields import CameraRates, Consistency, Target, ThresholdFields, distance_of
from pml_ext.metrics.threshold.group_rates import measure_groups
from pml_ext.metrics.threshold.normalized import describe_cohort
from pml_ext.metrics.threshold.rates import error_rates, false_reject_rate, threshold_curves, threshold_stability
from pml_ext.metrics.threshold.search_plan import PlannedSearch, SearchPlan
from pml_ext.metrics.threshold.worst_pairs import most_wrong_pairs

_MOST_SPLITS = 1000  # each a pass over the pairs
_STEPS = 8
# Samples whose pairs one thread measures in seconds.
_SMALL = 4096


def measure_threshold(embeddings: Tensor, *what: Any, **options: Any) -> ThresholdFields:
    """Choose and measure the threshold of `ThresholdReport.from_embeddings`; see `_measure`."""
    check_embeddings(embeddings)
    with one_thread(if_small=len(embeddings) <= _SMALL), show_steps(_STEPS) as begin:
        return _measure(embeddings, *what, begin=begin, **options)


def _measure(
    embeddings: Tensor,
    labels: Labels,
    goal: tuple[float | None, float | None, str | None],
    opis: OPISSettings,
    plan: SearchPlan,
    *,
    begin: Callable[..., None],
    splits: int,
    cameras: Labels | None,
    groups: Labels | None,
    same_camera_pairs: bool,
    rows: Sequence[int] | None,
    paths: Sequence[str | Path | None] | None,
    data: str | None,
    normalize: Normalization | None,
) -> ThresholdFields:
    """goal: far, frr, target; begin: of `show_steps`."""
    target, choose = _target(*goal, plan.fpir)
    check_finite(embeddings)
    check_directions(embeddings, "embeddings")
    check_not_collapsed(embeddings)
    check_whole(splits, "splits", 0, _MOST_SPLITS)
    check_switch(same_camera_pairs, "same_camera_pairs")
    if not isinstance(data, (str, type(None))):
        raise TypeError(f"data must be a text, or None; got {type(data).__name__}")
    count = len(embeddings)
    for name, given in (("rows", rows), ("paths", paths)):
        if given is not None:
            check_items(given, name, f"{count} entries, one an embedding")
            if len(given) != count:
                raise ValueError(f"{name} must have {count} entries, one an embedding; got {len(given)}")
    ids, names = number_classes(labels, count)
    camera_ids = None if cameras is None else number_classes(cameras, count, "cameras")[0]
    group_ids, group_names = (None, ()) if groups is None else number_classes(groups, count, "groups")
    told_apart = None if same_camera_pairs else camera_ids
    check_normalize(normalize)
    offsets = offsets_of_pairs(normalize, embeddings)
    pairs = pairs_across_cameras(embeddings.double(), ids, told_apart, offsets=offsets)
    if not pairs.total_negative_pairs:
        raise ValueError(f"a threshold needs impostor pairs; all {count} samples are of class {names[0]!r}")
    if not pairs.total_positive_pairs:
        if isinstance(pairs, CameraPairs) and pairs.of_one_camera().total_positive_pairs:
            raise ValueError(
                "a threshold needs genuine pairs of two cameras; no class is seen by two of them. Give "
                "same_camera_pairs=True to count pairs of one camera, or leave cameras out"
            )
        raise ValueError(f"a threshold needs genuine pairs; each of the {count} samples is a class of its own")
    copied = _copied_rows(embeddings, rows)
    if copied:
        warn_caller(
            f"{len(copied)} of {count} embeddings are copies of others: their pairs at distance 0 make the rates "
            "look better than they are; leave copies out"
        )
    begin("choosing the threshold")
    search = None if plan.gallery_size is None else PlannedSearch(plan, embeddings, ids, told_apart, offsets)
    if choose is None:
        assert search is not None
        cosine = search.threshold()
    else:
        cosine = 1 - middle_of_gap(pairs, choose(pairs)) ** 2 / 2
    begin("counting the errors of each class")
    far, frr, classes = error_rates(pairs, torch.bincount(ids), names, distance_of(cosine))
    narrow = embeddings.float()

    def half(kept: Tensor) -> PairDistances:
        here = kept.to(narrow.device)
        own = None if offsets is None else offsets[here]
        cameras_here = None if told_apart is None else told_apart[kept]
        return pairs_across_cameras(narrow[here], ids[kept], cameras_here, offsets=own)

    begin("measuring OPIS")
    consistency = _consistency(pairs, opis)
    begin("measuring the stability of the threshold")
    stability = choose and threshold_stability(half, ids, choose, splits=splits, seed=opis.seed, begin=begin)
    begin("measuring other thresholds")
    alternatives = other_thresholds(pairs, grid=opis.grid)
    begin("counting pairs at all thresholds")
    curves = threshold_curves(pairs)
    begin("measuring searches")
    searches = None if search is None else search.rates(cosine)
    by_group = None
    if group_ids is not None:
        begin("measuring groups", 0)
        sorted_groups = group_ids[torch.argsort(ids, stable=True)]  # as the pairs' samples are
        by_group = measure_groups(pairs, sorted_groups, group_names, (far, frr), cosine, consistency, opis.grid)
    begin("looking for the hardest pairs")
    return ThresholdFields(
        target=target,
        cosine=cosine,
        far=far,
        frr=frr,
        classes=classes,
        consistency=consistency,
        stability=stability,
        samples=count,
        embedding_dim=embeddings.shape[1],
        copies=len(copied),
        alternatives=alternatives,
        cameras=None
        if camera_ids is None
        else _by_camera(pairs, embeddings, ids, camera_ids, distance_of(cosine), offsets),
        data=data,
        made=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        curves=curves,
        worst_pairs=most_wrong_pairs(pairs, ids, names, rows=rows, paths=paths),
        copied_rows=copied,
        searches=searches,
        groups=by_group,
        calibration=calibrate_pairs(pairs, seed=opis.seed),
        normalization=describe_cohort(normalize, count),
    )


def as_tensor(rows: Any) -> Any:
    """A NumPy array as a tensor that shares its memory; anything else as it is."""
    return torch.from_numpy(np.require(rows, requirements=["C", "W"])) if isinstance(rows, np.ndarray) else rows


def check_directions(rows: Tensor, name: str) -> None:
    """No zero rows: they have no direction, and no cosine."""
    zero = int((~rows.any(dim=1)).sum())
    if zero:
        raise ValueError(f"{name} must not be zero vectors, which have no cosine; got {zero} of {len(rows)} rows")


def _target(
    far: float | None, frr: float | None, target: str | None, fpir: float | None
) -> tuple[Target, Callable[[PairDistances], float] | None]:
    """The target, and how pairs decide on it; None where searches do."""
    if sum(given is not None for given in (far, frr, target, fpir)) != 1:
        raise TypeError(
            f'exactly one of far=, frr=, fpir= and target="utility" must be given; got {far=}, {frr=}, {fpir=}, '
            f"{target=}"
        )
    if fpir is not None:
        return Target("fpir", float(fpir)), None
    for name, rate in (("far", far), ("frr", frr)):
        if rate is not None:
            check_fraction(rate, name)
    if far is not None:
        return Target("far", float(far)), partial(threshold_at_far, far=far)
    if frr is not None:
        return Target("frr", float(frr)), partial(threshold_at_frr, frr=frr)
    if target != "utility":
        raise ValueError(f'target must be "utility" (or give far= or frr=); got {target!r}')
    return Target("utility"), threshold_of_best_utility


def _by_camera(
    pairs: PairDistances, embeddings: Tensor, ids: Tensor, cameras: Tensor, distance: float, offsets: Tensor | None
) -> CameraRates:
    """Both kinds of genuine pairs, whichever of them `pairs` counts."""
    across = (
        pairs if isinstance(pairs, CameraPairs) else CameraPairs(embeddings.double(), ids, cameras, offsets=offsets)
    )
    kinds = (across, across.of_one_camera())
    rates = (false_reject_rate(kind, distance) if kind.total_positive_pairs else None for kind in kinds)
    return CameraRates(len(torch.unique(cameras)), across is not pairs, *rates)


def _consistency(pairs: PairDistances, opis: OPISSettings) -> Consistency | None:
    try:
        curves = curves_of_pairs(pairs, far_range=opis.far_range, grid=opis.grid)
    except TooFewClassesError:
        return None
    low, high = curves.calibration_range.tolist()
    values = float(opis_of_curves(curves)), float(epsilon_opis_of_curves(curves, opis.epsilon))
    return Consistency(*values, float(opis.epsilon), (float(opis.far_range[0]), float(opis.far_range[1])), (low, high))


def _copied_rows(embeddings: Tensor, rows: Sequence[int] | None) -> tuple[tuple[int, int], ...]:
    """(row of a copy, row of the first sample with this embedding) of each copy."""
    values: np.ndarray = embeddings.detach().double().cpu().numpy() + 0.0  # −0 and 0 are equal
    first: dict[bytes, int] = {}
    copied = []
    for row, value in zip(range(len(values)) if rows is None else rows, values, strict=True):
        original = first.setdefault(blake2b(value.tobytes(), digest_size=16).digest(), int(row))
        if original != row:
            copied.append((int(row), original))
    return tuple(copied)
