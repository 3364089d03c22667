"""Goals, the loss for each, and the comparisons that show whether it helps."""

from typing import NamedTuple

Pair = tuple[str, str]


class Group(NamedTuple):
    """Comparisons that are averaged.

    words: the comparison in words.
    pairs: base and method.
    readme: its name in results/guide.json, for the README; "" leaves it out.
    """

    words: str
    pairs: tuple[Pair, ...]
    readme: str = ""


class Goal(NamedTuple):
    """A section of the page.

    goal, loss: the goal, and the code to write.
    measure: opis is in per cent of the base's value, the others in points.
    groups: of comparisons.
    reading: the conclusion in words.
    """

    goal: str
    loss: str
    measure: str
    groups: tuple[Group, ...]
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
        "Use it if you have a classification loss already. Otherwise MultiSimilarityLoss or the triplet loss at PML's "
        "default margin has a lower OPIS without TCM, and a higher mAP@R (the table at the top). "
        "Added to a tuned loss at unchanged settings, TCM lowers OPIS of ProxyNCA, ArcFace and normalised softmax "
        "on Emoji and of two of them on Glyphs. On these two sets the three are hardly better than an untrained "
        "layer, or worse (“Every method” in EVIDENCE.md): there TCM's term does most of the learning, and softmax "
        "with a linear layer is about as even without it. Around that softmax TCM lowers OPIS on average over the "
        "sets, though on none by itself. Elsewhere, and around other losses, nothing is decided. If the weights of "
        "both are tuned, a triplet term in TCM's place gives about the same OPIS; TCM is more accurate with ArcFace "
        "on Emoji, and much worse with it on Glyphs, where the search for its weight ended at 0.1, that for the "
        "triplet term's at 3,000. So either term on pairs helps these losses on Emoji and Glyphs; elsewhere little "
        "is decided. MS alone is the most even loss, or close to it, on four of five sets. Mean utility orders the "
        "losses much like OPIS, but not on Omniglot. We added the comparisons with unchanged bases after seeing the "
        "first figures of the planned one (the last but one table), and the last one later. The planned one tunes "
        "the base's settings together with TCM's, by mAP@R, from a larger grid with as many first trials, so part "
        "of its difference comes from the base's settings. With SmoothAP, no pair of TCM's margins has a decided "
        "effect on OPIS. Without its indicator TCM costs 9 to 13 points of R@1 on three of four sets. In whole "
        "networks TCM lowered OPIS of the triplet loss on Glyphs (-18 %) and of SmoothAP on Omniglot (-15 %), and "
        "raised that of the triplet loss on Omniglot (+63 %; by intervals without the spread of tuning or a "
        "correction for their number).",
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
            Group("against the triplet loss with PML's default margin, 0.05", (("triplet@0.05", "cit@1.0"),), "CIT"),
            Group("against the triplet loss with a margin of 1", (("triplet@1.0", "cit@1.0"),)),
            Group("with an ID loss, against the triplet loss with one", (("id + triplet", "id + cit"),)),
            Group("with an ID loss, against the ID loss alone", (("id", "id + cit"),)),
        ),
        "Use it beside an identity (cross-entropy) loss, as the paper's ReID experiments do. Alone it costs accuracy. "
        "Whether it improves the identity loss was not measured in whole networks. As heads (the last table, added "
        "after its figures were seen) it did on Glyphs, where softmax alone is worse than an untrained layer, and it "
        "was worse than softmax alone on Emoji. "
        "A triplet loss with a tuned margin beats CIT on all five sets, and so does a circle loss. With PML's "
        "default margin a triplet loss beats it on four; only with a margin of 1, twenty times that, it is worse, "
        "on four. CIT alone with γ < 1 was worse, and hardly better than an untrained layer, on all four sets where "
        "it was tried. With an ID loss CIT was worse than the triplet loss on three of four sets; γ was tuned too "
        "(0.2 on Emoji and Omniglot), and on Emoji the search found nothing as good as the ID loss alone. In whole "
        "networks, by intervals without the spread of tuning, CIT alone had 15 points of R@1 less than the triplet "
        "loss; with an ID loss it had 3 points more on Omniglot, undecided on Glyphs (the triplet loss had no ID "
        "loss there).",
    ),
    Goal(
        "harder negatives from the same batch",
        "`LoOp(loss)`",
        "map_at_r",
        (
            Group(
                "against 26 disjoint random triplets of a batch of 80", (("triplet_disjoint", "loop_triplet"),), "LoOp"
            ),
            Group("against one random triplet per sample", (("triplet_random", "loop_triplet"),)),
            Group(
                "around the triplet, HPHN, lifted structure and multi-similarity losses, which use the whole batch",
                (("triplet", "loop_triplet"), ("hphn", "loop_hphn"), ("lifted", "loop_lifted"), ("ms", "loop_ms")),
            ),
            Group("with all arcs of a class", (("triplet", "loop_triplet@pairing_all"),)),
        ),
        "LoOp beats its paper's baseline, random triplets that share no sample (26 in a batch of 80), on four of "
        "five sets. Against one random triplet per sample it gains a third less, decided on three. Around losses "
        'that use the whole batch no difference is decided. With `pairing="all"`, an arc for every pair of a class '
        "instead of consecutive samples, it does not differ decidedly from the triplet loss either; we added this "
        "comparison after seeing its figures.",
    ),
    Goal(
        "linear cost in the batch size",
        "`DiscriminativeLoss`",
        "map_at_r",
        (
            Group("against softmax, cross-entropy of a linear layer", (("softmax", "discriminative@one_hot"),)),
            Group("against semi-hard triplets", (("triplet_semihard", "discriminative@one_hot"),)),
        ),
        "It loses against semi-hard triplets on Emoji, Glyphs and Omniglot, which have many classes with few "
        "images, and against softmax on Emoji. On Emoji and Glyphs it is hardly better than an untrained layer. On "
        "Grocery and Fruits nothing is decided. K-means and simplex centroids (these are not in the paper) had 2 "
        "points of mAP@R more than one-hot centroids on Emoji; that it is more than one point is not decided, there "
        "or elsewhere.",
    ),
    Goal(
        "rule-based pair weights",
        '`PairWeightingLoss("multi_similarity")`',
        "map_at_r",
        (
            Group("against binomial deviance", (("gpw@binomial", "gpw@weighting+mining"),)),
            Group("against the triplet loss", (("triplet", "gpw@weighting"),)),
            Group("against the triplet loss, with PML's MultiSimilarityLoss and its miner", (("triplet", "ms"),)),
            Group("of PML's MultiSimilarityLoss with its miner against it", (("gpw@weighting", "ms"),)),
        ),
        "Its gradient is that of PML's MultiSimilarityLoss. Start with PML's loss and its miner: they have about the "
        "same accuracy, and a lower OPIS on all sets, which is decided on none. PairWeightingLoss is for the other ten "
        "weightings. Its accuracy is that of the best losses on Emoji, Glyphs and Fruits, and not far from them on the "
        "other sets; against a triplet loss that was tuned as much the gain is decided on Emoji only. Mining made no "
        "decided difference to the weights. Batches of 320 instead of 40 gained 1 to 7 points of mAP@R, decided on two "
        "of four sets; 512 dimensions instead of 64 gained 1 to 4, decided on two.",
    ),
    Goal(
        "a ranking metric as the loss",
        "`SmoothAPLoss`, `RecallAtKSurrogateLoss`",
        "map_at_r",
        (Group("against the triplet loss", (("triplet", "smoothap"), ("triplet", "recall"))),),
        "SmoothAP is a point of mAP@R more accurate than the triplet loss on Emoji; nothing else is decided. Both "
        "were designed for batches larger than 80.",
    ),
)
METHODS_OF_GOALS = tuple(
    dict.fromkeys(name for goal in GOALS for group in goal.groups for pair in group.pairs for name in pair)
)
