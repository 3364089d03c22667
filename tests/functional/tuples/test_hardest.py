import torch

from pml_ext.functional import hardest_triplets
from pml_ext.functional.tuples.hardest import hardest_of_pairs
from pml_ext.functional.tuples.pairs import same_and_different
from tests.oracles.triplets import hphn_triplets

LABELS = [0, 1, 0, 2, 1, 0, 1, 3, 0, 2]


def test_triplets_within_a_set_and_between_two_sets() -> None:
    labels, ref_labels = torch.tensor(LABELS), torch.tensor([1, 0, 5, 1, 0, 0, 2])
    turned = 0
    for _ in range(20):
        d = torch.rand(10, 10, dtype=torch.float64)
        d = d + d.T
        found = hardest_triplets(d, *same_and_different(labels), among_themselves=True)
        expected = hphn_triplets(d.tolist(), LABELS)
        assert list(zip(*(i.tolist() for i in found), strict=True)) == expected
        turned += sum(a != row for (a, _, _), row in zip(expected, [0, 1, 2, 3, 4, 5, 6, 8, 9], strict=True))
        d = torch.rand(10, 7, dtype=torch.float64)
        found = hardest_triplets(d, *same_and_different(labels, ref_labels), among_themselves=False)
        assert list(zip(*(i.tolist() for i in found), strict=True)) == hphn_triplets(
            d.tolist(), LABELS, ref_labels.tolist()
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
