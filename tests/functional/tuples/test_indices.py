from typing import Any

import pytest
import torch
from torch import Tensor

from pml_ext.functional.tuples.indices import every_triplet, pairs_of, triplets_of, weights_of
from pml_ext.functional.tuples.pairs import same_and_different

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
