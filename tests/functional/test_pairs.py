import torch

from pml_ext.functional.pairs import count_triplets, positive_columns, same_and_different
from tests.functional.oracle_concordance import triplets


def test_masks_leave_out_self_only_within_the_batch():
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


def test_positive_columns_lists_the_others_of_each_class():
    labels = torch.tensor([7, -1, 7, 2, -1, 7, 9])
    columns, valid = positive_columns(labels)
    assert columns.shape == valid.shape == (7, 2)
    for i, label in enumerate(labels):
        expected = [j for j in range(7) if j != i and labels[j] == label]
        assert columns[i][valid[i]].tolist() == expected


def test_positive_columns_of_singletons_is_empty():
    columns, valid = positive_columns(torch.arange(4))
    assert columns.shape == valid.shape == (4, 0)
