from typing import Any

import pytest
import torch
from torch import Tensor

from pml_ext.functional import concordance_index, count_triplet_kinds, hardest_triplets, triplets_of_kind
from pml_ext.functional.tuples import (
    class_columns,
    class_spans,
    count_pairs,
    count_triplets,
    every_negative,
    every_triplet,
    hardest_of_pairs,
    pairs_of,
    same_and_different,
    triplets_of,
    weights_of,
)
from tests.oracles.concordance import triplets
from tests.oracles.triplets import hphn_triplets


def test_masks_skip_self_pairs_only_within_the_batch():
    labels = torch.tensor([3, 1, 3])
    same, different = same_and_different(labels)
    assert same.tolist() == [[False, False, True], [False, False, False], [True, False, False]]
    assert different.tolist() == [[False, True, False], [True, False, True], [False, True, False]]
    same, different = same_and_different(labels, torch.tensor([3, 2]))
    assert same.tolist() == [[True, False], [False, False], [True, False]]
    assert different.tolist() == [[False, True], [True, True], [False, True]]


def test_count_triplets():
    labels, ref = torch.tensor([0, 1, 0, 2, 0]), torch.tensor([1, 1, 0, 5])
    assert count_triplets(*same_and_different(labels)) == len(triplets(labels.tolist()))
    assert count_triplets(*same_and_different(labels, ref)) == len(triplets(labels.tolist(), ref.tolist()))


def test_class_columns_lists_the_class_then_the_sample():
    labels = torch.tensor([7, -1, 7, 2, -1, 7, 9])
    spans = class_spans(labels)
    assert (min(spans.sizes), spans.largest) == (1, 3)
    columns, valid = class_columns(spans)
    assert columns.shape == (7, 3) and valid.shape == (7, 2)
    for i, label in enumerate(labels):
        expected = [j for j in range(7) if j != i and labels[j] == label]
        assert sorted(columns[i, :-1][valid[i]].tolist()) == expected
        assert set(columns[i, :-1][~valid[i]].tolist()) <= {i} and columns[i, -1] == i
    for of_rows, of_all in zip(class_columns(spans, slice(2, 5)), (columns, valid), strict=True):
        assert torch.equal(of_rows, of_all[2:5])


def test_class_columns_of_singletons():
    columns, valid = class_columns(class_spans(torch.arange(4)))
    assert columns.tolist() == [[0], [1], [2], [3]] and valid.shape == (4, 0)


def test_class_spans_of_strided_labels():
    assert torch.equal(class_spans(torch.tensor([[1, 5], [0, 5], [1, 5]])[:, 0]).size, torch.tensor([[2], [1], [2]]))


def test_counts_of_pairs_match_the_masks() -> None:
    for labels, ref_labels in (([3, 1, 3, 3, 2], None), ([3, 1, 3], [3, 3, 2, 1]), ([5], None), ([5, 5], [4])):
        ids, ref_ids = torch.tensor(labels), None if ref_labels is None else torch.tensor(ref_labels)
        same, different = same_and_different(ids, ref_ids)
        assert count_pairs(ids, ref_ids) == (int(same.sum()), int(different.sum()))


@pytest.mark.parametrize("labels", [[3, 1, 3, 3, 2, 1], [7, 7], [0, 1, 2], [4]])
def test_every_negative_matches_nonzero(labels: list[int]) -> None:
    ids = torch.tensor(labels)
    for anchors in (torch.arange(len(ids)), torch.arange(len(ids)).flip(0)[::2], torch.arange(0)):
        rows, negatives = every_negative(ids, anchors, torch.device("cpu"))
        expected = same_and_different(ids)[1][anchors].nonzero()
        assert sorted(zip(rows.tolist(), negatives.tolist(), strict=True)) == list(map(tuple, expected.tolist()))


pml = pytest.importorskip("pytorch_metric_learning.utils.loss_and_miner_utils", reason="PML 2's, to compare with")


def draw(size: int, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    return torch.randint(rows, (size,)), torch.randint(columns, (size,))


def assert_same(ours: Any, theirs: Any) -> None:
    assert len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("seed", range(40))
def test_as_in_pml(seed: int) -> None:
    """Random labels, also without a class of two, references, and tuples of 3 and 4, also empty ones."""
    torch.manual_seed(seed)
    classes, rows, columns = torch.randint(1, 9, (3,)).tolist()
    labels, ref_labels = torch.randint(classes, (rows,)), torch.randint(classes, (columns,))
    assert_same(triplets_of(None, labels), pml.convert_to_triplets(None, labels, labels, t_per_anchor="all"))
    theirs = pml.convert_to_triplets(None, labels, ref_labels, t_per_anchor="all")
    assert_same(triplets_of(None, labels, ref_labels), theirs)
    same, different = same_and_different(labels, ref_labels)
    anchors, positives = same.nonzero(as_tuple=True)
    assert_same(every_triplet(anchors, positives, different), theirs)

    sizes = torch.randint(0, 6, (2,)).tolist()
    positive, negative = draw(sizes[0], rows, columns), draw(sizes[1], rows, columns)
    triplets = *draw(sizes[0], rows, columns), draw(sizes[0], rows, columns)[1]
    for mined in (triplets, (*positive, *negative)):
        assert_same(pairs_of(mined), pml.convert_to_pairs(mined, labels, ref_labels))
        assert_same(triplets_of(mined, None), pml.convert_to_triplets(mined, labels, ref_labels))
        for dtype in (torch.float32, torch.float64):
            weights = weights_of(mined, labels, dtype, with_itself=False)
            assert_same([weights], [pml.convert_to_weights(mined, labels, dtype, using_ref=True)])
            inside = tuple(part % rows for part in mined)
            assert_same([weights_of(inside, labels, dtype)], [pml.convert_to_weights(inside, labels, dtype)])
    assert_same([weights_of(None, labels, torch.float32)], [torch.ones(rows)])


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


HARDEST_LABELS = [0, 1, 0, 2, 1, 0, 1, 3, 0, 2]


def test_triplets_within_a_set_and_between_two_sets() -> None:
    labels, ref_labels = torch.tensor(HARDEST_LABELS), torch.tensor([1, 0, 5, 1, 0, 0, 2])
    turned = 0
    for _ in range(20):
        d = torch.rand(10, 10, dtype=torch.float64)
        d = d + d.T
        found = hardest_triplets(d, *same_and_different(labels), among_themselves=True)
        expected = hphn_triplets(d.tolist(), HARDEST_LABELS)
        assert list(zip(*(i.tolist() for i in found), strict=True)) == expected
        turned += sum(a != row for (a, _, _), row in zip(expected, [0, 1, 2, 3, 4, 5, 6, 8, 9], strict=True))
        d = torch.rand(10, 7, dtype=torch.float64)
        found = hardest_triplets(d, *same_and_different(labels, ref_labels), among_themselves=False)
        assert list(zip(*(i.tolist() for i in found), strict=True)) == hphn_triplets(
            d.tolist(), HARDEST_LABELS, ref_labels.tolist()
        )
    assert 0 < turned < 180  # both ends are taken


def test_only_allowed_pairs_are_used() -> None:
    d = torch.tensor([[0.0, 1, 2, 3], [1, 0, 3, 1], [2, 3, 0, 2], [3, 1, 2, 0]])
    positive, negative = torch.zeros(2, 4, 4, dtype=torch.bool)
    positive[0, 1] = True  # not 1, 0: sample 1 gets no triplet of its own
    negative[0, 2] = True
    a, p, n = hardest_triplets(d, positive, negative, among_themselves=True)
    assert (a.tolist(), p.tolist(), n.tolist()) == ([0], [1], [2])
    negative[1, 3] = True  # nearer to sample 1 than 2 is to sample 0
    a, p, n = hardest_triplets(d, positive, negative, among_themselves=True)
    assert (a.tolist(), p.tolist(), n.tolist()) == ([1], [0], [3])
    negative[0, 2] = False  # and the only one
    a, p, n = hardest_triplets(d, positive, negative, among_themselves=True)
    assert (a.tolist(), p.tolist(), n.tolist()) == ([1], [0], [3])
    negative[1, 3] = False
    assert all(len(i) == 0 for i in hardest_triplets(d, positive, negative, among_themselves=True))


def test_ties_go_to_the_first_and_to_the_row() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1])
    a, p, n = hardest_triplets(torch.ones(5, 5), *same_and_different(labels), among_themselves=True)
    assert (a.tolist(), p.tolist(), n.tolist()) == ([0, 1, 2, 3, 4], [1, 0, 0, 4, 3], [3, 3, 3, 0, 0])


def test_hardest_of_pairs_equals_the_loops() -> None:
    d = torch.rand(9, 9, dtype=torch.float64)
    labels = torch.arange(9) % 3
    positive = (labels[:, None] == labels).fill_diagonal_(False)
    negative = (labels[:, None] != labels) & (torch.rand(9, 9) < 0.7)
    i, j = torch.tensor([0, 1, 5]), torch.tensor([3, 7, 8])
    far_end, far, near_end, near = hardest_of_pairs(d, positive, negative, i, j)
    for k, ends in enumerate(zip(i.tolist(), j.tolist(), strict=True)):
        assert far_end[k] in ends and near_end[k] in ends
        assert positive[far_end[k], far[k]] and negative[near_end[k], near[k]]
        assert d[far_end[k], far[k]] == max(d[e, o] for e in ends for o in range(9) if positive[e, o])
        assert d[near_end[k], near[k]] == min(d[e, o] for e in ends for o in range(9) if negative[e, o])
