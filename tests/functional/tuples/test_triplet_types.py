import pytest
import torch
from torch import Tensor

from pml_ext.functional import concordance_index, count_triplet_kinds, triplets_of_kind
from pml_ext.functional.tuples.pairs import same_and_different

LABELS = torch.tensor([0, 1, 0, 2, 1, 0, 1, 3, 0, 2])
REF_LABELS = torch.tensor([1, 0, 5, 1, 0, 0, 2])
KINDS = ("discordant", "hard", "semihard", "easy")


def rounded(rows: int, columns: int) -> Tensor:
    """Similarities in steps of ¼, exact in binary, so that there are ties and gaps of exactly the margin."""
    return torch.randint(-4, 5, (rows, columns), dtype=torch.float64) / 4


def oracle(s: Tensor, same: Tensor, different: Tensor, kind: str, margin: float) -> list[tuple[int, int, int]]:
    found = []
    for a in range(s.shape[0]):
        for p in range(s.shape[1]):
            for n in range(s.shape[1]):
                if same[a, p] and different[a, n]:
                    gap = s[a, p].item() - s[a, n].item()
                    if kind == "discordant":
                        wanted = gap < 0
                    elif kind == "hard":
                        wanted = gap <= 0
                    elif kind == "semihard":
                        wanted = 0 < gap <= margin
                    else:
                        wanted = gap > margin
                    if wanted:
                        found.append((a, p, n))
    return found


@pytest.mark.parametrize("block", [1, 40, 1 << 18])
@pytest.mark.parametrize("with_ref", [False, True])
def test_all_triplets_of_each_kind(with_ref: bool, block: int) -> None:
    pairs = same_and_different(LABELS, REF_LABELS if with_ref else None)
    s = rounded(10, 7 if with_ref else 10)
    counts = count_triplet_kinds(s, *pairs, 0.5, entries=block)
    assert tuple(counts) == KINDS
    for kind in KINDS:
        expected = oracle(s, *pairs, kind, 0.5)
        found = triplets_of_kind(s, *pairs, kind, 0.5, entries=block)
        assert list(zip(*(i.tolist() for i in found), strict=True)) == expected
        assert counts[kind] == len(expected) > 0
    assert counts["discordant"] < counts["hard"]  # by the ties


def test_no_positive_or_no_negative_pair() -> None:
    s, none = rounded(4, 4), torch.zeros(4, 4, dtype=torch.bool)
    for same, different in ((none, ~none), (~none, none), (none, none)):
        for kind in KINDS:
            found = triplets_of_kind(s, same, different, kind, 0.1)
            assert [i.tolist() for i in found] == [[], [], []] and found[0].dtype == torch.long
        assert set(count_triplet_kinds(s, same, different, 0.1).values()) == {0}


def test_the_counts_give_the_concordance_index() -> None:
    s = rounded(10, 10)
    counts = count_triplet_kinds(s, *same_and_different(LABELS), 0.5)
    total = counts["hard"] + counts["semihard"] + counts["easy"]
    index = 1 - (counts["discordant"] + counts["hard"]) / (2 * total)
    assert concordance_index(s, LABELS).item() == pytest.approx(index, abs=1e-12)
