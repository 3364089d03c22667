"""Goals, and the comparisons that show which loss helps."""

from typing import NamedTuple

Pair = tuple[str, str]


class Group(NamedTuple):
    """Comparisons that are averaged.

    words: the comparison in words.
    pairs: base and method.
    readme: its name in results/guide.json, for WHICH_LOSS.md and the README; "" leaves it out.
    """

    words: str
    pairs: tuple[Pair, ...]
    readme: str = ""


class Goal(NamedTuple):
    """What somebody wants of a loss, and the comparisons that show whether it helps.

    measure: opis is in per cent of the base's value, the others in points.
    groups: of comparisons.
    """

    goal: str
    measure: str
    groups: tuple[Group, ...]


def _with_tcm(bases: tuple[str, ...], which: str) -> tuple[Pair, ...]:
    return tuple((base, f"{base} + tcm{which}") for base in bases)


_CLASSIFIERS, _RANKINGS, _PAIRS = ("proxy_nca", "arcface", "id"), ("smoothap", "recall"), ("triplet", "ms")
_BASES = (*_CLASSIFIERS, *_RANKINGS, *_PAIRS)

GOALS = (
    Goal(
        "one threshold for all classes",
        "opis",
        (
            Group("when added to ProxyNCA, ArcFace and normalised softmax", _with_tcm(_CLASSIFIERS, "@added"), "TCM"),
            Group("when added to softmax (cross-entropy of a linear layer)", _with_tcm(("softmax",), "@added")),
            Group("when added to SmoothAP and Recall@k", _with_tcm(_RANKINGS, "@added")),
            Group("when added to the triplet and multi-similarity losses", _with_tcm(_PAIRS, "@added")),
            Group("with the base tuned together with TCM", _with_tcm(_BASES, "")),
            Group(
                "when added to classification losses, against a triplet term added to them",
                tuple((f"{base} + triplet@added", f"{base} + tcm@weighted") for base in _CLASSIFIERS),
            ),
            Group(
                "of a triplet term added to them",
                tuple((base, f"{base} + triplet@added") for base in _CLASSIFIERS),
            ),
        ),
    ),
    Goal(
        "no margin to tune",
        "map_at_r",
        (
            Group(
                "against the triplet, circle, centroid triplet and angular losses at their best margins",
                tuple((base, "cit@1.0") for base in ("triplet", "circle", "centroid_triplet", "angular")),
            ),
            Group("against the triplet loss with PML's default margin, 0.05", (("triplet@0.05", "cit@1.0"),), "CIT"),
            Group("against the triplet loss with a margin of 1", (("triplet@1.0", "cit@1.0"),)),
            Group("with an ID loss, against the triplet loss with one", (("id + triplet", "id + cit"),)),
            Group("with an ID loss, against the ID loss alone", (("id", "id + cit"),), "CIT beside"),
        ),
    ),
    Goal(
        "harder negatives from the same batch",
        "map_at_r",
        (
            Group(
                "against 26 disjoint random triplets of a batch of 80", (("triplet_disjoint", "loop_triplet"),), "LoOp"
            ),
            Group("against one random triplet per sample", (("triplet_random", "loop_triplet"),)),
            Group(
                "around the triplet, HPHN, lifted structure and multi-similarity losses, which use the whole batch",
                (("triplet", "loop_triplet"), ("hphn", "loop_hphn"), ("lifted", "loop_lifted"), ("ms", "loop_ms")),
                "LoOp, whole batch",
            ),
            Group("with all arcs of a class", (("triplet", "loop_triplet@pairing_all"),)),
        ),
    ),
    Goal(
        "linear cost in the batch size",
        "map_at_r",
        (
            Group(
                "against softmax, cross-entropy of a linear layer",
                (("softmax", "discriminative@one_hot"),),
                "Discriminative",
            ),
            Group("against semi-hard triplets", (("triplet_semihard", "discriminative@one_hot"),)),
        ),
    ),
    Goal(
        "rule-based pair weights",
        "map_at_r",
        (
            Group("against binomial deviance", (("gpw@binomial", "gpw@weighting+mining"),)),
            Group("against the triplet loss", (("triplet", "gpw@weighting"),)),
            Group("against the triplet loss, with PML's MultiSimilarityLoss and its miner", (("triplet", "ms"),)),
            Group("of PML's MultiSimilarityLoss with its miner against it", (("gpw@weighting", "ms"),)),
        ),
    ),
    Goal(
        "a ranking metric as the loss",
        "map_at_r",
        (Group("against the triplet loss", (("triplet", "smoothap"), ("triplet", "recall"))),),
    ),
)
METHODS_OF_GOALS = tuple(
    dict.fromkeys(name for goal in GOALS for group in goal.groups for pair in group.pairs for name in pair)
)
