"""Computes a threshold report from embeddings: the threshold, and the error rates of all pairs of the set."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext._ops.numerics import full_precision, one_thread
from pml_ext._shared.progress import show_steps
from pml_ext.functional.opis.utility import (
    TooFewClassesError,
    curves_of_counts,
    epsilon_opis_of_curves,
    find_measurable,
    opis_of_curves,
    ranks_of_rates,
)
from pml_ext.functional.pairwise.pair_distances import PairDistances, count_accepted
from pml_ext.functional.verification.roc import largest_count_within
from pml_ext.functional.verification.threshold import (
    grid_size,
    middle_of_gap,
    threshold_accepting,
    thresholds_at_far,
)
from pml_ext.metrics.labels import Ids, number_classes
from pml_ext.metrics.normalization import CohortNormalization
from pml_ext.metrics.opis_settings import OPISSettings
from pml_ext.thresholds.doubtful_labels import find_doubtful_labels
from pml_ext.thresholds.fields import (
    CAUTION,
    FEW_ERRORS,
    CameraRates,
    ClassErrors,
    Consistency,
    DoubtfulLabels,
    ErrorRate,
    OperatingPoint,
    PlainCosines,
    Sample,
    Support,
    Target,
    ThresholdCurves,
    ThresholdFields,
    WorstPair,
    WorstPairs,
    cosine_of,
    distance_of,
)
from pml_ext.thresholds.groups import check_groups, measure_groups
from pml_ext.thresholds.samples import (
    Copies,
    Samples,
    SampleSource,
    describe_cohort,
    lowest_keys,
    pooled_rate,
    read_samples,
)
from pml_ext.thresholds.searches import PlannedSearch, SearchPlan
from pml_ext.thresholds.targets import support_of_pairs, threshold_for

_STEPS = 4
_ONE_THREAD = 4096  # number of samples whose pairs take one thread seconds
_CURVE_POINTS = 301
_LISTED = 6  # worst pairs of each kind
_DECIMALS = 9  # of their cosines: those of copies then tie on every processor
_POINTS = (0.1, *(float(f"{digit}e-{power}") for power in range(2, 9) for digit in (3, 1)))  # FAR of the table


def measure_threshold(
    embeddings: Tensor,
    labels: Ids,
    target: Target,
    *,
    cameras: Ids | None,
    groups: Ids | None,
    search: SearchPlan | None,
    opis: OPISSettings,
    normalize: CohortNormalization | None,
    source: SampleSource,
) -> ThresholdFields:
    """Implements `ThresholdReport.from_embeddings`."""
    samples, names, copies = read_samples(embeddings, labels, cameras=cameras, normalize=normalize, source=source)
    count = len(samples.ids)
    group_ids, group_names = (None, ()) if groups is None else number_classes(groups, count, "groups")
    if groups is not None:
        check_groups(group_names)
    with one_thread(if_small=count <= _ONE_THREAD), show_steps(_STEPS) as begin:
        pairs = samples.pairs()
        _require_pairs(pairs, samples, names)
        begin("choosing the threshold")
        planned = None if search is None else PlannedSearch(search, samples)
        _read_ranks(pairs, target, opis)
        cosine, support = _cosine_for(target, pairs, planned)
        begin("counting pairs at all thresholds")
        rates = _rates_at(cosine, pairs, names, target, support, opis, samples, len(copies))
        camera_rates = _camera_rates(pairs, samples, rates.distance)
        by_group = None
        if group_ids is not None:
            begin("measuring groups", 0)
            of_pairs = group_ids[torch.argsort(samples.ids, stable=True)]
            by_group = measure_groups(pairs, of_pairs, group_names, (rates.far, rates.frr), cosine)
        begin("looking for the hardest pairs")
        hardest = worst_pairs(pairs, samples.ids, names, source)
        normalization, plain = None, None
        if normalize is not None:
            begin("measuring plain cosines", 0)
            normalization, plain = describe_cohort(normalize), _plain_cosines(samples, rates.far, opis)
        begin("looking for doubtful labels", 0)
        doubtful = _doubtful_labels(samples, names, source, copies, target, search)
        support = rates.support
        if support is not None and support.independent < FEW_ERRORS and target.confidence is None:
            support = replace(support, cautious=_cautious_choice(target, pairs, planned))
        begin("measuring searches")
        searches = None if planned is None else planned.rates(cosine)
        return replace(
            rates,
            support=support,
            cameras=camera_rates,
            worst_pairs=hardest,
            searches=searches,
            groups=by_group,
            normalization=normalization,
            plain=plain,
            doubtful=doubtful,
            sample_keys=lowest_keys(embeddings),
            data=source.data,
            made=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )


def _rates_at(
    cosine: float,
    pairs: PairDistances,
    names: Sequence[int | str],
    target: Target,
    support: Support | None,
    opis: OPISSettings,
    samples: Samples,
    copies: int,
) -> ThresholdFields:
    """Returns all that the counts of pairs at several thresholds give."""
    distance = distance_of(cosine)
    counts = _count_pairs(pairs, distance, opis)
    far, frr, classes = rates_of_counts(pairs, names, *counts.at(distance))
    consistency = _consistency(pairs, opis, counts)
    count, dim = samples.embeddings.shape
    rates = ThresholdFields(target, cosine, far, frr, classes, consistency, count, dim, copies)
    return replace(
        rates,
        support=support or _support(target, classes),
        points=_points(pairs, counts),
        curves=_curves(pairs, counts),
    )


def _plain_cosines(samples: Samples, far: ErrorRate, opis: OPISSettings) -> PlainCosines | None:
    """Returns the rates of the cosines at the largest FAR up to this one; None if copies leave no such threshold."""
    pairs = replace(samples, offsets=None).pairs()
    allowed = min(far.errors, pairs.total_negative_pairs - 1)
    try:
        distance = threshold_accepting(pairs, allowed)
    except ValueError:
        return None
    counts = _count_pairs(pairs, distance, opis)
    consistency = _consistency(pairs, opis, counts)
    accepted = counts.at(distance)[0]
    return PlainCosines(
        cosine=cosine_of(distance),
        frr=_frr(pairs, accepted),
        opis=None if consistency is None else consistency.opis,
    )


def _cosine_for(target: Target, pairs: PairDistances, planned: PlannedSearch | None) -> tuple[float, Support | None]:
    """Returns the threshold that meets a target, and what the choice rests on."""
    if target.kind == "fpir":
        assert planned is not None
        return planned.threshold(target)
    distance, support = threshold_for(target, pairs)
    return cosine_of(middle_of_gap(pairs, distance)), support


def _cautious_choice(target: Target, pairs: PairDistances, planned: PlannedSearch | None) -> OperatingPoint | str:
    """Returns the threshold that other identities meet with confidence, with its rates, or why there is none."""
    try:
        cosine, _ = _cosine_for(replace(target, confidence=CAUTION), pairs, planned)
    except ValueError as error:
        return str(error)
    far, frr, _ = error_rates(pairs, pairs.classes.tolist(), distance_of(cosine))
    return OperatingPoint(cosine, far, frr)


def _doubtful_labels(
    samples: Samples,
    names: Sequence[int | str],
    source: SampleSource,
    copies: Copies,
    target: Target,
    search: SearchPlan | None,
) -> DoubtfulLabels | None:
    """Returns labels that look wrong, with threshold and rates without their samples; None if there are none."""
    labels, remaining = find_doubtful_labels(samples.embeddings, samples.ids, names, source, copies)
    if not labels:
        return None
    doubtful = DoubtfulLabels(labels, int((~remaining).sum()))
    rest = samples.subset(remaining)
    if search is not None and search.gallery_size == len(names):  # all identities of the set
        search = replace(search, gallery_size=len(torch.unique(rest.ids)))
    try:
        planned = None if search is None else PlannedSearch(search, rest)
        pairs = rest.pairs()
        cosine, _ = _cosine_for(target, pairs, planned)
    except ValueError:  # too few pairs or identities for the target
        return doubtful
    far, frr, _ = error_rates(pairs, pairs.classes.tolist(), distance_of(cosine))
    return replace(doubtful, cosine=cosine, far=far, frr=frr)


def error_rates(
    pairs: PairDistances, labels: Sequence[int | str], distance: float
) -> tuple[ErrorRate, ErrorRate, tuple[ClassErrors, ...]]:
    """Returns FAR, FRR and errors by class at a distance; labels: names of pairs.classes."""
    return rates_of_counts(pairs, labels, *pairs.accepted_at(distance))


def rates_of_counts(
    pairs: PairDistances, labels: Sequence[int | str], accepted: Tensor, false_accepts: Tensor
) -> tuple[ErrorRate, ErrorRate, tuple[ClassErrors, ...]]:
    """Returns `error_rates` from (T,) numbers of accepted genuine and impostor pairs per class."""
    false_rejects = pairs.positive_pairs - accepted
    samples = torch.bincount(pairs.index).to(accepted)
    columns = samples, pairs.negative_pairs, false_accepts, pairs.positive_pairs, false_rejects
    classes = []
    for label, row in zip(labels, torch.stack(columns, dim=1).tolist(), strict=True):
        classes.append(ClassErrors(label, *row))
    return _far(pairs, false_accepts), _frr(pairs, accepted), tuple(classes)


class _CurveCounts(NamedTuple):
    """Accepted pairs per class at every distance that a report counts at, from one pass.

    distances: (M,) ascending; curve: (C,) those of the figures; opis: (G,) those of OPIS, empty if it is not
    measurable; points: (P,) those of the table; genuine, impostors: (T, M).
    """

    distances: Tensor
    curve: Tensor
    opis: Tensor
    points: Tensor
    genuine: Tensor
    impostors: Tensor

    def at(self, distances: Tensor | float) -> tuple[Tensor, Tensor]:
        """Returns the columns of some of the distances."""
        place = torch.searchsorted(self.distances, torch.as_tensor(distances, dtype=torch.float64, device="cpu"))
        place = place.to(self.genuine.device)
        return self.genuine[:, place], self.impostors[:, place]


def _count_pairs(pairs: PairDistances, distance: float, opis: OPISSettings) -> _CurveCounts:
    coarse = torch.linspace(0, 2, 65, dtype=torch.float64, device="cpu")
    genuine = count_accepted(pairs, coarse, positives_only=True)[0].cpu()
    closest, farthest = pairs.negative_distances_at([1, pairs.total_negative_pairs]).tolist()
    first = min(int(torch.searchsorted(coarse, closest)), int(torch.searchsorted(genuine, 1)))
    last = max(int(torch.searchsorted(coarse, farthest)), int(torch.searchsorted(genuine, genuine[-1])))
    start, stop = float(coarse[max(0, first - 1)]), float(coarse[last])
    curve = torch.linspace(start, stop, min(_CURVE_POINTS, grid_size(pairs)), dtype=torch.float64, device="cpu")
    grid = torch.empty(0, dtype=torch.float64, device="cpu")
    if ranks := _calibration_ranks(pairs, opis):
        low, high = pairs.negative_distances_at(ranks).cpu()
        grid = torch.lerp(low, high, torch.linspace(0, 1, opis.grid, dtype=torch.float64, device="cpu"))
    at_rates = [at for at in thresholds_at_far(pairs, _POINTS) if at is not None]
    points = torch.tensor(at_rates, dtype=torch.float64, device="cpu").unique()
    chosen = torch.tensor([distance], dtype=torch.float64, device="cpu")
    distances = torch.unique(torch.cat([chosen, curve, grid, points]))
    return _CurveCounts(distances, curve, grid, points, *pairs.accepted(distances))


def _calibration_ranks(pairs: PairDistances, opis: OPISSettings) -> list[int]:
    """Returns the ranks of the negative distances that OPIS's thresholds lie between; empty for too few classes."""
    try:
        find_measurable(pairs)
        return ranks_of_rates(pairs, opis.far_range, required=True)
    except TooFewClassesError:
        return []


def _read_ranks(pairs: PairDistances, target: Target, opis: OPISSettings) -> None:
    """Read all negative distances that a report most likely needs in one pass; `pairs` keeps them."""
    total = pairs.total_negative_pairs
    ranks = [1, total, *_calibration_ranks(pairs, opis)]
    for far in [*_POINTS, target.value if target.kind == "far" else None]:
        allowed = largest_count_within(far or 0.0, total)
        if allowed:
            ranks += [allowed, min(allowed + 1, total)]
    pairs.negative_distances_at(ranks)


def _support(target: Target, classes: Sequence[ClassErrors]) -> Support | None:
    """Returns what the choice of a threshold with these errors rests on; None for utility."""
    if target.value is None:
        return None
    counts = [(c.false_rejects, c.genuine_pairs) for c in classes]
    if target.kind == "far":
        counts = [(c.false_accepts, c.impostor_pairs) for c in classes]
    return support_of_pairs(target, *torch.tensor(counts, device="cpu").unbind(1))[1]


def _require_pairs(pairs: PairDistances, samples: Samples, names: Sequence[int | str]) -> None:
    """Raise unless the set has impostor pairs and genuine pairs."""
    count = len(pairs.index)
    if not pairs.total_negative_pairs:
        raise ValueError(f"a threshold needs impostor pairs; all {count} samples are of class {names[0]!r}")
    if pairs.total_positive_pairs:
        return
    if replace(samples, cameras=None).pairs().total_positive_pairs:
        raise ValueError(
            "a threshold needs genuine pairs across cameras; every class has one camera. Leave cameras out to count "
            "pairs of one camera"
        )
    raise ValueError(
        f"a threshold needs genuine pairs; each of the {count} samples has a different class. Add more images of these "
        "classes, or choose the threshold on other classes with several images each, embedded by the same model"
    )


def _far(pairs: PairDistances, false_accepts: Tensor) -> ErrorRate:
    return pooled_rate(false_accepts, pairs.negative_pairs, classes_per_pair=2)


def _frr(pairs: PairDistances, accepted: Tensor) -> ErrorRate:
    return pooled_rate(pairs.positive_pairs - accepted, pairs.positive_pairs, classes_per_pair=1)


def _camera_rates(pairs: PairDistances, samples: Samples, distance: float) -> CameraRates | None:
    """Returns the FRR of genuine pairs across and within cameras, without computing impostor pairs."""
    if samples.cameras is None:
        return None
    every_pair = replace(samples, cameras=None).pairs()
    total, _ = every_pair.accepted_at(distance, positives_only=True)
    across, _ = pairs.accepted_at(distance, positives_only=True)
    pairs_within = every_pair.positive_pairs - pairs.positive_pairs
    within = None
    if int(pairs_within.sum()):
        within = pooled_rate(pairs_within - (total - across), pairs_within, classes_per_pair=1)
    return CameraRates(len(torch.unique(samples.cameras)), across=_frr(pairs, across), within=within)


def _consistency(pairs: PairDistances, opis: OPISSettings, counts: _CurveCounts) -> Consistency | None:
    if not len(counts.opis):
        return None
    kept, ends = find_measurable(pairs), counts.opis[[0, -1]]
    positives, negatives = (of_kind[kept] for of_kind in counts.at(counts.opis))
    curves = curves_of_counts(pairs, kept, counts.opis, positives, negatives, ends)
    low, high = ends.tolist()
    far_range = float(opis.far_range[0]), float(opis.far_range[1])
    return Consistency(
        opis=float(opis_of_curves(curves)),
        epsilon_opis=float(epsilon_opis_of_curves(curves, opis.epsilon)),
        epsilon=float(opis.epsilon),
        far_range=far_range,
        distances=(low, high),
    )


def _points(pairs: PairDistances, counts: _CurveCounts) -> tuple[OperatingPoint, ...]:
    points = []
    genuine, impostors = counts.at(counts.points)
    for distance, accepted, false_accepts in zip(counts.points.tolist(), genuine.T, impostors.T, strict=True):
        points.append(OperatingPoint(cosine_of(distance), _far(pairs, false_accepts), _frr(pairs, accepted)))
    return tuple(points)


def _curves(pairs: PairDistances, counts: _CurveCounts) -> ThresholdCurves:
    genuine, impostors = counts.at(counts.curve)
    kept = (pairs.positive_pairs > 0) & (pairs.negative_pairs > 0)
    ends = counts.curve[[0, -1]]
    curves = curves_of_counts(pairs, kept, counts.curve, genuine[kept], impostors[kept], ends)
    return ThresholdCurves(
        distances=counts.curve,
        genuine=genuine.sum(dim=0).cpu(),
        impostors=impostors.sum(dim=0).cpu() // 2,
        utilities=curves.utilities.cpu(),
    )


def worst_pairs(pairs: PairDistances, ids: Tensor, names: Sequence[int | str], source: SampleSource) -> WorstPairs:
    """Returns the impostor pairs with the highest cosines and the genuine pairs with the lowest, worst first.

    ids, names: (N,) ids of the pairs' samples, and the name of each id. Genuine pairs are those that `pairs` counts.
    """
    impostors, genuine = list[tuple[float, int, int]](), list[tuple[float, int, int]]()  # of each block, the worst
    with full_precision(pairs.unit.device):
        for block in pairs.blocks():
            block.cosines.round_(decimals=_DECIMALS)
            first_row, first_column, width = block.rows.start, block.columns.start, block.cosines.shape[1]
            if block.mixed:
                flat, row, column = pairs.positive_places(block)
                lowest, place = block.cosines.view(-1)[flat].topk(min(_LISTED, len(flat)), largest=False)
                one, other = row[place] + first_row, column[place] + first_column
                genuine += zip(lowest.tolist(), one.tolist(), other.tolist(), strict=True)
                block.cosines.masked_fill_(~pairs.negative_mask(block), -torch.inf)
            highest, place = block.cosines.view(-1).topk(min(_LISTED, block.cosines.numel()))
            one, other = place // width + first_row, place % width + first_column
            impostors += zip((-highest).tolist(), one.tolist(), other.tolist(), strict=True)
    order = torch.argsort(ids, stable=True).tolist()

    def sample(place: int) -> Sample:
        row = order[place]
        return source.sample(row, names[int(ids[row])])

    def listed(entries: list[tuple[float, int, int]], sign: int) -> tuple[WorstPair, ...]:
        pairs_of_kind = [entry for entry in sorted(entries)[:_LISTED] if entry[0] < torch.inf]
        return tuple(WorstPair(sign * value, sample(one), sample(other)) for value, one, other in pairs_of_kind)

    return WorstPairs(listed(impostors, -1), listed(genuine, 1))
