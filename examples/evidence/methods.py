"""The methods and their grids: settings, values and number of trials.

Values, and one beyond each end, were fixed before any test result; what came later, EVIDENCE.md says.

Each method starts with the same number of trials, drawn at random (seeded by its name) from the product of its axes; a
smaller product is tried whole. Where the best value lies at an end of its axis, those beyond it are tried until it is
inside.
The headline methods are chosen over three validation splits, and tuned three times (tuning.py).
A name is a sum of terms (terms.py) and, after an @, a variant: "cit@0.5" and "cit" differ in settings only.
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
# Chosen over SPLITS as well, because a headline method is on the other side of their comparisons.
CHOSEN_OVER_SPLITS = (
    *HEADLINES,
    *("loop_triplet@all", "multi_similarity", "loop_multi_similarity", "loop_multi_similarity@all"),
)
# Compared in TAR too. Runs from before TAR was measured are repeated for it.
WITH_TAR = ("id", "id + triplet", "id + cit", "id + tcm", "softmax")
# They are also tuned once on each split, with its own draw of the trials and its seed: the spread of tuning.
REPEATED_SEEDS = (0, 1)


class Axis(NamedTuple):
    """The values to tune, ascending if numbers, and those beyond its ends, nearest first.

    farther_below, farther_above: further values beyond the ends: only for the choice over several splits if the method
        is a headline.
    """

    values: tuple[Any, ...]
    below: tuple[Any, ...] = ()
    above: tuple[Any, ...] = ()
    farther_below: tuple[Any, ...] = ()
    farther_above: tuple[Any, ...] = ()

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
    fixed: settings that are not tuned.
    on: a method whose chosen settings on the same set are fixed too, or None.
    """

    name: str
    axes: Mapping[str, Axis]
    fixed: Mapping[str, Any] = {}
    on: str | None = None

    def trials(self, draw: int = 0) -> list[dict[str, Any]]:
        """The settings to try first, without those of `on`: one draw of them, or the whole grid."""
        grid = [{**self.fixed, **dict(zip(self.axes, values, strict=True))} for values in self._grid()]
        if len(grid) <= TRIALS:
            return grid
        return Random(f"{self.name} {draw}" if draw else self.name).sample(grid, TRIALS)

    def _grid(self) -> Iterator[tuple[Any, ...]]:
        return product(*(axis.values for axis in self.axes.values()))

    def beyond(self, best: Mapping[str, Any], *, farther: bool = False) -> Iterator[dict[str, Any]]:
        """The values next to the best settings, beyond the axes whose end they are."""
        for key, axis in self.axes.items():
            if len(axis.values) == 1:
                continue
            for ends in axis.ends(farther=farther):
                if best[key] in ends[:-1]:
                    beyond = {**best, key: ends[ends.index(best[key]) + 1]}
                    if beyond.get("tcm.margin_plus", 1.0) >= beyond.get("tcm.margin_minus", 0.0):  # else no TCM loss
                        yield beyond


RATES = Axis((3e-4, 1e-3, 3e-3, 1e-2), (1e-4,), (3e-2, 1e-1), (3e-5, 1e-5, 3e-6, 1e-6, 0.0), (0.3, 1.0))
# For methods with few settings, so that they start with the same number of trials.
FINE_RATES = Axis((3e-4, 5e-4, 1e-3, 2e-3, 3e-3, 5e-3, 1e-2, 2e-2), *RATES[1:])
# Rates of a loss's own parameters (proxies, a last layer), as a multiple of the head's.
OWN_RATES = Axis((1.0, 10.0), (0.1,), (100.0,), (0.01, 1e-3), (1000.0, 1e4, 1e5))
MARGINS = Axis((0.05, 0.1, 0.2, 0.4), (0.02,), (0.8,), (0.01, 0.005), (1.6, 3.2))

_TRIPLET = {"margin": MARGINS}
_MULTI_SIMILARITY = {
    "beta": Axis((20.0, 40.0, 60.0), (10.0,), (80.0,), (5.0, 2.5, 1.2), (120.0, 240.0)),
    "base": Axis((0.3, 0.5, 0.7), (0.1,), (0.9,), (-0.1, -0.3), (1.0,)),
}
_MS = {**_MULTI_SIMILARITY, "epsilon": Axis((0.1,))}  # with its miner
_TCM = {
    "margin_plus": Axis((0.7, 0.8, 0.9), (0.6, 0.5), (1.0,), (0.4, 0.3, 0.2, 0.0)),
    "margin_minus": Axis((0.2, 0.3, 0.4, 0.5), (0.1, 0.0), (0.6, 0.7), (-0.1, -0.2, -0.5, -1.0), (0.8, 0.9, 1.0)),
}
_SMOOTHAP = {"temperature": Axis((0.01, 0.02, 0.04, 0.08), (0.005,), (0.16,), (0.0025, 0.0012), (0.32, 0.64, 1.3))}
_RECALL = {"temperature": Axis((0.01, 0.02, 0.04, 0.08), (0.005,), (0.16,), (0.0025, 0.0012), (0.32, 0.64, 1.3))}
_ID = {
    "temperature": Axis(
        (0.03, 0.05, 0.1), (0.02,), (0.2,), (0.01,), (0.4, 0.8, 1.6, 3.2, 6.4, 13.0, 26.0, 52.0, 1e2, 2e2)
    )
}
_ARCFACE = {
    "margin": Axis((5.0, 15.0, 28.6), (1.0,), (40.0,), (0.0,), (50.0, 60.0, 75.0, 90.0)),
    "scale": Axis(
        (16.0, 32.0, 64.0), (8.0,), (128.0,), (4.0, 2.0, 1.0, 0.5, 0.25, 0.12, 0.06), (256.0, 512.0, 1024.0, 2048.0)
    ),
}
_PROXY_NCA = {"scale": Axis((3.0, 8.0, 16.0), (1.0,), (32.0,), (0.5, 0.25, 0.12), (64.0, 128.0, 256.0))}
_N_PAIR = {"temperature": Axis((0.03, 0.05, 0.1, 0.2), (0.02,), (0.4,), (0.01,), (0.8, 1.6))}
_CONTRASTIVE = {
    "pos_margin": Axis((0.8, 0.9, 1.0), (0.7,), farther_below=(0.6, 0.5)),
    "neg_margin": Axis((0.1, 0.3, 0.5), (0.0,), (0.7,), (-0.1, -0.2), (0.8, 0.9, 1.0)),
}
GAMMAS = (0.1, 0.2, 0.5, 0.8, 1.0)
_CIT = {"gamma": Axis(GAMMAS)}
LOOP_BASES = ("triplet_consecutive", "hphn", "lifted", "ms", "n_pair")
# With two images of a class the HPHN triplet loss is the lifted structure loss.
LOOP_BASES_OF_TWO = ("triplet_consecutive@2", "lifted@2", "ms@2", "n_pair@2")
CIT_GRID = tuple((scale, gamma) for scale in (1.0, 3.0, 10.0, 30.0) for gamma in (0.5, 1.0))  # next to a cross-entropy
# The weight of an added term. For Adam only the terms' ratio counts: with the largest weight the base has no part.
_ADDED = Axis((0.1, 0.3, 1.0), (0.03,), (3.0,), (0.01, 3e-3, 1e-3), (10.0, 30.0, 100.0, 300.0, 1e3, 3e3))

_OWN: dict[str, dict[str, Axis]] = {  # the axes of each term
    "triplet": _TRIPLET,
    "triplet_semihard": _TRIPLET,
    "triplet_disjoint": _TRIPLET,
    "triplet_random": _TRIPLET,
    "triplet_consecutive": _TRIPLET,
    "loop_triplet": _TRIPLET,
    "hphn": _TRIPLET,
    "loop_hphn": _TRIPLET,
    "lifted": _TRIPLET,
    "loop_lifted": _TRIPLET,
    "n_pair": _N_PAIR,
    "loop_n_pair": _N_PAIR,
    "nt_xent": _N_PAIR,
    "multi_similarity": _MULTI_SIMILARITY,
    "loop_multi_similarity": _MULTI_SIMILARITY,
    "ms": _MS,
    "loop_ms": _MS | {"epsilon": Axis((-0.02, 0.1), (-0.1,), (0.2,), (-0.2,), (0.4, 0.8, 2.0))},
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
        "m": Axis((0.1, 0.25, 0.4), (0.0,), (0.6,), farther_above=(0.8, 1.0)),
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


def _method(name: str, fixed: Mapping[str, Any] = {}, **axes: Axis) -> Method:
    """A method with the axes of its terms; fixed settings are not tuned, given axes replace or extend them."""
    terms = name.split("@")[0].split(" + ")
    found = {"rate": RATES}
    if _HAS_PARAMETERS.intersection(terms):
        found["own_rate"] = OWN_RATES
    for term in terms:
        found |= {f"{term}.{key}": axis for key, axis in _OWN[term].items()}
    found |= {key.replace("__", "."): axis for key, axis in axes.items()}
    found = {key: axis for key, axis in found.items() if key not in fixed}
    if prod(len(axis.values) for axis in found.values()) < TRIALS:
        found["rate"] = FINE_RATES
    return Method(name, found, fixed)


def _all() -> Iterator[Method]:
    for name in _OWN:
        if name not in ("gpw", "discriminative", "cit"):  # named with a variant below
            yield _method(name)
    yield _method("discriminative@one_hot", {"discriminative.centroids": "one_hot"})

    for base in ("smoothap", "recall", "triplet", "ms", "proxy_nca", "arcface", "id"):
        yield _method(f"{base} + tcm")
        # On a base with unchanged settings, as when adding TCM to a working trainer. Added after the first test
        # figures: where both are tuned anew, a change of the base's settings is part of the difference.
        yield Method(f"{base} + tcm@added", {f"tcm.{key}": axis for key, axis in _TCM.items()}, on=base)

    for base in LOOP_BASES_OF_TWO:  # as LoOp's paper has it for the N-pair loss
        yield _method(base, {"per_class": 2})
        yield _method(f"loop_{base.replace('_consecutive', '')}", {"per_class": 2})

    for name in (
        "loop_triplet",
        "loop_multi_similarity",
        "loop_n_pair",
    ):  # the positives that the loss has without LoOp
        yield _method(f"{name}@all", {f"{name}.positives": "all"})
    yield _method("multi_similarity@2", {"per_class": 2})
    yield _method("loop_multi_similarity@2", {"per_class": 2, "loop_multi_similarity.positives": "all"})

    # CIT with and without an ID loss; γ; other losses with untuned margins
    yield _method("id + triplet", triplet__weight=_ADDED)
    yield _method("id + cit", cit__weight=_ADDED)
    yield _method("id + contrastive")
    # A term at stated settings on a cross-entropy with unchanged settings: CIT's weight and γ; TCM's weight, by a rule
    for scale, gamma in CIT_GRID:
        settings = {"cit.weight": scale, "cit.gamma": gamma}
        yield Method(f"softmax + cit@{scale:g},{gamma}", {}, settings, on="softmax")
    for weight in ({"tcm.weight": 1.0}, {"tcm.ratio": 0.5}):
        ((key, value),) = weight.items()
        settings = {"tcm.margin_plus": 0.9, "tcm.margin_minus": 0.5, **weight}
        yield Method(f"softmax + tcm@{key.removeprefix('tcm.')} {value}", {}, settings, on="softmax")
    for gamma in GAMMAS:
        yield _method(f"cit@{gamma}", {"cit.gamma": gamma})
    yield _method("triplet@0.05", {"triplet.margin": 0.05})
    yield _method("centroid_triplet@0.05", {"centroid_triplet.margin": 0.05})
    yield _method("angular@40", {"angular.degrees": 40.0})
    yield _method("circle@0.4", {"circle.m": 0.4, "circle.gamma": 80.0})

    # General pair weighting: the eight rows of Table 2
    tuned = {"gpw__alpha": Axis((2.0,)), "gpw__beta": _MS["beta"], "gpw__base": _MS["base"]}
    lifted = {"gpw__alpha": Axis((1.0, 2.0, 4.0), (0.5,), (8.0,), (0.25,), (16.0, 32.0)), "gpw__beta": _MS["beta"]}
    yield _method("gpw@binomial", {"gpw.weighting": "binomial_deviance"}, **tuned)
    yield _method("gpw@binomial+mining", {"gpw.weighting": "binomial_deviance", "gpw.mining": 0.1}, **tuned)
    yield _method("gpw@lifted_star", {"gpw.weighting": "lifted_star"}, **lifted)
    yield _method("gpw@lifted_star+mining", {"gpw.weighting": "lifted_star", "gpw.mining": 0.1}, **lifted)
    yield _method("gpw@bin_lifted", {"gpw.weighting": "bin_lifted"}, **tuned)
    yield _method("gpw@weighting", {"gpw.weighting": "multi_similarity"}, **tuned)
    yield _method("gpw@weighting+mining", {"gpw.weighting": "multi_similarity", "gpw.mining": 0.1}, **tuned)
    yield _method("gpw@mining", {"gpw.weighting": "uniform", "gpw.mining": 0.1})


METHODS = {method.name: method for method in _all()}
