import threading

import pytest
import torch
from pytorch_metric_learning import distances, losses

from pml_ext.losses import InjectedDistance, inject, run_with_distance


def test_it_has_the_settings_and_the_type_of_what_it_stands_for():
    matrix = torch.rand(3, 4)
    for own in (
        distances.CosineSimilarity(),
        distances.LpDistance(power=2, normalize_embeddings=False),
        distances.SNRDistance(),
    ):
        stand_in = inject(own, matrix)
        assert isinstance(stand_in, InjectedDistance) and isinstance(stand_in, type(own))
        for name in ("is_inverted", "p", "power", "normalize_embeddings"):
            assert getattr(stand_in, name) == getattr(own, name)
        assert stand_in.margin(3, 1) == own.margin(3, 1)
        assert torch.equal(stand_in.smallest_dist(matrix, dim=1)[0], own.smallest_dist(matrix, dim=1)[0])
        assert not isinstance(own, InjectedDistance)


def test_it_returns_the_matrix_untouched_by_those_who_write_into_it():
    matrix = torch.rand(3, 3, requires_grad=True)
    stand_in = inject(distances.LpDistance(), matrix)
    assert not stand_in.was_read
    stand_in(torch.rand(3, 2)).fill_diagonal_(7)
    assert stand_in.was_read
    assert torch.equal(stand_in(torch.rand(3, 2), torch.rand(3, 2)), matrix)


def test_some_rows_of_the_batch_are_found_by_their_values():
    x, y, matrix = torch.randn(5, 3), torch.randn(4, 3), torch.randn(5, 4)
    stand_in = inject(distances.LpDistance(), matrix, points=(x, y), two_sets=True)
    rows, columns = torch.tensor([4, 0, 4]), torch.tensor([2, 1])
    assert torch.equal(stand_in(x[rows], y[columns]), matrix[rows][:, columns])
    assert stand_in.was_read
    x[1], y[2] = torch.nan, y[0]  # nan is found, of identical rows the first
    assert torch.equal(stand_in(x[[1]], y[columns]), matrix[[1]][:, [0, 1]])
    with pytest.raises(ValueError, match=r"matrix of shape \(2, 2\).* or on some of its rows"):
        stand_in(x[:2] + 1, y[:2])


def test_a_matrix_between_two_sets_is_not_one_inside_a_set():
    stand_in, x = inject(distances.LpDistance(), torch.rand(3, 3), two_sets=True), torch.rand(3, 2)
    assert stand_in(x, torch.rand(3, 2)).shape == (3, 3)
    for ref in (None, x):
        with pytest.raises(ValueError, match="inside one set"):
            stand_in(x, ref)


def test_a_loss_computes_from_the_matrix_and_keeps_its_own_distance():
    x, labels = torch.randn(8, 4), torch.arange(8) // 2
    for loss in (losses.TripletMarginLoss(), losses.MultiSimilarityLoss(), losses.ContrastiveLoss()):
        own = loss.distance
        same = run_with_distance(loss, inject(own, own(x)), x, labels)
        assert torch.equal(same, loss(x, labels))
        other = torch.randn(8, 4)
        assert torch.equal(run_with_distance(loss, inject(own, own(other)), x, labels), loss(other, labels))
        assert loss.distance is own


class Raising(losses.TripletMarginLoss):
    def compute_loss(self, *args):
        self.calls = 1
        self.distance(args[0])
        raise RuntimeError("in the middle")


def test_an_exception_leaves_the_loss_as_it_was():
    loss, x = Raising(), torch.randn(4, 3)
    before = dict(vars(loss), _modules=dict(loss._modules))
    with pytest.raises(RuntimeError, match="in the middle"):
        run_with_distance(loss, inject(loss.distance, torch.rand(4, 4)), x, torch.arange(4) // 2)
    assert dict(vars(loss), _modules=dict(loss._modules)) == before


class Waiting(losses.ContrastiveLoss):
    barrier = threading.Barrier(2)

    def compute_loss(self, *args):
        self.barrier.wait(timeout=20)
        return super().compute_loss(*args)


def test_two_threads_each_get_their_own_matrix():
    x, labels = torch.randn(8, 4), torch.arange(8) // 2
    loss, plain = Waiting(), losses.ContrastiveLoss()
    matrices = [torch.rand(8, 8), torch.rand(8, 8)]
    found = {}

    def run(i):
        found[i] = run_with_distance(loss, inject(loss.distance, matrices[i]), x, labels)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, matrix in enumerate(matrices):
        assert torch.equal(found[i], run_with_distance(plain, inject(plain.distance, matrix), x, labels))
