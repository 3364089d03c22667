"""What is compared: the papers' claims, and the comparisons behind WHICH_LOSS.md."""

from typing import NamedTuple

from methods import GAMMAS
from statistics_of_pairs import HIGHER, KEPT, LOWER, SAME

Expected = tuple[tuple[str, str], ...]  # measures, and the direction of each if the claim is true


class Comparison(NamedTuple):
    """A method and its base."""

    base: str
    method: str
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
TCM_BASES = ("smoothap", "recall", "triplet", "ms", "proxy_nca", "arcface", "id")
CLASSIFIERS = ("proxy_nca", "arcface", "id")


def _over_bases(bases: tuple[str, ...], method: str, expected: Expected) -> tuple[Comparison, ...]:
    return tuple(Comparison(base, method, expected) for base in bases)


def _with_term(bases: tuple[str, ...], term: str, expected: Expected) -> tuple[Comparison, ...]:
    return tuple(Comparison(base, f"{base} + {term}", expected) for base in bases)


def _with_loop(bases: tuple[str, ...], expected: Expected) -> tuple[Comparison, ...]:
    """Both sides have the same loss, tuples and images of a class; only the negative distances differ.

    LoOp's positive pairs are consecutive images of a class: for the triplet loss triplet_consecutive has the same.
    """
    return tuple(Comparison(base, f"loop_{base.removesuffix('_consecutive')}", expected) for base in bases)


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
        _over_bases(("triplet", "angular", "circle", "centroid_triplet"), "cit@1.0", ON_PAR),
    ),
    Claim(
        "CIT is better than margin losses whose margin was not tuned.",
        "CIT paper, Tables 1, 7 and 8",
        _over_bases(("triplet@0.05", "angular@40", "circle@0.4", "centroid_triplet@0.05"), "cit@1.0", BETTER),
    ),
    Claim(
        "CIT is better than SoftTriple, the other loss without a margin.",
        "CIT paper, Table 1",
        _over_bases(("soft_triple",), "cit@1.0", BETTER),
    ),
    Claim(
        "γ hardly changes the accuracy.",
        "CIT paper, Table 3",
        tuple(Comparison("cit@1.0", f"cit@{gamma}", ALIKE) for gamma in GAMMAS[:-1]),
    ),
    Claim(
        "With an ID loss, CIT does as well as the triplet loss (not a claim of the paper).",
        "ours",
        _over_bases(("id + triplet",), "id + cit", ON_PAR),
    ),
    Claim(
        "On the same tuples, LoOp raises R@1 and mAP@R of the triplet, HPHN, lifted structure and MS losses.",
        "LoOp paper, Table 2",
        _with_loop(("triplet_consecutive", "hphn", "lifted", "ms"), BETTER),
    ),
    Claim(
        "LoOp is better than semi-hard sampling.",
        "LoOp paper, Table 3",
        _over_bases(("triplet_semihard",), "loop_triplet", BETTER),
    ),
    Claim(
        "The discriminative loss is better than softmax and semi-hard triplets.",
        "Discriminative loss paper, Tables 4 and 5",
        _over_bases(("softmax", "triplet_semihard"), "discriminative@one_hot", BETTER),
    ),
    Claim(
        "Each kind of similarity added to the weights helps, and MS with all three is best.",
        "MS paper, Table 2",
        (
            Comparison("gpw@binomial", "gpw@binomial+mining", BETTER),
            Comparison("gpw@lifted_star", "gpw@lifted_star+mining", BETTER),
            *_over_bases(
                ("gpw@weighting", "gpw@binomial", "gpw@lifted_star", "gpw@mining", "gpw@bin_lifted"),
                "gpw@weighting+mining",
                BETTER,
            ),
        ),
    ),
)

# The averages of WHICH_LOSS.md and the README; OPIS in per cent of the base's value, mAP@R in points.
AVERAGES = {
    "TCM": _with_term(CLASSIFIERS, "tcm@added", (("opis", LOWER),)),
    "TCM beside": _with_term(("id",), "tcm", (("opis", LOWER), ("map_at_r", HIGHER))),
    "triplet beside": _over_bases(("id",), "id + triplet", (("opis", LOWER), ("map_at_r", HIGHER))),
    "CIT": _over_bases(("triplet@0.05",), "cit@1.0", (("map_at_r", HIGHER),)),
    "CIT beside": _over_bases(("id",), "id + cit", (("opis", LOWER), ("map_at_r", HIGHER))),
    "LoOp": _with_loop(("triplet_consecutive", "hphn", "lifted", "ms"), (("map_at_r", HIGHER),)),
    "Discriminative": _over_bases(("softmax",), "discriminative@one_hot", (("map_at_r", HIGHER),)),
}
