"""Verification: do two images belong to one class? On scikit-learn's digits with raw pixels as embeddings.

Prints TAR at FAR with its threshold, equal error rate and accuracy in ten folds of 600 listed pairs, like LFW. The 3000
impostor pairs are too few for a FAR of 1e-4 (nan); all 1.6 million pairs of the set, or a stream of scores, are enough.
"""

import torch
from sklearn.datasets import load_digits

from pml_ext.functional import errors_at, labelled_pairs, pair_cosines, rate_interval
from pml_ext.metrics import StreamingVerification, VerificationEvaluator

FARS = (1e-1, 1e-2, 1e-3, 1e-4)
digits = load_digits()
labels = torch.tensor(digits.target)
embeddings = torch.tensor(digits.data, dtype=torch.float32)
embeddings -= embeddings.mean(dim=0)


def a_list(pairs_of_each_kind: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Indices of random pairs, alternately genuine and impostor."""
    i, j = torch.triu_indices(len(labels), len(labels), 1)
    same = labels[i] == labels[j]
    genuine, impostors = (
        kind.nonzero().squeeze(1)[torch.randperm(int(kind.sum()))[:pairs_of_each_kind]] for kind in (same, ~same)
    )
    chosen = torch.stack([genuine, impostors], dim=1).flatten()
    return i[chosen], j[chosen], same[chosen]


def shown(name: str, rates: dict[str, float]) -> None:
    tars = "".join(f"{rates[f'tar_at_far_1e-{n}']:>9.4f}" for n in range(1, 5))
    print(f"{name:<20}{tars}{rates['eer']:>9.4f}{rates['auc']:>9.4f}{rates['smallest_far']:>9.0e}")


torch.manual_seed(0)
evaluator = VerificationEvaluator(FARS, folds=10)
print("TAR at FAR              1e-1     1e-2     1e-3     1e-4      EER      AUC  smallest FAR")
a, b, same = a_list(3000)
listed = evaluator(embeddings[a], embeddings[b], same)
shown("6000 listed pairs", listed)
shown("all pairs", evaluator.of_all_pairs(embeddings, labels))

stream = StreamingVerification(FARS)
for scores, alike in labelled_pairs(embeddings, labels):
    stream.update(scores, alike)
shown("all pairs, streamed", stream.compute())
lower, upper = stream.bounds()["tar_at_far_1e-4"]
print(f"TAR at FAR 1e-4 of the stream: at least {lower:.6f}, at most {upper:.6f}")

print(f"accuracy in ten folds: {listed['accuracy']:.4f} ± {listed['accuracy_standard_error']:.4f}")
errors = errors_at(pair_cosines(embeddings, embeddings, a, b), same, listed["threshold_at_far_1e-2"])
low, high = rate_interval(errors.false_accepts, errors.impostors)
print(f"threshold {listed['threshold_at_far_1e-2']:.4f}: FAR {errors.far:.4f}, 95 % interval {low:.4f} to {high:.4f}")
