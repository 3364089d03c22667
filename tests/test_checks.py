import pickle

import numpy as np
import pytest
import torch
from pytorch_metric_learning.miners import MultiSimilarityMiner
from pytorch_metric_learning.reducers import MeanReducer

from pml_ext import functional, losses, metrics, miners
from pml_ext._shared.checks import check_indices_tuple, check_labels, check_number, check_switch, check_whole
from pml_ext._shared.errors import ArgumentError
from tests.test_label_types import INTEGERS


def test_booleans_and_whole_numbers_become_int64():
    for dtype in (torch.bool, torch.bfloat16, torch.float64):
        ids = check_labels(torch.tensor([0, 1, 1]).to(dtype), 3)
        assert ids.dtype == torch.int64 and ids.tolist() == [0, 1, 1]
    labels = torch.tensor([0, 40, 1])
    assert check_labels(labels, 3) is labels


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_labels_become_int64(dtype):
    labels = torch.tensor([0, 40, 1])
    assert torch.equal(check_labels(labels.to(dtype), 3), labels)


@pytest.mark.parametrize(("dtype", "exact"), [(torch.bfloat16, 2**8), (torch.float16, 2**11), (torch.float32, 2**24)])
def test_floating_labels_beyond_the_exact_range_of_their_type_are_errors(dtype, exact):
    assert check_labels(torch.tensor([1 - exact, exact - 1]).to(dtype), 2).tolist() == [1 - exact, exact - 1]
    for ids in ([0, exact + 1], [-exact - 3, 0]):
        with pytest.raises(ArgumentError, match=f"^labels must be of integer type.* from {exact} on this type merges"):
            check_labels(torch.tensor(ids).to(dtype), 2)


def test_an_error_has_the_name_of_its_argument_also_in_another_process():
    with pytest.raises(ArgumentError) as caught:
        check_number("0.1", "far")
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert isinstance(error, ValueError)
        assert (error.name, str(error)) == ("far", "far must be a number; got '0.1'")


@pytest.mark.parametrize("wrong", [0.5, torch.nan, torch.inf, -torch.inf, 1e30])
def test_fractional_labels_are_errors_that_quote_the_first(wrong):
    with pytest.raises(ValueError, match=r"^cameras must be of integer type.*whole numbers; got torch\.float64 with"):
        check_labels(torch.tensor([0.0, wrong], dtype=torch.float64), 2, "cameras")
    with pytest.raises(ValueError, match=r"got torch\.complex64"):
        check_labels(torch.zeros(2, dtype=torch.complex64), 2)


def test_indices():
    a, p, n = torch.tensor([0, 1]), torch.tensor([5, 0]), torch.tensor([0, 0, 3])
    check_indices_tuple((a, p, p), 2, 6)
    check_indices_tuple((a, p, n, n), 4, 6)
    check_indices_tuple((a[:0],) * 3, 2, 6)
    for wrong, part in (((p, a, a), "anchors"), ((a, p + 1, a), "positives"), ((a, a, n - 1, n), "anchors")):
        with pytest.raises(ValueError, match=rf"indices in \[0, \d\) for its {part}; got indices from -?\d to \d"):
            check_indices_tuple(wrong, 4, 6)
    with pytest.raises(
        ValueError, match=r"anchors and partners in indices_tuple must pair up; got .* of lengths \[2, 2, 3\]"
    ):
        check_indices_tuple((a, p, n), 4, 6)
    with pytest.raises(TypeError, match=r"3 or 4 tensors of integers.*got torch\.int64, int"):
        check_indices_tuple((a, 3), 4, 6)


@pytest.mark.parametrize(
    ("check", "values", "expected"),
    [
        (check_number, ["0.1", None, [0.1], True, 10**30], "a number"),
        (check_whole, [np.array(2), torch.tensor(2), True, 2.0, "2"], "a whole number"),
        (check_switch, ["no", 1], "True or False"),
    ],
)
def test_values_of_another_kind_are_errors(check, values, expected):
    for value in values:
        with pytest.raises(ValueError, match=f"^option must be {expected}.*; got "):
            check(value, "option")


def test_numpy_and_torch_scalars_are_numbers():
    scores, same = torch.tensor([0.9, 0.1]), torch.tensor([True, False])
    for far in (np.float32(1), np.int64(1), torch.tensor(1.0), 1):
        assert functional.tar_at_far(scores, same, far) == 1


def test_excessive_sizes_are_errors_that_state_the_bound():
    with pytest.raises(ValueError, match=r"at most 128 apart \(1075 MB\).*Divide wider scores"):
        functional.ScoreHistogram(-1, 10**9)
    with pytest.raises(ValueError, match=r"must fit in half the memory, \d+ GB; got 3 × 10{12}, which take 12000 GB"):
        losses.DiscriminativeLoss(3, 10**12)


def test_references_of_another_width_or_type_are_errors():
    x, labels = torch.randn(6, 4), torch.arange(6) // 2
    for wrong in (torch.randn(6, 3), torch.randn(6, 4).double()):
        for compare in (losses.TCMLoss(), losses.LoOp("TripletMarginLoss"), losses.RecallAtKSurrogateLoss()):
            with pytest.raises(ValueError, match="ref_emb must have 4 columns, like embeddings, and a type compatible"):
                compare(x, labels, ref_emb=wrong, ref_labels=labels)
        with pytest.raises(ValueError, match="ref_emb must have 4 columns, like embeddings"):
            miners.LoOpMiner(MultiSimilarityMiner())(x, labels, wrong, labels)


def test_arguments_of_the_wrong_type_give_clear_errors():
    scores, same = torch.rand(4), torch.tensor([True, False, True, False])
    x = torch.eye(4)
    for call, message in {
        lambda: functional.tar_at_far(scores.to("meta"), same, 0.1): "scores must be a dense tensor; got a meta one",
        lambda: functional.arc_distance(x, x, x, torch.eye(3)): "tensors that broadcast to one shape",
        lambda: metrics.ReIDEvaluator(rerank="x"): "rerank must be a mapping of k1",
    }.items():
        with pytest.raises((TypeError, ValueError), match=message):
            call()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16])
def test_indices_of_unsupported_integer_types_are_errors(dtype):
    x, labels = torch.randn(4, 2), torch.tensor([0, 0, 1, 1])
    indices = tuple(torch.tensor([i], dtype=dtype) for i in (0, 1, 2))
    for loss in (losses.CITLoss(), losses.HPHNTripletLoss()):
        with pytest.raises(TypeError, match=r"indices_tuple must be 3 or 4 tensors of integers \(int64\).*got torch\."):
            loss(x, labels, indices)
        assert loss(x, labels, tuple(part.int() for part in indices)) == loss(
            x, labels, tuple(part.long() for part in indices)
        )


@pytest.mark.parametrize("kind", [losses.CITLoss, losses.SmoothAPLoss, miners.HPHNMiner])
def test_wrong_arguments_of_pml_are_refused_at_once(kind):
    wrong = {"distance": "cosine", "collect_stats": "yes"}
    if kind is not miners.HPHNMiner:
        wrong |= {"reducer": MeanReducer, "embedding_reg_weight": torch.nan}
    for name, value in wrong.items():
        with pytest.raises((TypeError, ValueError), match=f"^{name}.*; got "):
            kind(**{name: value})
