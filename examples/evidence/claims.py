"""What is compared: the papers' claims, and the comparisons behind WHICH_LOSS.md."""

from typing import NamedTuple

from methods import CIT_GRID, GAMMAS, LOOP_BASES, LOOP_BASES_OF_TWO
from statistics_of_pairs import HIGHER, KEPT, LOWER, SAME

Expected = tuple[tuple[str, str], ...]  # measures, and the direction of each if the claim is true


class Part(NamedTuple):
    """What two sides may differ in.

    name: in words.
    keys: how the keys of sides.parts_of begin that it covers; for whole networks the keys of a config.
    """

    name: str
    keys: tuple[str, ...]


class Comparison(NamedTuple):
    """A method and its base, which differ in one part."""

    base: str
    method: str
    part: Part
    expected: Expected


class Claim(NamedTuple):
    """A claim and the comparisons that decide it.

    source: paper, and table.
    jointly: whether the claim is of all measures together: a comparison counts once, and holds if it holds in each.
    """

    sentence: str
    source: str
    comparisons: tuple[Comparison, ...]
    jointly: bool = False


STEADIER: Expected = (("opis", LOWER), ("r1", KEPT))
BETTER: Expected = (("r1", HIGHER), ("map_at_r", HIGHER))
ON_PAR: Expected = (("r1", KEPT), ("map_at_r", KEPT))
ALIKE: Expected = (("r1", SAME), ("map_at_r", SAME))
TERM = Part("added term", ("term 2",))
LOSS = Part("loss", ("term 1 loss",))
LOSS_AND_TUPLES = Part("loss, with its own tuples", ("term 1 loss", "term 1 pairs", "term 1 miner"))
ADDED_LOSS = Part("loss of the added term", ("term 2 loss",))
NEGATIVES = Part("negative distances", ("term 1 negatives",))
NEGATIVES_OF_MS = Part("negative distances of the miner, and its ε", ("term 1 negatives", "term 1 miner.epsilon"))
SWAP = Part("negative distances, and positives without an arc", ("term 1 negatives", "term 1 pairs"))
# PairWeightingLoss with MS's weights has the gradient of MultiSimilarityLoss without a miner.
SWAP_OF_MS = Part(SWAP.name, (*SWAP.keys, "term 1 loss"))
MINER_OF_MS = Part("miner", ("term 1 miner", "term 1 loss"))
WEIGHTING = Part("weighting", tuple(f"term 1 loss.{key}" for key in ("weighting", "alpha", "beta", "base", "mining")))
TCM_BASES = ("smoothap", "recall", "triplet", "ms", "proxy_nca", "arcface", "id")
CLASSIFIERS = ("proxy_nca", "arcface", "id")


def _over_bases(bases: tuple[str, ...], method: str, part: Part, expected: Expected) -> tuple[Comparison, ...]:
    return tuple(Comparison(base, method, part, expected) for base in bases)


def _with_term(bases: tuple[str, ...], term: str, expected: Expected) -> tuple[Comparison, ...]:
    return tuple(Comparison(base, f"{base} + {term}", TERM, expected) for base in bases)


def _with_loop(bases: tuple[str, ...], expected: Expected) -> tuple[Comparison, ...]:
    """Both sides have the same loss, tuples and images of a class; only the negative distances differ.

    LoOp's positive pairs are consecutive images of a class: for the triplet loss triplet_consecutive has the same.
    """
    found = []
    for base in bases:
        part = NEGATIVES_OF_MS if base.partition("@")[0] == "ms" else NEGATIVES
        found.append(Comparison(base, f"loop_{base.replace('_consecutive', '')}", part, expected))
    return tuple(found)


CLAIMS = (
    Claim(
        "TCM lowers OPIS of any loss without lowering R@1.",
        "TCM paper, Tables 2, 3 and 5",
        _with_term(TCM_BASES, "tcm", STEADIER),
        jointly=True,
    ),
    Claim(
        "Added to a loss with unchanged settings, TCM lowers OPIS without lowering R@1.",
        "the same; added after the first figures were seen",
        _with_term(TCM_BASES, "tcm@added", STEADIER),
        jointly=True,
    ),
    Claim(
        "CIT, which has no margin, equals the other losses at their best margins.",
        "CIT paper, Tables 1 and 7",
        _over_bases(("triplet", "angular", "circle", "centroid_triplet"), "cit@1.0", LOSS, ON_PAR),
    ),
    Claim(
        "CIT is better than margin losses whose margin was not tuned.",
        "CIT paper, Tables 1, 7 and 8",
        _over_bases(("triplet@0.05", "angular@40", "circle@0.4", "centroid_triplet@0.05"), "cit@1.0", LOSS, BETTER),
    ),
    Claim(
        "CIT is better than SoftTriple, the other loss without a margin.",
        "CIT paper, Table 1",
        _over_bases(("soft_triple",), "cit@1.0", LOSS_AND_TUPLES, BETTER),
    ),
    Claim(
        "γ hardly changes the accuracy.",
        "CIT paper, Table 3",
        tuple(Comparison("cit@1.0", f"cit@{gamma}", Part("γ", ("term 1 loss.gamma",)), ALIKE) for gamma in GAMMAS[:-1]),
    ),
    Claim(
        "With an ID loss, CIT does as well as the triplet loss (not a claim of the paper).",
        "ours",
        _over_bases(("id + triplet",), "id + cit", ADDED_LOSS, ON_PAR),
    ),
    Claim(
        "On the same tuples, LoOp raises R@1 and mAP@R of the triplet, HPHN, lifted structure, MS and N-pair losses.",
        "LoOp paper, Table 2",
        _with_loop(LOOP_BASES, BETTER),
    ),
    Claim(
        "The same with two images of a class.",
        "LoOp paper, Table 2; the N-pair loss",
        _with_loop(LOOP_BASES_OF_TWO, BETTER),
    ),
    Claim(
        "The discriminative loss is better than softmax and semi-hard triplets.",
        "Discriminative loss paper, Tables 4 and 5",
        _over_bases(("softmax", "triplet_semihard"), "discriminative@one_hot", LOSS_AND_TUPLES, BETTER),
    ),
    Claim(
        "Each kind of similarity added to the weights helps, and MS with all three is best.",
        "MS paper, Table 2",
        (
            Comparison("gpw@binomial", "gpw@binomial+mining", WEIGHTING, BETTER),
            Comparison("gpw@lifted_star", "gpw@lifted_star+mining", WEIGHTING, BETTER),
            *_over_bases(
                ("gpw@weighting", "gpw@binomial", "gpw@lifted_star", "gpw@mining", "gpw@bin_lifted"),
                "gpw@weighting+mining",
                WEIGHTING,
                BETTER,
            ),
        ),
    ),
)

# The averages of WHICH_LOSS.md and the README; OPIS in per cent of the base's value, others in points.
ALL: Expected = (("r1", HIGHER), ("map_at_r", HIGHER), ("opis", LOWER), ("tar", HIGHER))
NEXT_TO = ("triplet", "contrastive", "tcm", "cit")
# Stated settings, not tuned: CIT's weight and γ; TCM's weight, or its gradient's norm over the base's.
CIT_CELLS = tuple(f"{scale:g},{gamma}" for scale, gamma in CIT_GRID)
TCM_WEIGHTS = ("weight 1.0", "ratio 0.5")
MS = "gpw@weighting"


class Swap(NamedTuple):
    """LoOp in place of a loss: the loss of PML alone, with all its tuples, and inside LoOp.

    positives: of LoOp; "" with two images of a class, where both choices are equal.
    """

    loss: str
    images: int
    positives: str
    comparison: Comparison

    @property
    def name(self) -> str:
        return f"LoOp({self.loss}), {self.images} images, {self.positives}".removesuffix(", ")


SWAPS = (
    Swap("TripletMarginLoss", 4, "all", Comparison("triplet", "loop_triplet@all", NEGATIVES, ALL)),
    Swap("TripletMarginLoss", 4, "arc", Comparison("triplet", "loop_triplet", SWAP, ALL)),
    Swap("TripletMarginLoss", 2, "", Comparison("triplet_consecutive@2", "loop_triplet@2", NEGATIVES, ALL)),
    Swap("MultiSimilarityLoss", 4, "all", Comparison(MS, "loop_multi_similarity@all", SWAP_OF_MS, ALL)),
    Swap("MultiSimilarityLoss", 4, "arc", Comparison(MS, "loop_multi_similarity", SWAP_OF_MS, ALL)),
    Swap("MultiSimilarityLoss", 2, "", Comparison("multi_similarity@2", "loop_multi_similarity@2", NEGATIVES, ALL)),
    Swap("NTXentLoss", 4, "all", Comparison("nt_xent", "loop_n_pair@all", NEGATIVES, ALL)),
    Swap("NTXentLoss", 4, "arc", Comparison("nt_xent", "loop_n_pair", SWAP, ALL)),
    Swap("NTXentLoss", 2, "", Comparison("n_pair@2", "loop_n_pair@2", NEGATIVES, ALL)),
)
AVERAGES = {
    "TCM": _with_term(CLASSIFIERS, "tcm@added", (("opis", LOWER),)),
    "CIT": _over_bases(("triplet@0.05",), "cit@1.0", LOSS, (("map_at_r", HIGHER),)),
    "LoOp": _with_loop(LOOP_BASES, (("map_at_r", HIGHER),)),
    "LoOp, two images": _with_loop(LOOP_BASES_OF_TWO, (("map_at_r", HIGHER),)),
    **{swap.name: (swap.comparison,) for swap in SWAPS},
    "miner of MS": (Comparison(MS, "ms", MINER_OF_MS, ALL),),
    "Discriminative": _over_bases(("softmax",), "discriminative@one_hot", LOSS, (("map_at_r", HIGHER),)),
    **{f"id + {term}": _with_term(("id",), term, ALL) for term in NEXT_TO},
    **{f"cit@{cell}": _with_term(("softmax",), f"cit@{cell}", ALL) for cell in CIT_CELLS},
    **{f"tcm@{weight}": _with_term(("softmax",), f"tcm@{weight}", ALL) for weight in TCM_WEIGHTS},
}
