import math

import pytest
import torch
from torch import Tensor

from pml_ext.functional import tar_at_far
from pml_ext.metrics import ImagePairs, StreamingVerification, TemplatePairs, VerificationEvaluator
from tests.oracles import metrics as oracle_metrics
from tests.oracles import verification as oracle

RATES = ("auc", "eer", "eer_threshold", "smallest_far", "genuine", "impostors")
ACCURACIES = ("accuracy", "accuracy_std", "accuracy_standard_error")


def face_like_pairs(count: int = 200) -> tuple[Tensor, Tensor, Tensor]:
    same = torch.arange(count) % 2 == 0
    a = torch.randn(count, 8)
    return a, torch.where(same[:, None], a + torch.randn(count, 8), torch.randn(count, 8)), same


def scores_of(a: Tensor, b: Tensor) -> list[float]:
    return [oracle.cosine(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]


def test_pairs_equal_the_loops() -> None:
    a, b, same = face_like_pairs()
    a, b = a.double(), b.double()
    scores, kinds = scores_of(a, b), same.tolist()
    found = VerificationEvaluator(fars=(0.1, 0.025, 1e-3))(a, b, same)
    assert list(found) == [
        "tar_at_far_1e-1",
        "threshold_at_far_1e-1",
        "tar_at_far_2.5e-2",
        "threshold_at_far_2.5e-2",
        "tar_at_far_1e-3",
        "threshold_at_far_1e-3",
        *RATES,
        *ACCURACIES,
    ]
    for far, name in ((0.1, "1e-1"), (0.025, "2.5e-2")):
        assert found[f"tar_at_far_{name}"] == pytest.approx(oracle_metrics.tar_at_far(scores, kinds, far))
        accepted = [s >= found[f"threshold_at_far_{name}"] - 1e-12 for s in scores]
        assert sum(x for x, g in zip(accepted, kinds, strict=True) if not g) == int(far * 100)
    assert math.isnan(found["tar_at_far_1e-3"]) and math.isnan(found["threshold_at_far_1e-3"])
    assert found["smallest_far"] == 0.01
    assert found["auc"] == pytest.approx(oracle.auc(scores, kinds))
    assert found["eer"] == pytest.approx(oracle.equal_error_rate(scores, kinds))
    folds = oracle.fold_accuracies(scores, kinds, [i // 20 for i in range(200)])
    accuracies = torch.tensor([accuracy for accuracy, _ in folds], dtype=torch.float64)
    assert found["accuracy"] == pytest.approx(accuracies.mean().item())
    assert found["accuracy_std"] == pytest.approx(accuracies.std().item())
    assert found["accuracy_standard_error"] == pytest.approx(accuracies.std().item() / 10**0.5)
    assert (found["genuine"], found["impostors"]) == (100, 100)


def test_scale_and_rotation_of_embeddings_and_order_of_sides_change_nothing() -> None:
    a, b, same = face_like_pairs()
    a, b = a.double(), b.double()
    rotation = torch.linalg.qr(torch.randn(8, 8).double()).Q
    expected = VerificationEvaluator()(a, b, same)
    for x, y in ((3 * a, b / 7), (a @ rotation, b @ rotation), (b, a)):
        assert VerificationEvaluator()(x, y, same) == pytest.approx(expected, nan_ok=True)
    assert VerificationEvaluator()(a.requires_grad_(), b, same.tolist()) == pytest.approx(expected, nan_ok=True)


def test_a_list_of_image_pairs_in_its_folds() -> None:
    a, b, _ = face_like_pairs()
    same, folds = torch.arange(200) % 50 < 25, torch.arange(200) // 50  # fold by fold as LFW's: same first
    keys = tuple(f"a/{i}" for i in range(200)), tuple(f"b/{i}" for i in range(200))
    images = dict(zip(keys[0] + keys[1], torch.cat([a, b]), strict=True))
    pairs = ImagePairs(*keys, same, folds)
    expected = VerificationEvaluator()(a, b, same, fold_ids=folds)
    for lookup in (images, images.__getitem__):
        assert VerificationEvaluator().of_image_pairs(lookup, pairs) == pytest.approx(expected, nan_ok=True)
    one_fold = VerificationEvaluator().of_image_pairs(images, pairs._replace(fold_ids=0 * folds))
    assert one_fold == pytest.approx({k: v for k, v in expected.items() if k not in ACCURACIES}, nan_ok=True)
    del images["b/3"]
    with pytest.raises(ValueError, match=r"embeddings lacks 1 of the 400 images of the list: b/3$"):
        VerificationEvaluator().of_image_pairs(images, pairs)


def test_template_pairs_equal_the_loops() -> None:
    subjects, media = torch.arange(12).repeat_interleave(6), torch.randint(0, 2, (72,))
    x, templates = torch.randn(12, 8)[subjects].double() + torch.randn(72, 8), subjects * 2 + torch.arange(72) % 2
    vectors = oracle.templates(x.tolist(), templates.tolist(), media.tolist())
    first, second = torch.triu_indices(24, 24, 1)
    same = first // 2 == second // 2
    scores = [oracle.cosine(vectors[s], vectors[t]) for s, t in zip(first.tolist(), second.tolist(), strict=True)]
    found = VerificationEvaluator(fars=(1e-2,)).of_templates(x, templates, media, TemplatePairs(first, second, same))
    assert set(found).isdisjoint(ACCURACIES)
    assert found["tar_at_far_1e-2"] == pytest.approx(oracle_metrics.tar_at_far(scores, same.tolist(), 1e-2))
    assert found["auc"] == pytest.approx(oracle.auc(scores, same.tolist()))


def test_all_pairs_of_a_labelled_set() -> None:
    labels = torch.randint(0, 9, (120,))
    x = torch.randn(9, 5)[labels] + torch.randn(120, 5)
    i, j = torch.triu_indices(120, 120, 1)
    listed = VerificationEvaluator(folds=None)(x[i].double(), x[j].double(), labels[i] == labels[j])
    found = VerificationEvaluator().of_all_pairs(x.double(), labels)
    assert found == pytest.approx(listed, nan_ok=True, abs=2e-6)  # a threshold may be the edge of a bin
    for name in ("1e-1", "1e-2", "1e-3"):
        assert found[f"tar_at_far_{name}"] == listed[f"tar_at_far_{name}"]


def test_thresholds_in_16_bits_are_those_of_the_scores() -> None:
    same = torch.rand(500) < 0.5
    scores = (0.2 * torch.randn(500) + 0.4 * same).half()
    found = VerificationEvaluator((0.1,), folds=None).of_scores(scores, same)
    assert found["tar_at_far_1e-1"] == tar_at_far(scores, same, 0.1).item()
    assert (scores >= found["threshold_at_far_1e-1"])[same].double().mean() == found["tar_at_far_1e-1"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embeddings_b": torch.randn(199, 8)}, "embeddings_b must have the shape of embeddings_a"),
        ({"embeddings_b": torch.full((200, 8), torch.nan)}, "embeddings_b must be finite"),
        ({"same": torch.arange(200)}, "same must be bool of shape"),
        ({"same": torch.arange(200) < 100}, r"fold 0 has only genuine pairs \(20\)"),
    ],
)
def test_pairs_that_do_not_fit(change: dict[str, Tensor], message: str) -> None:
    a, b, same = face_like_pairs()
    with pytest.raises(ValueError, match=message):
        VerificationEvaluator()(**{"embeddings_a": a, "embeddings_b": b, "same": same, **change})


def test_settings_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"far must be in \(0, 1\]"):
        VerificationEvaluator(fars=(0.1, 1.5))
    with pytest.raises(ValueError, match="fars must differ"):
        StreamingVerification(fars=(0.1, 1e-1))
    with pytest.raises(ValueError, match="folds must be at least 2, or None"):
        VerificationEvaluator(folds=1)


def test_streamed_scores_are_within_their_bounds() -> None:
    same = torch.rand(100_000) < 0.2
    scores = 0.2 * torch.randn(100_000) + 0.4 * same
    fars = (1e-1, 1e-3, 1e-5)
    exact = VerificationEvaluator(fars, folds=None).of_scores(scores, same)
    halves = [StreamingVerification(fars), StreamingVerification(fars)]
    for half, part, kinds in zip(halves, scores.split(50_000), same.split(50_000), strict=True):
        for some, alike in zip(part.split(999), kinds.split(999), strict=True):
            half.update(some, alike)
    halves[0].merge(halves[1])
    found, bounds = halves[0].compute(), halves[0].bounds()
    assert set(found) == set(exact)
    for name, (lower, upper) in bounds.items():
        if not math.isnan(exact[name]):
            assert lower - 1e-12 <= exact[name] <= upper + 1e-12 < lower + 1e-3
            assert found[name] == lower if name.startswith("tar") else lower - 1e-12 <= found[name] <= upper + 1e-12
    assert math.isnan(found["tar_at_far_1e-5"]) and math.isnan(bounds["tar_at_far_1e-5"][0])
    threshold = torch.tensor(found["threshold_at_far_1e-3"], dtype=torch.float64)
    assert (scores >= threshold)[~same].double().mean() <= 1e-3
    assert (scores >= threshold)[same].double().mean().item() == pytest.approx(found["tar_at_far_1e-3"])
    halves[0].reset()
    with pytest.warns(UserWarning, match="are nan: there is no genuine pair and no impostor pair"):
        halves[0].bounds()
