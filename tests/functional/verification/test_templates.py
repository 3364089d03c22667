import pytest
import torch
from pytest import approx
from torch.testing import assert_close

from pml_ext.functional import Templates, pair_cosines, template_embeddings
from tests.oracles import verification as oracle
from tests.refusals import refusals


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 5e-3), (torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_templates_equal_the_loops(dtype, tolerance, device):
    x = torch.randn(40, 5).to(dtype)
    templates, media = torch.randint(0, 8, (40,)) * 7 - 3, torch.randint(0, 4, (40,))
    found = template_embeddings(x.to(device), templates, media)
    expected = oracle.templates(x.tolist(), templates.tolist(), media.tolist())
    assert found.ids.tolist() == list(expected)
    rows = torch.tensor(list(expected.values()), dtype=torch.float64)
    assert_close(found.embeddings.double().cpu(), rows, atol=tolerance, rtol=0)
    assert found.rows(found.ids.flip(0)).tolist() == list(range(len(expected)))[::-1]


def test_a_mean_of_zero_stays_zero():
    same = torch.zeros(2).long()
    assert template_embeddings(torch.tensor([[1.0, 2], [-1, -2]]), same, same).embeddings.tolist() == [[0, 0]]


@pytest.mark.parametrize("entries", [1, 30, 2**18])
def test_pair_cosines_equal_the_loops(entries, blocks_of):
    blocks_of(entries)
    x, y = torch.randn(9, 4).double(), torch.randn(6, 4).double()
    rows, others = torch.randint(0, 9, (30,)), torch.randint(0, 6, (30,))
    expected = [oracle.cosine(x[i].tolist(), y[j].tolist()) for i, j in zip(rows, others, strict=True)]
    assert pair_cosines(x, y, rows, others).tolist() == approx(expected, rel=1e-12)
    assert pair_cosines(x, y, rows[:0], others[:0]).shape == (0,)


X, IDS, ONE = torch.randn(4, 3), torch.tensor([1, 1, 5, 5]), torch.tensor([0])


REFUSED = [
    (lambda: template_embeddings(X, IDS + 0.5, IDS), "template_ids must be of integer type"),
    *(
        (lambda i=i: template_embeddings(X, IDS, IDS).rows(torch.tensor([1, i])), f"template {i} is listed but")
        for i in (0, 6)
    ),
    (lambda: Templates(ONE[:0], X[:0]).rows(ONE), "there are no templates"),
    (lambda: pair_cosines(X, X[:, :2], ONE, ONE), "ref_emb must have the 3 columns of embeddings; got 2"),
    *((lambda n=n: pair_cosines(X, X, ONE + n, ONE), r"rows must be .*in \[0, 4\); got") for n in (4, -1)),
    (lambda: pair_cosines(X, X, ONE, ONE + 4), r"ref_rows must be .*in \[0, 4\)"),
]
test_errors = refusals(REFUSED)
