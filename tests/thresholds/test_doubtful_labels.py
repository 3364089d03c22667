"""Label errors where the truth is known, and sets without any."""

import pytest
import torch

from pml_ext._shared.copies import find_copies, vector_keys
from pml_ext.thresholds import SampleSource
from pml_ext.thresholds.doubtful_labels import find_doubtful_labels


def people(seed, count=120, images=4, dim=48, spread=0.5, siblings=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(images * count) % count
    centres = torch.randn(count, dim, generator=generator)
    centres[:siblings] = 0.6 * centres[:siblings] + 0.8 * centres[siblings : 2 * siblings]
    points = centres[labels]
    return points + spread * torch.randn(len(labels), dim, generator=generator), labels, generator


def find(embeddings, labels):
    names, ids = torch.unique(labels, return_inverse=True)
    copies = find_copies(vector_keys(embeddings.double().numpy()))
    return find_doubtful_labels(embeddings, ids, names.tolist(), SampleSource(), copies)


@pytest.mark.parametrize("share", [0.05, 0.1])
@pytest.mark.parametrize("images", [2, 4, 8])
def test_wrong_labels_are_listed(images, share):
    embeddings, right, generator = people(0, images=images)
    wrong = torch.randperm(len(right), generator=generator)[: round(share * len(right))]
    labels = right.clone()
    labels[wrong] = right[wrong.roll(1)]
    doubtful, remaining = find(embeddings, labels)
    assert {one.kind for one in doubtful} <= {"wrong label", "two identities, one label"}
    is_wrong = labels != right
    assert int((is_wrong & ~remaining).sum()) >= 0.9 * int(is_wrong.sum())
    # Of a label with two images, either may be the wrong one; a label of many errors goes as a whole.
    assert int((~is_wrong & ~remaining).sum()) <= (1.2 if images == 2 else 0.7) * int(is_wrong.sum())
    told = [one for one in doubtful if one.kind == "wrong label" and bool(is_wrong[one.samples[0].row])]
    assert images == 2 or all(one.other == right[one.samples[0].row] for one in told)


@pytest.mark.parametrize("count", [1, 12])
def test_people_enrolled_twice_are_listed(count):
    embeddings, right, _ = people(1)
    is_second = (right < count) & (torch.arange(len(right)) >= 240)
    doubtful, remaining = find(embeddings, torch.where(is_second, right + 1000, right))
    assert {one.kind for one in doubtful} == {"one identity, two labels"} and len(doubtful) == count
    assert {frozenset((one.label, one.other)) for one in doubtful} == {frozenset((i, i + 1000)) for i in range(count)}
    assert int((~remaining).sum()) == 2 * count, "the half of the images with one of the two labels"


def test_labels_of_two_people_are_listed():
    embeddings, right, _ = people(2)
    labels = torch.where(right < 8, right // 2 * 2, right)
    doubtful, remaining = find(embeddings, labels)
    # One in twenty pairs of people is too much alike to be listed.
    listed = {one.label for one in doubtful}
    assert (
        listed <= {0, 2, 4, 6} and len(listed) >= 3 and {one.kind for one in doubtful} == {"two identities, one label"}
    )
    assert all(one.other is None and len(one.samples) == 8 for one in doubtful)
    assert set(labels[~remaining].tolist()) == listed


def test_copies_with_another_label_are_listed_even_in_small_sets():
    embeddings, labels, _ = people(3, count=4)
    embeddings[5], embeddings[4] = embeddings[2], embeddings[0]  # the second is a copy with the same label
    doubtful, remaining = find(embeddings, labels)
    assert [(one.kind, one.label, one.other) for one in doubtful] == [("copies", 1, 2)]
    assert [sample.row for sample in doubtful[0].samples] == [5, 2] and not remaining[[2, 5]].any()
    assert int(remaining.sum()) == 14


@pytest.mark.parametrize("images", [2, 4, 10])
@pytest.mark.parametrize("kind", ["clear", "hard", "crowded", "noise", "siblings", "uneven"])
def test_nothing_is_listed_in_clean_sets(kind, images):
    """Images and siblings that are hard to tell, and a matcher at chance, are not label errors."""
    dim, spread = {"hard": (32, 1.2), "crowded": (8, 0.6)}.get(kind, (48, 0.5))
    for seed in range(3):
        siblings = 20 if kind == "siblings" else 0
        embeddings, labels, generator = people(10 + seed, images=images, dim=dim, spread=spread, siblings=siblings)
        if kind == "noise":
            embeddings = torch.randn(embeddings.shape, generator=generator)
        if kind == "uneven":
            quality = torch.randn(len(labels), 1, generator=generator).exp()
            embeddings += 0.3 * quality * torch.randn(embeddings.shape, generator=generator)
        doubtful, remaining = find(embeddings, labels)
        assert doubtful == () and remaining.all(), seed
