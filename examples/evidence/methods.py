"""The methods and their grids: settings, values and number of trials.

Values, and one beyond each end, were fixed before any test result; what came later, EVIDENCE.md says.

Each method gets the same number of trials, drawn at random (seeded by its name) from the product of its axes; a smaller
product is tried whole. Where the best value lies at an end of its axis, those beyond it are tried until it is inside.
The headline methods are chosen over three validation splits, and tuned three times (tuning.py).
A name is a sum of terms (terms.py) and, after an @, a variant: "loop_triplet@all" and "loop_triplet" differ in
settings only.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from random import Random
from typing import Any, NamedTuple

TRIALS = 16
SEEDS = (0, 1, 2, 3, 4)

# Every run: one linear layer on frozen features, Adam, cosine to 0.
STEPS, BATCH, PER_CLASS, DIMENSION = 300, 80, 4, 128


# Chosen over SPLITS validation splits and training seeds; the list was fixed before their new test figures were seen.
HEADLINES = (
    *("triplet", "ms", "gpw@weighting", "loop_triplet", "triplet_random", "triplet_disjoint", "proxy_nca", "arcface"),
    *("smoothap", "smoothap + tcm", "contrastive", "tcm", "cit@1.0", "discriminative@one_hot", "id", "recall"),
)
SPLITS, FINALISTS = 3, 3
# They are also tuned once on each split, with its own draw of the trials and its seed: the spread of tuning.
REPEATED_SEEDS = (0, 1)


class Axis(NamedTuple):
    """The values to tune, ascending if numbers, and those beyond its ends, nearest first.

    farther_below, farther_above: further values beyond the ends: only for the choice over several splits if the method
        is a headline.
    bounds: values with nothing beyond them, as a margin of 0 degrees, a cosine of 1, or one that switches mining off.
    """

    values: tuple[Any, ...]
    below: tuple[Any, ...] = ()
    above: tuple[Any, ...] = ()
    farther_below: tuple[Any, ...] = ()
    farther_above: tuple[Any, ...] = ()
    bounds: tuple[Any, ...] = ()

    def ends(self, *, farther: bool) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The first value and those below it, and the last value and those above it."""
        below, above = (self.below, self.above)
        if farther:
            below, above = (*below, *self.farther_below), (*above, *self.farther_above)
        return (self.values[0], *below), (self.values[-1], *above)


class Method(NamedTuple):
    """A loss and its settings to tune.

    name: its terms, see terms.py.
    axes: setting to axis.
    fixed: settings that are not tuned; per_class, batch and dimension are settings too.
    projected: whether tests use the features after the loss's own last layer.
    on: a method whose chosen settings on the same set are fixed too, or None.
    """

    name: str
    axes: Mapping[str, Axis]
    fixed: Mapping[str, Any] = {}
    projected: bool = False
    on: str | None = None

    def trials(self, draw: int = 0) -> list[dict[str, Any]]:
        """The settings to try first, without those of `on`: one draw of them, or the whole grid."""
        grid = [
            dict(zip(self.axes, values, strict=True)) for values in product(*(a.values for a in self.axes.values()))
        ]
        if len(grid) > TRIALS:
            grid = Random(f"{self.name} {draw}" if draw else self.name).sample(grid, TRIALS)
        return [{**self.fixed, **point} for point in grid]

    def beyond(self, best: Mapping[str, Any], *, farther: bool = False) -> Iterator[dict[str, Any]]:
        """The values next to the best settings, beyond the axes whose end they are."""
        for key, axis in self.axes.items():
            for ends in axis.ends(farther=farther):
                if len(axis.values) > 1 and best[key] in ends[:-1]:
                    beyond = {**best, key: ends[ends.index(best[key]) + 1]}
                    if beyond.get("tcm.margin_plus", 1.0) >= beyond.get("tcm.margin_minus", 0.0):  # else no TCM loss
                        yield beyond


RATES = Axis((3e-4, 1e-3, 3e-3, 1e-2), (1e-4,), (3e-2, 1e-1), (3e-5, 1e-5, 3e-6, 1e-6, 0.0), (0.3, 1.0), (0.0,))
# For methods with few settings, so that they get the same number of trials.
FINE_RATES = Axis((3e-4, 5e-4, 1e-3, 2e-3, 3e-3, 5e-3, 1e-2, 2e-2), *RATES[1:])
# Rates of a loss's own parameters (proxies, a last layer), as a multiple of the head's.
OWN_RATES = Axis((1.0, 10.0), (0.1,), (100.0,), (0.01, 1e-3), (1000.0, 1e4, 1e5))
MARGINS = Axis((0.05, 0.1, 0.2, 0.4), (0.02,), (0.8,), (0.01, 0.005), (1.6, 3.2))

_TRIPLET = {"margin": MARGINS}
_MS = {
    "beta": Axis((20.0, 40.0, 60.0), (10.0,), (80.0,), (5.0, 2.5, 1.2), (120.0, 240.0)),
    "base": Axis((0.3, 0.5, 0.7), (0.1,), (0.9,), (-0.1, -0.3), (1.0,), bounds=(1.0,)),
    "epsilon": Axis((0.1,)),
}
_TCM = {
    "margin_plus": Axis((0.7, 0.8, 0.9), (0.6, 0.5), (1.0,), (0.4, 0.3, 0.2, 0.0), bounds=(1.0,)),
    "margin_minus": Axis(
        (0.2, 0.3, 0.4, 0.5), (0.1, 0.0), (0.6, 0.7), (-0.1, -0.2, -0.5, -1.0), (0.8, 0.9, 1.0), (-1.0, 1.0)
    ),
}
_SMOOTHAP = {"temperature": Axis((0.01, 0.02, 0.04, 0.08), (0.005,), (0.16,), (0.0025, 0.0012), (0.32, 0.64, 1.3))}
_RECALL = {"temperature": Axis((0.01, 0.02, 0.04, 0.08), (0.005,), (0.16,), (0.0025, 0.0012), (0.32, 0.64, 1.3))}
_ID = {
    "temperature": Axis(
        (0.03, 0.05, 0.1), (0.02,), (0.2,), (0.01,), (0.4, 0.8, 1.6, 3.2, 6.4, 13.0, 26.0, 52.0, 1e2, 2e2)
    )
}
_ARCFACE = {
    "margin": Axis((5.0, 15.0, 28.6), (1.0,), (40.0,), (0.0,), (50.0, 60.0, 75.0, 90.0), (0.0, 90.0)),
    "scale": Axis(
        (16.0, 32.0, 64.0), (8.0,), (128.0,), (4.0, 2.0, 1.0, 0.5, 0.25, 0.12, 0.06), (256.0, 512.0, 1024.0, 2048.0)
    ),
}
_PROXY_NCA = {"scale": Axis((3.0, 8.0, 16.0), (1.0,), (32.0,), (0.5, 0.25, 0.12), (64.0, 128.0, 256.0))}
_CONTRASTIVE = {
    "pos_margin": Axis((0.8, 0.9, 1.0), (0.7,), farther_below=(0.6, 0.5), bounds=(1.0,)),
    "neg_margin": Axis((0.1, 0.3, 0.5), (0.0,), (0.7,), (-0.1, -0.2), (0.8, 0.9, 1.0), bounds=(1.0,)),
}
GAMMAS = (0.1, 0.2, 0.5, 0.8, 1.0)
_CIT = {"gamma": Axis(GAMMAS)}
# The weight of an added term. For Adam only the terms' ratio counts: with the largest weight the base has no part.
_ADDED = Axis((0.1, 0.3, 1.0), (0.03,), (3.0,), (0.01, 3e-3, 1e-3), (10.0, 30.0, 100.0, 300.0, 1e3, 3e3), (3e3,))

_OWN: dict[str, dict[str, Axis]] = {  # the axes of each term
    "triplet": _TRIPLET,
    "triplet_semihard": _TRIPLET,
    "triplet_disjoint": _TRIPLET,
    "triplet_random": _TRIPLET,
    "loop_triplet": _TRIPLET,
    "loop_triplet_semihard": _TRIPLET,
    "hphn": _TRIPLET,
    "loop_hphn": _TRIPLET,
    "lifted": _TRIPLET,
    "loop_lifted": _TRIPLET,
    "ms": _MS,
    "loop_ms": _MS | {"epsilon": Axis((-0.02, 0.1), (-0.1,), (0.2,), (-0.2,), (0.4, 0.8, 2.0), (2.0,))},
    "smoothap": _SMOOTHAP,
    "recall": _RECALL,
    "proxy_nca": _PROXY_NCA,
    "arcface": _ARCFACE,
    "id": _ID,
    "softmax": {},
    "contrastive": _CONTRASTIVE,
    "cit": _CIT,
    "angular": {"degrees": Axis((20.0, 30.0, 40.0, 50.0), (10.0,), (60.0,), (5.0, 2.5), (70.0, 80.0))},
    "circle": {
        "m": Axis((0.1, 0.25, 0.4), (0.0,), (0.6,), farther_above=(0.8, 1.0), bounds=(0.0,)),
        "gamma": Axis((32.0, 80.0, 256.0), (16.0,), (512.0,), (8.0, 4.0, 2.0), (1024.0,)),
    },
    "centroid_triplet": _TRIPLET,
    "soft_triple": {
        "la": Axis((8.0, 20.0, 40.0), (4.0,), (80.0,), (2.0, 1.0, 0.5), (160.0,)),
        "gamma": Axis((0.05, 0.1, 0.2), (0.02,), (0.4,), (0.01,), (0.8, 1.6)),
    },
    "discriminative": {},
    "tcm": _TCM,
    "gpw": {},
}
_HAS_PARAMETERS = {"proxy_nca", "arcface", "id", "softmax", "soft_triple", "discriminative"}


def _method(name: str, fixed: Mapping[str, Any] | None = None, projected: bool = False, **axes: Axis) -> Method:
    """A method with the axes of its terms; fixed settings are not tuned, given axes replace or extend them."""
    fixed, terms = dict(fixed or {}), name.split("@")[0].split(" + ")
    found = {"rate": RATES}
    if _HAS_PARAMETERS.intersection(terms):
        found["own_rate"] = OWN_RATES
    for term in terms:
        found |= {f"{term}.{key}": axis for key, axis in _OWN[term].items()}
    found |= {key.replace("__", "."): axis for key, axis in axes.items()}
    found = {key: axis for key, axis in found.items() if key not in fixed}
    if prod(len(axis.values) for axis in found.values()) < TRIALS:
        found["rate"] = FINE_RATES
    return Method(name, found, fixed, projected)


def _all() -> Iterator[Method]:
    for name in _OWN:
        if name not in ("gpw", "discriminative"):
            yield _method(name)

    # TCM added to each base, its ablations, and other terms instead of it
    for base in ("smoothap", "recall", "triplet", "ms", "proxy_nca", "arcface", "id"):
        yield _method(f"{base} + tcm")
    yield _method("smoothap + tcm@plus", {"tcm.lambda_minus": 0.0, "tcm.margin_minus": 0.5})
    yield _method("smoothap + tcm@minus", {"tcm.lambda_plus": 0.0, "tcm.margin_plus": 0.9})
    yield _method("smoothap + tcm@no_indicator", {"tcm.indicator": False, "tcm.divide_by": "hard"})
    yield _method("smoothap + tcm@divided_by_all", {"tcm.divide_by": "all"})
    for added in ("triplet", "contrastive", "arcface"):
        yield _method(f"smoothap + {added}", **{f"{added}__weight": _ADDED})
    for plus in (0.7, 0.8, 0.9, 1.0):
        for minus in (0.25, 0.4, 0.5, 0.6):
            yield _method(f"smoothap + tcm@{plus}/{minus}", {"tcm.margin_plus": plus, "tcm.margin_minus": minus})

    # TCM on a base with unchanged settings, as when adding it to a working trainer. Added after the
    # first test figures: where both are tuned anew, a change of the base's settings is part of the difference.
    for base in ("smoothap", "recall", "triplet", "ms", "proxy_nca", "arcface", "id", "softmax"):
        yield Method(f"{base} + tcm@added", {f"tcm.{key}": axis for key, axis in _TCM.items()}, on=base)

    # Another pair term in TCM's place, on the losses that compare with proxies or classes; the weights of both tuned.
    weights = Axis((0.3, 1.0, 3.0, 10.0), (0.1,), (30.0,), (0.03, 0.01), (100.0, 300.0, 1e3, 3e3), (3e3,))
    for base in ("proxy_nca", "arcface", "id"):
        yield Method(f"{base} + triplet@added", {"triplet.margin": MARGINS, "triplet.weight": weights}, on=base)
        axes = {f"tcm.{key}": axis for key, axis in _TCM.items()}
        yield Method(f"{base} + tcm@weighted", {**axes, "tcm.weight": weights}, on=base)

    # CIT with and without an ID loss; γ; the similarity; other losses with untuned margins
    yield _method("id + triplet", **{"triplet__weight": _ADDED})
    yield _method("id + cit", **{"cit__weight": _ADDED})
    yield _method("cit@cosine", {"cit.similarity": "cosine"})
    for gamma in GAMMAS:
        yield _method(f"cit@{gamma}", {"cit.gamma": gamma})
    for margin in (0.01, 0.05, 0.1, 0.5, 1.0):
        yield _method(f"triplet@{margin}", {"triplet.margin": margin})
        yield _method(f"centroid_triplet@{margin}", {"centroid_triplet.margin": margin})
    for degrees in (20.0, 40.0, 60.0):
        yield _method(f"angular@{degrees:.0f}", {"angular.degrees": degrees})
    for m in (0.1, 0.4, 0.6):
        yield _method(f"circle@{m}", {"circle.m": m, "circle.gamma": 80.0})

    # LoOp: its options, two samples per class, batch sizes
    yield _method("loop_triplet@positives_all", {"loop_triplet.positives": "all"})
    for base in ("triplet", "hphn"):
        yield _method(f"loop_{base}@pairing_all", {f"loop_{base}.pairing": "all"})
        yield _method(f"{base}@k2", {"per_class": 2})
        yield _method(f"loop_{base}@k2", {"per_class": 2})
    yield _method("loop_triplet@segment", {"loop_triplet.geometry": "segment"})
    for batch in (32, 160):
        yield _method(f"hphn@b{batch}", {"batch": batch})
        yield _method(f"loop_hphn@b{batch}", {"batch": batch})

    # The discriminative loss: its centroids; before and after the last layer
    for centroids in ("one_hot", "kmeans", "simplex"):
        yield _method(f"discriminative@{centroids}", {"discriminative.centroids": centroids})
    yield _method("discriminative@after", {"discriminative.centroids": "one_hot"}, projected=True)
    yield _method("softmax@after", projected=True)

    # General pair weighting: the eight rows of Table 2, dimensions, batch sizes
    tuned = {"gpw__alpha": Axis((2.0,)), "gpw__beta": _MS["beta"], "gpw__base": _MS["base"]}
    lifted = {"gpw__alpha": Axis((1.0, 2.0, 4.0), (0.5,), (8.0,), (0.25,), (16.0, 32.0)), "gpw__beta": _MS["beta"]}
    for row, (weighting, axes) in {
        "binomial": ("binomial_deviance", tuned),
        "lifted_star": ("lifted_star", lifted),
        "bin_lifted": ("bin_lifted", tuned),
        "weighting": ("multi_similarity", tuned),
    }.items():
        yield _method(f"gpw@{row}", {"gpw.weighting": weighting}, **axes)
        if row != "bin_lifted":
            yield _method(f"gpw@{row}+mining", {"gpw.weighting": weighting, "gpw.mining": 0.1}, **axes)
    yield _method("gpw@mining", {"gpw.weighting": "uniform", "gpw.mining": 0.1})
    for dimension in (32, 64, 256, 512):
        yield _method(f"ms@d{dimension}", {"dimension": dimension, "per_class": 5})
    for batch in (20, 40, 160, 320):
        yield _method(f"ms@b{batch}", {"batch": batch, "per_class": 5})


METHODS = {method.name: method for method in _all()}
