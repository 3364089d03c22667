"""Every measurement names the argument that has NaN or another length."""

import pytest
import torch

from pml_ext import functional as F

X, Y, IDS = torch.eye(12, 4), torch.arange(12) % 3, torch.arange(12)
SCORES = {"scores": torch.linspace(0, 1, 12), "same": IDS % 2 == 0}
SET = {"embeddings": X, "labels": Y}
SEARCH = {"query": X, "query_labels": Y, "gallery": X, "gallery_labels": Y}
CALLS = {
    F.opis: SET,
    F.epsilon_opis: SET,
    F.utility_curves: SET,
    F.PairDistances: SET,
    F.labelled_pairs_roc: SET,
    F.identification: SET | {"gallery_size": 1, "threshold": 0.5},
    F.rank_matches: SEARCH,
    F.rerank: {"query": X, "gallery": X},
    F.expand_features: {"query": X, "gallery": X},
    F.spectral_variance: {"embeddings": X},
    F.embedding_spread: {"embeddings": X},
    F.roc_curve: SCORES,
    F.tar_at_far: SCORES | {"far": 0.1},
    F.errors_at: SCORES | {"thresholds": 0.5},
    F.fold_accuracy: SCORES | {"fold_ids": IDS // 6},
    F.ScoreHistogram().update: SCORES,
    F.template_embeddings: {"embeddings": X, "template_ids": Y, "media_ids": IDS},
    F.pair_cosines: {"embeddings": X, "ref_emb": X, "rows": IDS, "ref_rows": IDS},
}
CASES = [
    (call, name)
    for call, given in CALLS.items()
    for name, value in given.items()
    if isinstance(value, torch.Tensor) and name != "rows"
]


@pytest.mark.parametrize(("call", "name"), CASES, ids=lambda part: getattr(part, "__name__", part))
def test_nan_and_other_lengths_are_errors(call, name):
    value = CALLS[call][name]
    if value.is_floating_point():
        with pytest.raises(ValueError, match=f"{name} must be finite; got NaN or infinity in 12 of 12 rows"):
            call(**CALLS[call] | {name: value * torch.nan})
    else:
        with pytest.raises(ValueError, match=f"{name} must .*12"):
            call(**CALLS[call] | {name: value[1:]})
