import pytest
import torch

from pml_ext.functional import Templates, pair_cosines, template_embeddings
from tests.oracles import verification as oracle


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 5e-3), (torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_templates_equal_the_loops(dtype: torch.dtype, tolerance: float) -> None:
    x = torch.randn(40, 5).to(dtype)
    templates, media = torch.randint(0, 8, (40,)) * 7 - 3, torch.randint(0, 4, (40,))
    found = template_embeddings(x, templates, media)
    expected = oracle.templates(x.tolist(), templates.tolist(), media.tolist())
    assert found.ids.tolist() == list(expected)
    torch.testing.assert_close(
        found.embeddings.double(), torch.tensor(list(expected.values()), dtype=torch.float64), atol=tolerance, rtol=0
    )
    assert found.rows(found.ids.flip(0)).tolist() == list(range(len(expected)))[::-1]


def test_frames_of_a_video_count_as_one_image() -> None:
    x = torch.tensor([[1.0, 0], [0, 1], [0, 1], [0, 1]])
    media = torch.tensor([5, 9, 9, 9])
    found = template_embeddings(x, torch.zeros(4).long(), media).embeddings
    torch.testing.assert_close(found, torch.full((1, 2), 0.5**0.5))
    # The same medium id in another template is a different medium.
    assert template_embeddings(x, torch.arange(4), torch.zeros(4).long()).embeddings.tolist() == x.tolist()


def test_templates_that_cancel_out_stay_zero() -> None:
    found = template_embeddings(torch.tensor([[1.0, 2], [-1, -2]]), torch.zeros(2).long(), torch.arange(2))
    assert found.embeddings.tolist() == [[0, 0]]


def test_pair_cosines_equal_the_loops() -> None:
    x, y = torch.randn(9, 4).double(), torch.randn(6, 4).double()
    rows, others = torch.randint(0, 9, (30,)), torch.randint(0, 6, (30,))
    expected = [oracle.cosine(x[i].tolist(), y[j].tolist()) for i, j in zip(rows, others, strict=True)]
    assert pair_cosines(x, y, rows, others).tolist() == pytest.approx(expected, rel=1e-12)


def test_errors() -> None:
    x, ids = torch.randn(4, 3), torch.tensor([1, 1, 5, 5])
    with pytest.raises(ValueError, match="media_ids must have shape"):
        template_embeddings(x, ids, ids[1:])
    with pytest.raises(ValueError, match="template_ids must be of integer type"):
        template_embeddings(x, ids + 0.5, ids)
    for unknown in (0, 3, 6):
        with pytest.raises(ValueError, match=f"template {unknown} is listed but has no image"):
            template_embeddings(x, ids, ids).rows(torch.tensor([1, unknown]))
    with pytest.raises(ValueError, match="ref_emb must have the 3 columns of embeddings; got 2"):
        pair_cosines(x, torch.randn(4, 2), ids[:2], ids[:2])
    x[0, 0] = torch.inf
    with pytest.raises(ValueError, match="embeddings must be finite"):
        template_embeddings(x, ids, ids)
    with pytest.raises(ValueError, match="ref_emb must be finite"):
        pair_cosines(torch.randn(4, 3), x, ids[:2], ids[:2])


def test_rows_out_of_range_are_errors() -> None:
    x, one = torch.randn(4, 3), torch.tensor([0])
    for rows in (torch.tensor([4]), torch.tensor([-1])):
        with pytest.raises(ValueError, match=r"rows must be rows in \[0, 4\); got rows from"):
            pair_cosines(x, x, rows, one)
        with pytest.raises(ValueError, match=r"ref_rows must be rows in \[0, 4\)"):
            pair_cosines(x, x, one, rows)
    with pytest.raises(ValueError, match=r"rows must be a \(P,\) tensor of integers"):
        pair_cosines(x, x, torch.tensor([1.0]), one)
    with pytest.raises(ValueError, match="ref_rows must have 2 entries like rows, one per pair; got 1"):
        pair_cosines(x, x, torch.tensor([0, 1]), one)
    with pytest.raises(ValueError, match="there are no templates"):
        Templates(one[:0], x[:0]).rows(one)
