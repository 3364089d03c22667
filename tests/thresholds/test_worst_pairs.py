"""The worst pairs of a report, against loops over all pairs."""

import pytest
import torch
from pytest import approx

from pml_ext.functional import PairDistances
from pml_ext.thresholds import SampleSource, ThresholdReport
from pml_ext.thresholds.measure import worst_pairs

LABELS = torch.arange(20).repeat_interleave(5)
FEW_LABELS = torch.randint(0, 5, (40,), generator=torch.Generator().manual_seed(2))
FEW = torch.randn(40, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def a_set():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(20, 6, generator=generator, dtype=torch.float64)[LABELS] + 0.5 * torch.randn(
        100, 6, generator=generator, dtype=torch.float64
    )


@pytest.mark.parametrize("block_rows", [None, 7])
def test_worst_pairs_are_the_first_and_the_last_of_all(block_rows):
    names = [f"n{i}" for i in range(5)]
    found = worst_pairs(PairDistances(FEW, FEW_LABELS, block_rows=block_rows), FEW_LABELS, names, SampleSource())
    one, other = torch.triu_indices(40, 40, 1)
    cosines, same = torch.cosine_similarity(FEW[one], FEW[other]), FEW_LABELS[one] == FEW_LABELS[other]
    for kind, shown in ((False, found.impostors), (True, found.genuine)):
        first = torch.where(same == kind, cosines, 2.0 if kind else -2.0).argsort(descending=not kind)[:6]
        assert [pair.cosine for pair in shown] == approx(cosines[first].tolist())
        assert [sorted([pair.one.row, pair.other.row]) for pair in shown] == torch.stack([one, other], 1)[
            first
        ].tolist()
        samples = [sample for pair in shown for sample in (pair.one, pair.other)]
        assert [sample.label for sample in samples] == [names[FEW_LABELS[sample.row]] for sample in samples]


def test_rows_paths_and_copies_are_named_as_given():
    x = torch.cat([FEW, FEW[:2]])
    labels, rows = torch.cat([FEW_LABELS, FEW_LABELS[:2]]), [1000 + i for i in range(42)]
    paths = [f"{i}.png" if i % 2 else None for i in range(42)]
    with pytest.warns(UserWarning, match="2 of 42 embeddings are copies"):
        found = ThresholdReport.from_embeddings(x, labels, far=0.1, source=SampleSource(rows, paths))
    assert found.copies == 2
    assert "42 samples, 2 of them copies" in found.summary()
    for pair in (*found.worst_pairs.impostors, *found.worst_pairs.genuine):
        for sample in (pair.one, pair.other):
            assert sample.path == paths[sample.row - 1000]
    for name, given in (("rows", rows[:5]), ("paths", paths[:5])):
        with pytest.raises(ValueError, match=f"{name} must have 42 entries, one per embedding; got 5"):
            ThresholdReport.from_embeddings(x, labels, far=0.1, source=SampleSource(**{name: given}))


def test_genuine_pairs_are_those_that_count():
    cameras = torch.arange(40) % 2
    found = ThresholdReport.from_embeddings(FEW, FEW_LABELS, far=0.1, cameras=cameras)
    assert all(cameras[p.one.row] != cameras[p.other.row] for p in found.worst_pairs.genuine)
    assert any(cameras[p.one.row] == cameras[p.other.row] for p in found.worst_pairs.impostors)
