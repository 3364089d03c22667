"""Pairs and triplets from labels, against loops and PML."""

import pytest
import torch

from pml_ext.functional import count_triplet_kinds, hardest_triplets, triplets_of_kind
from pml_ext.functional.tuples import (
    class_spans,
    count_pairs,
    count_triplets,
    every_triplet,
    pairs_of,
    same_and_different,
    same_class_pairs,
    triplets_of,
    weights_of,
)
from tests.oracles.concordance import triplets
from tests.oracles.triplets import hphn_triplets

LABELS = [0, 1, 0, 2, 1, 0, 1, 3, 0, 2]
REF_LABELS = [1, 0, 5, 1, 0, 0, 2]


def rows_of(parts):
    """The tuples of parallel index tensors."""
    return list(zip(*(part.tolist() for part in parts), strict=True))


@pytest.mark.parametrize(
    ("labels", "ref_labels"),
    [([3, 1, 3, 3, 2, 1], None), (LABELS, None), (LABELS, REF_LABELS), ([5], None), ([5, 5], [4]), ([0, 1, 2], None)],
)
def test_masks_and_counts(labels, ref_labels):
    ids, ref_ids = torch.tensor(labels), None if ref_labels is None else torch.tensor(ref_labels)
    same, different = same_and_different(ids, ref_ids)
    alike = ids[:, None] == (ids if ref_ids is None else ref_ids)
    assert torch.equal(different, ~alike)
    assert torch.equal(same, alike & ~torch.eye(len(ids), dtype=torch.bool) if ref_ids is None else alike)
    assert count_pairs(ids, ref_ids) == (int(same.sum()), int(different.sum()))
    rows, columns, counts = same_class_pairs(ids, ids if ref_ids is None else ref_ids)
    assert torch.equal(torch.stack([rows, columns], dim=1), alike.nonzero()) and torch.equal(counts, alike.sum(dim=1))
    found = len(triplets(labels, ref_labels))
    assert count_triplets(same, different) == found
    if ref_labels is None:
        assert class_spans(ids).triplets == found


@pytest.mark.parametrize("seed", range(10))
def test_as_in_pml(seed):
    """Random labels, also without a class of two, references, and tuples of 3 and 4, also empty ones."""
    pml = pytest.importorskip("pytorch_metric_learning.utils.loss_and_miner_utils", reason="PML 2's, to compare with")
    torch.manual_seed(seed)
    classes, rows, columns, *sizes = (torch.randint(1, 9, (5,)) - torch.tensor([0, 0, 0, 1, 1])).tolist()
    labels, ref_labels = torch.randint(classes, (rows,)), torch.randint(classes, (columns,))

    def assert_same(ours, theirs):
        assert len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))

    assert_same(triplets_of(None, labels), pml.convert_to_triplets(None, labels, labels, t_per_anchor="all"))
    theirs = pml.convert_to_triplets(None, labels, ref_labels, t_per_anchor="all")
    assert_same(triplets_of(None, labels, ref_labels), theirs)
    same, different = same_and_different(labels, ref_labels)
    assert_same(every_triplet(*same.nonzero(as_tuple=True), different), theirs)

    anchors, others = ([torch.randint(most, (size,)) for size in sizes] for most in (rows, columns))
    triple = anchors[0], others[0], others[0].flip(0)
    for mined in (triple, (anchors[0], others[0], anchors[1], others[1])):
        assert_same(pairs_of(mined), pml.convert_to_pairs(mined, labels, ref_labels))
        assert_same(triplets_of(mined, None), pml.convert_to_triplets(mined, labels, ref_labels))
        for dtype in (torch.float32, torch.float64):
            like = torch.zeros(0, dtype=dtype)
            weights = weights_of(mined, labels, like, with_itself=False)
            assert_same([weights], [pml.convert_to_weights(mined, labels, dtype, using_ref=True)])
            inside = tuple(part % rows for part in mined)
            assert_same([weights_of(inside, labels, like)], [pml.convert_to_weights(inside, labels, dtype)])
    assert_same([weights_of(None, labels, torch.zeros(0))], [torch.ones(rows)])


def rounded(rows, columns):
    """Similarities in steps of ¼, exact in binary, so that there are ties and gaps of exactly the margin."""
    return torch.randint(-4, 5, (rows, columns), dtype=torch.float64) / 4


IS_KIND = {
    "discordant": lambda gap: gap < 0,
    "hard": lambda gap: gap <= 0,
    "semihard": lambda gap: 0 < gap <= 0.5,
    "easy": lambda gap: gap > 0.5,
}


@pytest.mark.parametrize("block", [1, 40, 1 << 18])
@pytest.mark.parametrize("ref_labels", [None, REF_LABELS])
def test_all_triplets_of_each_kind(ref_labels, block, blocks_of):
    blocks_of(block)
    pairs = same_and_different(torch.tensor(LABELS), ref_labels and torch.tensor(ref_labels))
    s = rounded(*pairs[0].shape)
    counts, rows = count_triplet_kinds(s, *pairs, 0.5), s.tolist()
    assert [*counts] == [*IS_KIND]
    for kind, is_kind in IS_KIND.items():
        expected = [(a, p, n) for a, p, n in triplets(LABELS, ref_labels) if is_kind(rows[a][p] - rows[a][n])]
        assert rows_of(triplets_of_kind(s, *pairs, kind, 0.5)) == sorted(expected)
        assert counts[kind] == len(expected) > 0
    assert counts["discordant"] < counts["hard"]  # by the ties


def test_no_positive_or_no_negative_pair():
    s, none = rounded(4, 4), torch.zeros(4, 4, dtype=torch.bool)
    for same, different in ((none, ~none), (~none, none), (none, none)):
        assert set(count_triplet_kinds(s, same, different, 0.1).values()) == {0}
        for kind in IS_KIND:
            found = triplets_of_kind(s, same, different, kind, 0.1)
            assert rows_of(found) == [] and found[0].dtype == torch.long


def test_hardest_triplets_within_a_set_and_between_two_sets():
    labels, ref_labels = torch.tensor(LABELS), torch.tensor(REF_LABELS)
    turned = 0
    for _ in range(20):
        d = torch.rand(10, 10, dtype=torch.float64)
        d = d + d.T
        expected = hphn_triplets(d.tolist(), LABELS)
        assert rows_of(hardest_triplets(d, *same_and_different(labels), among_themselves=True)) == expected
        turned += sum(a != row for (a, _, _), row in zip(expected, [0, 1, 2, 3, 4, 5, 6, 8, 9], strict=True))
        d = torch.rand(10, 7, dtype=torch.float64)
        found = hardest_triplets(d, *same_and_different(labels, ref_labels), among_themselves=False)
        assert rows_of(found) == hphn_triplets(d.tolist(), LABELS, REF_LABELS)
    assert 0 < turned < 180  # both ends are taken


@pytest.mark.parametrize(
    ("negatives", "expected"),
    [
        ([(0, 2), (1, 3)], [(1, 0, 3)]),  # 3 is nearer to sample 1 than 2 is to sample 0
        ([(0, 2)], [(0, 1, 2)]),
        ([], []),
    ],
)
def test_only_allowed_pairs_are_used(negatives, expected):
    d = torch.tensor([[0.0, 1, 2, 3], [1, 0, 3, 1], [2, 3, 0, 2], [3, 1, 2, 0]])
    positive, negative = torch.zeros(2, 4, 4, dtype=torch.bool)
    positive[0, 1] = True  # not 1, 0: sample 1 gets no triplet of its own
    for pair in negatives:
        negative[pair] = True
    assert rows_of(hardest_triplets(d, positive, negative, among_themselves=True)) == expected


def test_ties_go_to_the_first_and_to_the_row():
    masks = same_and_different(torch.tensor([0, 0, 0, 1, 1]))
    found = hardest_triplets(torch.ones(5, 5), *masks, among_themselves=True)
    assert rows_of(found) == [(0, 1, 3), (1, 0, 3), (2, 0, 3), (3, 4, 0), (4, 3, 0)]
