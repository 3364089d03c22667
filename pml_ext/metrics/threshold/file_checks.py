"""What must add up in a threshold report that was read from a file; types and ranges are those of its fields."""

from pml_ext.metrics.threshold.fields import ThresholdFields
from pml_ext.metrics.threshold.rate_fields import ErrorRate
from pml_ext.metrics.threshold.search_fields import GalleryRates


def contradiction(report: ThresholdFields) -> str | None:
    """The first field that contradicts the others or that no report has; None where all add up."""
    classes, count, cameras, target = report.classes, report.samples, report.cameras, report.target
    across = cameras is not None and not cameras.same_camera_pairs
    consistency, stability = report.consistency, report.stability
    labels = [c.label for c in classes]
    checks = {
        "embedding_dim": 0 < report.embedding_dim < 2**63,
        "classes": bool(classes) and len(set(labels)) == len(labels) and len({type(label) for label in labels}) == 1,
        "samples": count > report.copies >= 0 and sum(c.samples for c in classes) == count,
        "impostor_pairs of a class": all(c.impostor_pairs == c.samples * (count - c.samples) for c in classes),
        "genuine_pairs of a class": all(
            c.genuine_pairs == _pairs(c.samples) or (across and c.genuine_pairs < _pairs(c.samples)) for c in classes
        ),
        "errors of a class": all(
            c.false_accepts <= c.impostor_pairs and c.false_rejects <= c.genuine_pairs for c in classes
        ),
        # Of two classes each, so counted twice.
        "far": _adds_up(report.far, sum(c.false_accepts for c in classes), sum(c.impostor_pairs for c in classes), 2),
        "frr": _adds_up(report.frr, sum(c.false_rejects for c in classes), sum(c.genuine_pairs for c in classes), 1),
        "cameras": _cameras_add_up(report),
        "consistency": consistency is None or (_ascend(consistency.far_range) and _ascend(consistency.distances)),
        "stability": stability is None or stability.mean_shift <= stability.max_shift,
        "target": (target.kind == "utility") == (target.value is None)
        and (target.value is None or _chosen_rate(report) <= target.value + 1e-12),
        "searches": _searches_add_up(report),
        "normalization": report.normalization is None
        or (report.normalization.cohort == "samples") == (report.normalization.sha256 is not None),
        "alternatives": all(
            one.far.rate <= one.target and _ascend(one.far_range) and _is_rate(one.far) and _is_rate(one.frr)
            for one in report.alternatives
        ),
    }
    return next((name for name, adds_up in checks.items() if not adds_up), None)


def _chosen_rate(report: ThresholdFields) -> float:
    if report.target.kind == "fpir":
        planned = [one for one in _sizes(report) if report.searches and one.enrolled == report.searches.gallery_size]
        return planned[0].fpir.rate if planned else 2.0
    return (report.far if report.target.kind == "far" else report.frr).rate


def _sizes(report: ThresholdFields) -> tuple[GalleryRates, ...]:
    return report.searches.sizes if report.searches else ()


def _searches_add_up(report: ThresholdFields) -> bool:
    found = report.searches
    if found is None:
        return True
    sizes = [one.enrolled for one in found.sizes]
    rates = [r for one in found.sizes for r in (one.fpir, one.fnir) if r]
    return (
        sizes == sorted(set(sizes))
        and found.gallery_size in sizes
        and found.identities == len(report.classes)
        and all(one.extrapolated == (one.enrolled >= found.identities) for one in found.sizes)
        and found.mated <= found.probes == report.samples
        and all(r.low <= r.rate <= r.high <= 1 for r in rates)
        and (report.target.kind == "fpir" or all(one.cosine is None for one in found.sizes))
    )


def _pairs(samples: int) -> int:
    return samples * (samples - 1) // 2


def _ascend(ends: tuple[float, float]) -> bool:
    return ends[0] <= ends[1]


def _is_rate(rate: ErrorRate) -> bool:
    return rate.errors <= rate.pairs and rate.low <= rate.rate <= rate.high


def _adds_up(rate: ErrorRate, errors: int, pairs: int, times: int) -> bool:
    return _is_rate(rate) and (times * rate.errors, times * rate.pairs) == (errors, pairs)


def _cameras_add_up(report: ThresholdFields) -> bool:
    cameras = report.cameras
    if cameras is None:
        return True
    kinds = [rate for rate in (cameras.across, cameras.within) if rate]
    counted = [rate for rate in (kinds if cameras.same_camera_pairs else [cameras.across]) if rate]
    return (
        all(map(_is_rate, kinds))
        and sum(rate.pairs for rate in kinds) == sum(_pairs(c.samples) for c in report.classes)
        and sum(rate.errors for rate in counted) == report.frr.errors
        and sum(rate.pairs for rate in counted) == report.frr.pairs
    )
