import pytest
import torch

from pml_ext.functional.tuples.pairs import (
    class_columns,
    class_spans,
    count_pairs,
    count_triplets,
    every_negative,
    same_and_different,
)
from tests.oracles.concordance import triplets


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
