"""Open-set identification by loops: every gallery of N identities is enumerated."""

from itertools import combinations
from math import inf, sqrt

from tests.oracles.verification import cosine


def identification(
    embeddings,
    labels,
    gallery_size,
    threshold,
    rank=1,
    cameras=None,
    template="best",
):
    """FPIR, FNIR and selectivity, each the mean over probes of the mean over all galleries."""
    identities = sorted(set(labels))
    positives, misses, reported = [], [], []
    for i, (probe, own) in enumerate(zip(embeddings, labels, strict=True)):
        score = dict.fromkeys(identities, -inf)
        for label in identities:
            enrolled = [
                sample
                for j, sample in enumerate(embeddings)
                if labels[j] == label and (label != own or (i != j if cameras is None else cameras[i] != cameras[j]))
            ]
            if enrolled and template == "mean":
                units = [[x / sqrt(sum(y * y for y in sample)) for x in sample] for sample in enrolled]
                score[label] = cosine(probe, [sum(column) for column in zip(*units, strict=True)])
            elif enrolled:
                score[label] = max(cosine(probe, sample) for sample in enrolled)
        others = [label for label in identities if label != own]
        galleries = list(combinations(others, gallery_size))
        hits = [sum(score[label] >= threshold for label in gallery) for gallery in galleries]
        positives.append(sum(hit > 0 for hit in hits) / len(galleries))
        reported.append(sum(hits) / len(galleries))
        if score[own] > -inf:
            galleries = list(combinations(others, gallery_size - 1))
            missed = 0
            for gallery in galleries:
                before = sum(score[label] >= score[own] for label in gallery)
                missed += score[own] < threshold or before >= rank
            misses.append(missed / len(galleries))
    mean = lambda values: sum(values) / len(values) if values else float("nan")  # noqa: E731
    return mean(positives), mean(misses), mean(reported)
