"""Goals, the loss for each, and the comparisons that show whether it helps."""

from typing import NamedTuple

Pair = tuple[str, str]


class Group(NamedTuple):
    """Comparisons that are averaged.

    words: the comparison in words.
    pairs: base and method.
    in_readme: whether the README's table has it.
    """

    words: str
    pairs: tuple[Pair, ...]
    in_readme: bool = True


class Goal(NamedTuple):
    """A row of the README's table and a section of the page.

    goal, loss: the goal, and the code to write.
    measure: opis is in per cent of the base's value, the others in points.
    groups: of comparisons.
    costs: base and method whose time per step is compared.
    reading: the conclusion in words.
    """

    goal: str
    loss: str
    measure: str
    groups: tuple[Group, ...]
    costs: tuple[Pair, ...]
    reading: str


def _with_tcm(bases: tuple[str, ...], which: str) -> tuple[Pair, ...]:
    return tuple((base, f"{base} + tcm{which}") for base in bases)


_CLASSIFIERS, _RANKINGS, _PAIRS = ("proxy_nca", "arcface", "id"), ("smoothap", "recall"), ("triplet", "ms")
_BASES = (*_CLASSIFIERS, *_RANKINGS, *_PAIRS)

GOALS = (
    Goal(
        "one threshold for all classes",
        "`TCMRegularizer(loss)`",
        "opis",
        (
            Group("when added to ProxyNCA, ArcFace and softmax", _with_tcm(_CLASSIFIERS, "@added")),
            Group("when added to SmoothAP and Recall@k", _with_tcm(_RANKINGS, "@added")),
            Group("when added to the triplet and multi-similarity losses", _with_tcm(_PAIRS, "@added")),
            Group("with the base tuned together with TCM", _with_tcm(_BASES, ""), in_readme=False),
            Group(
                "when added to classification losses, against a triplet term added to them",
                tuple((f"{base} + triplet@added", f"{base} + tcm@added") for base in _CLASSIFIERS),
                in_readme=False,
            ),
        ),
        (("smoothap", "smoothap + tcm"), ("triplet", "triplet + tcm")),
        "Added to a tuned loss, TCM lowers OPIS of classification losses on every set, and of SmoothAP and Recall@k "
        "on most. It does not lower OPIS of the triplet and multi-similarity losses, which is low without it: on "
        "three of four sets MS alone is at least as even as the best loss with TCM. We added this comparison after "
        "seeing the first figures of the planned one (the last table). The planned one tunes the base's settings "
        "together with TCM's, by mAP@R, from a larger grid with the same number of trials, so part of its "
        "difference comes from the base's settings. TCM's margins matter: with SmoothAP, m⁻ = 0.4 to 0.6 lowered "
        "OPIS on Emoji at every m⁺, and 0.6 did on Omniglot, where 0.25 raised it; on Glyphs nearly all of 16 pairs "
        "raised it. TCM without its indicator costs 3 to 13 points of R@1 on every set. Whole networks agree on "
        "Omniglot; on Glyphs TCM lowered OPIS of the triplet loss but not of SmoothAP.",
    ),
    Goal(
        "no margin to tune",
        "`CITLoss(gamma=1)`",
        "map_at_r",
        (
            Group(
                "against the triplet, circle, centroid triplet and angular losses at their best margins",
                tuple((base, "cit@1.0") for base in ("triplet", "circle", "centroid_triplet", "angular")),
            ),
            Group("against the triplet loss with a margin of 1", (("triplet@1.0", "cit@1.0"),)),
            Group(
                "with an ID loss, against the triplet loss with one", (("id + triplet", "id + cit"),), in_readme=False
            ),
        ),
        (("triplet", "cit@1.0"),),
        "A tuned margin beats CIT on every set. CIT is the safer choice without tuning: a triplet loss with a "
        "margin ten times too large is worse. CIT alone with γ < 1 was worse on every set. With an ID loss, in "
        "whole networks, CIT was on par with the triplet loss.",
    ),
    Goal(
        "harder negatives from the same batch",
        "`LoOp(loss)`",
        "map_at_r",
        (
            Group("against 26 disjoint random triplets of a batch of 80", (("triplet_disjoint", "loop_triplet"),)),
            Group("against one random triplet per sample", (("triplet_random", "loop_triplet"),)),
            Group(
                "around the triplet, HPHN, lifted structure and multi-similarity losses, which use the whole batch",
                (("triplet", "loop_triplet"), ("hphn", "loop_hphn"), ("lifted", "loop_lifted"), ("ms", "loop_ms")),
            ),
            Group("with all arcs of a class", (("triplet", "loop_triplet@pairing_all"),), in_readme=False),
        ),
        (("triplet", "loop_triplet"), ("hphn", "loop_hphn")),
        "LoOp beats its paper's baseline, random triplets that share no sample (26 in a batch of 80), on every set. "
        "But all triplets of the batch beat LoOp; around losses that use the whole batch it gains only on Glyphs, "
        "around HPHN and MS. "
        '`pairing="all"`, an arc for every pair of a class instead of consecutive samples, is better than '
        "consecutive arcs and a little better than the triplet loss. We added the last comparison after seeing its "
        "figures.",
    ),
    Goal(
        "linear cost in the batch size",
        "`DiscriminativeLoss`",
        "map_at_r",
        (
            Group("against softmax", (("softmax", "discriminative@one_hot"),)),
            Group("against semi-hard triplets", (("triplet_semihard", "discriminative@one_hot"),)),
        ),
        (("triplet_semihard", "discriminative@one_hot"),),
        "It wins on the photographs of Grocery and loses on the other sets, which have many classes with few "
        "images. Simplex centroids, which are not in the paper, beat one-hot centroids on Emoji and Glyphs; on the "
        "other sets the difference is within noise.",
    ),
    Goal(
        "rule-based pair weights",
        '`PairWeightingLoss("multi_similarity")`',
        "map_at_r",
        (
            Group("against binomial deviance", (("gpw@binomial", "gpw@weighting+mining"),), in_readme=False),
            Group("against the triplet loss", (("triplet", "gpw@weighting"),)),
            Group(
                "against the triplet loss, with PML's MultiSimilarityLoss and its miner",
                (("triplet", "ms"),),
                in_readme=False,
            ),
        ),
        (("triplet", "gpw@weighting"),),
        "Multi-similarity weights are the most accurate here or close to it, and have a low OPIS by themselves: try "
        "them first, without mining, which was less accurate on every set. Batches of 320 instead of 40 gained 1 to 7 "
        "points of R@1, and 512 dimensions instead of 64 gained 2 to 5.",
    ),
    Goal(
        "a ranking metric as the loss",
        "`SmoothAPLoss`, `RecallAtKSurrogateLoss`",
        "map_at_r",
        (Group("against the triplet loss", (("triplet", "smoothap"), ("triplet", "recall")), in_readme=False),),
        (("triplet", "smoothap"), ("triplet", "recall")),
        "A little more accurate than the triplet loss, with a higher OPIS. Both were designed for batches larger "
        "than 80.",
    ),
)
METHODS_OF_GOALS = tuple(
    dict.fromkeys(name for goal in GOALS for group in goal.groups for pair in group.pairs for name in pair)
)
