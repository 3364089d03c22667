import numpy as np
import pytest
import torch
from pytest import approx

from pml_ext.functional import (
    cohort_offsets,
    labelled_pairs_roc,
    operating_point,
    opis,
    rank_matches_from_distances,
    tar_at_far,
)
from pml_ext.losses import TripletMarginLoss
from pml_ext.metrics import OPIS, AccuracyCalculator, CohortNormalization, GalleryCohort
from tests.oracles.identification import cosine
from tests.refusals import refusals


def offsets_by_loops(points, cohort, k, rows=None):
    found = []
    for i, point in enumerate(points.tolist()):
        scores = [cosine(point, other) for j, other in enumerate(cohort.tolist()) if rows is None or j != rows[i]]
        found.append(sum(sorted(scores)[-k:]) / k)
    return found


@pytest.mark.parametrize(
    ("dtype", "tolerance", "k", "samples"),
    [
        (torch.float64, 1e-12, 3, 333),  # found in groups
        (torch.float64, 1e-12, 1, 64),
        (torch.float64, 1e-12, 30, 30),
        (torch.float32, 1e-6, 4, 30),
        (torch.float16, 5e-3, 4, 30),
    ],
)
def test_offsets_and_scores_equal_the_loops(dtype, tolerance, k, samples):
    cohort, a, b = (torch.randn(n, 6, dtype=torch.float64) for n in (samples, 7, 5))
    cohort[1::2] = cohort[:1]  # many tie
    normalization = CohortNormalization.fit(cohort.to(dtype), k=k, strength=0.7)
    m_a, m_b = (offsets_by_loops(points, cohort, k) for points in (a, b))
    assert normalization.offsets(a.to(dtype)).tolist() == approx(m_a, abs=tolerance)
    expected = [
        [cosine(x, y) - 0.35 * (m + n) for y, n in zip(b.tolist(), m_b, strict=True)]
        for x, m in zip(a.tolist(), m_a, strict=True)
    ]
    found = normalization.scores(a.to(dtype), b.to(dtype))
    assert torch.allclose(found.double(), torch.tensor(expected, dtype=torch.float64), atol=2 * tolerance)


def test_samples_of_the_cohort_leave_themselves_out_in_blocks_of_any_size(monkeypatch):
    cohort, rows = torch.randn(20, 6, dtype=torch.float64), torch.tensor([3, 19, 0])
    expected = approx(offsets_by_loops(cohort[rows], cohort, 4, rows.tolist()), abs=1e-12)
    for entries in (1, 45, 2**20):
        monkeypatch.setattr("pml_ext.functional.retrieval.cohort._ENTRIES", entries)
        assert cohort_offsets(cohort[rows], cohort, 4, rows=rows).tolist() == expected


def test_a_similarity_of_pml_gives_the_scores_and_trains():
    normalization = CohortNormalization.fit(torch.randn(50, 8))
    assert (normalization.record.k, normalization.record.strength) == (10, 1)
    similarity = normalization.distance()
    a, b = torch.randn(12, 8), torch.randn(6, 8)
    assert similarity.is_inverted
    assert torch.allclose(similarity(a, b), normalization.scores(a, b), atol=1e-6)
    assert torch.allclose(
        similarity.pairwise_distance(*map(similarity.normalize, (b, b))), similarity(b).diag(), atol=1e-6
    )
    a.requires_grad_()
    TripletMarginLoss(distance=similarity)(a, torch.arange(12) % 3).backward()
    assert a.grad.isfinite().all() and a.grad.any()


COHORT, FITTED = torch.randn(10, 4), CohortNormalization.fit(torch.randn(10, 4), k=10)
TWO = torch.arange(10) % 2


REFUSED = [
    (
        lambda: CohortNormalization.fit(COHORT, k=11),
        "k must be from 1 to 10, .*got 11",
    ),
    (lambda: CohortNormalization.fit(COHORT, strength=-1), "strength must be in"),
    (
        lambda: FITTED.offsets(COHORT, rows=torch.arange(10)),
        "k must be from 1 to 9, .* own",
    ),
    (lambda: FITTED.offsets(COHORT[:, 1:]), "cohort must have the 3 columns .*: is it another model's"),
    (
        lambda: AccuracyCalculator(normalize="gallery"),
        "normalize must be a Cohort.* got str",
    ),
    (lambda: OPIS(normalize="gallery"), "normalize must be a Cohort.* got str"),
    (
        lambda: AccuracyCalculator(normalize=GalleryCohort(), label_comparison_fn=torch.ne),
        "normalize cannot be combined with label_comparison_fn",
    ),
    (lambda: CohortNormalization.tune(None, COHORT, TWO, ks=(10,)), "ks must have a number up to .*9, "),
    (lambda: CohortNormalization.tune(None, COHORT, TWO, far=1e-6), "1e-06 needs .* at least 1000000"),
]
test_what_does_not_fit_is_an_error = refusals(REFUSED)


def saved(folder, **options):
    weights = folder / "weights.pt"
    weights.write_bytes(b"weights")
    fitted = CohortNormalization.fit(torch.randn(30, 6), k=4, strength=0.7)
    fitted.save(folder / "cohort.npz", **options)
    return fitted, folder / "cohort.npz"


def test_a_saved_cohort_gives_the_same_scores_to_the_bit(tmp_path):
    fitted, path = saved(tmp_path)
    loaded = CohortNormalization.load(path)
    assert loaded.record == fitted.record and torch.equal(loaded.cohort, fitted.cohort)
    samples = torch.randn(5, 6)
    assert torch.equal(loaded.scores(samples, samples), fitted.scores(samples, samples))
    with np.load(path, allow_pickle=False) as arrays:  # any program can read it
        assert arrays["cohort"].shape == (30, 6) and '"k":4' in str(arrays["record"])


def test_a_cohort_is_bound_to_its_weights(tmp_path):
    weights, other = tmp_path / "weights.pt", tmp_path / "other.pt"
    other.write_bytes(b"other")
    _, path = saved(tmp_path, checkpoint=tmp_path / "weights.pt")
    assert CohortNormalization.load(path, checkpoint=weights).checkpoint is not None
    with pytest.raises(ValueError, match=r"is of the checkpoint weights.pt with .*: it is not this model's"):
        CohortNormalization.load(path, checkpoint=other)
    with pytest.warns(UserWarning, match="not compared with the model in use: pass checkpoint="):
        CohortNormalization.load(path)
    _, unbound = saved(tmp_path)
    with pytest.raises(ValueError, match="records no checkpoint to compare"):
        CohortNormalization.load(unbound, checkpoint=weights)


def test_other_and_changed_files_are_refused(tmp_path):
    fitted, path = saved(tmp_path)
    with np.load(path) as arrays:
        content = dict(arrays)
    changes = {
        "checksum differs": {"cohort": content["cohort"] + np.float32(1e-6)},
        "Invalid enum value": {"record": np.array(str(content["record"]).replace("normalization 1", "9"))},
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
    with pytest.raises(ValueError, match=r"a cohort is saved as \.npz; got cohort.bin"):
        fitted.save(tmp_path / "cohort.bin")


def test_a_cohort_of_another_kind_does_not_agree():
    """Samples crowd along one direction; a cohort that crowds along it knows, one along another does not."""
    generator = torch.Generator().manual_seed(0)

    def crowding(direction, count=300):
        along = 3 * torch.rand(count, 1, generator=generator) * torch.eye(16)[direction]
        return along + torch.randn(count, 16, generator=generator)

    samples = crowding(0)
    alike, other = (CohortNormalization.fit(crowding(direction), k=20) for direction in (0, 7))
    m = torch.stack([alike.offsets(samples), cohort_offsets(samples, samples, 20, rows=torch.arange(300))])
    assert alike.agreement(samples) == approx(float(torch.corrcoef(m)[0, 1]), abs=1e-5)
    assert alike.agreement(samples) > 0.75 > other.agreement(samples)
    assert torch.tensor(alike.agreement(samples[:1])).isnan()


NAMES = ("precision_at_1", "mean_average_precision_at_r", "reid_mean_average_precision", "cmc_rank_5", "opis")
RATE = "tar_at_far_1e-2"


def normalized(normalize, query, gallery, inside):
    """(Q, G) scores by the class itself."""
    if isinstance(normalize, CohortNormalization):
        return normalize.scores(query, gallery)
    rows = torch.arange(len(gallery))
    own = rows[: len(query)] if inside else None
    return normalize.fit(gallery).scores(query, gallery, rows_a=own, rows_b=rows)


def switches():
    return [GalleryCohort(k=15), CohortNormalization.fit(crowded(seed=1)[0], k=15, strength=0.7)]


@pytest.mark.filterwarnings("ignore:the cohort does not resemble")
@pytest.mark.parametrize(("which", "cameras"), [(0, False), (1, True)])
def test_the_calculator_ranks_and_decides_by_normalised_scores(which, cameras):
    normalize = switches()[which]
    embeddings, labels = crowded()
    query, gallery = embeddings[:120], embeddings[120:]
    seen_by = (torch.arange(300) // 60 % 2).split([120, 180]) if cameras else (None, None)
    calculator = AccuracyCalculator(include=(*NAMES, RATE), normalize=normalize)
    found = calculator.get_accuracy(
        query, labels[:120], gallery, labels[120:], query_cameras=seen_by[0], reference_cameras=seen_by[1]
    )
    scores = normalized(normalize, query, gallery, False)
    ranking = rank_matches_from_distances(
        -scores, labels[:120], labels[120:], query_cameras=seen_by[0], gallery_cameras=seen_by[1]
    )
    counted = ranking.matches > 0
    expected = {
        "precision_at_1": (ranking.first_match_rank == 1).double(),
        "mean_average_precision_at_r": ranking.average_precision_at_r,
        "reid_mean_average_precision": ranking.average_precision,
        "cmc_rank_5": (ranking.first_match_rank <= 5).double(),
    }
    for name, values in expected.items():
        assert found[name] == approx(float(values[counted].mean()), abs=1e-9), name
    # Pairs: queries and gallery together, whose offsets are those of the search.
    whole = torch.cat([query, gallery])
    fitted = normalize if isinstance(normalize, CohortNormalization) else normalize.fit(gallery)
    rows = None if fitted is normalize else torch.arange(180)
    half = 0.5 * fitted.strength * torch.cat([fitted.offsets(query), fitted.offsets(gallery, rows=rows)])
    assert found["opis"] == approx(float(opis(whole, labels, offsets=half)), rel=1e-5)
    one, other = torch.triu_indices(300, 300, 1)
    scores = torch.cosine_similarity(whole[one], whole[other]) - half[one] - half[other]
    assert found[RATE] == approx(float(tar_at_far(scores, labels[one] == labels[other], 1e-2)), abs=1e-3)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.filterwarnings("ignore:the cohort does not resemble")
def test_a_set_that_searches_itself(which):
    normalize = switches()[which]
    embeddings, labels = crowded()
    names = ("precision_at_1", "opis", "NMI")
    found, plain = (AccuracyCalculator(include=names, normalize=n).get_accuracy(*crowded()) for n in (normalize, None))
    scores = normalized(normalize, embeddings, embeddings, True)
    ranking = rank_matches_from_distances(-scores, labels, labels, gallery_includes_query=True)
    assert found["precision_at_1"] == float((ranking.first_match_rank == 1).double().mean())
    metric = OPIS(normalize=normalize)
    metric.update(embeddings, labels)
    assert found["opis"] == approx(metric.compute()["opis"], rel=1e-6)
    assert metric.sensitivity([(0.01, 0.1)])[0].opis == approx(found["opis"], rel=1e-6)
    assert plain["opis"] > 1.2 * found["opis"] and plain["NMI"] == approx(found["NMI"], abs=0.1)


def crowded(classes=60, each=5, seed=0):
    """Classes along a line into a crowded corner of the space."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes * each) % classes
    crowding = torch.linspace(0, 3, classes)[:, None] * torch.eye(1, 16)
    centres = torch.randn(classes, 16, generator=generator) + crowding
    return centres[labels] + 0.5 * torch.randn(len(labels), 16, generator=generator), labels


@pytest.mark.filterwarnings("ignore:the cohort does not resemble")
@pytest.mark.parametrize("own", [True, False])
def test_trials_say_what_opis_and_tar_are(own):
    embeddings, labels = crowded()
    cohort, rows = (None, torch.arange(300)) if own else (crowded(seed=1)[0], None)
    trials = CohortNormalization.tune(cohort, embeddings, labels, ks=(20, 5, 9999), strengths=(0.5, 1.0), far=1e-2)
    assert [(t.k, t.strength) for t in trials.trials] == [(5, 0.5), (5, 1.0), (20, 0.5), (20, 1.0)]
    for trial in (trials.plain, *trials.trials):
        m = cohort_offsets(embeddings, embeddings if own else cohort, trial.k, rows=rows)
        half = 0.5 * trial.strength * m
        assert trial.opis == approx(float(opis(embeddings, labels, offsets=half)), rel=1e-5)
        roc = labelled_pairs_roc(embeddings, labels, fars=(1e-2,), offsets=half)
        assert trial.tar == approx(float(operating_point(roc, 1e-2).tar), abs=2e-3)
    best = trials.best
    assert best.opis == min(t.opis for t in trials.trials if t.tar >= trials.plain.tar)
    assert trials.summary().startswith(f"recommended: k = {best.k}, strength = 1; OPIS")


def test_a_cohort_that_does_harm_is_not_recommended():
    embeddings, labels = crowded()
    even = embeddings - embeddings.mean(dim=0)
    far_away = torch.eye(16)[1:4].repeat(10, 1) * torch.linspace(0.5, 1, 30)[:, None] + torch.eye(16)[5]
    with pytest.warns(UserWarning, match="the cohort does not resemble the embeddings"):
        trials = CohortNormalization.tune(far_away, even, labels, ks=(5,), far=1e-2)
    assert trials.best is None
    assert trials.summary().startswith("not recommended, it does harm here; the most even trial was k = 5")
