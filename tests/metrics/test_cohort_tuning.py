"""Choosing k and strength on validation classes."""

import pytest
import torch
from torch import Tensor

from pml_ext.functional import cohort_offsets, labelled_pairs_roc, operating_point, opis
from pml_ext.metrics import CohortNormalization


def crowded(classes: int = 60, each: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Classes along a line into a crowded corner of the space."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes * each) % classes
    crowding = torch.linspace(0, 3, classes)[:, None] * torch.eye(1, 16)
    centres = torch.randn(classes, 16, generator=generator) + crowding
    return centres[labels] + 0.5 * torch.randn(len(labels), 16, generator=generator), labels


@pytest.mark.filterwarnings("ignore:the cohort is of another kind")
@pytest.mark.parametrize("own", [True, False])
def test_trials_say_what_opis_and_tar_are(own: bool) -> None:
    embeddings, labels = crowded()
    cohort = None if own else crowded(seed=1)[0]
    trials = CohortNormalization.tune(cohort, embeddings, labels, ks=(20, 5, 9999), strengths=(0.5, 1.0), far=1e-2)
    assert [(t.k, t.strength) for t in trials.trials] == [(5, 0.5), (5, 1.0), (20, 0.5), (20, 1.0)]
    rows = torch.arange(300) if own else None
    for trial in (trials.plain, *trials.trials):
        m = cohort_offsets(embeddings, embeddings if cohort is None else cohort, trial.k, rows=rows)
        half = 0.5 * trial.strength * m
        assert trial.opis == pytest.approx(float(opis(embeddings, labels, offsets=half)), rel=1e-5)
        roc = labelled_pairs_roc(embeddings, labels, fars=(1e-2,), offsets=half)
        assert trial.tar == pytest.approx(float(operating_point(roc, 1e-2).tar), abs=2e-3)
    best = trials.best
    assert best is not None and best.opis == min(t.opis for t in trials.trials if t.tar >= trials.plain.tar)
    assert trials.summary().startswith(f"recommended: k = {best.k}, strength = 1; OPIS")


def test_a_cohort_that_does_harm_is_not_recommended() -> None:
    embeddings, labels = crowded()
    even = embeddings - embeddings.mean(dim=0)
    far_away = torch.eye(16)[1:4].repeat(10, 1) * torch.linspace(0.5, 1, 30)[:, None] + torch.eye(16)[5]
    with pytest.warns(UserWarning, match="the cohort is of another kind than the embeddings, and may do harm"):
        trials = CohortNormalization.tune(far_away, even, labels, ks=(5,), far=1e-2)
    assert trials.best is None
    assert trials.summary().startswith("not recommended, it does harm here; the most even trial was k = 5")


def test_what_does_not_fit_is_an_error() -> None:
    embeddings, labels = crowded()
    with pytest.raises(ValueError, match="ks must have a number up to 299, the samples of the cohort"):
        CohortNormalization.tune(None, embeddings, labels, ks=(300,))
    with pytest.raises(ValueError, match=r"TAR at FAR 1e-06 needs genuine pairs and at least 1000000 impostor"):
        CohortNormalization.tune(None, embeddings, labels, far=1e-6)
    with pytest.raises(ValueError, match="needs genuine pairs"):
        CohortNormalization.tune(None, embeddings, torch.arange(300))
