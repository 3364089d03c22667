"""What is compared: the papers' claims, and the goals for which a loss is chosen."""

from typing import NamedTuple

from methods import GAMMAS
from statistics_of_pairs import HIGHER, KEPT, LOWER, SAME


class Comparison(NamedTuple):
    """A method and its base, and the direction of each measure if the claim is true.

    base_anew: a base that the method was added to counts with its own choice of settings, not the method's.
    """

    base: str
    method: str
    expected: tuple[tuple[str, str], ...]
    base_anew: bool = False


class Claim(NamedTuple):
    """A claim and the comparisons that test it.

    topic: the word that selects it on the command line.
    source: paper, and table or figure.
    comparisons: what decides the verdict.
    shown: further methods in the claim's table.
    jointly: whether the claim is of all measures together: a comparison counts once, and holds if it holds in each.
    """

    topic: str
    sentence: str
    source: str
    comparisons: tuple[Comparison, ...]
    shown: tuple[str, ...] = ()
    jointly: bool = False

    @property
    def methods(self) -> list[str]:
        named = [name for c in self.comparisons for name in (c.base, c.method)]
        return list(dict.fromkeys([*named, *self.shown]))


_STEADIER = (("opis", LOWER), ("r1", KEPT))
_BETTER = (("r1", HIGHER), ("map_at_r", HIGHER))
_ON_PAR = (("r1", KEPT), ("map_at_r", KEPT))
_ALIKE = (("r1", SAME), ("map_at_r", SAME))
_BASES = ("smoothap", "recall", "triplet", "ms", "proxy_nca", "arcface", "id")


def _against(base: str, methods: tuple[str, ...], expected: tuple[tuple[str, str], ...]) -> tuple[Comparison, ...]:
    return tuple(Comparison(base, method, expected) for method in methods)


CLAIMS = (
    Claim(
        "tcm",
        "TCM lowers OPIS of any loss without lowering R@1.",
        "TCM paper, Tables 2, 3 and 5",
        tuple(Comparison(base, f"{base} + tcm", _STEADIER) for base in _BASES),
        ("tcm",),
        jointly=True,
    ),
    Claim(
        "tcm",
        "Added to a loss with unchanged settings, TCM lowers OPIS without lowering R@1.",
        "the same; added after the first figures were seen",
        tuple(Comparison(base, f"{base} + tcm@added", _STEADIER) for base in _BASES),
        ("softmax + tcm@added",),
        jointly=True,
    ),
    Claim(
        "tcm",
        "So it does against the base's own choice over three splits.",
        "ours; mostly still fewer runs than those of base and term together",
        tuple(Comparison(base, f"{base} + tcm@added", _STEADIER, base_anew=True) for base in _BASES),
        jointly=True,
    ),
    Claim(
        "tcm",
        "Added to a loss with proxies or classes, TCM lowers OPIS more than a triplet term does, and is more "
        "accurate (not a claim of the paper).",
        "ours: margins and weight of both terms were tuned, with 16 trials on the base's settings",
        tuple(
            Comparison(f"{base} + triplet@added", f"{base} + tcm@weighted", (("opis", LOWER), ("map_at_r", HIGHER)))
            for base in ("proxy_nca", "arcface", "id")
        ),
    ),
    Claim(
        "tcm",
        "TCM's positive term, negative term and indicator are all needed for its accuracy.",
        "TCM paper, Table 9",
        tuple(
            Comparison(f"smoothap + tcm@{part}", "smoothap + tcm", (("r1", HIGHER),))
            for part in ("plus", "minus", "no_indicator")
        ),
        ("smoothap",),
    ),
    Claim(
        "tcm",
        "Dividing by the number of hard pairs is better than by the number of all pairs.",
        "TCM paper, Table 8",
        (Comparison("smoothap + tcm@divided_by_all", "smoothap + tcm", (("r1", HIGHER), ("opis", LOWER))),),
    ),
    Claim(
        "tcm",
        "Added to SmoothAP, TCM is more accurate than a triplet or ArcFace term.",
        "TCM paper, Table 7; its contrastive term on cosines is TCM itself with weight 1, see ../LOSSES.md",
        tuple(
            Comparison(f"smoothap + {other}", "smoothap + tcm", (("r1", HIGHER),)) for other in ("triplet", "arcface")
        ),
        ("smoothap", "smoothap + contrastive"),
    ),
    Claim(
        "tcm",
        "TCM lowers OPIS at every pair of margins.",
        "TCM paper, Fig. 6",
        _against(
            "smoothap",
            tuple(f"smoothap + tcm@{plus}/{minus}" for plus in (0.7, 0.8, 0.9, 1.0) for minus in (0.25, 0.4, 0.5, 0.6)),
            (("opis", LOWER),),
        ),
    ),
    Claim(
        "tcm",
        "TCM's term alone is as good as the best bases (not a claim of the paper).",
        "ours",
        tuple(Comparison(base, "tcm", _ON_PAR) for base in ("smoothap", "ms", "triplet")),
        ("contrastive",),
    ),
    Claim(
        "cit",
        "CIT, which has no margin, equals the other losses at their best margins.",
        "CIT paper, Tables 1 and 7",
        tuple(Comparison(other, "cit@1.0", _ON_PAR) for other in ("triplet", "angular", "circle", "centroid_triplet")),
        ("cit", "cit@cosine"),
    ),
    Claim(
        "cit",
        "CIT is better than margin losses whose margin was not tuned.",
        "CIT paper, Tables 1, 7 and 8",
        _against(f"triplet@{0.05}", ("cit@1.0",), _BETTER)
        + tuple(
            Comparison(other, "cit@1.0", _BETTER) for other in ("angular@40", "circle@0.4", "centroid_triplet@0.05")
        ),
        tuple(f"triplet@{m}" for m in (0.01, 0.1, 0.5, 1.0))
        + tuple(f"centroid_triplet@{m}" for m in (0.01, 0.1, 0.5, 1.0))
        + ("angular@20", "angular@60", "circle@0.1", "circle@0.6"),
    ),
    Claim(
        "cit",
        "CIT is better than SoftTriple, the other loss without a margin.",
        "CIT paper, Table 1",
        (Comparison("soft_triple", "cit@1.0", _BETTER),),
    ),
    Claim(
        "cit",
        "γ hardly changes the accuracy.",
        "CIT paper, Table 3",
        _against("cit@1.0", tuple(f"cit@{gamma}" for gamma in GAMMAS[:-1]), _ALIKE),
    ),
    Claim(
        "cit",
        "With an ID loss, CIT does as well as the triplet loss (not a claim of the paper).",
        "ours",
        (Comparison("id + triplet", "id + cit", _ON_PAR),),
        ("id",),
    ),
    Claim(
        "loop",
        "LoOp raises R@1 and mAP@R of the triplet, HPHN, lifted structure and multi-similarity losses.",
        "LoOp paper, Table 2",
        (
            Comparison("triplet_disjoint", "loop_triplet", _BETTER),
            Comparison("triplet_random", "loop_triplet", _BETTER),
            Comparison("triplet", "loop_triplet", _BETTER),
            Comparison("hphn", "loop_hphn", _BETTER),
            Comparison("lifted", "loop_lifted", _BETTER),
            Comparison("ms", "loop_ms", _BETTER),
        ),
    ),
    Claim(
        "loop",
        "LoOp is better than semi-hard sampling.",
        "LoOp paper, Table 3",
        (Comparison("triplet_semihard", "loop_triplet", _BETTER),),
        ("loop_triplet_semihard",),
    ),
    Claim(
        "loop",
        "With two samples per class LoOp raises R@1 and mAP@R of triplet and HPHN.",
        "LoOp paper, Table 2 (its pairs are consecutive)",
        tuple(Comparison(f"{base}@k2", f"loop_{base}@k2", _BETTER) for base in ("triplet", "hphn")),
    ),
    Claim(
        "loop",
        "Arcs are better than segments, and segments than the plain triplet loss.",
        "LoOp paper, Fig. 4",
        (
            Comparison("loop_triplet@segment", "loop_triplet", _BETTER),
            Comparison("triplet", "loop_triplet@segment", _BETTER),
        ),
    ),
    Claim(
        "loop",
        "Tying positives to their arc, as in Alg. 1, is no worse than using all; neither are consecutive pairs.",
        "LoOp paper, Alg. 1",
        (  # HPHN's pairs are consecutive: they are tied to their arcs in any case
            Comparison("loop_triplet@positives_all", "loop_triplet", _ON_PAR),
            Comparison("loop_triplet@pairing_all", "loop_triplet", _ON_PAR),
            Comparison("loop_hphn@pairing_all", "loop_hphn", _ON_PAR),
        ),
    ),
    Claim(
        "loop",
        "LoOp's R@1 and mAP@R grow with the batch size.",
        "LoOp paper, Fig. 3a",
        (
            Comparison("loop_hphn@b32", "loop_hphn", _BETTER),
            Comparison("loop_hphn", "loop_hphn@b160", _BETTER),
        ),
        ("hphn@b32", "hphn", "hphn@b160"),
    ),
    Claim(
        "discriminative",
        "The discriminative loss is better than softmax and semi-hard triplets.",
        "Discriminative loss paper, Tables 4 and 5",
        (
            Comparison("softmax", "discriminative@one_hot", _BETTER),
            Comparison("triplet_semihard", "discriminative@one_hot", _BETTER),
        ),
        ("id",),
    ),
    Claim(
        "discriminative",
        "Features before the last layer are better than those after it.",
        "Discriminative loss paper, Table 2",
        (Comparison("discriminative@after", "discriminative@one_hot", _BETTER),),
        ("softmax@after",),
    ),
    Claim(
        "discriminative",
        "One-hot, k-means and (ours) simplex centroids differ little.",
        "Discriminative loss paper, Table 3",
        _against("discriminative@one_hot", ("discriminative@kmeans", "discriminative@simplex"), _ALIKE),
    ),
    Claim(
        "ms",
        "Each kind of similarity added to the weights helps, and MS with all three is best.",
        "MS paper, Table 2",
        _against("gpw@binomial", ("gpw@binomial+mining",), _BETTER)
        + _against("gpw@lifted_star", ("gpw@lifted_star+mining",), _BETTER)
        + _against("gpw@weighting", ("gpw@weighting+mining",), _BETTER)
        + tuple(
            Comparison(row, "gpw@weighting+mining", _BETTER)
            for row in ("gpw@binomial", "gpw@lifted_star", "gpw@mining", "gpw@bin_lifted")
        ),
    ),
    Claim(
        "ms",
        "Accuracy grows with the dimension.",
        "MS paper, Fig. 3",
        (Comparison("ms@d32", "ms@d64", _BETTER), Comparison("ms@d64", "ms@d512", _BETTER)),
        ("ms@d256",),
    ),
    Claim(
        "ms",
        "Accuracy depends little on the batch size.",
        "MS paper, supplement (CUB)",
        _against("ms@b40", ("ms@b20", "ms@b160", "ms@b320"), _ALIKE),
    ),
)
TOPICS = tuple(dict.fromkeys(claim.topic for claim in CLAIMS))

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

GOALS = (
    Goal(
        "one threshold for all classes",
        "opis",
        (
            Group("when added to ProxyNCA, ArcFace and normalised softmax", _with_tcm(_CLASSIFIERS, "@added"), "TCM"),
            Group("when added to softmax (cross-entropy of a linear layer)", _with_tcm(("softmax",), "@added")),
            Group("when added to SmoothAP and Recall@k", _with_tcm(_RANKINGS, "@added")),
            Group("when added to the triplet and multi-similarity losses", _with_tcm(_PAIRS, "@added")),
            Group("with the base tuned together with TCM", _with_tcm((*_CLASSIFIERS, *_RANKINGS, *_PAIRS), "")),
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
