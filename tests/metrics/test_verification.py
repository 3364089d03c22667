import math

import pytest
import torch
from pytest import approx
from sklearn.metrics import roc_auc_score

from pml_ext.functional import tar_at_far, template_embeddings
from pml_ext.metrics import ImagePairs, StreamingVerification, TemplatePairs, VerificationEvaluator
from tests.oracles import metrics as oracle_metrics
from tests.oracles import verification as oracle
from tests.refusals import refusals

ACCURACIES = ("accuracy", "accuracy_std", "accuracy_standard_error")


def face_like_pairs(count=200):
    same = torch.arange(count) % 2 == 0
    a = torch.randn(count, 8)
    return a, torch.where(same[:, None], a + torch.randn(count, 8), torch.randn(count, 8)), same


def scores_of(a, b):
    return [oracle.cosine(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]


def test_pairs_equal_the_loops():
    a, b, same = face_like_pairs()
    a, b = a.double(), b.double()
    scores, kinds = scores_of(a, b), same.tolist()
    found = VerificationEvaluator(fars=(0.1, 0.025, 1e-3))(3 * a.requires_grad_(), b / 7, same.tolist())
    for far, name in ((0.1, "1e-1"), (0.025, "2.5e-2")):
        assert found[f"tar_at_far_{name}"] == approx(oracle_metrics.tar_at_far(scores, kinds, far))
        accepted = [s >= found[f"threshold_at_far_{name}"] - 1e-12 for s in scores]
        assert sum(x for x, g in zip(accepted, kinds, strict=True) if not g) == int(far * 100)
    assert math.isnan(found["tar_at_far_1e-3"]) and math.isnan(found["threshold_at_far_1e-3"])
    assert found["smallest_far"] == 0.01
    assert found["auc"] == approx(roc_auc_score(kinds, scores))
    assert found["eer"] == approx(oracle.equal_error_rate(scores, kinds))
    folds = oracle.fold_accuracies(scores, kinds, [i // 20 for i in range(200)])
    accuracies = torch.tensor([accuracy for accuracy, _ in folds], dtype=torch.float64)
    assert found["accuracy"] == approx(accuracies.mean().item())
    assert found["accuracy_std"] == approx(accuracies.std().item())
    assert found["accuracy_standard_error"] == approx(accuracies.std().item() / 10**0.5)
    assert (found["genuine"], found["impostors"]) == (100, 100)


def test_a_list_of_image_pairs_in_its_folds():
    a, b, _ = face_like_pairs()
    same, folds = torch.arange(200) % 50 < 25, torch.arange(200) // 50  # fold by fold as LFW's: same first
    keys = tuple(f"a/{i}" for i in range(200)), tuple(f"b/{i}" for i in range(200))
    images = dict(zip(keys[0] + keys[1], torch.cat([a, b]), strict=True))
    pairs = ImagePairs(*keys, same, folds)
    expected = VerificationEvaluator()(a, b, same, fold_ids=folds)
    for lookup in (images, images.__getitem__):
        assert VerificationEvaluator().of_image_pairs(lookup, pairs) == approx(expected, nan_ok=True)
    one_fold = VerificationEvaluator().of_image_pairs(images, pairs._replace(fold_ids=0 * folds))
    assert one_fold == approx({k: v for k, v in expected.items() if k not in ACCURACIES}, nan_ok=True)
    del images["b/3"]
    with pytest.raises(ValueError, match=r"embeddings lacks 1 of the 400 images of the list: b/3$"):
        VerificationEvaluator().of_image_pairs(images, pairs)


def test_template_pairs_are_scored_like_others():
    """The templates' values are in tests/functional/verification/test_templates.py."""
    subjects, media = torch.arange(12).repeat_interleave(6), torch.randint(0, 2, (72,))
    x, templates = torch.randn(12, 8)[subjects] + torch.randn(72, 8), subjects * 2 + torch.arange(72) % 2
    first, second = torch.triu_indices(24, 24, 1)
    pairs = TemplatePairs(first, second, first // 2 == second // 2)
    vectors = template_embeddings(x, templates, media).embeddings
    scores = (vectors[first] * vectors[second]).sum(dim=1)
    expected = VerificationEvaluator(fars=(1e-2,), folds=None).of_scores(scores, pairs.same)
    found = VerificationEvaluator(fars=(1e-2,)).of_templates(x, templates, media, pairs)
    assert found == approx(expected, rel=1e-5)


def test_all_pairs_of_a_labelled_set():
    labels = torch.randint(0, 9, (120,))
    x = torch.randn(9, 5)[labels] + torch.randn(120, 5)
    i, j = torch.triu_indices(120, 120, 1)
    listed = VerificationEvaluator(folds=None)(x[i].double(), x[j].double(), labels[i] == labels[j])
    found = VerificationEvaluator().of_all_pairs(x.double(), labels)
    assert found == approx(listed, nan_ok=True, abs=2e-6)  # a threshold may be the edge of a bin
    for name in ("1e-1", "1e-2", "1e-3"):
        assert found[f"tar_at_far_{name}"] == listed[f"tar_at_far_{name}"]


def test_thresholds_in_16_bits_are_those_of_the_scores():
    same = torch.rand(500) < 0.5
    scores = (0.2 * torch.randn(500) + 0.4 * same).half()
    found = VerificationEvaluator((0.1,), folds=None).of_scores(scores, same)
    assert found["tar_at_far_1e-1"] == tar_at_far(scores, same, 0.1).item()
    assert (scores >= found["threshold_at_far_1e-1"])[same].double().mean() == found["tar_at_far_1e-1"]


REFUSED = [
    ({"embeddings_b": torch.randn(199, 8)}, "embeddings_b must have the shape of embeddings_a"),
    ({"embeddings_b": torch.full((200, 8), torch.nan)}, "embeddings_b must be finite"),
    ({"same": torch.arange(200)}, "same must be bool of shape"),
    ({"same": torch.arange(200) < 100}, r"fold 0 has only genuine pairs \(20\)"),
]


def of_face_like_pairs(**wrong):
    a, b, same = face_like_pairs()
    VerificationEvaluator()(**({"embeddings_a": a, "embeddings_b": b, "same": same} | wrong))


test_pairs_that_do_not_fit = refusals(REFUSED, of=of_face_like_pairs)


def test_settings_that_do_not_fit():
    with pytest.raises(ValueError, match=r"far must be in \(0, 1\]"):
        VerificationEvaluator(fars=(0.1, 1.5))
    with pytest.raises(ValueError, match="fars must differ"):
        StreamingVerification(fars=(0.1, 1e-1))
    with pytest.raises(ValueError, match="folds must be at least 2, or None"):
        VerificationEvaluator(folds=1)


def test_streamed_scores_are_within_their_bounds():
    same = torch.rand(20_000) < 0.2
    scores = 0.2 * torch.randn(20_000) + 0.4 * same
    fars = (1e-1, 1e-3, 1e-5)
    exact = VerificationEvaluator(fars, folds=None).of_scores(scores, same)
    streaming = StreamingVerification(fars)
    for part, kinds in zip(scores.split(999), same.split(999), strict=True):
        other = StreamingVerification(fars)
        other.update(part, kinds)
        streaming.merge(other)
    found, bounds = streaming.compute(), streaming.bounds()
    assert found.keys() == exact.keys()
    for name, (lower, upper) in bounds.items():
        if math.isnan(exact[name]):
            assert math.isnan(found[name]) and math.isnan(lower)
        else:
            assert lower - 1e-12 <= exact[name] <= upper + 1e-12 < lower + 1e-3
            assert found[name] == lower if name.startswith("tar") else lower - 1e-12 <= found[name] <= upper + 1e-12
    streaming.reset()
    with pytest.warns(UserWarning, match="are nan: there is no genuine pair and no impostor pair"):
        streaming.bounds()
