from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from pml_ext.functional import cohort_offsets, opis
from pml_ext.functional.retrieval.cohort import offsets_for
from pml_ext.losses import TripletMarginLoss
from pml_ext.metrics import CohortNormalization
from tests.oracles.identification import cosine


def offsets_by_loops(points: Tensor, cohort: Tensor, k: int, rows: list[int] | None = None) -> list[float]:
    found = []
    for i, point in enumerate(points.tolist()):
        scores = [cosine(point, other) for j, other in enumerate(cohort.tolist()) if rows is None or j != rows[i]]
        found.append(sum(sorted(scores)[-k:]) / k)
    return found


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.float16, 5e-3)])
@pytest.mark.parametrize("k", [1, 4, 30])
def test_offsets_and_scores_equal_the_loops(dtype: torch.dtype, tolerance: float, k: int) -> None:
    cohort, a, b = (torch.randn(n, 6, dtype=torch.float64) for n in (30, 7, 5))
    normalization = CohortNormalization.fit(cohort.to(dtype), k=k, strength=0.7)
    m_a, m_b = (offsets_by_loops(points, cohort, k) for points in (a, b))
    assert normalization.offsets(a.to(dtype)).tolist() == pytest.approx(m_a, abs=tolerance)
    expected = [
        [cosine(x, y) - 0.35 * (m + n) for y, n in zip(b.tolist(), m_b, strict=True)]
        for x, m in zip(a.tolist(), m_a, strict=True)
    ]
    found = normalization.scores(a.to(dtype), b.to(dtype))
    assert torch.allclose(found.double(), torch.tensor(expected, dtype=torch.float64), atol=2 * tolerance)


@pytest.mark.parametrize("samples", [333, 64, 7])
@pytest.mark.parametrize("k", [1, 3, 7])
def test_the_highest_of_many_are_found_in_groups(samples: int, k: int) -> None:
    cohort, points = torch.randn(samples, 6, dtype=torch.float64), torch.randn(9, 6, dtype=torch.float64)
    cohort[1::2] = cohort[:1]  # many tie
    assert cohort_offsets(points, cohort, k).tolist() == pytest.approx(offsets_by_loops(points, cohort, k), abs=1e-12)
    for found, of in zip(offsets_for(points, cohort, (k, 2)), (k, 2), strict=True):
        assert found.tolist() == pytest.approx(offsets_by_loops(points, cohort, of), abs=1e-12)


def test_samples_of_the_cohort_leave_themselves_out_in_blocks_of_any_size() -> None:
    cohort, rows = torch.randn(20, 6, dtype=torch.float64), torch.tensor([3, 19, 0])
    expected = pytest.approx(offsets_by_loops(cohort[rows], cohort, 4, rows.tolist()), abs=1e-12)
    for entries in (1, 45, 2**20):
        assert cohort_offsets(cohort[rows], cohort, 4, rows=rows, entries=entries).tolist() == expected


def test_a_similarity_of_pml_gives_the_scores_and_trains() -> None:
    normalization = CohortNormalization.fit(torch.randn(50, 8), k=5)
    similarity = normalization.distance()
    a, b = torch.randn(12, 8), torch.randn(6, 8)
    assert similarity.is_inverted
    assert torch.allclose(similarity(a, b), normalization.scores(a, b), atol=1e-6)
    assert torch.allclose(
        similarity.pairwise_distance(*map(similarity.normalize, (b, b))), similarity(b).diag(), atol=1e-6
    )
    a.requires_grad_()
    TripletMarginLoss(distance=similarity)(a, torch.arange(12) % 3).backward()
    assert a.grad is not None and a.grad.isfinite().all() and a.grad.any()


def test_hubs_are_evened_out() -> None:
    """Classes in a crowded corner of the space have higher impostor cosines; the normalised score takes that away."""
    generator = torch.Generator().manual_seed(0)
    crowding = torch.linspace(0, 3, 40)[:, None] * torch.eye(1, 16)
    labels = torch.arange(400) % 40
    embeddings = (torch.randn(40, 16, generator=generator) + crowding)[labels] + 0.4 * torch.randn(
        400, 16, generator=generator
    )
    augmented = CohortNormalization.fit(embeddings, k=30)
    m = augmented.offsets(embeddings, rows=torch.arange(400))
    worst = []
    for scores in (
        torch.nn.functional.normalize(embeddings) @ torch.nn.functional.normalize(embeddings).T,
        augmented.scores(embeddings, embeddings, rows_a=torch.arange(400), rows_b=torch.arange(400)),
    ):
        different = labels[:, None] != labels
        threshold = scores[different].quantile(0.99)
        worst.append(max(float((scores[labels == c][:, labels != c] >= threshold).float().mean()) for c in range(40)))
    assert worst[1] < 0.7 * worst[0]
    assert m.std() > 0.05 and opis(embeddings, labels) > 0


def test_what_does_not_fit_is_an_error() -> None:
    cohort = torch.randn(10, 4)
    with pytest.raises(ValueError, match="k must be from 1 to 10, the samples of the cohort; got 11"):
        CohortNormalization.fit(cohort, k=11)
    normalization = CohortNormalization.fit(cohort, k=10)
    with pytest.raises(ValueError, match="k must be from 1 to 9, the samples of the cohort but the own one; got 10"):
        normalization.offsets(cohort, rows=torch.arange(10))
    with pytest.raises(ValueError, match="cohort must have the 3 columns of embeddings; got 4: is it another model's"):
        normalization.offsets(torch.randn(2, 3))
    with pytest.raises(ValueError, match=r"rows must have shape \(2,\)"):
        cohort_offsets(cohort[:2], cohort, 3, rows=torch.arange(3))
    with pytest.raises(ValueError, match="strength must be in"):
        CohortNormalization.fit(cohort, strength=-1)
    with pytest.raises(ValueError, match="side must be one of"):
        normalization.augment(cohort, "both")  # type: ignore[arg-type]


def saved(folder: Path, **options: object) -> tuple[CohortNormalization, Path]:
    weights = folder / "weights.pt"
    weights.write_bytes(b"weights")
    fitted = CohortNormalization.fit(torch.randn(30, 6), k=4, strength=0.7)
    fitted.save(folder / "cohort.npz", **options)
    return fitted, folder / "cohort.npz"


def test_a_saved_cohort_gives_the_same_scores_to_the_bit(tmp_path: Path) -> None:
    fitted, path = saved(tmp_path)
    loaded = CohortNormalization.load(path)
    assert loaded.record == fitted.record and torch.equal(loaded.cohort, fitted.cohort)
    samples = torch.randn(5, 6)
    assert torch.equal(loaded.scores(samples, samples), fitted.scores(samples, samples))
    with np.load(path, allow_pickle=False) as arrays:  # any program can read it
        assert arrays["cohort"].shape == (30, 6) and '"k":4' in str(arrays["record"])


def test_a_cohort_is_bound_to_its_weights(tmp_path: Path) -> None:
    weights, other = tmp_path / "weights.pt", tmp_path / "other.pt"
    other.write_bytes(b"other")
    _, path = saved(tmp_path, checkpoint=tmp_path / "weights.pt")
    assert CohortNormalization.load(path, checkpoint=weights).checkpoint is not None
    with pytest.raises(ValueError, match=r"is of the checkpoint weights.pt with .*: it is not this model's"):
        CohortNormalization.load(path, checkpoint=other)
    with pytest.warns(UserWarning, match="compared with nothing: give checkpoint="):
        CohortNormalization.load(path)
    _, unbound = saved(tmp_path)
    with pytest.raises(ValueError, match="names no checkpoint to compare"):
        CohortNormalization.load(unbound, checkpoint=weights)


def test_other_and_changed_files_are_refused(tmp_path: Path) -> None:
    fitted, path = saved(tmp_path)
    with np.load(path) as arrays:
        content = dict(arrays)
    changes = {
        "checksum is another": {"cohort": content["cohort"] + np.float32(1e-6)},
        "Invalid enum value": {"record": np.array(str(content["record"]).replace("normalization 1", "9"))},
        "Expected `float` <= 2": {"record": np.array(str(content["record"]).replace("0.7", "7"))},
        "k must be from 1 to 30": {"record": np.array(str(content["record"]).replace('"k":4', '"k":99'))},
        "allow_pickle": {"cohort": np.array([{}], dtype=object)},
    }
    for message, change in changes.items():
        np.savez(path, **(content | change))
        with pytest.raises(ValueError, match=message):
            CohortNormalization.load(path)
    for junk in (b"", b"PK\x03\x04junk", b"text"):
        path.write_bytes(junk)
        with pytest.raises(ValueError, match="is not a saved cohort normalization"):
            CohortNormalization.load(path)
    with pytest.raises(FileNotFoundError):
        CohortNormalization.load(tmp_path / "none.npz")
    with pytest.raises(ValueError, match=r"a cohort is saved as \.npz; got cohort.bin"):
        fitted.save(tmp_path / "cohort.bin")


def test_a_cohort_of_another_kind_does_not_agree() -> None:
    """Samples crowd along one direction; a cohort that crowds along it knows, one along another does not."""
    generator = torch.Generator().manual_seed(0)

    def crowding(direction: int, count: int = 300) -> Tensor:
        along = 3 * torch.rand(count, 1, generator=generator) * torch.eye(16)[direction]
        return along + torch.randn(count, 16, generator=generator)

    samples = crowding(0)
    alike, other = (CohortNormalization.fit(crowding(direction), k=20) for direction in (0, 7))
    m = torch.stack([alike.offsets(samples), cohort_offsets(samples, samples, 20, rows=torch.arange(300))])
    assert alike.agreement(samples) == pytest.approx(float(torch.corrcoef(m)[0, 1]), abs=1e-5)
    assert alike.agreement(samples) > 0.75 > other.agreement(samples)
    assert torch.tensor(alike.agreement(samples[:1])).isnan()
