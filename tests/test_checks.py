import pytest
import torch

from pml_ext._checks import check_indices_tuple, check_labels


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_integer_labels_stay_as_they_are(dtype: torch.dtype) -> None:
    labels = torch.tensor([0, 1, 5], dtype=dtype)
    assert check_labels(labels, 3) is labels


@pytest.mark.parametrize("dtype", [torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_booleans_and_whole_numbers_become_int64(dtype: torch.dtype) -> None:
    ids = check_labels(torch.tensor([0, 1, 1]).to(dtype), 3)
    assert ids.dtype == torch.int64 and ids.tolist() == [0, 1, 1]


@pytest.mark.parametrize("wrong", [0.5, torch.nan, torch.inf, -torch.inf, 1e30])
def test_other_numbers_are_refused_with_the_first_of_them(wrong: float) -> None:
    with pytest.raises(ValueError, match=r"^cameras must be of integer type.*whole numbers; got torch\.float64 with"):
        check_labels(torch.tensor([0.0, wrong], dtype=torch.float64), 2, "cameras")
    with pytest.raises(ValueError, match=r"got torch\.complex64"):
        check_labels(torch.zeros(2, dtype=torch.complex64), 2)


def test_indices() -> None:
    a, p, n = torch.tensor([0, 1]), torch.tensor([5, 0]), torch.tensor([0, 0, 3])
    check_indices_tuple((a, p, p), 2, 6)
    check_indices_tuple((a, p, n, n), 4, 6)
    check_indices_tuple((a[:0],) * 3, 2, 6)
    for wrong, part in (((p, a, a), "anchors"), ((a, p + 1, a), "positives"), ((a, a, n - 1, n), "anchors")):
        with pytest.raises(ValueError, match=rf"indices in \[0, \d\) for its {part}; got indices from -?\d to \d"):
            check_indices_tuple(wrong, 4, 6)
    with pytest.raises(ValueError, match=r"as many anchors as partners; got .* of lengths \[2, 2, 3\]"):
        check_indices_tuple((a, p, n), 4, 6)
    with pytest.raises(TypeError, match=r"3 or 4 tensors of integers.*got torch\.int64, int"):
        check_indices_tuple((a, 3), 4, 6)
